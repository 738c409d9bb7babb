#pragma once

#include "cuda/error.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm80/affine.cuh"
#include "cuda/sm80/combine.cuh"
#include "cuda/sm80/launch.hpp"

namespace flashkda::cuda::sm80 {

template <int K>
void launch_affine(const AffineParams& p, int64_t blocks, cudaStream_t stream) {
  allow_shared_memory<affine<K>>(sizeof(AffineShared<K>));
  affine<K><<<static_cast<unsigned>(blocks), kAffineThreads, sizeof(AffineShared<K>), stream>>>(p);
  check(cudaGetLastError(), "launch of the segment kernel");
}

template <int K>
void launch_combine(const CombineParams& p, int64_t heads, cudaStream_t stream) {
  allow_shared_memory<combine<K>>(sizeof(CombineShared<K>));
  const int64_t blocks = heads * (K / kCombineColumns);
  combine<K><<<static_cast<unsigned>(blocks), combine_threads(K), sizeof(CombineShared<K>), stream>>>(p);
  check(cudaGetLastError(), "launch of the chain over segments");
}

}  // namespace flashkda::cuda::sm80
