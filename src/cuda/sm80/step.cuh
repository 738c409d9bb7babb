// What the kernels that walk a segment chunk by chunk share: the pipeline stage, a warp's part of the state, and the
// step of one chunk.
//
// The state is kept transposed, S^T [V,K], in fp32 accumulators: a warp owns 16 kTiles value columns and all K
// channels, so a chunk needs nothing from another warp. Value columns are the rows of every product and tokens its
// columns:
//   A^T = S^T kd^T          Q^T = S^T qd^T          (S^T rounded to bf16, its accumulator layout is the A operand)
//   U^T = (V^T - A^T) T^T   O^T = Q^T + U^T Mqk^T   S^T <- S^T diag(F) + U^T kr
// What reads the state is a product of bf16, what writes it (U and its product with kr) one of tf32.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/block/tf32.cuh"
#include "cuda/params.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/tile/image.cuh"
#include "cuda/tile/static_for.cuh"

namespace flashkda::cuda::sm80 {

inline constexpr int kStages = 4;

// One pipeline stage: the image with its K-wide rows swizzled, and the value rows. kOut: with what only outputs need.
template <int K, int kColumns, bool kOut>
struct RecurStage {
  alignas(16) char kd[kChunk * K * 2];
  alignas(16) char qd[kOut ? kChunk * K * 2 : 16];
  alignas(16) uint4 kr[kChunk * K / 4];
  alignas(16) uint4 T[kChunk * kChunk / 4];
  alignas(16) char M[kChunk * kChunk * 2];
  alignas(16) float F[K];
  alignas(16) char v[kChunk * kColumns * 2];
};

// Asks for a chunk, by all kThreads of the block. values: the chunk's first row of v at the block's first column.
template <int kThreads, int K, int kColumns, bool kOut>
__device__ __forceinline__ void load_stage(RecurStage<K, kColumns, kOut>& stage, const char* image,
                                           const uint16_t* values, int64_t token_stride, int rows, int thread) {
  using Im = Image<K>;
  // kd and qd lie one after the other both in the image and in the stage. A round of all threads covers a multiple of 8
  // rows, so the swizzle of a thread's unit is the same in every round.
  constexpr int kRowUnits = K / 8, kRoundRows = kThreads / kRowUnits, kRows = kOut ? 2 * kChunk : kChunk;
  static_assert(kRoundRows % 8 == 0 && (kRows % kRoundRows == 0 || kRoundRows % kRows == 0));
  const uint32_t wide = ptx::shared_address(stage.kd) + swizzled<kRowUnits>(thread / kRowUnits, thread % kRowUnits);
#pragma unroll
  for (int round = 0; round * kRoundRows < kRows; ++round) {
    constexpr int kRoundBytes = kThreads * 16;
    if (kRoundRows <= kRows || thread < kRows * kRowUnits)
      ptx::cp_async_16(wide + round * kRoundBytes, image + round * kRoundBytes + thread * 16);
  }
  constexpr int kPlain = (Im::kBytes - Im::kKr) / 16;  // units of kr, T, M, F
  const uint32_t plain = ptx::shared_address(stage.kr);
#pragma unroll
  for (int first = 0; first < kPlain; first += kThreads) {
    const int unit = first + thread;
    if (first + kThreads <= kPlain || unit < kPlain) ptx::cp_async_16(plain + unit * 16, image + Im::kKr + unit * 16);
  }
  constexpr int kValueUnits = kColumns / 8, kValueRows = kThreads / kValueUnits;
  static_assert(kValueRows % 8 == 0);
  const int row = thread / kValueUnits, unit = thread % kValueUnits;
  const uint32_t at = ptx::shared_address(stage.v) + swizzled<kValueUnits>(row, unit);
#pragma unroll
  for (int r = row, round = 0; round * kValueRows < kChunk; r += kValueRows, ++round) {
    const bool valid = r < rows;
    if (kValueRows <= kChunk || row < kChunk)
      ptx::cp_async_16(at + round * kThreads * 16, values + unit * 8 + (valid ? r * token_stride : 0), valid);
  }
}

// One tile of a warp's part of the state: value columns v (this lane's first, v0 + lane / 4) and v + 8, channels 8 i +
// 2 (lane % 4) and the next.
template <int K>
struct StateFragment {
  float x[K / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < K / 8; ++i) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.0f;
  }

  // The identity's columns, v: this lane's first.
  __device__ __forceinline__ void identity(int v, int lane) {
#pragma unroll
    for (int i = 0; i < K / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i][e] = 8 * i + 2 * (lane % 4) + e % 2 == v + e / 2 * 8 ? 1.0f : 0.0f;
    }
  }

  // Channels 16 i .. 16 i + 15 in bf16, as the A operand of a product: the accumulator layout is that layout.
  __device__ __forceinline__ void pack(int i, uint32_t (&a)[4]) const {
    const float(&low)[4] = x[2 * i], (&high)[4] = x[2 * i + 1];
    a[0] = pack_bf16(low[0], low[1]);
    a[1] = pack_bf16(low[2], low[3]);
    a[2] = pack_bf16(high[0], high[1]);
    a[3] = pack_bf16(high[2], high[3]);
  }

  // The same channels decay. f: factors of this lane's four, 2 (lane % 4) and the next, and both + 8.
  __device__ __forceinline__ void decay(int i, float4 f) {
    float(&low)[4] = x[2 * i], (&high)[4] = x[2 * i + 1];
    low[0] *= f.x;
    low[1] *= f.y;
    low[2] *= f.x;
    low[3] *= f.y;
    high[0] *= f.z;
    high[1] *= f.w;
    high[2] *= f.z;
    high[3] *= f.w;
  }

  // matrix: element offset of the [V,K] or [K,V] matrix; v: this lane's first value column.
  __device__ __forceinline__ void load(const States& s, int64_t matrix, int V, int v, int lane) {
    for_each(s, matrix, V, v, lane, [&](auto memory, int64_t at, int64_t next, float& first, float& second) {
      if (next == at + 1) {
        const float2 pair = memory.load_pair(s.data, at);
        first = pair.x;
        second = pair.y;
      } else {
        first = memory.load(s.data, at);
        second = memory.load(s.data, next);
      }
    });
  }

  __device__ __forceinline__ void store(const States& s, int64_t matrix, int V, int v, int lane) {
    for_each(s, matrix, V, v, lane, [&](auto memory, int64_t at, int64_t next, float& first, float& second) {
      if (next == at + 1) {
        memory.store_pair(s.data, at, first, second);
      } else {
        memory.store(s.data, at, first);
        memory.store(s.data, next, second);
      }
    });
  }

 private:
  // body(memory, at, next, first, second) for every pair of neighbouring channels, with the element offsets of both.
  // Layout and dtype are decided once, outside the loops.
  template <typename Body>
  __device__ __forceinline__ void for_each(const States& s, int64_t matrix, int V, int v, int lane, Body&& body) {
    const auto walk = [&](auto memory, int64_t v_stride, int64_t k_stride) {
#pragma unroll
      for (int i = 0; i < K / 8; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t at = matrix + (v + 8 * half) * v_stride + (8 * i + 2 * (lane % 4)) * k_stride;
          body(memory, at, at + k_stride, x[i][2 * half], x[i][2 * half + 1]);
        }
      }
    };
    const auto by_dtype = [&](auto v_stride, auto k_stride) {
      if (s.dtype == FKDA_FLOAT32) {
        walk(Memory<FKDA_FLOAT32>(), v_stride, k_stride);
      } else if (s.dtype == FKDA_BFLOAT16) {
        walk(Memory<FKDA_BFLOAT16>(), v_stride, k_stride);
      } else {
        walk(Memory<FKDA_FLOAT16>(), v_stride, k_stride);
      }
    };
    if (s.k_first) {
      by_dtype(Constant<1>(), static_cast<int64_t>(V));
    } else {
      by_dtype(static_cast<int64_t>(K), Constant<1>());
    }
  }
};

// One chunk of a warp's columns. o: with kOut O^T is added to it, zero at first; without it is left alone. tile: the
// warp's first in the stage's values. valued: without, the values are zero (the columns of a transition matrix, which
// only kOut = false has).
template <int K, int kTiles, int kColumns, bool kOut>
__device__ __forceinline__ void advance(StateFragment<K> (&S)[kTiles], const RecurStage<K, kColumns, kOut>& stage,
                                        float (&o)[kTiles][2][4], int tile, bool valued, bool fp16, int lane) {
  constexpr int kRowUnits = K / 8, kValueUnits = kColumns / 8;
  const int matrix_row = lane % 8, matrix = lane / 8;  // ldmatrix: this lane addresses row matrix_row of matrix

  // A^T and Q^T: [16 v] x [16 tokens] a tile, two accumulators of 8 tokens each.
  float a[kTiles][2][4] = {};
  {
    const int row = matrix / 2 * 8 + matrix_row;  // token; matrices 0, 1: tokens 0-7, channels +0, +8; 2, 3: 8-15
    const uint32_t kd = ptx::shared_address(stage.kd), qd = ptx::shared_address(stage.qd);
#pragma unroll
    for (int i = 0; i < K / 16; ++i) {
      const int at = swizzled<kRowUnits>(row, 2 * i + matrix % 2);
      uint32_t bk[4], bq[4];
      ptx::ldmatrix_x4(bk, kd + at);
      if constexpr (kOut) ptx::ldmatrix_x4(bq, qd + at);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint32_t state[4];
        S[t].pack(i, state);
        ptx::mma_m16n8k16_bf16(a[t][0], state, bk[0], bk[1]);
        ptx::mma_m16n8k16_bf16(a[t][1], state, bk[2], bk[3]);
        if constexpr (kOut) {
          ptx::mma_m16n8k16_bf16(o[t][0], state, bq[0], bq[1]);
          ptx::mma_m16n8k16_bf16(o[t][1], state, bq[2], bq[3]);
        }
      }
    }
  }
  // The state decays while the products are under way.
#pragma unroll
  for (int i = 0; i < K / 8; ++i) {
    const float2 f = *reinterpret_cast<const float2*>(&stage.F[8 * i + 2 * (lane % 4)]);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      S[t].x[i][0] *= f.x;
      S[t].x[i][1] *= f.y;
      S[t].x[i][2] *= f.x;
      S[t].x[i][3] *= f.y;
    }
  }
  // U^T = R^T T^T with R^T = V^T - A^T, both accumulator layouts taken as A operands (tile/image.cuh says which token
  // an inner index is). V's fragments come transposed out of [token][v] rows: tokens 0-7 v 0-7, tokens 0-7 v 8-15,
  // tokens 8-15 v 0-7, tokens 8-15 v 8-15.
  uint32_t u_wide[kTiles][2][4], u_operand[kTiles][4];
  {
    const uint4 T[2] = {stage.T[wide_unit(0, lane)], stage.T[wide_unit(1, lane)]};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      uint32_t values[4] = {}, r[2][4];
      const int at = swizzled<kValueUnits>(matrix / 2 * 8 + matrix_row, (tile + t) * 2 + matrix % 2);
      if (kOut || valued) ptx::ldmatrix_x4_trans(values, ptx::shared_address(stage.v) + at);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float2 x = unpack(values[m], fp16);
        r[m / 2][m % 2] = uncut(x.x - a[t][m / 2][m % 2 * 2]);
        r[m / 2][m % 2 + 2] = uncut(x.y - a[t][m / 2][m % 2 * 2 + 1]);
      }
      float u[2][4] = {};
#pragma unroll
      for (int tokens = 0; tokens < 2; ++tokens) {
        ptx::mma_m16n8k8_tf32(u[tokens], r[0], T[tokens].x, T[tokens].y);
        ptx::mma_m16n8k8_tf32(u[tokens], r[1], T[tokens].z, T[tokens].w);
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float lo = u[m / 2][m % 2 * 2], hi = u[m / 2][m % 2 * 2 + 1];
        u_wide[t][m / 2][m % 2] = uncut(lo);
        u_wide[t][m / 2][m % 2 + 2] = uncut(hi);
        u_operand[t][m] = pack_bf16(lo, hi);
      }
    }
  }
  // S^T += U^T kr.
#pragma unroll
  for (int i = 0; i < K / 8; ++i) {
    const uint4 b = stage.kr[wide_unit(i, lane)];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      ptx::mma_m16n8k8_tf32(S[t].x[i], u_wide[t][0], b.x, b.y);
      ptx::mma_m16n8k8_tf32(S[t].x[i], u_wide[t][1], b.z, b.w);
    }
  }
  if constexpr (kOut) {
    uint32_t M[4];
    ptx::ldmatrix_x4(M, ptx::shared_address(stage.M) + (matrix / 2 * 8 + matrix_row) * kChunk * 2 + matrix % 2 * 16);
    // O^T += U^T Mqk^T.
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      ptx::mma_m16n8k16_bf16(o[t][0], u_operand[t], M[0], M[1]);
      ptx::mma_m16n8k16_bf16(o[t][1], u_operand[t], M[2], M[3]);
    }
  }
}

// Stores one tile of O^T as token rows. at: element offset of the chunk's first row and the tile's first column.
__device__ __forceinline__ void store_output(const Rows& out, int64_t at, int64_t rows, const float (&o)[2][4],
                                             int lane) {
  void* const data = const_cast<void*>(out.data);
#pragma unroll
  for (int tokens = 0; tokens < 2; ++tokens) {
    if (out.dtype == FKDA_FLOAT32) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = tokens * 8 + 2 * (lane % 4) + e % 2, column = lane / 4 + e / 2 * 8;
        if (row < rows) static_cast<float*>(data)[at + row * out.token + column] = o[tokens][e];
      }
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float lo = o[tokens][2 * half], hi = o[tokens][2 * half + 1];
      const uint32_t pair = out.dtype == FKDA_FLOAT16 ? pack_fp16(lo, hi) : pack_bf16(lo, hi);
      const uint32_t turned = ptx::movmatrix_trans(pair);  // token lane / 4, value columns 2 (lane % 4) and the next
      const int row = tokens * 8 + lane / 4;
      if (row < rows) {
        auto* to = static_cast<uint16_t*>(data) + at + row * out.token + half * 8 + 2 * (lane % 4);
        *reinterpret_cast<uint32_t*>(to) = turned;
      }
    }
  }
}

}  // namespace flashkda::cuda::sm80
