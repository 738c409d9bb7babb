// Lengths of a chunk's raw rows, before the column role overwrites them, and the scalars that come of them.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// Rows longer than 128 are shrunk: the products of shorter ones, with up to 31 |c| bits that are yet to be taken off,
// stay below 2^127. This is the square.
inline constexpr float kLongSquare = 0x1p14f;

// Where finish_lengths looks for q_i k_i and put_M for entry (i, i).
template <int kSlices>
__device__ __forceinline__ float& product_of(Stage<kSlices>& stage, int token) {
  return *reinterpret_cast<float*>(&stage.M[token][unit_64(token, 0)]);
}

// |k|^2, |q|^2 and q k of tokens by one of kWarps, to where finish_lengths looks for them. No decay touches the last:
// rows of Mqk may consist of that entry alone, and a sum of rounded terms would be wrong where it is small by
// cancellation. Whether one of the lane's rows is too long. By hand: mma.sync would wait for the consumers' products.
template <int kWarps, int kSlices>
__device__ __forceinline__ bool put_lengths(Stage<kSlices>& stage, int warp, int lane) {
  constexpr int kTokens = kChunk / kWarps, kLanes = 32 / kTokens;  // a warp's, a token's
  const int token = warp * kTokens + lane / kLanes;
  float k_k = 0.0f, q_q = 0.0f, q_k = 0.0f;
#pragma unroll
  for (int i = 0; i < 16 / kLanes; ++i) {  // eight lanes, of a token or two, read all eight units of a row between them
    const int block = kLanes == 4 ? i / 2 : i;
    const int at = unit_128(token, kLanes == 4 ? lane % 4 + 4 * ((i + token) % 2) : lane % 8);
    const uint4 k = *reinterpret_cast<const uint4*>(&stage.x[block][0][token][at]);
    const uint4 q = *reinterpret_cast<const uint4*>(&stage.x[block][1][token][at]);
    const auto add = [&](uint32_t pair_k, uint32_t pair_q) {
      const float2 a = unpack_bf16(pair_k), b = unpack_bf16(pair_q);
      k_k = fmaf(a.x, a.x, fmaf(a.y, a.y, k_k));
      q_q = fmaf(b.x, b.x, fmaf(b.y, b.y, q_q));
      q_k = fmaf(a.x, b.x, fmaf(a.y, b.y, q_k));
    };
    add(k.x, q.x);
    add(k.y, q.y);
    add(k.z, q.z);
    add(k.w, q.w);
  }
#pragma unroll
  for (int bit = 1; bit < kLanes; bit *= 2) {
    k_k += __shfl_xor_sync(0xffffffffu, k_k, bit);
    q_q += __shfl_xor_sync(0xffffffffu, q_q, bit);
    q_k += __shfl_xor_sync(0xffffffffu, q_k, bit);
  }
  if (lane % kLanes == 0) {
    stage.scales.read_k[token] = k_k;
    stage.scales.read_q[token] = q_q;
    product_of(stage, token) = q_k;
  }
  return k_k > kLongSquare || q_q > kLongSquare;
}

// What a lane's token has in every chunk.
struct TokenFrame {
  float read, write;  // powers of two, stage.cuh
  float score;        // 2^(-32 c): what read and write scales together are short of
};

// Scales, shrinking factors and diagonal entries of Mqk from what put_lengths left, by one warp: lane i has token i. b
// is 0 for tokens beyond the end; no scale of theirs is NaN or infinite, whatever lies there, and their diagonal entry
// reaches no other row.
template <int kSlices>
__device__ __forceinline__ void finish_lengths(Stage<kSlices>& stage, Shrink& shrink, TokenFrame frame, float scale,
                                               float b, int lane) {
  Scales& scales = stage.scales;
  const auto length = [&](float square, float& factor) {
    const bool too_long = square > kLongSquare;
    // A power of two that brings the row near 1, by halving the exponent of its square.
    factor = too_long ? __uint_as_float((380u - (__float_as_uint(square) >> 23)) / 2 << 23) : 1.0f;
    return ptx::rsqrt_approx(fminf(square * factor * factor, 3.4028235e38f) + (too_long ? 0.0f : 1e-6f));
  };
  float factor_k, factor_q;
  const float k = length(scales.read_k[lane], factor_k), q = length(scales.read_q[lane], factor_q);
  const float read_q = scale * q * frame.read;
  // The entry itself: nothing has decayed. A long row's factors first: without them it might overflow.
  float& entry = product_of(stage, lane);
  entry = entry * factor_k * factor_q * (frame.score * read_q);
  scales.read_k[lane] = k * frame.read;
  scales.read_q[lane] = read_q;
  scales.write[lane] = kUncut * b * k * frame.write;
  const auto narrow = [](float x) { return static_cast<uint16_t>(__float_as_uint(x) >> 16); };
  shrink.k[lane] = narrow(factor_k);
  shrink.q[lane] = narrow(factor_q);
}

}  // namespace flashkda::cuda::sm90
