// Device memory and problems on the device, for the benchmarks of the CUDA backend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "check/problem.hpp"

namespace flashkda::bench {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// One allocation from which tensors are cut, so that setting up a case costs no cudaMalloc.
class Arena {
 public:
  explicit Arena(size_t bytes) : capacity_(bytes) {
    check(cudaMalloc(reinterpret_cast<void**>(&base_), bytes), "cudaMalloc");
  }
  ~Arena() { cudaFree(base_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* take(size_t bytes) {
    constexpr size_t kAlignment = FKDA_WORKSPACE_ALIGNMENT;
    const size_t offset = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (used_ > capacity_) throw std::runtime_error("the arena of " + std::to_string(capacity_) + " bytes is full");
    return base_ + offset;
  }
  void release() { used_ = 0; }  // everything taken so far
  size_t used() const { return used_; }

 private:
  char* base_ = nullptr;
  size_t capacity_, used_ = 0;
};

// The view on the current device of a host view: same shape, dtype and strides, contents copied.
inline fkda_tensor upload(const checks::HostTensor& x, Arena& arena) {
  fkda_tensor t = x.view();
  if (!x.present()) return t;
  t.device_type = FKDA_CUDA;
  check(cudaGetDevice(&t.device_index), "cudaGetDevice");
  t.data = arena.take(x.bytes().size());
  check(cudaMemcpy(t.data, x.bytes().data(), x.bytes().size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return t;
}

inline std::string runtime_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace flashkda::bench
