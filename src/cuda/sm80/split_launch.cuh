#pragma once

#include "cuda/launch.hpp"
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

template <int K, int kBuffers>
void launch_combine_instance(const CombineParams& p, int64_t heads, bool early, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(CombineShared<K, kBuffers>);
  allow_shared_memory<combine<K, kBuffers>>(kBytes);
  launch(&combine<K, kBuffers>, heads * (K / kCombineColumns), combine_threads(K), kBytes, stream, early, 1,
         "launch of the chain over segments", p);
}

template <int K>
void launch_combine(const CombineParams& p, int64_t heads, bool early, cudaStream_t stream) {
  // What a block may have: 227 KB on sm_90 and sm_100, 163 KB on sm_80, 99 KB on the others.
  static_assert(sizeof(CombineShared<K, 3>) <= 227 * 1024);
  static_assert(sizeof(CombineShared<K, 2>) <= 163 * 1024);
  static_assert(sizeof(CombineShared<K, 1>) <= 99 * 1024 && sizeof(AffineShared<K>) <= 99 * 1024);
  const size_t limit = shared_memory_limit();
  if (sizeof(CombineShared<K, 3>) <= limit) {
    launch_combine_instance<K, 3>(p, heads, early, stream);
  } else if (sizeof(CombineShared<K, 2>) <= limit) {
    launch_combine_instance<K, 2>(p, heads, early, stream);
  } else {
    launch_combine_instance<K, 1>(p, heads, early, stream);
  }
}

}  // namespace flashkda::cuda::sm80
