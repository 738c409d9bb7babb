// Element types at the edges of the kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "flashkda/flashkda.h"

namespace flashkda::cuda {

// Two 16-bit values in one register, the first in the low half.
__device__ __forceinline__ float2 unpack_bf16(uint32_t x) {
  return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
}

__device__ __forceinline__ float2 unpack_fp16(uint32_t x) {
  return __half22float2(*reinterpret_cast<const __half2*>(&x));
}

__device__ __forceinline__ float2 unpack(uint32_t x, bool fp16) { return fp16 ? unpack_fp16(x) : unpack_bf16(x); }

__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  const __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&x);
}

__device__ __forceinline__ uint32_t pack_fp16(float lo, float hi) {
  const __half2 x = __floats2half2_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&x);
}

// Products of two pairs, each rounded.
__device__ __forceinline__ uint32_t multiply_bf16(uint32_t x, uint32_t y) {
  const __nv_bfloat162 z =
      __hmul2_rn(*reinterpret_cast<const __nv_bfloat162*>(&x), *reinterpret_cast<const __nv_bfloat162*>(&y));
  return *reinterpret_cast<const uint32_t*>(&z);
}

// A scalar as it lies in memory, for loads whose result is wanted later: conversions wait for it.
__device__ __forceinline__ uint32_t load_scalar_bits(const void* data, int64_t index, int32_t dtype) {
  return dtype == FKDA_FLOAT32 ? static_cast<const uint32_t*>(data)[index] : static_cast<const uint16_t*>(data)[index];
}

__device__ __forceinline__ float scalar_of_bits(uint32_t bits, int32_t dtype) {
  if (dtype == FKDA_FLOAT32) return __uint_as_float(bits);
  return dtype == FKDA_BFLOAT16 ? __uint_as_float(bits << 16)
                                : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}

__device__ __forceinline__ float load_scalar(const void* data, int64_t index, int32_t dtype) {
  return scalar_of_bits(load_scalar_bits(data, index, dtype), dtype);
}

// The same for loads that others must not wait for: of two under opposite conditions the second would wait for the
// first. 16 bits are in x, 32 in both.
__device__ __forceinline__ ushort2 load_scalar_halves(const void* data, int64_t index, int32_t dtype) {
  const bool wide = dtype == FKDA_FLOAT32;
  const auto* const halves = static_cast<const uint16_t*>(data) + (wide ? 2 * index : index);
  return {halves[0], halves[wide ? 1 : 0]};
}

__device__ __forceinline__ float scalar_of_halves(ushort2 bits, int32_t dtype) {
  return scalar_of_bits(dtype == FKDA_FLOAT32 ? bits.x | static_cast<uint32_t>(bits.y) << 16 : bits.x, dtype);
}

// Elements index, index + 1 (index even, the pair aligned).
__device__ __forceinline__ float2 load_pair(const void* data, int64_t index, int32_t dtype) {
  if (dtype == FKDA_FLOAT32) return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + index);
  const uint32_t bits = *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(data) + index);
  return unpack(bits, dtype == FKDA_FLOAT16);
}

__device__ __forceinline__ void store_pair(void* data, int64_t index, int32_t dtype, float lo, float hi) {
  if (dtype == FKDA_FLOAT32) {
    *reinterpret_cast<float2*>(static_cast<float*>(data) + index) = {lo, hi};
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(data) + index) =
        dtype == FKDA_FLOAT16 ? pack_fp16(lo, hi) : pack_bf16(lo, hi);
  }
}

__device__ __forceinline__ void store_scalar(void* data, int64_t index, int32_t dtype, float x) {
  if (dtype == FKDA_FLOAT32) {
    static_cast<float*>(data)[index] = x;
  } else if (dtype == FKDA_FLOAT16) {
    static_cast<__half*>(data)[index] = __float2half_rn(x);
  } else {
    static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(x);
  }
}

// Elements index .. index + 3, in one access: index is a multiple of 4.
__device__ __forceinline__ float4 load_four(const void* data, int64_t index, int32_t dtype) {
  if (dtype == FKDA_FLOAT32) return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + index);
  const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(data) + index);
  const float2 lo = unpack(bits.x, dtype == FKDA_FLOAT16), hi = unpack(bits.y, dtype == FKDA_FLOAT16);
  return make_float4(lo.x, lo.y, hi.x, hi.y);
}

__device__ __forceinline__ void store_four(void* data, int64_t index, int32_t dtype, float4 x) {
  if (dtype == FKDA_FLOAT32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + index) = x;
  } else {
    const bool fp16 = dtype == FKDA_FLOAT16;
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(data) + index) =
        make_uint2(fp16 ? pack_fp16(x.x, x.y) : pack_bf16(x.x, x.y), fp16 ? pack_fp16(x.z, x.w) : pack_bf16(x.z, x.w));
  }
}

// The same with the dtype known at compile time.
template <int kDtype>
struct Memory {
  static constexpr int kBytes = kDtype == FKDA_FLOAT32 ? 4 : 2;  // an element

  __device__ __forceinline__ static float load(const void* data, int64_t at) { return load_scalar(data, at, kDtype); }
  __device__ __forceinline__ static float2 load_pair(const void* data, int64_t at) {
    return cuda::load_pair(data, at, kDtype);
  }
  __device__ __forceinline__ static void store(void* data, int64_t at, float x) { store_scalar(data, at, kDtype, x); }
  __device__ __forceinline__ static void store_pair(void* data, int64_t at, float lo, float hi) {
    cuda::store_pair(data, at, kDtype, lo, hi);
  }
  __device__ __forceinline__ static float4 load_four(const void* data, int64_t at) {
    return cuda::load_four(data, at, kDtype);
  }
  __device__ __forceinline__ static void store_four(void* data, int64_t at, float4 x) {
    cuda::store_four(data, at, kDtype, x);
  }
};

}  // namespace flashkda::cuda
