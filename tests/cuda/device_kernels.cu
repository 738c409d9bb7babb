#include <cuda_bf16.h>

#include "cuda/device_kernels.hpp"

namespace flashkda::test {
namespace {

constexpr int kBlocks = 1024, kThreads = 256;

__global__ void fill(__nv_bfloat16* data, int64_t count, float low, float high, uint64_t seed) {
  const int64_t step = int64_t{kBlocks} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += step) {
    uint64_t x = static_cast<uint64_t>(i) + seed * 0x9e3779b97f4a7c15ull;  // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    data[i] = __float2bfloat16_rn(low + (high - low) * (static_cast<float>(x >> 40) * 0x1p-24f));
  }
}

__global__ void compare(const uint32_t* a, const uint32_t* b, size_t words, unsigned long long* differences) {
  unsigned long long own = 0;
  const size_t step = size_t{kBlocks} * kThreads;
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < words; i += step) own += a[i] != b[i];
  if (own != 0) atomicAdd(differences, own);
}

}  // namespace

void fill_uniform_bf16(void* data, int64_t count, float low, float high, uint64_t seed) {
  fill<<<kBlocks, kThreads>>>(static_cast<__nv_bfloat16*>(data), count, low, high, seed);
}

void count_differences(const void* a, const void* b, size_t bytes, unsigned long long* differences,
                       cudaStream_t stream) {
  compare<<<kBlocks, kThreads, 0, stream>>>(static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), bytes / 4,
                                            differences);
}

}  // namespace flashkda::test
