// Warpgroup matrix products of sm_90a. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
// D [64 x N] fp32: warp w of the four holds rows 16 w .. 16 w + 15 in the accumulator layout of mma_sync.cuh, column
// octet i in d[4 i .. 4 i + 3]. A comes from registers (the A layouts of mma_sync.cuh) or shared memory, B [N x k] from
// shared memory. An operand's inner index lies along its rows ("K-major") unless its function says otherwise.
//
// Registers belong to the products from wgmma_begin to the wgmma_wait that names them: what was written before the one
// and is read after the other must be named there, or the compiler may move the accesses in between.
#pragma once

#include <cstdint>

namespace flashkda::cuda::ptx {

// Keeps accesses to the registers on their side of this point.
template <int kSize>
__device__ __forceinline__ void hold(float (&d)[kSize]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}

template <int kSize>
__device__ __forceinline__ void hold(uint32_t (&a)[kSize]) {
#pragma unroll
  for (uint32_t& x : a) asm volatile("" : "+r"(x)::"memory");
}

// Before a group of products. ready: accumulators and A registers of it that were just written.
template <int... kSizes>
__device__ __forceinline__ void wgmma_begin(float (&... ready)[kSizes]) {
  (hold(ready), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Returns when at most kPending of the committed groups are under way. done: the accumulators that are complete then.
template <int kPending, int... kSizes>
__device__ __forceinline__ void wgmma_wait(float (&... done)[kSizes]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  (hold(done), ...);
}

// A matrix of 128-byte rows, eight rows a kilobyte, its 16-byte units XORed with the row modulo 8 ("128-byte swizzle").
// address: of the first row, a multiple of 1024, plus 32 bytes a step along the row.
__device__ __forceinline__ uint64_t rows_of_128(uint32_t address) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// A matrix of 64-byte rows, eight rows 512 bytes, units XORed with half the row modulo 4 ("64-byte swizzle").
__device__ __forceinline__ uint64_t rows_of_64(uint32_t address) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{512 >> 4} << 32 | uint64_t{2} << 62;
}

// The transpose of a matrix of 128-byte rows, 64 of its columns at a time: inner values lie down the columns
// ("MN-major"). block: bytes from 64 columns to the next 64. 16 inner values are 2048 bytes on.
__device__ __forceinline__ uint64_t columns_of_128(uint32_t address, uint32_t block) {
  return rows_of_128(address) | uint64_t{block >> 4} << 16;
}

// Adds to a descriptor's address.
__device__ __forceinline__ uint64_t advance(uint64_t rows, uint32_t bytes) { return rows + (bytes >> 4); }

// D [64 x 32] (+)= A B^T, 16 inner values of bf16.
template <bool kAdd>
__device__ __forceinline__ void wgmma_n32_bf16(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %21, 0;"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "{%16,%17,%18,%19}, %20, add, 1, 1, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd ? 1 : 0));
}

// The same with A in shared memory.
template <bool kAdd>
__device__ __forceinline__ void wgmma_n32_bf16(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %18, 0;"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "%16, %17, add, 1, 1, 0, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}

// D [64 x 64] (+)= A B^T, 16 inner values of bf16 or fp16, A in shared memory.
template <bool kFp16, bool kAdd>
__device__ __forceinline__ void wgmma_n64(float (&d)[32], uint64_t a, uint64_t b) {
#define FLASHKDA_WGMMA_N64(type)                                                                                    \
  asm volatile(                                                                                                     \
      "{.reg .pred add; setp.ne.b32 add, %34, 0;"                                                                   \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                                   \
      " "                                                                                                           \
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                     \
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "                                          \
      "%32, %33, add, 1, 1, 0, 0;}"                                                                                 \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                   \
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0))
  if constexpr (kFp16) {
    FLASHKDA_WGMMA_N64("f16");
  } else {
    FLASHKDA_WGMMA_N64("bf16");
  }
#undef FLASHKDA_WGMMA_N64
}

// D [64 x 32] (+)= A B^T, 8 inner values of tf32.
template <bool kAdd>
__device__ __forceinline__ void wgmma_n32_tf32(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %21, 0;"
      "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "{%16,%17,%18,%19}, %20, add, 1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd ? 1 : 0));
}

// D [64 x 128] (+)= A B^T. tail: the qualifiers behind the scales.
#define FLASHKDA_WGMMA_N128(kind, tail)                                                                             \
  asm volatile(                                                                                                     \
      "{.reg .pred add; setp.ne.b32 add, %69, 0;"                                                                   \
      "wgmma.mma_async.sync.aligned.m64n128" kind                                                                   \
      " "                                                                                                           \
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                     \
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"                                            \
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                                            \
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "                                          \
      "{%64,%65,%66,%67}, %68, add, 1, 1" tail ";}"                                                                 \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),     \
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),     \
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),     \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),     \
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd ? 1 : 0))

// 8 inner values of tf32.
template <bool kAdd>
__device__ __forceinline__ void wgmma_n128_tf32(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  FLASHKDA_WGMMA_N128("k8.f32.tf32.tf32", "");
}

// 16 inner values of bf16, B as it lies in columns_of_128.
template <bool kAdd>
__device__ __forceinline__ void wgmma_n128_bf16_columns(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  FLASHKDA_WGMMA_N128("k16.f32.bf16.bf16", ", 1");
}
#undef FLASHKDA_WGMMA_N128

}  // namespace flashkda::cuda::ptx
