// Asynchronous copies from global to shared memory (sm_80). PTX ISA, "Data Movement: cp.async".
#pragma once

#include <cstdint>

namespace flashkda::cuda::ptx {

// 16 bytes, past L1. With valid = false nothing is read and the destination becomes zero.
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void* global, bool valid = true) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

// 16 bytes, past L1, or 4 or 8.
template <int kBytes>
__device__ __forceinline__ void cp_async(uint32_t shared, const void* global) {
  if constexpr (kBytes == 16) {
    cp_async_16(shared, global);
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(kBytes) : "memory");
  }
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Returns when at most kPending of this thread's groups are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Returns when none of this thread's copies is under way, committed or not.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace flashkda::cuda::ptx
