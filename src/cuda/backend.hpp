// The CUDA backend. Two paths: portable (sm_80 and later, every option) and fused (sm_90a, the options that serving and
// training use most). "cuda" takes the one that is faster, "cuda_fused" the fused one wherever it fits and
// "cuda_portable" never.
#pragma once

#include <cstddef>

#include "core/problem.hpp"

namespace flashkda::cuda {

bool available();  // a device of compute capability 8.0 or more is in the machine
const char* detail();
const char* detail_fused();
const char* detail_split();
const char* detail_portable();

// Throws Error where the kernels ask more of the memory than flashkda.h does: 16-byte alignment.
void check_problem(const Problem& p);

size_t workspace_size(const Problem& p);
void forward(const Problem& p, void* workspace, void* stream);

size_t workspace_size_fused(const Problem& p);
void forward_fused(const Problem& p, void* workspace, void* stream);

size_t workspace_size_split(const Problem& p);
void forward_split(const Problem& p, void* workspace, void* stream);

size_t workspace_size_portable(const Problem& p);
void forward_portable(const Problem& p, void* workspace, void* stream);

}  // namespace flashkda::cuda
