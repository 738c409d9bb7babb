#pragma once

#include <atomic>

#include "cuda/error.hpp"
#include "cuda/sm80/launch.hpp"
#include "cuda/sm80/recur.cuh"

namespace flashkda::cuda::sm80 {

// Kernels with more than 48 KB of shared memory must say so once a device.
template <int K, int kTiles, bool kObserved>
void allow_shared_memory() {
  static std::atomic<uint64_t> done{0};  // a bit a device
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (done.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(recur<K, kTiles, kObserved>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(RecurShared<K, kTiles>)),
        "cudaFuncSetAttribute");
  done.fetch_or(bit, std::memory_order_relaxed);
}

template <int K, int kTiles, bool kObserved>
void launch_recur_instance(const RecurParams& p, int V, int64_t heads, cudaStream_t stream) {
  const int64_t blocks = heads * (V / recur_columns(kTiles));
  allow_shared_memory<K, kTiles, kObserved>();
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
