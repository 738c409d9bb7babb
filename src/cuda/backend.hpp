// The CUDA backend. Paths: portable (sm_80 and later, every option), wgmma (sm_90a, the same in two kernels built on
// wgmma) and fused (sm_90a, one kernel for the options that serving and training use most); the first two with
// sequences in one piece or split into segments. "cuda" takes the one that should be fastest, the other names insist on
// one where it fits.
#pragma once

#include <cstddef>

#include "core/problem.hpp"

namespace flashkda::cuda {

bool available();  // a device of compute capability 8.0 or more is in the machine
const char* detail();
// Throws Error where the kernels ask more of the memory than flashkda.h does: 16-byte alignment.
void check_problem(const Problem& p);

size_t workspace_size(const Problem& p);
void forward(const Problem& p, void* workspace, void* stream);

// A path by name: what it is, for fkda_implementation, and how it is run.
#define FLASHKDA_CUDA_PATH(path)                  \
  const char* detail_##path();                    \
  size_t workspace_size_##path(const Problem& p); \
  void forward_##path(const Problem& p, void* workspace, void* stream);
FLASHKDA_CUDA_PATH(fused)
FLASHKDA_CUDA_PATH(wgmma)
FLASHKDA_CUDA_PATH(split)
FLASHKDA_CUDA_PATH(portable)
FLASHKDA_CUDA_PATH(portable_split)
#undef FLASHKDA_CUDA_PATH

}  // namespace flashkda::cuda
