// The fused kernel of sm_90a: a block carries a head of a sequence from its raw inputs to its outputs, with one or two
// warpgroups a role and a ring of stages between them. docs/kernels/sm90a.md.
#pragma once

#include "cuda/ptx/grid.cuh"
#include "cuda/sm90/columns.cuh"
#include "cuda/sm90/consume.cuh"
#include "cuda/sm90/intra.cuh"
#include "cuda/sm90/item.cuh"
#include "cuda/sm90/load.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

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

template <typename V>
__global__ void __launch_bounds__(V::kThreads, 1) fused(const __grid_constant__ FusedParams p) {
  extern __shared__ char dynamic[];
  auto& shared = *reinterpret_cast<Shared<V>*>(dynamic);
  const int rank = static_cast<int>(blockIdx.x % V::kSharers), column = rank * 64 * V::kSlices;
  const int64_t head = blockIdx.x / V::kSharers;

  if (threadIdx.x == 0) {
    for (int s = 0; s < V::kStages; ++s) {
      ptx::barrier_init(shared.raw[s], 1);
      ptx::barrier_init(shared.columns[s], 32 * V::kColumnWarps);
      ptx::barrier_init(shared.full[s], 128);
      ptx::barrier_init(shared.bits[s], 1);
      // Of the other blocks' consumers one lane a warp.
      ptx::barrier_init(shared.empty[s], 128 * V::kSlices + 4 * (V::kSharers - 1));
    }
    ptx::barrier_init_fence();
  }
  ptx::wait_for_previous();
  int64_t n = head / p.layout.HV;
  if (p.order != nullptr) n = p.order[n];
  const Item item = item_of(p.layout, n, static_cast<int>(head % p.layout.HV));
  if (threadIdx.x == 0) {
    for (int c = 0; c < min(item.chunks, V::kCopiedAhead + rank); ++c) {
      if (c % V::kSharers == rank) {
        load(shared, c % V::kStages, p, item, c, column, true);
      } else {
        load_foreign(shared, p, item, c, column);
      }
    }
  }
  clear_triangles(shared, V::kThreads);
  ptx::async_proxy_fence();
  __syncthreads();
  if constexpr (V::kSharers > 1) ptx::cluster_barrier();

  using R = Registers<V::kSlices>;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group < V::kSlices) {
    ptx::set_registers<R::kLaunch, R::kConsumer>();
    run_consumer(shared, p, item, group, column, rank);
  } else if (group < V::kSlices + V::kAllColumnWarps / 4) {
    ptx::set_registers<R::kLaunch, R::kColumns>();
    const int warp = (group - V::kSlices) * 4 + uniform_warp();
    constexpr int kWarps = V::kColumnWarps;
    run_columns(shared, p, item, warp / kWarps, warp % kWarps, rank);
  } else {
    ptx::set_registers<R::kLaunch, R::kIntra>();
    run_intra(shared, p, item, column, rank);
  }
  if constexpr (V::kSharers > 1) ptx::cluster_barrier_relaxed();  // nobody leaves to whom another block may still send
}

}  // namespace flashkda::cuda::sm90
