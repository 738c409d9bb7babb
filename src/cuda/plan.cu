#include <cub/block/block_scan.cuh>

#include "cuda/error.hpp"
#include "cuda/plan.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/tile/image.cuh"

namespace flashkda::cuda {
namespace {

constexpr int kThreads = 512;

struct Counts {
  int32_t chunks, states, segments;
};

struct Add {
  __device__ Counts operator()(Counts a, Counts b) const {
    return {a.chunks + b.chunks, a.states + b.states, a.segments + b.segments};
  }
};

struct Max {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a > b ? a : b; }
};

// Sequences of one class are within an eighth of each other's length; long ones have low classes.
constexpr int kClasses = 256;
__device__ int length_class(int64_t chunks) {
  const auto c = static_cast<uint32_t>(chunks);
  if (c < 8) return kClasses - 1 - static_cast<int>(c);
  const int exponent = 31 - __clz(c);  // at least 3
  return kClasses - 1 - (8 * (exponent - 2) + static_cast<int>(c >> (exponent - 3) & 7));
}

// A counting sort. Which of two sequences of one class comes first is left open.
__device__ void sort_by_length(const PlanParams& p, int32_t (&first)[kClasses]) {
  using Scan = cub::BlockScan<int32_t, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  const auto class_of = [&](int n) { return length_class((p.begin[n + 1] - p.begin[n] + kChunk - 1) / kChunk); };
  for (int i = threadIdx.x; i < kClasses; i += kThreads) first[i] = 0;
  __syncthreads();
  for (int n = threadIdx.x; n < p.N; n += kThreads) atomicAdd(&first[class_of(n)], 1);
  __syncthreads();
  int32_t before = threadIdx.x < kClasses ? first[threadIdx.x] : 0;
  Scan(storage).ExclusiveSum(before, before);
  if (threadIdx.x < kClasses) first[threadIdx.x] = before;
  __syncthreads();
  for (int n = threadIdx.x; n < p.N; n += kThreads) p.order[atomicAdd(&first[class_of(n)], 1)] = n;
}

__device__ void clear_flags(const Cleared& p) {
  for (int64_t i = threadIdx.x; i < p.count; i += kThreads) p.flags[i] = 0;
}

__global__ void __launch_bounds__(kThreads) clear(const __grid_constant__ Cleared p) {
  ptx::let_next_start();
  clear_flags(p);
}

__global__ void __launch_bounds__(kThreads) plan(const __grid_constant__ PlanParams p) {
  ptx::let_next_start();
  clear_flags(p.cleared);
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
  // Chunks, segments and intermediate states before each sequence.
  Counts before = {};
  for (int base = 0; base <= p.N; base += kThreads) {
    const int n = base + threadIdx.x;
    Counts own = {}, sum, total;
    if (n < p.N) {
      const int64_t length = p.begin[n + 1] - p.begin[n];
      if (length > p.left_out) {
        own.chunks = static_cast<int32_t>((length + p.chunk_tokens - 1) / p.chunk_tokens);
        if (p.segment_chunks > 0) own.segments = max(1, (own.chunks + p.segment_chunks - 1) / p.segment_chunks);
      }
      if (p.intermediate_every > 0) {
        own.states = static_cast<int32_t>((length + p.intermediate_every - 1) / p.intermediate_every);
      }
    }
    ScanCounts(shared.counts).ExclusiveScan(own, sum, Counts{}, Add(), total);
    if (n <= p.N) {
      p.chunks[n] = before.chunks + sum.chunks;
      if (p.segments != nullptr) p.segments[n] = before.segments + sum.segments;
      if (p.intermediate_begin != nullptr) p.intermediate_begin[n] = before.states + sum.states;
    }
    before = Add()(before, total);
    __syncthreads();
  }
  __shared__ int32_t classes[kClasses];
  if (p.order != nullptr) sort_by_length(p, classes);
}

}  // namespace

void launch_plan(const PlanParams& p, cudaStream_t stream) {
  plan<<<1, kThreads, 0, stream>>>(p);
  check(cudaGetLastError(), "launch of the plan kernel");
}

void launch_clear(const Cleared& p, cudaStream_t stream) {
  clear<<<1, kThreads, 0, stream>>>(p);
  check(cudaGetLastError(), "launch of the kernel that clears flags");
}

}  // namespace flashkda::cuda
