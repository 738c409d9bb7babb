// What the warp that makes a chunk's scalars keeps from chunk to chunk, a token a lane.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/sm90/measure.cuh"
#include "cuda/sm90/params.cuh"

namespace flashkda::cuda::sm90 {

struct Scalars {
  TokenFrame frame;
  uint32_t next_b = 0;  // as it lies in memory: asked for long before it is wanted

  __device__ __forceinline__ explicit Scalars(const FusedParams& p) {
    const float centred = centre(p.lower_bound);
    const int aside = set_aside(threadIdx.x % 32);
    frame = {ptx::exp2_approx(centred * (kHalf - aside)), ptx::exp2_approx(centred * (kHalf + aside))};
  }

  __device__ __forceinline__ void ask_for_b(const FusedParams& p, const Item& item, int c, int lane) {
    const int64_t token = static_cast<int64_t>(c) * kChunk + lane;
    if (token < item.length) {
      next_b = load_scalar_bits(p.beta.data, item.batch * p.beta.batch + (item.begin + token) * p.beta.token + item.hv,
                                p.beta.dtype);
    }
  }

  // b of chunk c, which was asked for last.
  __device__ __forceinline__ float take_b(const FusedParams& p, const Item& item, int c, int lane) const {
    const bool present = static_cast<int64_t>(c) * kChunk + lane < item.length;
    return present ? activate_beta(scalar_of_bits(next_b, p.beta.dtype), p.beta_activation) : 0.0f;
  }
};

}  // namespace flashkda::cuda::sm90
