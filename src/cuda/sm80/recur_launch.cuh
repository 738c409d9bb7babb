#pragma once

#include <atomic>

#include "cuda/error.hpp"
#include "cuda/sm80/launch.hpp"
#include "cuda/sm80/recur.cuh"

namespace flashkda::cuda::sm80 {

// Kernels with more than 48 KB of shared memory must say so once a device.
template <int K, bool kObserved>
void allow_shared_memory() {
  static std::atomic<uint64_t> done{0};  // a bit a device
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (done.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(recur<K, kObserved>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(RecurShared<K>)),
        "cudaFuncSetAttribute");
  done.fetch_or(bit, std::memory_order_relaxed);
}

template <int K, bool kObserved>
void launch_recur_instance(const RecurParams& p, int V, int64_t blocks, cudaStream_t stream) {
  allow_shared_memory<K, kObserved>();
  recur<K, kObserved><<<static_cast<unsigned>(blocks), kRecurThreads, sizeof(RecurShared<K>), stream>>>(p, V);
  check(cudaGetLastError(), "launch of the recurrence kernel");
}

template <int K>
void launch_recur(const RecurParams& p, int V, int64_t blocks, cudaStream_t stream) {
  if (p.checkpoints.data != nullptr || p.intermediate.data != nullptr) {
    launch_recur_instance<K, true>(p, V, blocks, stream);
  } else {
    launch_recur_instance<K, false>(p, V, blocks, stream);
  }
}

}  // namespace flashkda::cuda::sm80
