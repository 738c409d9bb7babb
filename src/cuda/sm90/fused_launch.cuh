#pragma once

#include "cuda/error.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm90/fused.cuh"
#include "cuda/sm90/launch.hpp"

namespace flashkda::cuda::sm90 {

template <int kSlices>
void launch_fused(const FusedParams& p, int64_t heads, cudaStream_t stream) {
  using V = Variant<kSlices>;
  static_assert(sizeof(Shared<V>) <= 227 * 1024);
  allow_shared_memory<fused<V>>(sizeof(Shared<V>));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {V::kSharers, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(heads * V::kSharers);
  config.blockDim = V::kThreads;
  config.dynamicSmemBytes = sizeof(Shared<V>);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = V::kSharers > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, fused<V>, p), "launch of the fused kernel");
}

}  // namespace flashkda::cuda::sm90
