// What the fused kernel is told.
#pragma once

#include "cuda/params.cuh"
#include "cuda/ptx/hopper.cuh"

namespace flashkda::cuda::sm90 {

struct FusedParams {
  CUtensorMap q, k, g, v;  // [B][T][heads][128] bf16, boxes of 32 tokens x 64 channels
  Layout layout;           // chunks and row_chunks count chunks of 16 and are not read
  const int32_t* order;    // packed: [N] sequences, long ones first
  Rows beta;               // [B,T,HV]: head stride 1
  Rows out;                // [B,T,HV,V]
  const float* A_log;      // [HV] or null
  const float* dt_bias;    // [HV,K] or null
  float lower_bound, scale;
  int32_t beta_activation;
  States initial, final;  // slot = sequence, or state_indices[sequence]
  Integers slots;         // data null: slot = sequence
  int64_t slot_count;     // slots of the pools; an index outside 0..slot_count-1 is treated as negative
};

// A head of a sequence.
struct Item {
  int64_t n, batch, begin, length;
  int64_t first_chunk;  // chunks of the sequences before, where the layout counts chunks of 32
  int chunks, h, hv;
};

__device__ __forceinline__ Item item_of(const Layout& layout, int64_t n, int hv) {
  Item item{.n = n, .batch = n, .begin = 0, .length = layout.T, .first_chunk = n * layout.row_chunks};
  if (layout.begin != nullptr) {
    item.batch = 0;
    item.begin = layout.begin[n];
    item.length = layout.begin[n + 1] - item.begin;
    item.first_chunk = layout.chunks[n];
  }
  item.chunks = static_cast<int>((item.length + 31) / 32);
  item.hv = hv;
  item.h = hv / layout.group;
  return item;
}

// What the kernel with makers and readers is told.
struct ApartParams {
  FusedParams fused;     // but order; its layout counts chunks of 32
  char* images;          // [chunks of all sequences][HV][kImageBytes]
  ptx::Flag* ready;      // [chunks of all sequences][HV], zero at the start
  int32_t makers, runs;  // blocks that make images; sequences x value heads
};

}  // namespace flashkda::cuda::sm90
