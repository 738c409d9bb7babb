// L and Mqk of a chunk whose rows are centred (stage.cuh).
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/ptx/hopper.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/stage.cuh"
#include "cuda/tile/static_for.cuh"

namespace flashkda::cuda::sm90 {

// [kd; qd] ki^T by the warpgroup: warps 0 and 1 get rows 0-15 and 16-31 of kd ki^T, warps 2 and 3 those of qd ki^T.
// x: a stage's, or prepare's.
template <int kTiles>
__device__ __forceinline__ void multiply_scores(const char (&x)[2][kTiles][kChunk][128], float (&d)[16]) {
  const uint64_t rows = ptx::rows_of_128(ptx::shared_address(&x[0][0][0][0]));
  const uint64_t columns = ptx::rows_of_128(ptx::shared_address(&x[0][2][0][0]));
  static_for<D / 16>([&](auto i) {
    const uint32_t at = i / 4 * sizeof(x[0]) + i % 4 * 32;
    ptx::wgmma_n32_bf16<(i > 0)>(d, ptx::advance(rows, at), ptx::advance(columns, at));
  });
}

// A 16 x 16 block of Mqk to its tile. diagonal: entries above the diagonal are not products of anything.
__device__ __forceinline__ void put_scores(char (&M)[kChunk][64], const float* d, int first_row, int first_token,
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
  ptx::stmatrix_x4(ptx::shared_address(&M[row][unit_64(row, first_token / 8 + lane / 16)]), m);
}

}  // namespace flashkda::cuda::sm90
