// Loops whose index is a constant in the body: register arrays may only be indexed by constants, and a nest of
// #pragma unroll whose inner bounds depend on the outer index is not reliably unrolled.
#pragma once

#include <utility>

namespace flashkda::cuda {

template <int kValue>
struct Constant {
  __host__ __device__ constexpr operator int() const { return kValue; }
};

template <typename Body, int... I>
__device__ __forceinline__ void static_for_each(std::integer_sequence<int, I...>, Body&& body) {
  (body(Constant<I>{}), ...);
}

// body(Constant<0>{}), .. up to kCount - 1.
template <int kCount, typename Body>
__device__ __forceinline__ void static_for(Body&& body) {
  static_for_each(std::make_integer_sequence<int, kCount>(), body);
}

}  // namespace flashkda::cuda
