#pragma once

#include "cuda/error.hpp"
#include "cuda/sm80/launch.hpp"
#include "cuda/sm80/prepare.cuh"

namespace flashkda::cuda::sm80 {

template <int K>
void launch_prepare(const PrepareParams& p, int64_t blocks, cudaStream_t stream) {
  prepare<K><<<static_cast<unsigned>(blocks), K / 2, 0, stream>>>(p);
  check(cudaGetLastError(), "launch of the prepare kernel");
}

}  // namespace flashkda::cuda::sm80
