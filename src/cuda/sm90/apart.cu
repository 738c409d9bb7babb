#include <algorithm>

#include "cuda/launch.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm90/apart.cuh"
#include "cuda/sm90/launch.hpp"

namespace flashkda::cuda::sm90 {

void launch_apart(const ApartParams& p, cudaStream_t stream) {
  constexpr size_t kShared = std::max(sizeof(Shared<Maker>), sizeof(Shared<Reader>));
  static_assert(kShared <= 227 * 1024);
  allow_shared_memory<apart>(kShared);
  launch(&apart, p.makers + int64_t{p.runs} * kReadersOfAHead, kApartThreads, kShared, stream, true, 1,
         "launch of the fused kernel with makers and readers", p);
}

}  // namespace flashkda::cuda::sm90
