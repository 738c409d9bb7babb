#pragma once

#include "cuda/error.hpp"
#include "cuda/sm80/launch.hpp"
#include "cuda/sm80/recurrent.cuh"

namespace flashkda::cuda::sm80 {

template <int K>
void launch_recurrent(const RecurrentParams& p, int64_t heads, cudaStream_t stream) {
  const int64_t blocks = heads * (K / kRecurrentColumns);
  recurrent<K><<<static_cast<unsigned>(blocks), kRecurrentThreads, 0, stream>>>(p);
  check(cudaGetLastError(), "launch of the recurrent kernel");
}

}  // namespace flashkda::cuda::sm80
