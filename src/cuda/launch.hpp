// Launching a kernel that may start early.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/error.hpp"

namespace flashkda::cuda {

// early: before the kernel in front of it in the stream has ended; the kernel says itself where it waits for that
// (ptx/grid.cuh). Only for code that was compiled for sm_90 or later, where older code would not wait.
template <typename... Params>
void launch(void (*kernel)(Params...), int64_t blocks, int threads, size_t shared_bytes, cudaStream_t stream,
            bool early, const char* what, const Params&... params) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, params...), what);
}

}  // namespace flashkda::cuda
