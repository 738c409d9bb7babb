// The intra role: one warpgroup makes L and Mqk of a chunk, inverts I + L and finishes F.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/item.cuh"
#include "cuda/sm90/load.cuh"
#include "cuda/sm90/measure.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/scores.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// What warp 0 or 1 has of the diagonal blocks of 8 of L to where one warp inverts them, and in fp16 what stands between
// its two: its rows 8..15, columns 2 t and the next.
__device__ __forceinline__ uint32_t put_L(Scratch& scratch, const float (&d)[16], int buffer, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  float(&L)[4][kBlockFloats] = scratch.L[buffer];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int at = (2 * t + e) * kBlockRow + g;
    L[2 * warp][at] = warp == 0 ? d[e] : d[8 + e];
    L[2 * warp + 1][at] = warp == 0 ? d[6 + e] : d[14 + e];
  }
  return warp == 0 ? pack_fp16(d[2], d[3]) : pack_fp16(d[10], d[11]);
}

// Lane 8 n + j gets column j of the inverse of I + L's diagonal block n, by substitution in fp32: docs/algorithm.md,
// eq. 21.
__device__ __forceinline__ void invert_blocks(const float (&L)[4][kBlockFloats], float (&x)[8], int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = i == lane % 8 ? 1.0f : 0.0f;
#pragma unroll
  for (int j = 0; j < 7; ++j) {
    float below[8];
#pragma unroll
    for (int i = (j + 1) / 4 * 4; i < 8; i += 4) {
      *reinterpret_cast<float4*>(&below[i]) = *reinterpret_cast<const float4*>(&L[lane / 8][j * kBlockRow + i]);
    }
#pragma unroll
    for (int i = j + 1; i < 8; ++i) x[i] -= below[i] * x[j];
  }
}

// T = (I + L)^-1 by warp 1: its four diagonal blocks in fp32, what is left of them by T21 = -(T22 L21) T11 in fp16 with
// fp32 sums, first of 8, then of 16. What overflows there is NaN. below_0, below_1: put_L's of warps 0 and 1; d: warp
// 1's rows of L.
template <int kSlices>
__device__ __forceinline__ void put_T(Stage<kSlices>& stage, Scratch& scratch, int buffer, uint32_t below_0,
                                      uint32_t below_1, const float (&d)[16], int lane) {
  const int g = lane / 4, t = lane % 4;
  const auto put = [&](int row, int unit, int place, uint32_t x) {
    *reinterpret_cast<uint32_t*>(&stage.T[row][unit_128(row, unit) + place * 4]) = x;
  };
  float x[8];
  invert_blocks(scratch.L[buffer], x, lane);
#pragma unroll
  for (int i = 0; i < 8; ++i) put(lane / 8 * 8 + i, lane / 8 * 2 + lane % 2, lane % 8 / 2, rounded_by_the_cut(x[i]));
  // Column by column in fp16; as operand B as it is, as operand A turned.
  ptx::store_shared(ptx::shared_address(&scratch.T8[lane][0]), pack_fp16(x[0], x[1]), pack_fp16(x[2], x[3]),
                    pack_fp16(x[4], x[5]), pack_fp16(x[6], x[7]));
  __syncwarp();
  uint32_t B[4], A[4];
  ptx::ldmatrix_x4(B, ptx::shared_address(&scratch.T8[lane][0]));
  ptx::ldmatrix_x4_trans(A, ptx::shared_address(&scratch.T8[lane][0]));

  // Both 16 x 16 blocks at once, as the two diagonal blocks of a product.
  float p[4] = {}, q[4] = {};
  ptx::mma_m16n8k16_fp16(p, {A[1], 0, 0, A[3]}, ptx::movmatrix_trans(below_0), ptx::movmatrix_trans(below_1));
  ptx::mma_m16n8k16_fp16(q, {pack_fp16(p[0], p[1]), 0, 0, pack_fp16(p[2], p[3])}, B[0], B[2]);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    put(8 + g, e, t, rounded_by_the_cut_or_nan(-q[e]));
    put(24 + g, 4 + e, t, rounded_by_the_cut_or_nan(-q[2 + e]));
  }
  const uint32_t lower_0 = pack_fp16(-q[0], -q[1]), lower_1 = pack_fp16(-q[2], -q[3]);

  float z[2][4] = {}, y[2][4] = {};
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    ptx::mma_m16n8k16_fp16(z[n], {A[2], lower_1, 0, A[3]}, ptx::movmatrix_trans(pack_fp16(d[4 * n], d[4 * n + 1])),
                           ptx::movmatrix_trans(pack_fp16(d[4 * n + 2], d[4 * n + 3])));
  }
  const uint32_t a[4] = {pack_fp16(z[0][0], z[0][1]), pack_fp16(z[0][2], z[0][3]), pack_fp16(z[1][0], z[1][1]),
                         pack_fp16(z[1][2], z[1][3])};
  ptx::mma_m16n8k16_fp16(y[0], a, B[0], ptx::movmatrix_trans(lower_0));
  ptx::mma_m16n8k16_fp16(y[1], a, 0, B[1]);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) put(kHalf + g + e / 2 * 8, 2 * n + e % 2, t, rounded_by_the_cut_or_nan(-y[n][e]));
  }
}

// Rows of Mqk by warp 2 or 3. Diagonal entries are in the tile already, exact.
template <int kSlices>
__device__ __forceinline__ void put_M(Stage<kSlices>& stage, float (&d)[16], int warp, int lane) {
  const int g = lane / 4, t = lane % 4, first = warp % 2 * kHalf;
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // (i, i) of these rows is in the columns of the warp's own block
    const float exact = product_of(stage, first + g + 8 * half);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (2 * t + e == g) (warp == 2 ? d[6 * half + e] : d[8 + 6 * half + e]) = exact;
    }
  }
  __syncwarp();
  put_scores(stage.M, d, first, 0, warp == 2, lane);
  if (warp == 3) put_scores(stage.M, d + 8, first, kHalf, true, lane);
}

// What takes two channels from the last chunk's frame to this one's. aside: 2^(-32 c); tail: their bits from the last
// anchor on.
template <int kSlices>
__device__ __forceinline__ void put_F(Stage<kSlices>& stage, float aside, int channel, float2& tail) {
  const float2 head = *reinterpret_cast<const float2*>(&stage.head[channel]);
  // By two factors neither of which underflows.
  const float x = ptx::exp2_approx(0.5f * (head.x + tail.x)), y = ptx::exp2_approx(0.5f * (head.y + tail.y));
  tail = *reinterpret_cast<const float2*>(&stage.tail[channel]);
  *reinterpret_cast<float2*>(&stage.F[frame_place(channel)]) = make_float2(x * aside * x, y * aside * y);
}

// T and Mqk of a chunk whose rows are prepared, by the warpgroup. constant: what read and write scales together are
// short of, the decay that was set aside.
template <int kSlices>
__device__ __forceinline__ void solve_chunk(Stage<kSlices>& stage, Scratch& scratch, int buffer, float constant,
                                            int warp, int lane) {
  const int g = lane / 4, t = lane % 4, first = warp % 2 * kHalf;
  float d[16];
  ptx::wgmma_begin(d);
  multiply_scores(stage.x, d);
  ptx::wgmma_commit();
  const Scales& scales = stage.scales;
  const float* const read = warp < 2 ? scales.read_k : scales.read_q;
  const float low = constant * read[first + g], high = constant * read[first + g + 8];
  float2 write[4];
#pragma unroll
  for (int octet = 0; octet < 4; ++octet) {
    write[octet] = *reinterpret_cast<const float2*>(&scales.write[8 * octet + 2 * t]);
  }
  ptx::wgmma_wait<0>(d);
  if (warp < 2) {
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
      d[4 * octet] *= write[octet].x * low;
      d[4 * octet + 1] *= write[octet].y * low;
      d[4 * octet + 2] *= write[octet].x * high;
      d[4 * octet + 3] *= write[octet].y * high;
    }
    const uint32_t below = put_L(scratch, d, buffer, warp, lane);
    if (warp == 0) scratch.below[buffer][lane] = below;
    ptx::named_barrier<64>(2);
    if (warp == 1) put_T(stage, scratch, buffer, scratch.below[buffer][lane], below, d, lane);
  } else {
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
      d[4 * octet] *= low;
      d[4 * octet + 1] *= low;
      d[4 * octet + 2] *= high;
      d[4 * octet + 3] *= high;
    }
    put_M(stage, d, warp, lane);
  }
}

template <typename V>
__device__ __forceinline__ void run_intra(Shared<V>& shared, const FusedParams& p, const Item& item, int column,
                                          int rank) {
  const int warp = uniform_warp();
  Scratch& scratch = shared.scratch;
  const float centred = centre(p.lower_bound), aside = ptx::exp2_approx(-kChunk * centred);
  // Read and write scales together are short of the decay that was set aside by a constant.
  const float constant = aside / (warp < 2 ? kUncut : 1.0f);
  // Bits from the last chunk's anchor to its end, warps 2 and 3: channels 2 (thread - 64) and the next. The first state
  // comes in no frame.
  float2 tail = make_float2(kHalf * centred, kHalf * centred);
  constexpr int kRing = V::kStages;
  constexpr bool kShared = V::kSharers > 1;
  for (int c = rank; c < item.chunks; c += V::kSharers) {
    const int s = kShared ? __shfl_sync(0xffffffffu, c % kRing, 0) : c % kRing, buffer = c / V::kSharers % 2;
    Stage<V::kSlices>& stage = shared.stages[s];
    const int lane = ptx::opaque(threadIdx.x % 32);
    const uint32_t turn = c / V::kOwnPeriod & 1;
    ptx::barrier_wait(shared.columns[s], turn);
    solve_chunk(stage, scratch, buffer, constant, warp, lane);
    if (warp >= 2) {
      const int channel = 2 * (lane + (warp - 2) * 32);
      if constexpr (kShared) {
        if (c > 0) {
          const int before = (c - 1) % kRing;
          ptx::barrier_wait(shared.bits[before], (c - 1) / V::kOwnPeriod & 1);
          tail = *reinterpret_cast<const float2*>(&shared.stages[before].tail[channel]);
        }
      }
      put_F(stage, aside, channel, tail);
    }
    ptx::async_proxy_fence();
    ptx::barrier_arrive(shared.full[s]);
    if constexpr (kShared) {
      __syncwarp();
      if (lane < V::kSharers && lane != rank) {  // what the warp has written, by a lane for each block
        if (warp == 1) send(stage.T, sizeof(stage.T), shared.full[s], lane);
        if (warp >= 2) {
          send(stage.M[warp % 2 * kHalf], sizeof(stage.M) / 2, shared.full[s], lane);
          send(&stage.F[(warp - 2) * (D / 2)], sizeof(stage.F) / 2, shared.full[s], lane);
        }
      }
    }
    if (warp == 0 && lane == 0) {
      const auto room_for = [&](int copied) {
        if (copied >= item.chunks) return false;
        if (copied >= kRing) ptx::barrier_wait(shared.empty[copied % kRing], (copied / kRing - 1) & 1);
        return true;
      };
      int copied = c + V::kCopiedAhead;
      if constexpr (kShared) {
        static_assert(V::kSharers == 2 && V::kCopiedAhead % 2 == 1, "the other block's chunk, then an own one");
        if (room_for(copied)) load_foreign(shared, p, item, copied, column);
        ++copied;
        ptx::barrier_wait(shared.full[s], c / kRing & 1);  // warps 2 and 3 have read the tail that lies there
      }
      if (room_for(copied)) load(shared, copied % kRing, p, item, copied, column, true);
    }
    __syncwarp();
  }
}

}  // namespace flashkda::cuda::sm90
