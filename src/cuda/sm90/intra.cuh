// The intra role: one warpgroup makes L and Mqk of a chunk, inverts I + L and finishes F.
#pragma once

#include <cuda_fp16.h>

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/load.cuh"
#include "cuda/sm90/measure.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/scalars.cuh"
#include "cuda/sm90/scores.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// A column of a diagonal block of T, and in fp16 for the product below. Lanes 0..15.
template <int kSlices>
__device__ __forceinline__ void put_column(Stage<kSlices>& stage, uint16_t (&half)[kHalf][kHalf],
                                           const float (&x)[kHalf], int block, int column) {
  const int place = token_place(block * kHalf + column);
  uint32_t narrow[kHalf / 2];
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const int row = block * kHalf + i;
    *reinterpret_cast<uint32_t*>(&stage.T[row][unit_128(row, place / 4) + place % 4 * 4]) = rounded_by_the_cut(x[i]);
    if (i % 2 == 1) narrow[i / 2] = pack_fp16(x[i - 1], x[i]);
  }
  const uint32_t to = ptx::shared_address(&half[column][0]);
  ptx::store_shared(to, narrow[0], narrow[1], narrow[2], narrow[3]);
  ptx::store_shared(to + 16, narrow[4], narrow[5], narrow[6], narrow[7]);
}

// D [16 x 16] = A B of fp16, fp32 inside. b: inner 0-7 columns 0-7, inner 8-15 columns 0-7, then columns 8-15.
__device__ __forceinline__ void multiply(float (&d)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) d[0][e] = d[1][e] = 0.0f;
  ptx::mma_m16n8k16_fp16(d[0], a, b[0], b[1]);
  ptx::mma_m16n8k16_fp16(d[1], a, b[2], b[3]);
}

// The diagonal block of L of warp 0 or 1, transposed, and for warp 1 the one left of it.
__device__ __forceinline__ void put_L(Scratch& scratch, const float (&d)[16], int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  float(&L)[kHalf][20] = scratch.L[warp];
#pragma unroll
  for (int octet = 0; octet < 2; ++octet) {
    const int j = 8 * octet + 2 * t;
#pragma unroll
    for (int e = 0; e < 4; ++e) L[j + e % 2][g + e / 2 * 8] = warp == 0 ? d[4 * octet + e] : d[8 + 4 * octet + e];
    if (warp == 1) {
      *reinterpret_cast<uint32_t*>(&scratch.L21[g][j]) = pack_fp16(d[4 * octet], d[4 * octet + 1]);
      *reinterpret_cast<uint32_t*>(&scratch.L21[g + 8][j]) = pack_fp16(d[4 * octet + 2], d[4 * octet + 3]);
    }
  }
  __syncwarp();
}

// T from the columns x of the inverses of the diagonal blocks, by warps 0 and 1.
template <int kSlices>
__device__ __forceinline__ void put_T(Stage<kSlices>& stage, Scratch& scratch, int c, const float (&x)[kHalf], int warp,
                                      int lane) {
  if (lane < kHalf) put_column(stage, warp == 0 ? scratch.T11[c % 2] : scratch.T22, x, warp, lane);
  __syncwarp();
  // T21 = -(T22 L21) T11.
  float z[2][4];
  uint32_t a[4], b[4];
  const int line = lane % 8 + lane / 16 * 8, half = lane / 8 % 2 * 8;
  if (warp == 1) {
    ptx::ldmatrix_x4_trans(a, ptx::shared_address(&scratch.T22[line][half]));
    ptx::ldmatrix_x4_trans(b, ptx::shared_address(&scratch.L21[lane % 16][lane / 16 * 8]));
    multiply(z, a, b);
    a[0] = pack_fp16(z[0][0], z[0][1]);
    a[1] = pack_fp16(z[0][2], z[0][3]);
    a[2] = pack_fp16(z[1][0], z[1][1]);
    a[3] = pack_fp16(z[1][2], z[1][3]);
  }
  ptx::named_barrier<64>(2);  // T11 is there
  if (warp == 1) {
    ptx::ldmatrix_x4(b, ptx::shared_address(&scratch.T11[c % 2][line][half]));
    multiply(z, a, b);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = kHalf + lane / 4 + e % 4 / 2 * 8, place = token_place(e / 4 * 8 + 2 * (lane % 4) + e % 2);
      *reinterpret_cast<uint32_t*>(&stage.T[row][unit_128(row, place / 4) + place % 4 * 4]) =
          rounded_by_the_cut(-z[e / 4][e % 4]);
    }
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

// What takes two channels from the last chunk's frame to this one's. tail: their bits from the last anchor on.
template <int kSlices>
__device__ __forceinline__ void put_F(Stage<kSlices>& stage, float between, int channel, float2& tail) {
  const float2 head = *reinterpret_cast<const float2*>(&stage.F[channel]);
  // By two factors neither of which underflows.
  const float x = ptx::exp2_approx(0.5f * (head.x + tail.x)), y = ptx::exp2_approx(0.5f * (head.y + tail.y));
  tail = *reinterpret_cast<const float2*>(&stage.tail[channel]);
  __syncwarp();  // 16 channels change places among themselves
  *reinterpret_cast<float2*>(&stage.F[frame_place(channel)]) = make_float2(x * between * x, y * between * y);
}

template <int kSlices>
__device__ __forceinline__ void run_intra(Shared<kSlices>& shared, const FusedParams& p, const Item& item, int column) {
  // Two slices' columns have no time to measure their rows.
  constexpr bool kMeasures = kSlices == 2;
  const int warp = uniform_warp();
  Scratch& scratch = shared.scratch;
  const float centred = centre(p.lower_bound), between = ptx::exp2_approx(-kChunk * centred);
  // Read and write scales together are short of the decay that was set aside by a constant.
  const float constant = between / (warp < 2 ? kUncut * kUncut * kUncut : kUncut * kUncut);
  // Bits from the last anchor to the last chunk's end, warps 2 and 3: channels 2 (thread - 64) and the next. The first
  // state comes in no frame.
  float2 tail = make_float2(kHalf * centred, kHalf * centred);
  Scalars scalars(p, threadIdx.x % 32);  // warp 3
  const auto finish = [&](int c, int lane) {
    const float b = scalars.take_b(p, item, c, lane);
    scalars.ask_for_b(p, item, c + 1, lane);
    // A warp can be a chunk ahead of this one, not two.
    ptx::named_barrier<128>(3 + (c & 1));
    finish_lengths(shared.stages[c % kStages], shared.scales[c % kStages], shared.shrink[c % kStages], scalars.frame,
                   p.scale, b, lane);
    ptx::barrier_arrive(shared.measured[c % kStages]);
  };

  // The role measures two chunks ahead of what it solves and has copies made three ahead.
  if (kMeasures && warp == 3) scalars.ask_for_b(p, item, 0, threadIdx.x % 32);
#pragma unroll 1
  for (int c = 0; kMeasures && c < min(item.chunks, 2); ++c) {
    const int lane = ptx::opaque(threadIdx.x % 32);
    float lengths[32];
    ptx::barrier_wait(shared.raw[c], 0);
    ptx::wgmma_begin(lengths);
    multiply_rows(shared.stages[c].x, lengths);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(lengths);
    put_lengths(shared.stages[c], shared.scales[c], lengths, warp, lane);
    if (warp == 3) {
      finish(c, lane);
    } else {
      ptx::named_barrier_arrive<128>(3 + (c & 1));
    }
  }
  for (int c = 0; c < item.chunks; ++c) {
    const int ahead = c + 2, copied = c + 3;
    Stage<kSlices>& stage = shared.stages[c % kStages];
    Stage<kSlices>& stage_ahead = shared.stages[ahead % kStages];
    const int lane = ptx::opaque(threadIdx.x % 32), g = lane / 4, t = lane % 4, first = warp % 2 * kHalf;
    if (kMeasures && ahead < item.chunks) ptx::barrier_wait(shared.raw[ahead % kStages], ahead / kStages & 1);
    ptx::barrier_wait(shared.columns[c % kStages], c / kStages & 1);
    float d[16], lengths[32];
    ptx::wgmma_begin(d, lengths);
    multiply_scores(stage.x, d);
    ptx::wgmma_commit();
    if constexpr (kMeasures) {
      multiply_rows(stage_ahead.x, lengths);  // of old bytes where nothing is ahead
      ptx::wgmma_commit();
    }
    const Scales& scales = shared.scales[c % kStages];
    const float* const read = warp < 2 ? scales.read_k : scales.read_q;
    const float low = constant * read[first + g], high = constant * read[first + g + 8];
    float2 write[4];
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
      write[octet] = *reinterpret_cast<const float2*>(&scales.write[8 * octet + 2 * t]);
    }
    ptx::wgmma_wait<kMeasures ? 1 : 0>(d);
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
      d[4 * octet] *= write[octet].x * low;
      d[4 * octet + 1] *= write[octet].y * low;
      d[4 * octet + 2] *= write[octet].x * high;
      d[4 * octet + 3] *= write[octet].y * high;
    }
    if constexpr (kMeasures) {
      ptx::wgmma_wait<0>(lengths);
      if (ahead < item.chunks) {
        put_lengths(stage_ahead, shared.scales[ahead % kStages], lengths, warp, lane);
        if (warp != 3) ptx::named_barrier_arrive<128>(3 + (c & 1));
      }
    }
    if (warp < 2) {
      put_L(scratch, d, warp, lane);
      float x[kHalf];
      solve(scratch.L[warp], x, lane % kHalf);
      put_T(stage, scratch, c, x, warp, lane);
      ptx::async_proxy_fence();
      ptx::barrier_arrive(shared.full[c % kStages]);
    } else {
      put_M(stage, d, warp, lane);
      put_F(stage, between, 2 * (lane + (warp - 2) * 32), tail);
      ptx::async_proxy_fence();
      ptx::barrier_arrive(shared.full[c % kStages]);
      if (warp == 3) {
        if (kMeasures && ahead < item.chunks) finish(ahead, lane);
      } else if (lane == 0 && copied < item.chunks) {
        if (copied >= kStages) ptx::barrier_wait(shared.empty[copied % kStages], (copied / kStages - 1) & 1);
        load(shared, p, item, copied, column);
      }
      __syncwarp();
    }
  }
}

}  // namespace flashkda::cuda::sm90
