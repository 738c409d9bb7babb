// fp32 values as operands of tf32 products: the tensor cores cut them down to 11 bits (tests/cuda/test_ptx*.cu watch
// it).
#pragma once

#include <cstdint>

namespace flashkda::cuda {

// On average the cut takes 2^-11 / (2 ln 2) of a number. With that given back, what is left has the size of a rounding
// error.
inline constexpr float kUncut = 1.0f + 3.5222e-4f;

__device__ __forceinline__ uint32_t uncut(float x) { return __float_as_uint(x * kUncut); }

// fp32 to where the cut rounds it, ties away from zero. Not for a NaN that nothing else would show: it may become -0.
__device__ __forceinline__ uint32_t rounded_by_the_cut(float x) { return __float_as_uint(x) + 0x1000u; }

// The same, keeping NaN.
__device__ __forceinline__ uint32_t rounded_by_the_cut_or_nan(float x) {
  return x == x ? rounded_by_the_cut(x) : 0x7fc00000u;
}

}  // namespace flashkda::cuda
