// What is made ready on the device in front of the other kernels: the tables of a packed batch, from the cu_seqlens of
// the moment, and flags that are to be zero.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/params.cuh"

namespace flashkda::cuda {

struct Cleared {
  int32_t* flags;
  int64_t count;
};

struct PlanParams {
  Integers cu_seqlens;  // [N+1]
  int64_t T;
  int32_t chunk_tokens;
  int64_t left_out;  // sequences of at most so many tokens have no chunks
  int32_t N;
  int32_t intermediate_every;   // tokens, 0: no table
  int64_t* begin;               // [N+1], see Layout
  int32_t* chunks;              // [N+1]
  int32_t* intermediate_begin;  // [N+1] or null
  int32_t segment_chunks;       // chunks of a segment at most, 0: no table
  int32_t* segments;            // [N+1] or null
  int32_t* order;               // [N] sequences, those of more chunks first up to rounding, or null
  Cleared cleared;
};

// Whatever cu_seqlens holds, the tables are ascending and stay within T tokens, hence within T / chunk_tokens + N
// chunks.
void launch_plan(const PlanParams& p, cudaStream_t stream);

// Where there are no tables to make.
void launch_clear(const Cleared& p, cudaStream_t stream);

}  // namespace flashkda::cuda
