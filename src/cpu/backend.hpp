// The CPU backend: chunked form in fp32 with SIMD (Highway), threads over sequences, heads and value columns.
#pragma once

#include <cstddef>

#include "core/problem.hpp"

namespace flashkda::cpu {

// The instruction set Highway chose at run time, e.g. "AVX3". Static string.
const char* target_name();

size_t workspace_size(const Problem& p);
void forward(const Problem& p, void* workspace, void* stream);

}  // namespace flashkda::cpu
