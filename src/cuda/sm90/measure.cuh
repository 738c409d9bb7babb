// Lengths of a chunk's raw rows, and the scalars that come of them, before the column role overwrites the rows.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/stage.cuh"
#include "cuda/tile/static_for.cuh"

namespace flashkda::cuda::sm90 {

// Rows longer than 128 are shrunk: the products of shorter ones, with up to 31 |c| bits that are yet to be taken off,
// stay below 2^127. This is the square.
inline constexpr float kLongSquare = 0x1p14f;

// [k; q] [k; q]^T by the warpgroup. Squared lengths are its diagonal, the products q_i k_i stand left of it. No decay
// touches the latter: rows of Mqk may consist of that entry alone, and a sum of rounded terms would be wrong where it
// is small by cancellation.
// x: a stage's.
template <bool kFp16 = false>
__device__ __forceinline__ void multiply_rows(const char (&x)[2][3][kChunk][128], float (&d)[32]) {
  const uint64_t rows = ptx::rows_of_128(ptx::shared_address(&x[0][0][0][0]));
  static_for<D / 16>([&](auto i) {
    const uint64_t at = ptx::advance(rows, i / 4 * sizeof(x[0]) + i % 4 * 32);
    ptx::wgmma_n64<kFp16, (i > 0)>(d, at, at);
  });
}

// Where finish_lengths looks for q_i k_i and put_M for entry (i, i).
template <int kSlices>
__device__ __forceinline__ float& product_of(Stage<kSlices>& stage, int token) {
  return *reinterpret_cast<float*>(&stage.M[token][unit_64(token, 0)]);
}

// What a lane has of multiply_rows' diagonals. put(of, token, x): |k|^2, |q|^2, q k of the token (of: 0, 1, 2).
template <typename Put>
__device__ __forceinline__ void diagonals(const float (&d)[32], int warp, int lane, Put&& put) {
  // The lane has rows g and g + 8 of the warp's 16; column 16 block + g (+ 8) is its own if g / 2 is lane % 4.
  const int g = lane / 4, first = warp % 2 * kHalf;
  const bool owner = lane % 4 == g / 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto entry = [&](int block) { return g % 2 == 0 ? d[8 * block + 6 * half] : d[8 * block + 6 * half + 1]; };
    const int token = first + g + 8 * half;
    const float even = warp < 2 ? entry(0) : entry(2), odd = warp < 2 ? entry(1) : entry(3);
    const float product = warp == 2 ? entry(0) : entry(1);
    if (owner) put(warp < 2 ? 0 : 1, token, warp % 2 == 0 ? even : odd);
    if (owner && warp >= 2) put(2, token, product);
  }
}

template <int kSlices>
__device__ __forceinline__ void put_lengths(Stage<kSlices>& stage, Scales& scales, const float (&d)[32], int warp,
                                            int lane) {
  diagonals(d, warp, lane, [&](int of, int token, float x) {
    (of == 0 ? scales.read_k[token] : of == 1 ? scales.read_q[token] : product_of(stage, token)) = x;
  });
}

// Of a token's raw rows: |k|^2, |q|^2 and q k.
struct Products {
  float k_k, q_q, q_k;
};

// The same without tensor cores, by the warpgroup that will overwrite the rows: token 8 warp + lane / 4 in each of four
// lanes.
template <int kSlices>
__device__ __forceinline__ Products add_up_rows(const Stage<kSlices>& stage, int token, int lane) {
  Products sum = {};
#pragma unroll 1
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // two tokens' eight lanes read all eight units of a row between them
      const int at = unit_128(token, lane % 4 + 4 * ((i + token) % 2));
      const uint4 k = *reinterpret_cast<const uint4*>(&stage.x[block][0][token][at]);
      const uint4 q = *reinterpret_cast<const uint4*>(&stage.x[block][1][token][at]);
      const auto add = [&](uint32_t pair_k, uint32_t pair_q) {
        const float2 a = unpack_bf16(pair_k), b = unpack_bf16(pair_q);
        sum.k_k = fmaf(a.x, a.x, fmaf(a.y, a.y, sum.k_k));
        sum.q_q = fmaf(b.x, b.x, fmaf(b.y, b.y, sum.q_q));
        sum.q_k = fmaf(a.x, b.x, fmaf(a.y, b.y, sum.q_k));
      };
      add(k.x, q.x);
      add(k.y, q.y);
      add(k.z, q.z);
      add(k.w, q.w);
    }
  }
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    sum.k_k += __shfl_xor_sync(0xffffffffu, sum.k_k, bit);
    sum.q_q += __shfl_xor_sync(0xffffffffu, sum.q_q, bit);
    sum.q_k += __shfl_xor_sync(0xffffffffu, sum.q_k, bit);
  }
  return sum;
}

// What a lane's token has in every chunk.
struct TokenFrame {
  float read, write;  // powers of two, stage.cuh
};

// A token's scales, shrinking factors and diagonal entry of Mqk. b is 0 for tokens beyond the end; no scale of theirs
// is NaN or infinite, whatever lies there, and their diagonal entry reaches no other row. Whether a factor is not 1.
template <int kSlices>
__device__ __forceinline__ bool finish_token(Stage<kSlices>& stage, Scales& scales, Shrink& shrink, int token,
                                             const Products& raw, TokenFrame frame, float scale, float b) {
  const auto length = [&](float square, float& factor) {
    const bool too_long = square > kLongSquare;
    // A power of two that brings the row near 1, by halving the exponent of its square.
    factor = too_long ? __uint_as_float((380u - (__float_as_uint(square) >> 23)) / 2 << 23) : 1.0f;
    return ptx::rsqrt_approx(fminf(square * factor * factor, 3.4028235e38f) + (too_long ? 0.0f : 1e-6f));
  };
  float factor_k, factor_q;
  const float k = length(raw.k_k, factor_k), q = length(raw.q_q, factor_q);
  // The entry itself: nothing has decayed. Large by small factors: with small ones first, digits could be lost.
  product_of(stage, token) = raw.q_k * (factor_k * k) * (factor_q * q) * (kUncut * scale) * b;
  scales.read_k[token] = k * frame.read;
  scales.read_q[token] = scale * q * frame.read;
  scales.write[token] = kUncut * kUncut * kUncut * b * k * frame.write;
  const auto narrow = [](float x) { return static_cast<uint16_t>(__float_as_uint(x) >> 16); };
  shrink.k[token] = narrow(factor_k);
  shrink.q[token] = narrow(factor_q);
  return factor_k != 1.0f || factor_q != 1.0f;
}

// The same of all tokens from what put_lengths left, by one warp: lane i has token i.
template <int kSlices>
__device__ __forceinline__ void finish_lengths(Stage<kSlices>& stage, Scales& scales, Shrink& shrink, TokenFrame frame,
                                               float scale, float b, int lane) {
  const Products raw = {scales.read_k[lane], scales.read_q[lane], product_of(stage, lane)};
  const bool needed = __any_sync(0xffffffffu, finish_token(stage, scales, shrink, lane, raw, frame, scale, b));
  if (lane == 0) shrink.needed = needed;
}

}  // namespace flashkda::cuda::sm90
