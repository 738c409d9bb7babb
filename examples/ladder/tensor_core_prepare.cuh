// Steps 3 and 4, first kernel: decayed rows, L, Mqk and the inverse of every chunk, with L and Mqk from tensor cores
// (mma.sync m16n8k16: bf16 in, fp32 sums).
//
// By halving (eq. 25): for the pairs across the middle of a block of 2 half tokens the right token's rows are decayed
// from the middle on, the left one's up to it. Both factors are at most 1, so nothing overflows and the pair is a plain
// inner product. half = 8, 4, 2, 1 meets every pair of the chunk once.
#pragma once

#include "cuda/ptx/mma_sync.cuh"
#include "cuda/tile/static_for.cuh"
#include "ladder.hpp"

namespace ladder {

using namespace flashkda::cuda;

struct Image {  // pairs of bf16
  uint32_t kd[kChunk][kD / 2], qd[kChunk][kD / 2], kr[kChunk][kD / 2];
  bf16 T[kChunk][kChunk], M[kChunk][kChunk];
  float F[kD];
};

__device__ inline Image& image_of(const Problem& p, int chunk, int head) {
  return reinterpret_cast<Image*>(p.workspace)[static_cast<size_t>(chunk) * p.H + head];
}

__device__ inline uint32_t pack(float lo, float hi) {
  const __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&x);
}
__device__ inline float2 times(float2 x, float2 y) { return make_float2(x.x * y.x, x.y * y.y); }
__device__ inline uint32_t decayed(float2 x, float2 decay) { return pack(x.x * decay.x, x.y * decay.y); }
__device__ inline float2 pair_at(const bf16* x) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x));
}

inline constexpr int kPairs = kD / 2;       // threads of prepare: one a pair of channels
inline constexpr int kPitch = kD * 2 + 16;  // bytes of a row in shared memory: eight rows in eight different banks
struct PrepareShared {
  alignas(16) char rows[24][kPitch];  // of one level: 8 right k rows, 8 right q rows, 8 left k rows
  float L[kChunk][kChunk], M[kChunk][kChunk], b[kChunk], diagonal[kPairs / 32][kChunk];
};

// The entries of L and Mqk across the middles of blocks of 2 half tokens, by one warp. Rows 0 to 15 are the left
// operand, 16 to 23 the right one: accumulator rows 0-7 hold k.k, rows 8-15 q.k.
template <int half>
__device__ inline void score_level(PrepareShared& s, int lane) {
  float acc[4] = {};
  for (int k = 0; k < kD; k += 32) {
    uint32_t a0[4], a1[4], b[4];
    ptx::ldmatrix_x4(a0, ptx::shared_address(&s.rows[lane % 16][lane / 16 * 16 + k * 2]));
    ptx::ldmatrix_x4(a1, ptx::shared_address(&s.rows[lane % 16][lane / 16 * 16 + k * 2 + 32]));
    ptx::ldmatrix_x4(b, ptx::shared_address(&s.rows[16 + lane % 8][lane / 8 * 16 + k * 2]));
    ptx::mma_m16n8k16_bf16(acc, a0, b[0], b[1]);
    ptx::mma_m16n8k16_bf16(acc, a1, b[2], b[3]);
  }
  for (int e = 0; e < 2; ++e) {
    const int r = lane / 4, l = 2 * (lane % 4) + e;
    if (r / half != l / half) continue;  // tokens of different blocks
    const int i = r / half * 2 * half + half + r % half, j = l / half * 2 * half + l % half;
    s.L[i][j] = s.b[i] * acc[e];
    s.M[i][j] = acc[2 + e];
  }
}

__global__ void __launch_bounds__(kPairs) prepare(Problem p) {
  __shared__ PrepareShared s;
  const int chunk = blockIdx.x / p.H, h = blockIdx.x % p.H, thread = threadIdx.x, lane = thread % 32;
  Image& image = image_of(p, chunk, h);
  float2 k[kChunk], q[kChunk], alpha[kChunk];
  for (int i = thread; i < kChunk * kChunk; i += kPairs)
    s.L[i / kChunk][i % kChunk] = s.M[i / kChunk][i % kChunk] = 0.0f;
  const size_t first = static_cast<size_t>(chunk * kChunk) * p.H + h;  // row of the chunk's first token
  static_for<kChunk>([&](auto i) {
    const size_t at = (first + static_cast<size_t>(i) * p.H) * kD + 2 * thread;
    const float2 a = *reinterpret_cast<const float2*>(p.a + at);
    k[i] = pair_at(p.k + at);
    q[i] = times(pair_at(p.q + at), make_float2(kScale, kScale));
    alpha[i] = make_float2(__expf(a.x), __expf(a.y));
    float dot = q[i].x * k[i].x + q[i].y * k[i].y;  // the diagonal of Mqk
    for (int bit = 16; bit > 0; bit /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, bit);
    if (lane == 0) s.diagonal[thread / 32][i] = dot;
  });
  if (thread < kChunk) s.b[thread] = p.b[first + static_cast<size_t>(thread) * p.H];

  const float2 one = make_float2(1.0f, 1.0f);
  float2 prefix = one, suffix = one;
  static_for<kChunk>([&](auto i) {
    prefix = times(prefix, alpha[i]);
    image.kd[i][thread] = decayed(k[i], prefix);
    image.qd[i][thread] = decayed(q[i], prefix);
  });
  static_for<kChunk>([&](auto i) {
    image.kr[15 - i][thread] = decayed(k[15 - i], suffix);
    suffix = times(suffix, alpha[15 - i]);
  });
  reinterpret_cast<float2*>(image.F)[thread] = suffix;

  static_for<4>([&](auto level) {
    constexpr int half = 8 >> level;
    const auto put = [&](int row, uint32_t x) { *reinterpret_cast<uint32_t*>(&s.rows[row][4 * thread]) = x; };
    __syncthreads();
    static_for<8 / half>([&](auto block) {
      float2 from_middle = one, to_middle = one;
      static_for<half>([&](auto i) {
        constexpr int right = block * 2 * half + half + i, left = block * 2 * half + half - 1 - i;
        from_middle = times(from_middle, alpha[right]);
        put(block * half + i, decayed(k[right], from_middle));
        put(8 + block * half + i, decayed(q[right], from_middle));
        put(16 + block * half + half - 1 - i, decayed(k[left], to_middle));
        to_middle = times(to_middle, alpha[left]);
      });
    });
    __syncthreads();
    if (thread < 32) score_level<half>(s, lane);
  });
  __syncthreads();
  if (thread < kChunk) {  // the inverse, as in step 2
    float x[kChunk];
    static_for<kChunk>([&](auto i) {
      x[i] = i == thread ? 1.0f : 0.0f;
      for (int j = 0; j < i; ++j) x[i] -= s.L[i][j] * x[j];
      image.T[i][thread] = bf16(x[i] * s.b[thread]);
      image.M[i][thread] = bf16(i == thread ? s.diagonal[0][i] + s.diagonal[1][i] : s.M[i][thread]);
    });
  }
}

}  // namespace ladder
