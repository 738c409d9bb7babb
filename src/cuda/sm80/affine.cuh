// The segment kernel: what a segment but the last of its sequence does to any state, S -> M S + B, by one block a
// segment and value head. B is the recurrence from zero (from the initial state in a sequence's first segment, which
// needs no M), M the recurrence of the K columns of the identity with v = 0; half the warps carry either, from one ring
// of chunk images.
//
// Where the last few chunks alone shrink every state to nothing (|M| <= 2^-126, by its largest element, and no
// step lengthens a state), what lies before them need not be seen: the block carries M and B
// through those chunks first, and if M is that small it is done. Decays tell beforehand whether it is worth a try.
#pragma once

#include "cuda/sm80/segment.cuh"
#include "cuda/sm80/step.cuh"

namespace flashkda::cuda::sm80 {

struct AffineParams {
  Layout layout;
  Rows v;              // [B,T,HV,V]
  const char* images;  // [chunks][HV] of Image<K>
  States initial;      // as RecurParams has them
  Integers slots;
  int64_t slot_count;
  bool shortcut;      // whether to look for segments that forget
  float* ends;        // [segments][HV][V][K]: B; of a first segment the state after it, of a last the initial state
  char* transitions;  // [segments][HV] of Transition<K>
  int32_t* forgets;   // [segments][HV]: whether M is nothing and was not stored
};

inline constexpr int kAffineStages = 4, kAffineThreads = 256;

// M as the chain over the segments wants it: the rest, row j being M's column j, as a sum of two bf16, high and low
// part; then the diagonal in fp32.
template <int K>
struct Transition {
  static constexpr int kPart = K * K * 2;
  static constexpr int kDiagonal = 2 * kPart;
  static constexpr int kBytes = kDiagonal + K * 4;

  // Where the 16-byte unit of a row is in its part: swizzled, as combine multiplies it.
  __device__ __forceinline__ static constexpr int at(int row, int unit) { return row * K * 2 + (unit ^ row % 8) * 16; }
};

// Two values as sums of two bf16 each.
__device__ __forceinline__ void split_bf16(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack_bf16(x, y);
  const float2 taken = unpack_bf16(high);
  low = pack_bf16(x - taken.x, y - taken.y);
}

// |M| up to which a state is forgotten: what is left of it is below fp32's normal numbers, whatever else is written.
// And the decay up to which M is worth the look: M shrinks a little less than the slowest channel does.
inline constexpr float kForgotten = 0x1p-126f;
inline constexpr float kWorthALook = 0x1p-140f;
inline constexpr int kShortestLook = 2, kLongestLook = 16;  // chunks

// A tile of M's columns into a Transition. first_column: this lane's first.
template <int K>
__device__ __forceinline__ void store_transition(const StateFragment<K>& S, char* to, int first_column, int lane) {
  using Tr = Transition<K>;
  auto* const diagonal = reinterpret_cast<float*>(to + Tr::kDiagonal);
#pragma unroll
  for (int i = 0; i < K / 8; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = first_column + 8 * half, k = 8 * i + 2 * (lane % 4);
      float x[2] = {S.x[i][2 * half], S.x[i][2 * half + 1]};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (k + e != j) continue;
        diagonal[j] = x[e];
        x[e] = 0.0f;
      }
      uint32_t high, low;
      split_bf16(x[0], x[1], high, low);
      const int at = Tr::at(j, k / 8) + k % 8 * 2;
      *reinterpret_cast<uint32_t*>(to + at) = high;
      *reinterpret_cast<uint32_t*>(to + Tr::kPart + at) = low;
    }
  }
}

// Puts a tile of a sequence's initial state where the end of its last segment would be: recur's first segment takes it
// from there, since the caller's memory may be that of the final state, which recur's last segment writes meanwhile.
template <int K>
__device__ __forceinline__ void keep_initial(const AffineParams& p, int64_t place, int64_t slot, int hv,
                                             int first_column, int lane) {
  constexpr int64_t kMatrix = int64_t{K} * K;
  const States ends = {p.ends, p.layout.HV * kMatrix, kMatrix, FKDA_FLOAT32, false};
  StateFragment<K> S;
  S.load(p.initial, slot * p.initial.slot + hv * p.initial.head, K, first_column, lane);
  S.store(ends, place * kMatrix, K, first_column, lane);
}

template <int K>
struct AffineShared {
  RecurStage<K, K, false> stages[kAffineStages];
};

template <int K>
__global__ void __launch_bounds__(kAffineThreads, 1) affine(const __grid_constant__ AffineParams p) {
  using Im = Image<K>;
  constexpr int kTiles = K / 64, kHalf = kAffineThreads / 64;  // warps of B and of M
  extern __shared__ __align__(128) char shared_memory[];
  auto& shared = *reinterpret_cast<AffineShared<K>*>(shared_memory);

  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int64_t place = blockIdx.x;
  const int hv = static_cast<int>(place % p.layout.HV);
  Segment segment;
  if (!locate_segment<kChunk>(p.layout, place / p.layout.HV, segment)) return;
  const int64_t slot = p.slots.data == nullptr ? segment.n : p.slots[segment.n];
  const bool stateful = p.initial.data != nullptr && slot >= 0 && slot < p.slot_count;
  const bool has_initial = segment.index == 0 && stateful;

  const bool transition = warp >= kHalf;   // else the offset B
  const int tile = warp % kHalf * kTiles;  // the warp's first
  const int v = tile * 16 + lane / 4;      // the lane's first column
  const bool fp16 = p.v.dtype == FKDA_FLOAT16;
  if (segment.index + 1 == segment.count) {
    if (segment.count > 1 && stateful && !transition) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) keep_initial<K>(p, place, slot, hv, v + 16 * t, lane);
    }
    return;
  }
  const char* const images = p.images + (segment.first_chunk * p.layout.HV + hv) * Im::kBytes;
  const int64_t image_stride = static_cast<int64_t>(p.layout.HV) * Im::kBytes;
  const auto* const values =
      static_cast<const uint16_t*>(p.v.data) + segment.batch * p.v.batch + segment.begin * p.v.token + hv * p.v.head;
  const auto fetch = [&](int c) {
    if (c < segment.to) {  // a whole chunk: only a sequence's last is not
      load_stage<kAffineThreads>(shared.stages[c % kAffineStages], images + c * image_stride,
                                 values + static_cast<int64_t>(c) * kChunk * p.v.token, p.v.token, kChunk, thread);
    }
    ptx::cp_async_commit();
  };

  // The shortest window whose decays say that nothing may be left.
  int from = segment.from;
  if (p.shortcut) {
    float left = 1.0f;
    int c = segment.to;
    for (int window = kShortestLook; window <= kLongestLook; window *= 2) {
      if (segment.to - window <= segment.from || from > segment.from) break;
      if (thread < K) {
        for (; c > segment.to - window; --c) {
          left *= reinterpret_cast<const float*>(images + (c - 1) * image_stride + Im::kF)[thread];
        }
      }
      if (__syncthreads_and(thread >= K || left <= kWorthALook)) from = segment.to - window;
    }
  }

  StateFragment<K> S[kTiles];
  bool forgets = false;
  for (;;) {
    const bool whole = from == segment.from;
#pragma unroll
    for (int c = 0; c < kAffineStages - 1; ++c) fetch(from + c);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (transition) {
        S[t].identity(v + 16 * t, lane);
      } else if (has_initial && whole) {
        S[t].load(p.initial, slot * p.initial.slot + hv * p.initial.head, K, v + 16 * t, lane);
      } else {
        S[t].clear();
      }
    }
    const bool idle = transition && whole && segment.index == 0;
    for (int c = from; c < segment.to; ++c) {
      ptx::cp_async_wait<kAffineStages - 2>();
      __syncthreads();  // chunk c is in shared memory, and every warp has left the stage that is filled next
      fetch(c + kAffineStages - 1);
      float none[kTiles][2][4];
      if (!idle) advance<K, kTiles>(S, shared.stages[c % kAffineStages], none, tile, !transition, fp16, lane);
    }
    ptx::cp_async_wait<0>();
    if (whole) break;
    // |M| is at most K times its largest element. A NaN is not small.
    bool small = true;
    if (transition) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < K / 8; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) small &= fabsf(S[t].x[i][e]) <= kForgotten / K;
        }
      }
    }
    forgets = __syncthreads_and(small);
    if (forgets) break;
    from = segment.from;
  }

  if (!transition) {
    const int64_t matrix = static_cast<int64_t>(K) * K;
    const States ends = {p.ends, p.layout.HV * matrix, matrix, FKDA_FLOAT32, false};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) S[t].store(ends, place * matrix, K, v + 16 * t, lane);
  } else if (!forgets && segment.index > 0) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      store_transition<K>(S[t], p.transitions + place * Transition<K>::kBytes, v + 16 * t, lane);
  }
  if (thread == 0) p.forgets[place] = forgets;
}

}  // namespace flashkda::cuda::sm80
