#include "cuda/plan.cuh"

#include <cub/block/block_scan.cuh>

#include "cuda/error.hpp"
#include "cuda/tile/image.cuh"

namespace flashkda::cuda {
namespace {

constexpr int kThreads = 512;

struct Counts {
  int32_t chunks, states;
};

struct Add {
  __device__ Counts operator()(Counts a, Counts b) const { return {a.chunks + b.chunks, a.states + b.states}; }
};

struct Max {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a > b ? a : b; }
};

__global__ void __launch_bounds__(kThreads) plan(const __grid_constant__ PlanParams p) {
  using ScanBegin = cub::BlockScan<int64_t, kThreads>;
  using ScanCounts = cub::BlockScan<Counts, kThreads>;
  __shared__ union {
    typename ScanBegin::TempStorage begin;
    typename ScanCounts::TempStorage counts;
  } shared;

  // First tokens: a running maximum, clamped to the batch.
  int64_t highest = 0;
  for (int base = 0; base <= p.N; base += kThreads) {
    const int n = base + threadIdx.x;
    int64_t value = n <= p.N ? p.cu_seqlens[n] : 0;
    value = value < 0 ? 0 : (value > p.T ? p.T : value);
    value = value > highest ? value : highest;
    int64_t last;
    ScanBegin(shared.begin).InclusiveScan(value, value, Max(), last);
    if (n <= p.N) p.begin[n] = value;
    highest = last;
    __syncthreads();
  }
  // Chunks and intermediate states before each sequence.
  Counts before = {0, 0};
  for (int base = 0; base <= p.N; base += kThreads) {
    const int n = base + threadIdx.x;
    Counts own = {0, 0}, sum, total;
    if (n < p.N) {
      const int64_t length = p.begin[n + 1] - p.begin[n];
      own.chunks = static_cast<int32_t>((length + kChunk - 1) / kChunk);
      if (p.intermediate_every > 0) {
        own.states = static_cast<int32_t>((length + p.intermediate_every - 1) / p.intermediate_every);
      }
    }
    ScanCounts(shared.counts).ExclusiveScan(own, sum, Counts{0, 0}, Add(), total);
    if (n <= p.N) {
      p.chunks[n] = before.chunks + sum.chunks;
      if (p.intermediate_begin != nullptr) p.intermediate_begin[n] = before.states + sum.states;
    }
    before = Add()(before, total);
    __syncthreads();
  }
}

}  // namespace

void launch_plan(const PlanParams& p, cudaStream_t stream) {
  plan<<<1, kThreads, 0, stream>>>(p);
  check(cudaGetLastError(), "launch of the plan kernel");
}

}  // namespace flashkda::cuda
