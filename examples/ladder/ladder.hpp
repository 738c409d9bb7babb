// What every step of the ladder computes, and what its file defines. host.cpp calls it, checks it and times it.
//
// One sequence of T tokens and H heads, K = V = 128, state from zero. The gate is the log decay itself, beta is applied
// as it is, q and k are unit rows already: what the library does on top of this (gates, norms, packed batches, value
// heads, tails, states in and out) is in src/cuda, and none of it changes the shape of the computation.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>

namespace ladder {

using bf16 = __nv_bfloat16;

inline constexpr int kD = 128;                         // K and V
inline constexpr int kChunk = 16;                      // tokens
inline constexpr float kScale = 0.08838834764831845f;  // 1 / sqrt(128)

struct Problem {          // device memory, dense
  int T, H;               // T a multiple of kChunk
  const bf16 *q, *k, *v;  // [T,H,128]
  const float* a;         // [T,H,128] log decay, <= 0
  const float* b;         // [T,H]
  bf16* out;              // [T,H,128]
  float* state;           // [H,128,128] after the last token, value columns first
  char* workspace;        // workspace_bytes(T, H)
};

// Each step defines these.
size_t workspace_bytes(int T, int H);
void forward(const Problem& p, cudaStream_t stream);
extern const double kOutputBar, kStateBar;  // rms error over rms of the fp64 result

}  // namespace ladder
