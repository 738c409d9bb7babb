// What a block works on.
#pragma once

#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// A head of a sequence.
struct Item {
  int64_t n, batch, begin, length;
  int64_t first_chunk;  // chunks of the sequences before, where the layout counts chunks of 32
  int chunks, h, hv;

  __device__ __forceinline__ int rows(int c) const {  // tokens of chunk c
    return static_cast<int>(min(static_cast<int64_t>(kChunk), length - static_cast<int64_t>(c) * kChunk));
  }
  __device__ __forceinline__ int32_t token(int c) const {  // the first of chunk c, in its batch row
    return static_cast<int32_t>(begin + static_cast<int64_t>(c) * kChunk);
  }
};

__device__ __forceinline__ Item item_of(const Layout& layout, int64_t n, int hv) {
  Item item{.n = n, .batch = n, .begin = 0, .length = layout.T, .first_chunk = n * layout.row_chunks};
  if (layout.begin != nullptr) {
    item.batch = 0;
    item.begin = layout.begin[n];
    item.length = layout.begin[n + 1] - item.begin;
    item.first_chunk = layout.chunks[n];
  }
  item.chunks = static_cast<int>((item.length + kChunk - 1) / kChunk);
  item.hv = hv;
  item.h = hv / layout.group;
  return item;
}

}  // namespace flashkda::cuda::sm90
