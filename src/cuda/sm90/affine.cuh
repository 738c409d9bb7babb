// sm80/affine.cuh with wgmma: what a segment does to any state, S -> M S + B. One block carries B and another M, 64
// columns a warpgroup; a warp of its own asks for the images.
//
// Whether the last chunks alone shrink every state to nothing is decided from a bound, the same in both blocks: with
// the chunk's map M = diag(F) - sum over i >= j of kr_i T_ij kd_j^T,
//   |M| <= max F + sum over i >= j of |T_ij| |kr_i| |kd_j|
// in the spectral norm, and a window's norm is at most the product of its chunks'. No step lengthens a state.
#pragma once

#include "cuda/sm80/affine.cuh"
#include "cuda/sm90/walk.cuh"

namespace flashkda::cuda::sm90 {

inline constexpr int kAffineThreads = 2 * 128 + 32;
inline constexpr int kLongestLook = 8;  // chunks, a warp for each

struct AffineShared {
  WalkRing<2, kWalkStages> ring;
  float squares[2][8][kChunk];  // of kr and kd, of 16 channels each
  float sums[kAffineThreads / 32], longest[kAffineThreads / 32];
};

// Whether the bounds of chunks [from, to), at most 8, could have a product that small: each is at least its chunk's
// max F. Where a channel remembers, nothing else is read. In every thread.
__device__ inline bool may_forget(AffineShared& shared, const Image* images, int64_t stride, int from, int to) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  if (warp < to - from) {
    const float4 f = *reinterpret_cast<const float4*>(&images[(from + warp) * stride].F[4 * lane]);
    float most = fmaxf(fmaxf(f.x, f.y), fmaxf(f.z, f.w));
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, bit));
    if (lane == 0) shared.longest[warp] = most;
  }
  __syncthreads();
  float least = 1.0f;
  for (int w = 0; w < to - from; ++w) least *= shared.longest[w];
  __syncthreads();
  return least <= sm80::kForgotten;
}

// The bound of one chunk's map, in every thread.
__device__ inline float bound_of(AffineShared& shared, const Image& image) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  float most = 0.0f, sum = 0.0f;
  if (warp < 8) {
    float kr = 0.0f, kd = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) {  // w: the lane is a place of its row, before the swizzle
      const int channel = 16 * warp + i;
      const float x = *reinterpret_cast<const float*>(&image.w[channel][unit_128(channel, lane / 4) + lane % 4 * 4]);
      kr += x * x;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // kd: the lane is a token
      const int unit = warp % 4 * 2 + i;
      const uint4 x = *reinterpret_cast<const uint4*>(&image.kd[warp / 4][lane][unit_128(lane, unit)]);
      for (const uint32_t pair : {x.x, x.y, x.z, x.w}) {
        const float2 y = unpack_bf16(pair);
        kd += y.x * y.x + y.y * y.y;
      }
    }
    shared.squares[0][warp][lane] = kr;
    shared.squares[1][warp][lane] = kd;
    if (thread < D) most = image.F[thread];
  }
  __syncthreads();
  if (warp < 8) {
    // Row 4 warp + i of T; the lane is a place of the row.
    const auto norm = [&](int of, int at) {
      float square = 0.0f;
      for (int part = 0; part < 8; ++part) square += shared.squares[of][part][at];
      return sqrtf(square);
    };
    const int token = lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;  // of a place
    const float kd = norm(1, token);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * warp + i;
      const float T = *reinterpret_cast<const float*>(&image.T[row][unit_128(row, lane / 4) + lane % 4 * 4]);
      sum += fabsf(T) * kd * norm(0, token_place(row));
    }
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, bit);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, bit));
  }
  if (lane == 0) {
    shared.sums[warp] = sum;
    shared.longest[warp] = most;
  }
  __syncthreads();
  sum = most = 0.0f;
  for (int w = 0; w < 8; ++w) {
    sum += shared.sums[w];
    most = fmaxf(most, shared.longest[w]);
  }
  __syncthreads();
  return most + sum;  // no number if anything was none
}

// p.images: of sm90::Image. v: the map of p.v.
__global__ void __launch_bounds__(kAffineThreads, 1)
    affine(const __grid_constant__ sm80::AffineParams p, const __grid_constant__ CUtensorMap v) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<AffineShared*>(shared_memory);
  auto& ring = shared.ring;
  const int thread = threadIdx.x, lane = thread % 32;
  ptx::let_next_start();
  if (thread == 0) ring.init(2 * 128);
  ptx::wait_for_previous();
  const bool transition = blockIdx.x % 2 == 1;  // else the offset B
  const int64_t place = blockIdx.x / 2;
  const int hv = static_cast<int>(place % p.layout.HV);
  sm80::Segment segment;
  if (!sm80::locate_segment<kChunk>(p.layout, place / p.layout.HV, segment)) return;
  const int64_t slot = p.slots.data == nullptr ? segment.n : p.slots[segment.n];
  const bool stateful = p.initial.data != nullptr && slot >= 0 && slot < p.slot_count;
  const int group = __shfl_sync(0xffffffffu, thread / 128, 0);
  const int column = group * 64 + uniform_warp() * 16 + lane / 4;  // the lane's first
  if (segment.index + 1 == segment.count) {
    if (segment.count > 1 && stateful && !transition && group < 2) {
      sm80::keep_initial<D>(p, place, slot, hv, column, lane);
    }
    return;
  }
  if (transition && segment.index == 0) return;  // nobody asks for it
  const auto* const images = reinterpret_cast<const Image*>(p.images) + segment.first_chunk * p.layout.HV + hv;

  // The shortest window after which nothing is left.
  int from = segment.from;
  const int first_look = max(segment.from + 1, segment.to - kLongestLook);
  if (p.shortcut && may_forget(shared, images, p.layout.HV, first_look, segment.to)) {
    float bound = 1.0f;
    for (int c = segment.to - 1; c >= first_look; --c) {
      bound *= bound_of(shared, images[static_cast<int64_t>(c) * p.layout.HV]);
      if (!(bound < 1.0f)) break;  // a chunk that hardly forgets: the others need not be looked at
      if (bound <= sm80::kForgotten) {
        from = c;
        break;
      }
    }
  }
  const bool forgets = from > segment.from;
  if (!transition && thread == 0) p.forgets[place] = forgets;
  if (transition && forgets) return;
  __syncthreads();

  if (group == 2) {
    if (lane != 0) return;
    for (int c = from; c < segment.to; ++c) {  // whole chunks: only a sequence's last is not
      ring.fill<false>(c - from, images + static_cast<int64_t>(c) * p.layout.HV, v, !transition,
                       static_cast<int32_t>(segment.batch),
                       static_cast<int32_t>(segment.begin + static_cast<int64_t>(c) * kChunk), hv, 0);
    }
    return;
  }
  sm80::StateFragment<D> S;
  if (transition) {
    S.identity(column, lane);
  } else if (segment.index == 0 && !forgets && stateful) {
    S.load(p.initial, slot * p.initial.slot + hv * p.initial.head, D, column, lane);
  } else {
    S.clear();
  }
  const bool fp16 = p.v.dtype == FKDA_FLOAT16;
  for (int step = 0; step < segment.to - from; ++step) {
    const int s = step % kWalkStages;
    ptx::barrier_wait(ring.full[s], step / kWalkStages & 1);
    advance<false, true>(S, ring.stages[s], group, !transition, fp16, [](const float(&)[16]) {});
    ptx::barrier_arrive(ring.empty[s]);
  }
  if (transition) {
    sm80::store_transition<D>(S, p.transitions + place * sm80::Transition<D>::kBytes, column, lane);
  } else {
    constexpr int64_t kMatrix = int64_t{D} * D;
    const States ends = {p.ends, p.layout.HV * kMatrix, kMatrix, FKDA_FLOAT32, false};
    S.store(ends, place * kMatrix, D, column, lane);
  }
}

}  // namespace flashkda::cuda::sm90
