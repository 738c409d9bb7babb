// The gates of docs/algorithm.md, section 2, in log2 units (bits), full range, never NaN for finite input.
#pragma once

#include "cuda/ptx/special.cuh"
#include "flashkda/flashkda.h"

namespace flashkda::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

// 1 / (1 + e^-x), to fp32 accuracy also where it is small: long memories live there.
__device__ __forceinline__ float sigmoid(float x) {
  return ptx::reciprocal_approx(1.0f + ptx::exp2_approx(-kLog2e * x));
}

struct Gate {
  float bound_bits;  // bounded: lower_bound * log2(e)
  float A_bits;      // A_log * log2(e)
  float exp_A;       // exp(A_log), clamped so that it is finite times log2(e) and 0 * exp_A = 0

  __device__ Gate(float lower_bound, float A_log)
      : bound_bits(lower_bound * kLog2e), A_bits(A_log * kLog2e), exp_A(fminf(exp2f(A_log * kLog2e), 0x1p127f)) {}

  // x = g + dt_bias (or g, log gate). Bits of decay, <= 0.
  template <int kKind>
  __device__ __forceinline__ float log2_decay(float x) const {
    if constexpr (kKind == FKDA_GATE_BOUNDED) {
      return bound_bits * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(-kLog2e * exp_A * x));
    }
    if constexpr (kKind == FKDA_GATE_LOG) return kLog2e * x;
    return softplus_bits(x);
  }

 private:
  __device__ __forceinline__ float softplus_bits(float x) const {
    // Below -15 softplus(x) = e^x and the product with exp(A_log) is taken in the exponent, where exp(100) * exp(-200)
    // is representable. Above, softplus(x) / ln 2 = log2(1 + e^x); for small e = e^x the sum 1 + e has lost e's digits
    // and the series of log2 stands in.
    if (x < -15.0f) return -kLog2e * ptx::exp2_approx(A_bits + kLog2e * x);
    const float e = ptx::exp2_approx(kLog2e * x);
    float bits = ptx::log2_approx(1.0f + e);
    if (e < 0.0625f) bits = kLog2e * e * (1.0f - e * (0.5f - e * (0.33333334f - 0.25f * e)));
    if (x > 20.0f) bits = kLog2e * x;
    return -exp_A * bits;
  }
};

__device__ __forceinline__ float activate_beta(float x, int32_t activation) {
  if (activation == FKDA_BETA_ACTIVATED) return x;
  return (activation == FKDA_BETA_TWICE_SIGMOID ? 2.0f : 1.0f) * sigmoid(x);
}

}  // namespace flashkda::cuda
