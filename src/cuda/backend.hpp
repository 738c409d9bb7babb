// The CUDA backend, portable path: sm_80 and later.
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

}  // namespace flashkda::cuda
