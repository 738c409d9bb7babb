// Kernels that use more than 48 KB of shared memory must say so once a device.
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda/error.hpp"

namespace flashkda::cuda {

// Bytes of shared memory that a block may have on the current device.
inline size_t shared_memory_limit() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return static_cast<size_t>(bytes);
}

template <auto kKernel>
void allow_shared_memory(size_t bytes) {
  static std::atomic<uint64_t> done{0};  // a bit a device
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (done.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
  done.fetch_or(bit, std::memory_order_relaxed);
}

}  // namespace flashkda::cuda
