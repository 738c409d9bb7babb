// The CUDA backend. Paths: portable (sm_80 and later, every option), wgmma (sm_90a, the same in two kernels built on
// wgmma), fused (sm_90a, one kernel for the options that serving and training use most) and apart (the same with chunks
// prepared on multiprocessors of their own); the first two with sequences in one piece or split into segments. "cuda"
// takes the one that should be fastest, the other names insist on one where it fits.
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

// The paths that have a backend name of their own, "cuda_" and this: the one list of them in the library.
#define FLASHKDA_CUDA_PATHS(X) X(fused) X(apart) X(wgmma) X(split) X(portable) X(portable_split)

// What a path is, for fkda_implementation, and how it is run.
#define FLASHKDA_DECLARE_PATH(path)               \
  const char* detail_##path();                    \
  size_t workspace_size_##path(const Problem& p); \
  void forward_##path(const Problem& p, void* workspace, void* stream);
FLASHKDA_CUDA_PATHS(FLASHKDA_DECLARE_PATH)
#undef FLASHKDA_DECLARE_PATH

}  // namespace flashkda::cuda
