// The fused kernel of sm_90a: a block carries a head of a sequence from its raw inputs to its outputs, with one or two
// warpgroups a role and a ring of stages between them. docs/kernels/sm90a.md.
#pragma once

#include "cuda/sm90/columns.cuh"
#include "cuda/sm90/consume.cuh"
#include "cuda/sm90/intra.cuh"
#include "cuda/sm90/load.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// Warpgroups: kSlices consumers, kColumnGroups of columns, one intra.
template <int kSlices>
inline constexpr int kThreads = 128 * (kSlices + 3);

// Registers a thread: at launch, 65,536 in a block at most, and of the roles, who share them out.
template <int kSlices>
struct Registers;
template <>
struct Registers<2> {
  static constexpr int kLaunch = 96, kConsumer = 160, kColumns = 56, kIntra = 48;
};
template <>
struct Registers<1> {
  static constexpr int kLaunch = 128, kConsumer = 192, kColumns = 96, kIntra = 128;
};

template <int kSlices>
__global__ void __launch_bounds__(kThreads<kSlices>, 1) fused(const __grid_constant__ FusedParams p) {
  constexpr int kSplits = D / 64 / kSlices;  // blocks that share a head
  extern __shared__ char dynamic[];
  auto& shared = *reinterpret_cast<Shared<kSlices>*>(dynamic);
  const int column = static_cast<int>(blockIdx.x % kSplits) * 64 * kSlices;
  const int64_t head = blockIdx.x / kSplits;

  Item item;
  item.hv = static_cast<int>(head % p.layout.HV);
  item.h = item.hv / p.layout.group;
  item.n = head / p.layout.HV;
  item.batch = 0;
  item.begin = 0;
  item.length = p.layout.T;
  if (p.layout.begin != nullptr) {
    if (p.order != nullptr) item.n = p.order[item.n];
    item.begin = p.layout.begin[item.n];
    item.length = p.layout.begin[item.n + 1] - item.begin;
  } else {
    item.batch = item.n;
  }
  item.chunks = static_cast<int>((item.length + kChunk - 1) / kChunk);

  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages<kSlices>; ++s) {
      ptx::barrier_init(shared.raw[s], 1);
      ptx::barrier_init(shared.columns[s], 128);
      ptx::barrier_init(shared.full[s], 128);
      ptx::barrier_init(shared.empty[s], 128 * kSlices);
    }
    ptx::barrier_init_fence();
    for (int c = 0; c < min(item.chunks, kCopiedAhead); ++c) load(shared, p, item, c, column);
  }
  // What nobody writes, blocks above the diagonals of T and M, is zero.
  constexpr int kUnits = (sizeof(shared.stages[0].T) + sizeof(shared.stages[0].M)) / sizeof(uint4);
  for (int i = threadIdx.x; i < kStages<kSlices> * kUnits; i += kThreads<kSlices>) {
    reinterpret_cast<uint4*>(shared.stages[i / kUnits].T)[i % kUnits] = make_uint4(0, 0, 0, 0);
  }
  ptx::async_proxy_fence();
  __syncthreads();

  using R = Registers<kSlices>;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group < kSlices) {
    ptx::set_registers<R::kLaunch, R::kConsumer>();
    run_consumer(shared, p, item, group, column);
  } else if (group < kSlices + kColumnGroups) {
    ptx::set_registers<R::kLaunch, R::kColumns>();
    run_columns(shared, p, item, group - kSlices);
  } else {
    ptx::set_registers<R::kLaunch, R::kIntra>();
    run_intra(shared, p, item, column);
  }
}

}  // namespace flashkda::cuda::sm90
