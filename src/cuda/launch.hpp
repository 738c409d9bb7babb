// Launching a kernel that may start early.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/error.hpp"

namespace flashkda::cuda {

// Whether the driver can capture early starts into graphs: CUDA 12.3.
inline bool can_start_early() {
  static const bool can = [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
  }();
  return can;
}

// early: before the kernel in front of it in the stream has ended; the kernel itself waits for that (ptx/grid.cuh).
// Code that was compiled for less than sm_90 does not wait and must not start early. cluster: blocks of one.
template <typename... Params>
void launch(void (*kernel)(Params...), int64_t blocks, int threads, size_t shared_bytes, cudaStream_t stream,
            bool early, unsigned cluster, const char* what, const Params&... params) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (early && can_start_early()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, params...);
  if (error != cudaSuccess) cudaGetLastError();  // not an error of a later call
  check(error, what);
}

}  // namespace flashkda::cuda
