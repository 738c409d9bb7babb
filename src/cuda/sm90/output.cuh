// Value columns of a chunk: V without what lies beyond the end, O^T to its rows in global memory.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm80/step.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// Zeros where a warp's columns of a last chunk's values lie beyond the end: somebody else's token is there, maybe a
// NaN. What else is read of such tokens is zero.
__device__ __forceinline__ void clear_values(char (&v)[kChunk][128], int rows) {
  const int warp = uniform_warp(), row = threadIdx.x % 32;
  if (row >= rows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) *reinterpret_cast<uint4*>(&v[row][unit_128(row, 2 * warp + half)]) = uint4{};
  }
  __syncwarp();
}

// A warp's 16 value columns in 16 bits: the lane stores tokens lane / 4 of every octet, columns 2 (lane % 4) and the
// next of either half. to: the first of them; rows: the chunk's tokens; pack: two values in one register.
template <typename Pack>
__device__ __forceinline__ void store_pairs(uint16_t* to, int64_t token_stride, int rows, const float (&o)[16],
                                            int lane, Pack&& pack) {
#pragma unroll
  for (int octet = 0; octet < kChunk / 8; ++octet) {
    const float* const e = o + 4 * octet;
    const uint32_t low = ptx::movmatrix_trans(pack(e[0], e[1])), high = ptx::movmatrix_trans(pack(e[2], e[3]));
    if (8 * octet + lane / 4 < rows) {
      *reinterpret_cast<uint32_t*>(to) = low;
      *reinterpret_cast<uint32_t*>(to + 8) = high;
    }
    to += 8 * token_stride;
  }
}

// The same in any dtype. at: element offset of the chunk's first token and the warp's first column.
__device__ __forceinline__ void store_output(const Rows& out, int64_t at, int rows, const float (&o)[16], int lane) {
  if (out.dtype == FKDA_FLOAT32) {
    const auto& halves = reinterpret_cast<const float(&)[2][2][4]>(o);
    sm80::store_output(out, at, rows, halves[0], lane);
    sm80::store_output(out, at + kHalf * out.token, rows - kHalf, halves[1], lane);
    return;
  }
  auto* const to = static_cast<uint16_t*>(const_cast<void*>(out.data)) + at + lane / 4 * out.token + 2 * (lane % 4);
  store_pairs(to, out.token, rows, o, lane,
              [&](float x, float y) { return out.dtype == FKDA_FLOAT16 ? pack_fp16(x, y) : pack_bf16(x, y); });
}

}  // namespace flashkda::cuda::sm90
