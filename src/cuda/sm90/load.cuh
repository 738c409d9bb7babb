// Filling a stage: one thread asks the copy engine for a chunk's raw q, k, g and v, or v alone of a chunk that another
// block sends; and sending.
#pragma once

#include "cuda/sm90/item.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// The raw tiles of an own chunk to stage s, by one thread. column: the block's first value column; reads: whether it
// wants v.
template <typename V>
__device__ __forceinline__ void load(Shared<V>& shared, int s, const FusedParams& p, const Item& item, int c,
                                     int column, bool reads) {
  Stage<V::kSlices>& stage = shared.stages[s];
  ptx::Barrier& raw = shared.raw[s];
  ptx::barrier_expect(raw, 2 * 3 * sizeof(stage.x[0][0]) + (reads ? sizeof(stage.v) : 0));
  const int32_t token = item.token(c);
  const auto batch = static_cast<int32_t>(item.batch);
#pragma unroll 1
  for (int block = 0; block < 2; ++block) {
    ptx::load_box(stage.x[block][0], p.k, block * 64, item.h, token, batch, raw);
    ptx::load_box(stage.x[block][1], p.q, block * 64, item.h, token, batch, raw);
    ptx::load_box(stage.x[block][2], p.g, block * 64, item.hv, token, batch, raw);
    if (reads && block < V::kSlices)
      ptx::load_box(stage.v[block], p.v, column + block * 64, item.hv, token, batch, raw);
  }
}

// v of a chunk that another block prepares, and what is to be expected of that.
template <typename V>
__device__ __forceinline__ void load_foreign(Shared<V>& shared, const FusedParams& p, const Item& item, int c,
                                             int column) {
  const int s = c % V::kStages;
  Stage<V::kSlices>& stage = shared.stages[s];
  ptx::barrier_expect(shared.bits[s], sizeof(stage.head) + sizeof(stage.tail));
  ptx::barrier_expect_with(
      shared.full[s], 128,
      sizeof(stage.x) + sizeof(stage.scales) + sizeof(stage.F) + sizeof(stage.v) + sizeof(stage.T) + sizeof(stage.M));
  ptx::load_box(stage.v[0], p.v, column, item.hv, item.token(c), static_cast<int32_t>(item.batch), shared.full[s]);
}

// Sends a part of a stage to the same place of another block, on whose barrier its bytes count, by one thread.
__device__ __forceinline__ void send(const void* part, uint32_t bytes, ptx::Barrier& barrier, int block) {
  const uint32_t here = ptx::shared_address(part);
  ptx::send_bytes(ptx::address_in_block(here, block), here, bytes,
                  ptx::address_in_block(ptx::shared_address(&barrier), block));
}

}  // namespace flashkda::cuda::sm90
