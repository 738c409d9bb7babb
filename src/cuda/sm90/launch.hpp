// The fused kernel, compiled for sm_90a only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashkda::cuda::sm90 {

struct FusedParams;

// heads = sequences x value heads. kSlices: 64 value columns each; a block has 1 or 2 of a head.
template <int kSlices>
void launch_fused(const FusedParams& p, int64_t heads, cudaStream_t stream);

}  // namespace flashkda::cuda::sm90
