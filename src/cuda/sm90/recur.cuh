// The head-parallel kernel of the Hopper path: one block carries a value head through the chunks of one segment, a
// warpgroup 64 value columns, from the images that sm90/prepare.cuh made. A warp of its own asks for them.
#pragma once

#include "cuda/sm80/recur.cuh"
#include "cuda/sm90/output.cuh"
#include "cuda/sm90/walk.cuh"

namespace flashkda::cuda::sm90 {

// kSlices: 64 value columns each, a warpgroup for one. Both in one block, or a block each: alone on its SM with as many
// stages, or two on one with half of them, so that one's states are on their way while the other walks.
template <int kSlices>
inline constexpr int kRecurThreads = kSlices * 128 + 32;

template <int kSlices, int kRing>
struct RecurShared {
  WalkRing<kSlices, kRing> ring;
};

// p.images: of sm90::Image. v: the map of p.v.
template <int kSlices, int kRing>
__global__ void __launch_bounds__(kRecurThreads<kSlices>, kWalkStages / kRing)
    recur(const __grid_constant__ sm80::RecurParams p, const __grid_constant__ CUtensorMap v) {
  extern __shared__ __align__(1024) char shared_memory[];
  constexpr int kSplits = D / 64 / kSlices;                      // blocks that share a run
  constexpr bool kAlone = kSlices == 1 && kRing == kWalkStages;  // one warpgroup has the SM's registers to itself
  auto& ring = reinterpret_cast<RecurShared<kSlices, kRing>*>(shared_memory)->ring;
  if (threadIdx.x == 0) ring.init(kSlices * 128);
  ptx::wait_for_previous();
  const int64_t place = blockIdx.x / kSplits;
  const int column = static_cast<int>(blockIdx.x % kSplits) * 64 * kSlices;  // the block's first
  const int hv = static_cast<int>(place % p.layout.HV);
  sm80::Segment segment;
  if (!sm80::locate_segment<kChunk>(p.layout, place / p.layout.HV, segment)) return;
  __syncthreads();

  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  const auto* const images = reinterpret_cast<const Image*>(p.images) + segment.first_chunk * p.layout.HV + hv;
  if (group == kSlices) {
    if (threadIdx.x % 32 != 0) return;
    for (int c = segment.from; c < segment.to; ++c) {
      ring.template fill<true>(c - segment.from, images + static_cast<int64_t>(c) * p.layout.HV, v, true,
                               static_cast<int32_t>(segment.batch),
                               static_cast<int32_t>(segment.begin + static_cast<int64_t>(c) * kChunk), hv, column);
    }
    return;
  }

  const int lane = threadIdx.x % 32;
  const int v0 = column + group * 64 + uniform_warp() * 16;  // the warp's first value column
  const int64_t slot = p.slots.data == nullptr ? segment.n : p.slots[segment.n];
  const bool stateful = slot >= 0 && slot < p.slot_count;
  sm80::StateFragment<D> S;
  const bool has_initial = stateful && p.initial.data != nullptr;
  if (segment.index > 0 || (segment.count > 1 && has_initial)) {
    constexpr int64_t kMatrix = int64_t{D} * D;
    const States ends = {p.ends, p.layout.HV * kMatrix, kMatrix, FKDA_FLOAT32, false};
    // The initial state waits where the last segment's end would be (keep_initial of sm80/affine.cuh).
    const int64_t from = place + (segment.index > 0 ? -1 : segment.count - 1) * static_cast<int64_t>(p.layout.HV);
    S.load(ends, from * kMatrix, D, v0 + lane / 4, lane);
  } else if (has_initial) {
    S.load(p.initial, slot * p.initial.slot + hv * p.initial.head, D, v0 + lane / 4, lane);
  } else {
    S.clear();
  }
  const bool fp16 = p.v.dtype == FKDA_FLOAT16;
  const int64_t out = segment.batch * p.out.batch + segment.begin * p.out.token + hv * p.out.head + v0;
  for (int c = segment.from; c < segment.to; ++c) {
    const int step = c - segment.from, s = step % kRing;
    const int64_t token = static_cast<int64_t>(c) * kChunk;
    const int rows = static_cast<int>(min(static_cast<int64_t>(kChunk), segment.length - token));
    ptx::barrier_wait(ring.full[s], step / kRing & 1);
    if (rows < kChunk) clear_values(ring.stages[s].v[group], rows);
    advance<true, kAlone>(S, ring.stages[s], group, true, fp16, [&](const float(&o)[16]) {
      const int64_t at = out + token * p.out.token;
      if constexpr (kRing == kWalkStages) {
        store_output(p.out, at, rows, o, lane);
      } else {  // two on an SM have no registers for it, and what is spilled comes back from L2
        const auto& halves = reinterpret_cast<const float(&)[2][2][4]>(o);
        sm80::store_output(p.out, at, rows, halves[0], lane);
        sm80::store_output(p.out, at + kHalf * p.out.token, rows - kHalf, halves[1], lane);
      }
    });
    ptx::barrier_arrive(ring.empty[s]);
  }
  if (segment.index + 1 == segment.count && stateful && p.final.data != nullptr) {
    S.store(p.final, slot * p.final.slot + hv * p.final.head, D, v0 + lane / 4, lane);
  }
}

}  // namespace flashkda::cuda::sm90
