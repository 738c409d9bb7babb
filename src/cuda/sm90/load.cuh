// Filling a stage: one thread asks the copy engine for a chunk's raw q, k, g and v.
#pragma once

#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// A chunk's raw tiles, by one thread. column: the block's first value column.
template <int kSlices>
__device__ __forceinline__ void load(Shared<kSlices>& shared, const FusedParams& p, const Item& item, int c,
                                     int column) {
  const int s = c % kStages<kSlices>;
  Stage<kSlices>& stage = shared.stages[s];
  ptx::Barrier& raw = shared.raw[s];
  ptx::barrier_expect(raw, 2 * 3 * sizeof(stage.x[0][0]) + sizeof(stage.v));
  const auto token = static_cast<int32_t>(item.begin + static_cast<int64_t>(c) * kChunk);
  const auto batch = static_cast<int32_t>(item.batch);
#pragma unroll 1
  for (int block = 0; block < 2; ++block) {
    ptx::load_box(stage.x[block][0], p.k, block * 64, item.h, token, batch, raw);
    ptx::load_box(stage.x[block][1], p.q, block * 64, item.h, token, batch, raw);
    ptx::load_box(stage.x[block][2], p.g, block * 64, item.hv, token, batch, raw);
    if (block < kSlices) ptx::load_box(stage.v[block], p.v, column + block * 64, item.hv, token, batch, raw);
  }
}

}  // namespace flashkda::cuda::sm90
