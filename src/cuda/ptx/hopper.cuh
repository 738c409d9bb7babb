// What sm_90 adds: transaction barriers and bulk tensor copies through libcu++'s cuda::ptx, and the few instructions it
// does not wrap. PTX ISA, "mbarrier", "cp.async.bulk.tensor", "setmaxnreg", "barrier".
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cuda/atomic>
#include <cuda/ptx>

namespace flashkda::cuda::ptx {

using Barrier = uint64_t;  // an mbarrier in shared memory

__device__ __forceinline__ void barrier_init(Barrier& b, uint32_t count) { ::cuda::ptx::mbarrier_init(&b, count); }

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}

__device__ __forceinline__ void barrier_arrive(Barrier& b) { ::cuda::ptx::mbarrier_arrive(&b); }

__device__ __forceinline__ void barrier_expect(Barrier& b, uint32_t bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                         &b, bytes);
}

// The same, arriving `count` times.
__device__ __forceinline__ void barrier_expect_with(Barrier& b, uint32_t count, uint32_t bytes) {
  ::cuda::ptx::mbarrier_expect_tx(::cuda::ptx::sem_relaxed, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared, &b,
                                  bytes);
  ::cuda::ptx::mbarrier_arrive(&b, count);
}

// Returns when the phase of that parity has completed.
__device__ __forceinline__ void barrier_wait(Barrier& b, uint32_t parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(&b, parity)) {
  }
}

// Orders what this thread wrote to shared memory before what the copy engine or wgmma reads there.
__device__ __forceinline__ void async_proxy_fence() { ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared); }

// Orders what this thread has seen of global memory before what it makes the copy engine read there.
__device__ __forceinline__ void async_proxy_fence_global() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_global);
}

// A flag in global memory, zero at first: what its setter has seen or done before is seen by whom it tells that it is
// set.
using Flag = int32_t;
__device__ __forceinline__ void set_flag(Flag& flag) {
  ::cuda::atomic_ref<Flag, ::cuda::thread_scope_device>(flag).store(1, ::cuda::memory_order_release);
}
__device__ __forceinline__ bool flag_is_set(Flag& flag) {
  return ::cuda::atomic_ref<Flag, ::cuda::thread_scope_device>(flag).load(::cuda::memory_order_acquire) != 0;
}

// Starts the copy of a box of a 4-dimensional tensor into shared memory; its bytes count on the barrier.
__device__ __forceinline__ void load_box(void* to, const CUtensorMap& map, int32_t c0, int32_t c1, int32_t c2,
                                         int32_t c3, Barrier& b) {
  const int32_t at[4] = {c0, c1, c2, c3};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, to, &map, at, &b);
}

// Starts the copy of `bytes`, a multiple of 16, into shared memory; they count on the barrier.
__device__ __forceinline__ void load_bytes(void* to, const void* from, uint32_t bytes, Barrier& b) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, to, from, bytes, &b);
}

// Starts the copy of `bytes`, a multiple of 16, from shared memory. Its source must stay until stores_have_read().
__device__ __forceinline__ void store_bytes(void* to, const void* from, uint32_t bytes) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_global, ::cuda::ptx::space_shared, to, from, bytes);
}

// Returns when this thread's stores have left shared memory.
__device__ __forceinline__ void stores_have_read() {
  ::cuda::ptx::cp_async_bulk_commit_group();
  ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>());
}

// The same, behind it, when they are in global memory.
__device__ __forceinline__ void stores_have_arrived() {
  ::cuda::ptx::cp_async_bulk_wait_group(::cuda::ptx::n32_t<0>());
}

// Blocks of a cluster: where in block `rank`'s shared memory lies what has this address in ours.
__device__ __forceinline__ uint32_t address_in_block(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Arrives at a barrier of another block. Nothing that this thread wrote is ordered for the other block by it: a release
// for the cluster would wait until all its stores to global memory are done.
__device__ __forceinline__ void barrier_arrive_there(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Starts the copy of `bytes`, a multiple of 16, from shared memory to another block's, on whose barrier they count.
__device__ __forceinline__ void send_bytes(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// All threads of all blocks of the cluster. What they wrote before is seen after.
__device__ __forceinline__ void cluster_barrier() {
  ::cuda::ptx::barrier_cluster_arrive();
  ::cuda::ptx::barrier_cluster_wait();
}

// The same without an order of anything: it does not wait for what is on its way to global memory.
__device__ __forceinline__ void cluster_barrier_relaxed() {
  ::cuda::ptx::barrier_cluster_arrive(::cuda::ptx::sem_relaxed);
  ::cuda::ptx::barrier_cluster_wait();
}

// Four 8 x 8 matrices of 16-bit values from registers, as ldmatrix_x4 reads them.
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// Threads of some warps wait for each other. id: 1..15, kCount: a multiple of 32.
template <int kCount>
__device__ __forceinline__ void named_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kCount) : "memory");
}

// The same; whether the condition holds in any of the threads.
template <int kCount>
__device__ __forceinline__ bool named_barrier_any(int id, bool condition) {
  uint32_t any;
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %2, 0; barrier.cta.red.or.pred q, %1, %3, p; selp.u32 %0, 1, 0, q;}"
               : "=r"(any)
               : "r"(id), "r"(static_cast<uint32_t>(condition)), "n"(kCount)
               : "memory");
  return any != 0;
}

// The warpgroup gives up or asks for registers: kTo a thread from now on, kFrom before.
template <int kFrom, int kTo>
__device__ __forceinline__ void set_registers() {
  if constexpr (kTo < kFrom) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kTo));
  if constexpr (kTo > kFrom) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kTo));
}

// Shared memory by its address, so that eight rows' swizzled addresses stay in registers as 32 bits.
__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
  return x;
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// x, but not to be computed with before: keeps a loop's address arithmetic in the loop, where it costs less than the
// registers, and far less than the spills, of what the compiler would otherwise take out of it.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace flashkda::cuda::ptx
