// Clocks that a scheduler needs for one mma.sync, by kind and by warps a scheduler: what the portable path's products
// cost where nothing else binds. Each warp has eight independent accumulators.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "cuda/ptx/mma_sync.cuh"

namespace {

constexpr int kAccumulators = 8, kRounds = 256;

enum class Kind { kBf16K16, kTf32K8, kTf32K8Dependent };

template <Kind kKind>
__global__ void rate(float* sink, long long* clocks) {
  float acc[kAccumulators][4] = {};
  const uint32_t a[4] = {threadIdx.x, threadIdx.x + 1, threadIdx.x + 2, threadIdx.x + 3};
  __syncthreads();
  const long long start = clock64();
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) {
      if constexpr (kKind == Kind::kBf16K16) {
        flashkda::cuda::ptx::mma_m16n8k16_bf16(acc[i], a, a[0], a[1]);
      } else if constexpr (kKind == Kind::kTf32K8) {
        flashkda::cuda::ptx::mma_m16n8k8_tf32(acc[i], a, a[0], a[1]);
      } else {
        flashkda::cuda::ptx::mma_m16n8k8_tf32(acc[0], a, a[0], a[1]);
      }
    }
  }
  __syncthreads();
  const long long stop = clock64();
  float sum = 0.0f;
  for (const auto& x : acc) sum += x[0] + x[1] + x[2] + x[3];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  if (threadIdx.x == 0) clocks[blockIdx.x] = stop - start;
}

template <Kind kKind>
void measure(const char* name, float* sink, long long* clocks) {
  std::printf("%-28s", name);
  for (const int warps : {1, 2, 4}) {
    for (int repeat = 0; repeat < 2; ++repeat) rate<kKind><<<1, warps * 128>>>(sink, clocks);
    long long taken = 0;
    cudaMemcpy(&taken, clocks, sizeof(taken), cudaMemcpyDeviceToHost);
    std::printf("  %d warps: %5.1f", warps, static_cast<double>(taken) / (kRounds * kAccumulators * warps));
  }
  std::printf("\n");
}

}  // namespace

int main() {
  float* sink = nullptr;
  long long* clocks = nullptr;
  if (cudaMalloc(&sink, 1 << 20) != cudaSuccess || cudaMalloc(&clocks, 1 << 10) != cudaSuccess) {
    std::fprintf(stderr, "mma_rate: no GPU\n");
    return 1;
  }
  std::printf("clocks an instruction and scheduler, by warps a scheduler\n");
  measure<Kind::kBf16K16>("m16n8k16 bf16", sink, clocks);
  measure<Kind::kTf32K8>("m16n8k8 tf32", sink, clocks);
  measure<Kind::kTf32K8Dependent>("m16n8k8 tf32, dependent", sink, clocks);
  return 0;
}
