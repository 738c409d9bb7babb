#include <algorithm>

#include "cuda/error.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm90/apart.cuh"
#include "cuda/sm90/launch.hpp"

namespace flashkda::cuda::sm90 {

void launch_apart(const ApartParams& p, cudaStream_t stream) {
  constexpr size_t kShared = std::max(sizeof(Shared<Maker>), sizeof(Shared<Reader>));
  static_assert(kShared <= 227 * 1024);
  allow_shared_memory<apart>(kShared);
  apart<<<static_cast<unsigned>(p.makers + p.runs * kReadersOfAHead), kApartThreads, kShared, stream>>>(p);
  check(cudaGetLastError(), "launch of the fused kernel with makers and readers");
}

}  // namespace flashkda::cuda::sm90
