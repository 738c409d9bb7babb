// What a lane that makes the scalars of a token keeps from chunk to chunk.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/sm90/item.cuh"
#include "cuda/sm90/measure.cuh"
#include "cuda/sm90/params.cuh"

namespace flashkda::cuda::sm90 {

struct Scalars {
  TokenFrame frame;
  uint32_t next_b = 0;  // as it lies in memory: asked for long before it is wanted

  // token: the lane's, of every chunk's 32.
  __device__ __forceinline__ Scalars(const FusedParams& p, int token) {
    const float centred = centre(p.lower_bound);
    const int aside = set_aside(token);
    frame = {ptx::exp2_approx(centred * (kHalf - aside)), ptx::exp2_approx(centred * (kHalf + aside)),
             ptx::exp2_approx(-kChunk * centred)};
  }

  __device__ __forceinline__ void ask_for_b(const FusedParams& p, const Item& item, int c, int token) {
    const int64_t at = static_cast<int64_t>(c) * kChunk + token;
    if (at < item.length) {
      next_b = load_scalar_bits(p.beta.data, item.batch * p.beta.batch + (item.begin + at) * p.beta.token + item.hv,
                                p.beta.dtype);
    }
  }

  // b of chunk c, which was asked for last.
  __device__ __forceinline__ float take_b(const FusedParams& p, const Item& item, int c, int token) const {
    const bool present = static_cast<int64_t>(c) * kChunk + token < item.length;
    return present ? activate_beta(scalar_of_bits(next_b, p.beta.dtype), p.beta_activation) : 0.0f;
  }
};

}  // namespace flashkda::cuda::sm90
