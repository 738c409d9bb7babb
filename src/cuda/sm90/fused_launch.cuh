#pragma once

#include <atomic>

#include "cuda/error.hpp"
#include "cuda/sm90/fused.cuh"
#include "cuda/sm90/launch.hpp"

namespace flashkda::cuda::sm90 {

// Kernels with more than 48 KB of shared memory must say so once a device.
template <int kSlices>
void allow_shared_memory() {
  static std::atomic<uint64_t> done{0};  // a bit a device
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (done.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(fused<kSlices>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<kSlices>)),
        "cudaFuncSetAttribute");
  done.fetch_or(bit, std::memory_order_relaxed);
}

template <int kSlices>
void launch_fused(const FusedParams& p, int64_t heads, cudaStream_t stream) {
  static_assert(sizeof(Shared<kSlices>) <= 227 * 1024);
  allow_shared_memory<kSlices>();
  const auto blocks = static_cast<unsigned>(heads * (D / 64 / kSlices));
  fused<kSlices><<<blocks, kThreads<kSlices>, sizeof(Shared<kSlices>), stream>>>(p);
  check(cudaGetLastError(), "launch of the fused kernel");
}

}  // namespace flashkda::cuda::sm90
