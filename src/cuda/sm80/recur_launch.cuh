#pragma once

#include "cuda/error.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm80/launch.hpp"
#include "cuda/sm80/recur.cuh"

namespace flashkda::cuda::sm80 {

template <int K, int kTiles, bool kObserved>
void launch_recur_instance(const RecurParams& p, int V, int64_t heads, cudaStream_t stream) {
  const int64_t blocks = heads * (V / recur_columns(kTiles));
  allow_shared_memory<recur<K, kTiles, kObserved>>(sizeof(RecurShared<K, kTiles>));
  recur<K, kTiles, kObserved>
      <<<static_cast<unsigned>(blocks), kRecurThreads, sizeof(RecurShared<K, kTiles>), stream>>>(p, V);
  check(cudaGetLastError(), "launch of the recurrence kernel");
}

template <int K, int kTiles>
void launch_recur(const RecurParams& p, int V, int64_t heads, cudaStream_t stream) {
  if (p.checkpoints.data != nullptr || p.intermediate.data != nullptr) {
    launch_recur_instance<K, kTiles, true>(p, V, heads, stream);
  } else {
    launch_recur_instance<K, kTiles, false>(p, V, heads, stream);
  }
}

}  // namespace flashkda::cuda::sm80
