#pragma once

#include "cuda/launch.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm90/fused.cuh"
#include "cuda/sm90/launch.hpp"

namespace flashkda::cuda::sm90 {

template <int kSlices>
void launch_fused(const FusedParams& p, int64_t heads, bool early, cudaStream_t stream) {
  using V = Variant<kSlices>;
  static_assert(sizeof(Shared<V>) <= 227 * 1024);
  allow_shared_memory<fused<V>>(sizeof(Shared<V>));
  launch(&fused<V>, heads * V::kSharers, V::kThreads, sizeof(Shared<V>), stream, early, V::kSharers,
         "launch of the fused kernel", p);
}

}  // namespace flashkda::cuda::sm90
