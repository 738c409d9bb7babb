// The intra role: one warpgroup makes L and Mqk of a chunk, inverts I + L and finishes F.
#pragma once

#include <cuda_fp16.h>

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// The inverse of I + L for a diagonal block of 16, by one warp: lane c (and c + 16) gets column c (docs/algorithm.md,
// eq. 21, in fp32, a known x_j at a time). Lt: L transposed.
__device__ __forceinline__ void solve(const float (&Lt)[kHalf][20], float (&x)[kHalf], int column) {
#pragma unroll
  for (int i = 0; i < kHalf; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
  for (int j = 0; j + 1 < kHalf; ++j) {
#pragma unroll
    for (int i = (j + 1) / 4 * 4; i < kHalf; i += 4) {
      const float4 below = *reinterpret_cast<const float4*>(&Lt[j][i]);
      if (i > j) x[i] -= below.x * x[j];
      if (i + 1 > j) x[i + 1] -= below.y * x[j];
      if (i + 2 > j) x[i + 2] -= below.z * x[j];
      x[i + 3] -= below.w * x[j];
    }
  }
}

// A column of a diagonal block of T, times b, and the inverse in fp16 for the product below. Lanes 0..15.
template <int kSlices>
__device__ __forceinline__ void put_column(Stage<kSlices>& stage, uint16_t (&half)[kHalf][kHalf],
                                           const float (&x)[kHalf], int block, int column, float b) {
  const int place = token_place(block * kHalf + column);
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const int row = block * kHalf + i;
    *reinterpret_cast<uint32_t*>(&stage.T[row][unit_128(row, place / 4) + place % 4 * 4]) = __float_as_uint(x[i] * b);
    half[i][column] = __half_as_ushort(__float2half_rn(x[i]));
  }
}

// D [16 x 16] = A B of fp16, fp32 inside. A, B row by row.
__device__ __forceinline__ void multiply(float (&d)[2][4], const uint32_t (&a)[4], const uint16_t (&B)[kHalf][kHalf],
                                         int lane) {
  uint32_t b[4];  // inner 0-7 columns 0-7, inner 8-15 columns 0-7, then columns 8-15
  ptx::ldmatrix_x4_trans(b, ptx::shared_address(&B[lane % 16][lane / 16 * 8]));
#pragma unroll
  for (int e = 0; e < 4; ++e) d[0][e] = d[1][e] = 0.0f;
  ptx::mma_m16n8k16_fp16(d[0], a, b[0], b[1]);
  ptx::mma_m16n8k16_fp16(d[1], a, b[2], b[3]);
}

// [kd; qd] ki^T by the warpgroup: warps 0 and 1 get rows 0-15 and 16-31 of kd ki^T, warps 2 and 3 those of qd ki^T.
template <int kSlices>
__device__ __forceinline__ void score(const Stage<kSlices>& stage, float (&d)[16]) {
  const uint64_t rows = ptx::rows_of_128(ptx::shared_address(&stage.x[0][0][0][0]));
  const uint64_t columns = ptx::rows_of_128(ptx::shared_address(&stage.x[0][2][0][0]));
  ptx::wgmma_begin(d);
  static_for<D / 16>([&](auto i) {
    const uint32_t at = i / 4 * sizeof(stage.x[0]) + i % 4 * 32;
    ptx::wgmma_n32_bf16<(i > 0)>(d, ptx::advance(rows, at), ptx::advance(columns, at));
  });
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
}

// A 16 x 16 block of Mqk to its tile. diagonal: entries above the diagonal are not products of anything.
template <int kSlices>
__device__ __forceinline__ void put_scores(Stage<kSlices>& stage, const float* d, int first_row, int first_token,
                                           bool diagonal, int lane) {
  uint32_t m[4];
#pragma unroll
  for (int octet = 0; octet < 2; ++octet) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = lane / 4 + 8 * half, j = 8 * octet + 2 * (lane % 4);
      const float* const e = d + 4 * octet + 2 * half;
      m[2 * octet + half] = pack_bf16(!diagonal || j <= i ? e[0] : 0.0f, !diagonal || j + 1 <= i ? e[1] : 0.0f);
    }
  }
  const int row = first_row + lane % 16;
  ptx::stmatrix_x4(ptx::shared_address(&stage.M[row][unit_64(row, first_token / 8 + lane / 16)]), m);
}

template <int kSlices>
__device__ __forceinline__ void run_intra(Shared<kSlices>& shared, const FusedParams& p, const Item& item) {
  const int warp = uniform_warp(), lane = threadIdx.x % 32;
  Scratch& scratch = shared.scratch;
  const auto beta_of = [&](int64_t token) {
    return load_scalar(p.beta.data, item.batch * p.beta.batch + (item.begin + token) * p.beta.token + item.hv,
                       p.beta.dtype);
  };
  float next_beta = lane < item.length ? beta_of(lane) : 0.0f;
  const float centred = centre(p.lower_bound), between = ptx::exp2_approx(-kChunk * centred);
  // Bits from the last anchor to the last chunk's end, warps 2 and 3: channels 2 (thread - 64) and the next. The first
  // state comes in no frame.
  float2 tail = make_float2(kHalf * centred, kHalf * centred);
  for (int c = 0; c < item.chunks; ++c) {
    Stage<kSlices>& stage = shared.stages[c % kStages];
    const int lane = ptx::opaque(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    // Lane l holds b of token l; rows that are not there have 0.
    const int64_t token = static_cast<int64_t>(c) * kChunk + lane;
    const float b = token < item.length ? activate_beta(next_beta, p.beta_activation) : 0.0f;
    if (token + kChunk < item.length) next_beta = beta_of(token + kChunk);

    ptx::barrier_wait(shared.columns[c % kStages], c / kStages & 1);
    float d[16];
    score(stage, d);
    // Read and write scales together are short of the decay that was set aside by a constant.
    const Scales& scales = shared.scales[c % kStages];
    const int which = warp / 2, first = warp % 2 * kHalf;
    const float* const read = which == 0 ? scales.read_k : scales.read_q;
    float low = between * read[first + g], high = between * read[first + g + 8];
    if (which == 0) {
      low *= __shfl_sync(0xffffffffu, b, first + g);
      high *= __shfl_sync(0xffffffffu, b, first + g + 8);
    }
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
      const float2 f = *reinterpret_cast<const float2*>(&scales.write_k[8 * octet + 2 * t]);
      d[4 * octet] *= f.x * low;
      d[4 * octet + 1] *= f.y * low;
      d[4 * octet + 2] *= f.x * high;
      d[4 * octet + 3] *= f.y * high;
    }
    if (which == 1) {
      // Diagonal entries, exact: (i, i) of these rows is in the columns of the warp's own block.
      const Shrink& shrink = shared.shrink[c % kStages];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = first + g + 8 * half;
        const float factor =
            __uint_as_float(uint32_t{shrink.k[i]} << 16) * __uint_as_float(uint32_t{shrink.q[i]} << 16);
        const float exact = factor * *reinterpret_cast<const float*>(&stage.M[i][unit_64(i, 0)]) *
                            (half == 0 ? low : high) * scales.write_k[i];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (2 * t + e != g) continue;
          (warp == 2 ? d[4 * half + 2 * half + e] : d[8 + 4 * half + 2 * half + e]) = exact;
        }
      }
      __syncwarp();
      put_scores(stage, d, first, 0, warp == 2, lane);
      if (warp == 3) put_scores(stage, d + 8, first, kHalf, true, lane);
      const int channel = 2 * (lane + (warp - 2) * 32);
      const float2 head = *reinterpret_cast<const float2*>(&stage.F[channel]);
      // By two factors neither of which underflows.
      const float x = ptx::exp2_approx(0.5f * (head.x + tail.x)), y = ptx::exp2_approx(0.5f * (head.y + tail.y));
      tail = *reinterpret_cast<const float2*>(&stage.tail[channel]);
      __syncwarp();  // 16 channels change places among themselves
      *reinterpret_cast<float2*>(&stage.F[frame_place(channel)]) = make_float2(x * between * x, y * between * y);
    } else {
      // The diagonal block of L, transposed, and for warp 1 the one left of it.
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
      float x[kHalf];
      const int column = lane % kHalf;
      solve(L, x, column);
      const float b_column = kUncut * kUncut * __shfl_sync(0xffffffffu, b, first + column);
      if (lane < kHalf) put_column(stage, warp == 0 ? scratch.T11[c % 2] : scratch.T22, x, warp, column, b_column);
      __syncwarp();
      // T21 = -(T22 L21) T11.
      float z[2][4];
      uint32_t a[4];
      if (warp == 1) {
        ptx::ldmatrix_x4(a, ptx::shared_address(&scratch.T22[lane % 16][lane / 16 * 8]));
        multiply(z, a, scratch.L21, lane);
        a[0] = pack_fp16(z[0][0], z[0][1]);
        a[1] = pack_fp16(z[0][2], z[0][3]);
        a[2] = pack_fp16(z[1][0], z[1][1]);
        a[3] = pack_fp16(z[1][2], z[1][3]);
      }
      ptx::named_barrier<2, 64>();  // T11 is there
      if (warp == 1) {
        multiply(z, a, scratch.T11[c % 2], lane);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int row = kHalf + g + e % 4 / 2 * 8, j = e / 4 * 8 + 2 * t + e % 2, place = token_place(j);
          const float b_j = -kUncut * kUncut * __shfl_sync(0xffffffffu, b, j);
          *reinterpret_cast<uint32_t*>(&stage.T[row][unit_128(row, place / 4) + place % 4 * 4]) =
              __float_as_uint(z[e / 4][e % 4] * b_j);
        }
      }
    }
    ptx::async_proxy_fence();
    ptx::barrier_arrive(shared.full[c % kStages]);
  }
}

}  // namespace flashkda::cuda::sm90
