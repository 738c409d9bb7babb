// The head-parallel kernel: one block carries 64 or 128 value columns of one value head through the chunks of one
// segment, reading the chunk images that prepare.cuh made. kTiles = 2 reads every operand from shared memory half as
// often, kTiles = 1 makes twice the blocks; the bits are the same.
#pragma once

#include "cuda/sm80/segment.cuh"
#include "cuda/sm80/step.cuh"

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
  float* ends;                        // [segments][HV][V][K]: the state after a segment; null where none is split
};

inline constexpr int kRecurThreads = 4 * 32;

// Value columns of a block.
__host__ __device__ constexpr int recur_columns(int tiles) { return kRecurThreads / 32 * 16 * tiles; }

template <int K, int kTiles>
struct RecurShared {
  RecurStage<K, recur_columns(kTiles), true> stages[kStages];
};

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
  const int64_t place = blockIdx.x / slices;
  const int hv = static_cast<int>(place % p.layout.HV);
  Segment segment;
  if (!locate_segment<kChunk>(p.layout, place / p.layout.HV, segment)) return;
  const int64_t n = segment.n, batch = segment.batch, begin = segment.begin, length = segment.length;
  const bool is_last = segment.index + 1 == segment.count;
  const int64_t slot = p.slots.data == nullptr ? n : p.slots[n];
  const bool stateful = slot >= 0 && slot < p.slot_count;

  const int v0 = slice * kColumns + warp * 16 * kTiles;  // the warp's first value column
  const int v = v0 + lane / 4;                           // the lane's first
  StateFragment<K> S[kTiles];
  const auto store_state = [&](const States& to, int64_t at) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) S[t].store(to, at, V, v + 16 * t, lane);
  };
  const auto fetch = [&](int c) {
    if (c < segment.to) {
      const char* image = p.images + ((segment.first_chunk + c) * p.layout.HV + hv) * Im::kBytes;
      const int64_t token = begin + static_cast<int64_t>(c) * kChunk;
      const int rows = static_cast<int>(min(static_cast<int64_t>(kChunk), begin + length - token));
      const auto* values = static_cast<const uint16_t*>(p.v.data) + batch * p.v.batch + token * p.v.token +
                           hv * p.v.head + slice * kColumns;
      load_stage<kRecurThreads>(shared.stages[c % kStages], image, values, p.v.token, rows, thread);
    }
    ptx::cp_async_commit();  // an empty group keeps the count
  };
#pragma unroll
  for (int c = 0; c < kStages - 1; ++c) fetch(segment.from + c);
  // The state is asked for while the first chunks are under way.
  const bool has_initial = stateful && p.initial.data != nullptr;
  if (segment.index > 0 || (segment.count > 1 && has_initial)) {
    const int64_t matrix = static_cast<int64_t>(V) * K;
    const States ends = {p.ends, p.layout.HV * matrix, matrix, FKDA_FLOAT32, false};
    // The initial state waits where the last segment's end would be (keep_initial of affine.cuh).
    const int64_t from = place + (segment.index > 0 ? -1 : segment.count - 1) * static_cast<int64_t>(p.layout.HV);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) S[t].load(ends, from * matrix, V, v + 16 * t, lane);
  } else {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (has_initial) {
        S[t].load(p.initial, slot * p.initial.slot + hv * p.initial.head, V, v + 16 * t, lane);
      } else {
        S[t].clear();
      }
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
  for (int c = segment.from; c < segment.to; ++c) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();  // chunk c is in shared memory, and every warp has left the stage that is filled next
    fetch(c + kStages - 1);
    if constexpr (kObserved) observe(static_cast<int64_t>(c) * kChunk);

    float o[kTiles][2][4] = {};
    advance<K, kTiles>(S, shared.stages[c % kStages], o, warp * kTiles, true, fp16, lane);
    const int64_t token = begin + static_cast<int64_t>(c) * kChunk;
    const int64_t out = batch * p.out.batch + token * p.out.token + hv * p.out.head + v0;
    const int64_t rows = min(static_cast<int64_t>(kChunk), begin + length - token);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) store_output(p.out, out + 16 * t, rows, o[t], lane);
  }
  ptx::cp_async_wait<0>();
  if constexpr (kObserved) {
    if (is_last && length % kChunk == 0) observe(length);
  }
  if (is_last && stateful && p.final.data != nullptr) {
    store_state(p.final, slot * p.final.slot + hv * p.final.head);
  }
}

}  // namespace flashkda::cuda::sm80
