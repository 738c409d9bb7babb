// O^T of a chunk to its rows in global memory.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm80/step.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// Stores O^T of a chunk, a warp's 16 value columns. at: element offset of the chunk's first token and the warp's first
// column; rows: the chunk's tokens. Of 16-bit outputs a lane stores tokens lane / 4 of every octet, columns
// 2 (lane % 4) and the next of either half.
__device__ __forceinline__ void store_output(const Rows& out, int64_t at, int rows, const float (&o)[16], int lane) {
  if (out.dtype == FKDA_FLOAT32) {
    const auto& halves = reinterpret_cast<const float(&)[2][2][4]>(o);
    sm80::store_output(out, at, rows, halves[0], lane);
    sm80::store_output(out, at + kHalf * out.token, rows - kHalf, halves[1], lane);
    return;
  }
  auto* to = static_cast<uint16_t*>(const_cast<void*>(out.data)) + at + lane / 4 * out.token + 2 * (lane % 4);
#pragma unroll
  for (int octet = 0; octet < kChunk / 8; ++octet) {
    const float* const e = o + 4 * octet;
    const auto turned = [&](int i) {
      const bool fp16 = out.dtype == FKDA_FLOAT16;
      return ptx::movmatrix_trans(fp16 ? pack_fp16(e[i], e[i + 1]) : pack_bf16(e[i], e[i + 1]));
    };
    const uint32_t low = turned(0), high = turned(2);
    if (8 * octet + lane / 4 < rows) {
      *reinterpret_cast<uint32_t*>(to) = low;
      *reinterpret_cast<uint32_t*>(to + 8) = high;
    }
    to += 8 * out.token;
  }
}

}  // namespace flashkda::cuda::sm90
