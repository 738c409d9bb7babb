// What the fused kernel is told.
#pragma once

#include "cuda/params.cuh"
#include "cuda/ptx/hopper.cuh"

namespace flashkda::cuda::sm90 {

struct FusedParams {
  CUtensorMap q, k, g, v;  // [B][T][heads][128] bf16, boxes of 32 tokens x 64 channels
  Layout layout;           // counts chunks of 16, which nobody uses, but in ApartParams of 32
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

// What the kernel with makers and readers is told.
struct ApartParams {
  FusedParams fused;     // but order; its layout counts chunks of 32
  char* images;          // [chunks of all sequences][HV][kImageBytes]
  ptx::Flag* ready;      // [chunks of all sequences][HV], zero at the start
  int32_t makers, runs;  // blocks that make images; sequences x value heads
};

}  // namespace flashkda::cuda::sm90
