// The column role: a warpgroup measures raw k and q of a chunk and turns k, q and g into kd, qd and ki.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/scalars.cuh"
#include "cuda/sm90/stage.cuh"
#include "cuda/tile/static_for.cuh"

namespace flashkda::cuda::sm90 {

// What is the same in every chunk for two channels of a head.
struct Columns {
  float2 slope_bias;  // slope * dt_bias
  float slope, bits;  // decay of a token: bits / (1 + 2^(slope g + slope_bias))
  float c;            // stage.cuh
};

// One warp's part of a chunk: channels 2 lane and 2 lane + 1 of one 64 and the 16 tokens from the anchor on (forward)
// or back from it, both by the same instructions: the roles of this kernel share one instruction cache, and code that
// does not fit costs more than any arithmetic. kPlain: all tokens are there and none's k or q needs shrinking; else
// tokens from rows on count as zero and decay nothing.
template <bool kPlain, int kSlices>
__device__ __forceinline__ void column_pass(Stage<kSlices>& stage, const Shrink& shrink, const Columns& p, int block,
                                            bool forward, int rows, int lane) {
  constexpr int kBatch = kSlices == 1 ? 8 : 4;  // tokens whose loads are under way together: as registers allow
  constexpr int kQ = kChunk * 128, kG = 2 * kQ, kRest = 3 * kQ;  // from a row of k to that of q, g, ki's rest
  const int direction = forward ? 1 : -1;
  // Step s is token 16 + s or 15 - s, whose row modulo 8 is s modulo 8 or its complement.
  const int start = forward ? kHalf : kHalf - 1, byte = (lane * 4) ^ (forward ? 0 : 7 << 4);
  uint32_t at[8];
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    at[s] = ptx::shared_address(&stage.x[block][0][0][0]) + (start + direction * s) * 128 + (byte ^ (s << 4));
  }
  const int channel = block * 64 + 2 * lane;
  const float inclusive = forward ? p.bits : 0.0f, step_bits = direction * p.bits;

  float2 G = make_float2(0.0f, 0.0f);  // bits from the anchor to before the token at hand
#pragma unroll(kPlain ? 2 : 1)
  for (int octet = 0; octet < 2; ++octet) {
    const float offset = p.c * static_cast<float>(set_aside(start + direction * 8 * octet));
#pragma unroll
    for (int first = 0; first < 8; first += kBatch) {
      uint32_t k[kBatch], q[kBatch], g[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        g[i] = ptx::load_shared(at[first + i] + kG);
        k[i] = ptx::load_shared(at[first + i]);
        q[i] = ptx::load_shared(at[first + i] + kQ);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const uint32_t to = at[first + i];
        const float2 x = unpack_bf16(g[i]);
        const auto share = [&](float logit) { return ptx::reciprocal_approx(1.0f + ptx::exp2_approx(logit)); };
        float2 part = make_float2(share(fmaf(p.slope, x.x, p.slope_bias.x)), share(fmaf(p.slope, x.y, p.slope_bias.y)));
        if constexpr (!kPlain) {
          const int token = start + direction * (8 * octet + first + i);
          k[i] = multiply_bf16(k[i], shrink.k[token] * 0x10001u);
          q[i] = multiply_bf16(q[i], shrink.q[token] * 0x10001u);
          if (token >= rows) part = make_float2(0.0f, 0.0f), k[i] = q[i] = 0u;
        }
        const float2 E = make_float2(fmaf(inclusive, part.x, G.x) + offset, fmaf(inclusive, part.y, G.y) + offset);
        G = make_float2(fmaf(step_bits, part.x, G.x), fmaf(step_bits, part.y, G.y));
        const float2 decay = make_float2(ptx::exp2_approx(E.x), ptx::exp2_approx(E.y));
        const float2 growth = make_float2(ptx::exp2_approx(-E.x), ptx::exp2_approx(-E.y));
        // What reads the state is rounded twice. What is written has 16 bits: keys that repeat are written at many
        // decays, and what a rounded one leaves beside their direction no later token takes away.
        const float2 key = unpack_bf16(k[i]);
        const uint32_t narrow = pack_bf16(decay.x, decay.y);
        ptx::store_shared(to, multiply_bf16(k[i], narrow));
        ptx::store_shared(to + kQ, multiply_bf16(q[i], narrow));
        const float2 ki = make_float2(key.x * growth.x, key.y * growth.y);
        const uint32_t narrow_ki = pack_bf16(ki.x, ki.y);
        const float2 kept = unpack_bf16(narrow_ki);
        ptx::store_shared(to + kG, narrow_ki);
        ptx::store_shared(to + kRest, pack_bf16(ki.x - kept.x, ki.y - kept.y));
      }
    }
#pragma unroll
    for (int s = 0; s < 8; ++s) at[s] += direction * 8 * 128;
  }
  *reinterpret_cast<float2*>(&(forward ? stage.tail : stage.F)[channel]) =
      make_float2(direction * G.x, direction * G.y);
}

// group: of kColumnGroups warpgroups that take chunks in turns. They measure their rows first.
template <int kSlices>
__device__ __forceinline__ void run_columns(Shared<kSlices>& shared, const FusedParams& p, const Item& item,
                                            int group) {
  const int warp = uniform_warp(), lane = threadIdx.x % 32;
  const int block = warp % 2, channel = block * 64 + 2 * lane;
  const bool forward = warp / 2;
  const Gate gate(p.lower_bound, p.A_log != nullptr ? p.A_log[item.hv] : 0.0f);
  Columns columns{};
  columns.slope = fmaxf(-gate.exp_A * kLog2e, -0x1p60f);  // products with any g and dt_bias stay finite
  columns.bits = p.lower_bound * kLog2e;
  columns.c = centre(p.lower_bound);
  if (p.dt_bias != nullptr) {
    const float2 bias = *reinterpret_cast<const float2*>(p.dt_bias + item.hv * D + channel);
    columns.slope_bias = make_float2(columns.slope * bias.x, columns.slope * bias.y);
  }
  Scalars scalars(p, lane);  // warp 0
  if (warp == 0) scalars.ask_for_b(p, item, group, lane);
  for (int c = group; c < item.chunks; c += kColumnGroups) {
    const int s = c % kStages<kSlices>;
    Stage<kSlices>& stage = shared.stages[s];
    Shrink& shrink = shared.shrink[s];
    const int rows =
        static_cast<int>(min(static_cast<int64_t>(kChunk), item.length - static_cast<int64_t>(c) * kChunk));
    ptx::barrier_wait(shared.raw[s], c / kStages<kSlices> & 1);
    const bool is_long = put_lengths(stage, shared.scales[s], 8 * warp, lane);
    const bool any_long = ptx::named_barrier_any<128>(3 + group, is_long);  // nobody needs the raw rows any more
    if (warp == 0) {
      const float b = scalars.take_b(p, item, c, lane);
      scalars.ask_for_b(p, item, c + kColumnGroups, lane);
      finish_lengths(stage, shared.scales[s], shrink, scalars.frame, p.scale, b, lane);
    }
    if (rows == kChunk && !any_long) {
      column_pass<true>(stage, shrink, columns, block, forward, rows, lane);
    } else {
      ptx::named_barrier<128>(3 + group);  // shrink is there
      column_pass<false>(stage, shrink, columns, block, forward, rows, lane);
    }
    ptx::async_proxy_fence();
    ptx::barrier_arrive(shared.columns[s]);
  }
}

}  // namespace flashkda::cuda::sm90
