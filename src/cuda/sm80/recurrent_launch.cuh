#pragma once

#include <algorithm>
#include <cstddef>

#include "cuda/error.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm80/launch.hpp"
#include "cuda/sm80/recurrent.cuh"

namespace flashkda::cuda::sm80 {

template <int K>
void launch_recurrent(RecurrentParams p, int64_t heads, int processors, cudaStream_t stream) {
  p.items = static_cast<int32_t>(heads * (K / kRecurrentColumns));
  const int blocks = std::min(p.items, kRecurrentBlocks * processors);
  constexpr auto bytes = [](size_t element) {
    return offsetof(RecurrentShared<K>, state) + StatePatch<K>::stage_bytes(element);
  };
  allow_shared_memory<&recurrent<K>>(bytes(4));
  recurrent<K>
      <<<static_cast<unsigned>(blocks), kRecurrentThreads, bytes(p.initial.dtype == FKDA_FLOAT32 ? 4 : 2), stream>>>(p);
  check(cudaGetLastError(), "launch of the recurrent kernel");
}

}  // namespace flashkda::cuda::sm80
