// The head-parallel kernel: one block carries 64 or 128 value columns of one value head of one sequence through its
// chunks, reading the chunk images that prepare.cuh made.
//
// The state is kept transposed, S^T [V,K], in fp32 accumulators: a warp owns 16 kTiles value columns and all K
// channels, so a chunk needs nothing from another warp. kTiles = 2 reads every operand from shared memory half as
// often, kTiles = 1 makes twice the blocks; the bits are the same. Value columns are the rows of every product and
// tokens its columns:
//   A^T = S^T kd^T          Q^T = S^T qd^T          (S^T rounded to bf16, its accumulator layout is the A operand)
//   U^T = (V^T - A^T) T^T   O^T = Q^T + U^T Mqk^T   S^T <- S^T diag(F) + U^T kr
// What reads the state is a product of bf16, what writes it (U and its product with kr) one of tf32.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/params.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/tile/image.cuh"
#include "cuda/tile/static_for.cuh"

namespace flashkda::cuda::sm80 {

struct RecurParams {
  Layout layout;
  Rows v;                                 // [B,T,HV,V]
  Rows out;                               // [B,T,HV,V]
  const char* images;                     // [chunks][HV] of Image<K>
  States initial, final;                  // slot = sequence, or state_indices[sequence]
  Integers slots;                         // data null: slot = sequence
  int64_t slot_count;                     // slots of the pools; an index outside 0..slot_count-1 is treated as negative
  States checkpoints;                     // slot = n * checkpoint_count + i, or absent
  Integers offsets;                       // [N, checkpoint_count] tokens, row stride offset_stride
  int64_t offset_stride, checkpoint_row;  // element strides of n in offsets and of n in checkpoints
  int32_t checkpoint_count;
  States intermediate;                // slot = index along NT, or absent
  int64_t intermediate_batch;         // element stride of b
  int64_t intermediate_count;         // NT, the entries there are
  const int32_t* intermediate_begin;  // packed: [N] entries before a sequence
  int32_t intermediate_every;         // tokens
};

inline constexpr int kRecurWarps = 4;
inline constexpr int kRecurThreads = kRecurWarps * 32;
inline constexpr int kStages = 4;

__host__ __device__ constexpr int recur_columns(int tiles) {
  return kRecurWarps * 16 * tiles;
}  // value columns a block

// One pipeline stage: the image with its K-wide rows swizzled, and the value rows.
template <int K, int kTiles>
struct RecurStage {
  alignas(16) char kd[kChunk * K * 2];
  alignas(16) char qd[kChunk * K * 2];
  alignas(16) uint4 kr[kChunk * K / 4];
  alignas(16) uint4 T[kChunk * kChunk / 4];
  alignas(16) char M[kChunk * kChunk * 2];
  alignas(16) float F[K];
  alignas(16) char v[kChunk * recur_columns(kTiles) * 2];
};

template <int K, int kTiles>
struct RecurShared {
  RecurStage<K, kTiles> stages[kStages];
};

template <int K, int kTiles>
__device__ __forceinline__ void load_stage(RecurStage<K, kTiles>& stage, const RecurParams& p, const char* image,
                                           int64_t v_row, int rows, int thread) {
  using Im = Image<K>;
  // kd and qd lie one after the other both in the image and in the stage: 2 * kChunk rows. A round of all threads
  // covers a multiple of 8 rows, so the swizzle of a thread's unit is the same in every round.
  constexpr int kRowUnits = K / 8, kRoundRows = kRecurThreads / kRowUnits;
  static_assert(kRoundRows % 8 == 0 && 2 * kChunk % kRoundRows == 0);
  const uint32_t wide = ptx::shared_address(stage.kd) + swizzled<kRowUnits>(thread / kRowUnits, thread % kRowUnits);
#pragma unroll
  for (int round = 0; round < 2 * kChunk / kRoundRows; ++round) {
    constexpr int kRoundBytes = kRecurThreads * 16;
    ptx::cp_async_16(wide + round * kRoundBytes, image + round * kRoundBytes + thread * 16);
  }
  constexpr int kPlain = (Im::kBytes - Im::kKr) / 16;  // units of kr, T, M, F
  const uint32_t plain = ptx::shared_address(stage.kr);
#pragma unroll
  for (int first = 0; first < kPlain; first += kRecurThreads) {
    const int unit = first + thread;
    if (first + kRecurThreads <= kPlain || unit < kPlain)
      ptx::cp_async_16(plain + unit * 16, image + Im::kKr + unit * 16);
  }
  constexpr int kValueUnits = recur_columns(kTiles) / 8, kValueRows = kRecurThreads / kValueUnits;
  static_assert(kValueRows % 8 == 0);
  const int row = thread / kValueUnits, unit = thread % kValueUnits;
  const uint32_t values = ptx::shared_address(stage.v) + swizzled<kValueUnits>(row, unit);
  const auto* v = static_cast<const uint16_t*>(p.v.data) + v_row + unit * 8;
#pragma unroll
  for (int r = row, round = 0; round < kChunk / kValueRows; r += kValueRows, ++round) {
    const bool valid = r < rows;
    ptx::cp_async_16(values + round * kRecurThreads * 16, v + (valid ? r * p.v.token : 0), valid);
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

// kObserved: states are wanted on the way (checkpoints, intermediate states).
template <int K, int kTiles, bool kObserved>
__global__ void __launch_bounds__(kRecurThreads) recur(const __grid_constant__ RecurParams p, int V) {
  using Im = Image<K>;
  constexpr int kColumns = recur_columns(kTiles);
  extern __shared__ __align__(128) char shared_memory[];
  auto& shared = *reinterpret_cast<RecurShared<K, kTiles>*>(shared_memory);

  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int slices = V / kColumns;
  const int slice = blockIdx.x % slices;
  const int64_t head = blockIdx.x / slices;
  const int hv = static_cast<int>(head % p.layout.HV);
  const int64_t n = head / p.layout.HV;

  // The sequence.
  int64_t batch = 0, begin = 0, length = p.layout.T, first_chunk = 0;
  if (p.layout.begin != nullptr) {
    begin = p.layout.begin[n];
    length = p.layout.begin[n + 1] - begin;
    if (length <= p.layout.left_out) return;
    first_chunk = p.layout.chunks[n];
  } else {
    batch = n;
    first_chunk = n * p.layout.row_chunks;
  }
  const int chunks = static_cast<int>((length + kChunk - 1) / kChunk);
  const int64_t slot = p.slots.data == nullptr ? n : p.slots[n];
  const bool stateful = slot >= 0 && slot < p.slot_count;

  const int v0 = slice * kColumns + warp * 16 * kTiles;  // the warp's first value column
  const int v = v0 + lane / 4;                           // the lane's first
  StateFragment<K> S[kTiles];
  const auto store_state = [&](const States& to, int64_t at) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) S[t].store(to, at, V, v + 16 * t, lane);
  };
  const auto image_of = [&](int c) { return p.images + ((first_chunk + c) * p.layout.HV + hv) * Im::kBytes; };
  const auto fetch = [&](int c) {
    if (c < chunks) {
      const int64_t token = begin + static_cast<int64_t>(c) * kChunk;
      const int rows = static_cast<int>(min(static_cast<int64_t>(kChunk), begin + length - token));
      const int64_t v_row = batch * p.v.batch + token * p.v.token + hv * p.v.head + slice * kColumns;
      load_stage<K, kTiles>(shared.stages[c % kStages], p, image_of(c), v_row, rows, thread);
    }
    ptx::cp_async_commit();  // an empty group keeps the count
  };
#pragma unroll
  for (int c = 0; c < kStages - 1; ++c) fetch(c);
    // The state is asked for while the first chunks are under way.
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (stateful && p.initial.data != nullptr) {
      S[t].load(p.initial, slot * p.initial.slot + hv * p.initial.head, V, v + 16 * t, lane);
    } else {
      S[t].clear();
    }
  }

  // States the caller wants to see on the way, all at multiples of 16 tokens.
  const auto observe = [&](int64_t offset) {
    if (p.checkpoints.data != nullptr) {
      for (int i = 0; i < p.checkpoint_count; ++i) {
        if (p.offsets[n * p.offset_stride + i] == offset) {
          const int64_t matrix = n * p.checkpoint_row + i * p.checkpoints.slot + hv * p.checkpoints.head;
          store_state(p.checkpoints, matrix);
        }
      }
    }
    if (p.intermediate.data != nullptr && offset < length && offset % p.intermediate_every == 0) {
      const int64_t first = p.intermediate_begin != nullptr ? p.intermediate_begin[n] : 0;
      const int64_t index = first + offset / p.intermediate_every;
      if (index < p.intermediate_count) {
        store_state(p.intermediate,
                    batch * p.intermediate_batch + index * p.intermediate.slot + hv * p.intermediate.head);
      }
    }
  };

  const bool fp16 = p.v.dtype == FKDA_FLOAT16;
  constexpr int kRowUnits = K / 8, kValueUnits = kColumns / 8;
  const int matrix_row = lane % 8, matrix = lane / 8;  // ldmatrix: this lane addresses row matrix_row of matrix

  for (int c = 0; c < chunks; ++c) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();  // chunk c is in shared memory, and every warp has left the stage that is filled next
    fetch(c + kStages - 1);
    if constexpr (kObserved) observe(static_cast<int64_t>(c) * kChunk);
    const RecurStage<K, kTiles>& stage = shared.stages[c % kStages];

    // A^T and Q^T: [16 v] x [16 tokens] a tile, two accumulators of 8 tokens each.
    float a[kTiles][2][4] = {}, o[kTiles][2][4] = {};
    {
      const int row = matrix / 2 * 8 + matrix_row;  // token; matrices 0, 1: tokens 0-7, channels +0, +8; 2, 3: 8-15
      const uint32_t kd = ptx::shared_address(stage.kd), qd = ptx::shared_address(stage.qd);
#pragma unroll
      for (int i = 0; i < K / 16; ++i) {
        const int at = swizzled<kRowUnits>(row, 2 * i + matrix % 2);
        uint32_t bk[4], bq[4];
        ptx::ldmatrix_x4(bk, kd + at);
        ptx::ldmatrix_x4(bq, qd + at);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const auto& x = S[t].x;
          const uint32_t state[4] = {pack_bf16(x[2 * i][0], x[2 * i][1]), pack_bf16(x[2 * i][2], x[2 * i][3]),
                                     pack_bf16(x[2 * i + 1][0], x[2 * i + 1][1]),
                                     pack_bf16(x[2 * i + 1][2], x[2 * i + 1][3])};
          ptx::mma_m16n8k16_bf16(a[t][0], state, bk[0], bk[1]);
          ptx::mma_m16n8k16_bf16(a[t][1], state, bk[2], bk[3]);
          ptx::mma_m16n8k16_bf16(o[t][0], state, bq[0], bq[1]);
          ptx::mma_m16n8k16_bf16(o[t][1], state, bq[2], bq[3]);
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
        uint32_t values[4], r[2][4];
        const int at = swizzled<kValueUnits>(matrix / 2 * 8 + matrix_row, (warp * kTiles + t) * 2 + matrix % 2);
        ptx::ldmatrix_x4_trans(values, ptx::shared_address(stage.v) + at);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float2 x = unpack(values[m], fp16);
          r[m / 2][m % 2] = ptx::round_tf32(x.x - a[t][m / 2][m % 2 * 2]);
          r[m / 2][m % 2 + 2] = ptx::round_tf32(x.y - a[t][m / 2][m % 2 * 2 + 1]);
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
          u_wide[t][m / 2][m % 2] = ptx::round_tf32(lo);
          u_wide[t][m / 2][m % 2 + 2] = ptx::round_tf32(hi);
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
    uint32_t M[4];
    ptx::ldmatrix_x4(M, ptx::shared_address(stage.M) + (matrix / 2 * 8 + matrix_row) * kChunk * 2 + matrix % 2 * 16);
    // O^T += U^T Mqk^T.
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      ptx::mma_m16n8k16_bf16(o[t][0], u_operand[t], M[0], M[1]);
      ptx::mma_m16n8k16_bf16(o[t][1], u_operand[t], M[2], M[3]);
    }
    const int64_t token = begin + static_cast<int64_t>(c) * kChunk;
    const int64_t out = batch * p.out.batch + token * p.out.token + hv * p.out.head + v0;
    const int64_t rows = min(static_cast<int64_t>(kChunk), begin + length - token);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) store_output(p.out, out + 16 * t, rows, o[t], lane);
  }
  ptx::cp_async_wait<0>();
  if constexpr (kObserved) {
    if (length % kChunk == 0) observe(length);
  }
  if (stateful && p.final.data != nullptr) {
    store_state(p.final, slot * p.final.slot + hv * p.final.head);
  }
}

}  // namespace flashkda::cuda::sm80
