// CUDA runtime errors as Error, and the current device.
#pragma once

#include <cuda_runtime_api.h>

#include "core/error.hpp"

namespace flashkda::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw_error(FKDA_DEVICE_ERROR, "cuda: %s failed: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

// Makes a device current and the former one current again.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&former_), "cudaGetDevice");
    if (device == former_) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(former_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int former_ = 0;
  bool changed_ = false;
};

}  // namespace flashkda::cuda
