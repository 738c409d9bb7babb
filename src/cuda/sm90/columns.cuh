// The column role: a warpgroup turns raw k, q and g of a chunk into kd, qd, ki and w.
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
  constexpr int kQ = kChunk * 128, kG = 2 * kQ;  // from a row of k to that of q and g
  const int direction = forward ? 1 : -1;
  // Step s is token 16 + s or 15 - s, whose row modulo 8 is s modulo 8 or its complement.
  const int start = forward ? kHalf : kHalf - 1, byte = (lane * 4) ^ (forward ? 0 : 7 << 4);
  uint32_t at[8];
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    at[s] = ptx::shared_address(&stage.x[block][0][0][0]) + (start + direction * s) * 128 + (byte ^ (s << 4));
  }
  const int channel = block * 64 + 2 * lane;
  const uint32_t w = ptx::shared_address(&stage.w[channel][0]);
  const float inclusive = forward ? p.bits : 0.0f, step_bits = direction * p.bits;

  float2 G = make_float2(0.0f, 0.0f);  // bits from the anchor to before the token at hand
#pragma unroll 1
  for (int octet = 0; octet < 2; ++octet) {
    uint32_t k[8], q[8], g[8];
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      g[s] = ptx::load_shared(at[s] + kG);
      k[s] = ptx::load_shared(at[s]);
      q[s] = ptx::load_shared(at[s] + kQ);
    }
    const float offset = p.c * static_cast<float>(set_aside(start + direction * 8 * octet));
    float2 wide[8];
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      const float2 x = unpack_bf16(g[s]);
      const auto share = [&](float logit) { return ptx::reciprocal_approx(1.0f + ptx::exp2_approx(logit)); };
      float2 part = make_float2(share(fmaf(p.slope, x.x, p.slope_bias.x)), share(fmaf(p.slope, x.y, p.slope_bias.y)));
      if constexpr (!kPlain) {
        const int token = start + direction * (8 * octet + s);
        k[s] = multiply_bf16(k[s], shrink.k[token] * 0x10001u);
        q[s] = multiply_bf16(q[s], shrink.q[token] * 0x10001u);
        if (token >= rows) part = make_float2(0.0f, 0.0f), k[s] = q[s] = 0u;
      }
      const float2 E = make_float2(fmaf(inclusive, part.x, G.x) + offset, fmaf(inclusive, part.y, G.y) + offset);
      G = make_float2(fmaf(step_bits, part.x, G.x), fmaf(step_bits, part.y, G.y));
      const float2 decay = make_float2(ptx::exp2_approx(E.x), ptx::exp2_approx(E.y));
      const float2 growth = make_float2(ptx::exp2_approx(-E.x), ptx::exp2_approx(-E.y));
      const float2 key = unpack_bf16(k[s]);
      wide[s] = make_float2(key.x * growth.x, key.y * growth.y);
      // What the state reads with is rounded once; of q no error lasts.
      ptx::store_shared(at[s], pack_bf16(key.x * decay.x, key.y * decay.y));
      ptx::store_shared(at[s] + kQ, multiply_bf16(q[s], pack_bf16(decay.x, decay.y)));
      ptx::store_shared(at[s] + kG, pack_bf16(wide[s].x, wide[s].y));
    }
    // Eight tokens of two channels: two 16-byte units a channel, of the even tokens and of the odd ones. Half of the
    // lanes take the odd ones first, so that eight neighbours write to different banks.
    const int unit = 2 * (forward ? 2 + octet : 1 - octet), turn = lane / 4 % 2;
    const auto put_w = [&](auto step_of) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto value = [&](int i) { return __float_as_uint(e == 0 ? wide[step_of(i)].x : wide[step_of(i)].y); };
        uint32_t first[4], other[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          first[i] = turn ? value(2 * i + 1) : value(2 * i);
          other[i] = turn ? value(2 * i) : value(2 * i + 1);
        }
        const uint32_t row = w + e * 128;
        ptx::store_shared(row + unit_128(channel + e, unit + turn), first[0], first[1], first[2], first[3]);
        ptx::store_shared(row + unit_128(channel + e, unit + 1 - turn), other[0], other[1], other[2], other[3]);
      }
    };
    if (forward) {
      put_w([](int i) { return i; });
    } else {
      put_w([](int i) { return 7 - i; });
    }
#pragma unroll
    for (int s = 0; s < 8; ++s) at[s] += direction * 8 * 128;
  }
  *reinterpret_cast<float2*>(&(forward ? stage.tail : stage.F)[channel]) =
      make_float2(direction * G.x, direction * G.y);
}

// group: of kColumnGroups<kSlices> warpgroups that take chunks in turns. With one slice they measure the rows as well.
template <int kSlices>
__device__ __forceinline__ void run_columns(Shared<kSlices>& shared, const FusedParams& p, const Item& item,
                                            int group) {
  constexpr int kGroups = kColumnGroups<kSlices>;
  constexpr bool kMeasures = kSlices == 1;
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
  const int token = warp * 8 + lane / 4;  // that the lane measures with three others
  Scalars scalars(p, token);
  if (kMeasures) scalars.ask_for_b(p, item, group, token);
  for (int c = group; c < item.chunks; c += kGroups) {
    const int s = c % kStages;
    Stage<kSlices>& stage = shared.stages[s];
    const int rows =
        static_cast<int>(min(static_cast<int64_t>(kChunk), item.length - static_cast<int64_t>(c) * kChunk));
    Shrink& shrink = shared.shrink[s];
    bool any_long = false;  // with one slice
    if constexpr (kMeasures) {
      ptx::barrier_wait(shared.raw[s], c / kStages & 1);
      const Products raw = add_up_rows(stage, token, lane);
      const float b = scalars.take_b(p, item, c, token);
      scalars.ask_for_b(p, item, c + kGroups, token);
      bool is_long = false;
      if (lane % 4 == 0) {
        is_long = finish_token(stage, shared.scales[s], shrink, token, raw, scalars.frame, p.scale, b);
      }
      any_long = ptx::named_barrier_any<128>(3 + group, is_long);  // nobody needs the raw rows any more
    } else {
      ptx::barrier_wait(shared.measured[s], c / kStages & 1);
    }
    if (rows == kChunk && (kMeasures ? !any_long : shrink.needed == 0)) {
      column_pass<true>(stage, shrink, columns, block, forward, rows, lane);
    } else {
      column_pass<false>(stage, shrink, columns, block, forward, rows, lane);
    }
    ptx::async_proxy_fence();
    ptx::barrier_arrive(shared.columns[s]);
  }
}

}  // namespace flashkda::cuda::sm90
