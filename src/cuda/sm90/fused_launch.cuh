#pragma once

#include "cuda/error.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm90/fused.cuh"
#include "cuda/sm90/launch.hpp"

namespace flashkda::cuda::sm90 {

template <int kSlices>
void launch_fused(const FusedParams& p, int64_t heads, cudaStream_t stream) {
  static_assert(sizeof(Shared<kSlices>) <= 227 * 1024);
  allow_shared_memory<fused<kSlices>>(sizeof(Shared<kSlices>));
  const auto blocks = static_cast<unsigned>(heads * (D / 64 / kSlices));
  fused<kSlices><<<blocks, kThreads<kSlices>, sizeof(Shared<kSlices>), stream>>>(p);
  check(cudaGetLastError(), "launch of the fused kernel");
}

}  // namespace flashkda::cuda::sm90
