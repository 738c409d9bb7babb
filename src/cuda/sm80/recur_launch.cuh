#pragma once

#include "cuda/error.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm80/launch.hpp"
#include "cuda/sm80/recur.cuh"

namespace flashkda::cuda::sm80 {

template <int K, int kWarps, int kTiles, bool kObserved>
void launch_recur_instance(const RecurParams& p, int V, int64_t heads, cudaStream_t stream) {
  const int64_t blocks = heads * (V / recur_columns(kWarps, kTiles));
  allow_shared_memory<recur<K, kWarps, kTiles, kObserved>>(sizeof(RecurShared<K, kWarps, kTiles>));
  recur<K, kWarps, kTiles, kObserved>
      <<<static_cast<unsigned>(blocks), kWarps * 32, sizeof(RecurShared<K, kWarps, kTiles>), stream>>>(p, V);
  check(cudaGetLastError(), "launch of the recurrence kernel");
}

template <int K, int kWarps, int kTiles>
void launch_recur(const RecurParams& p, int V, int64_t heads, cudaStream_t stream) {
  if (p.checkpoints.data != nullptr || p.intermediate.data != nullptr) {
    launch_recur_instance<K, kWarps, kTiles, true>(p, V, heads, stream);
  } else {
    launch_recur_instance<K, kWarps, kTiles, false>(p, V, heads, stream);
  }
}

}  // namespace flashkda::cuda::sm80
