// The column role: one warpgroup turns raw k, q and g of a chunk into kd, qd, ki and w.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm90/load.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"
#include "cuda/tile/static_for.cuh"

namespace flashkda::cuda::sm90 {

// Rows longer than 128 are shrunk: the products of shorter ones, with up to 31 |c| bits that are yet to be taken off,
// stay below 2^127. This is the square.
inline constexpr float kLongSquare = 0x1p14f;

// The scales of 16 raw rows of k (which = 0) or q (1), by one warp: squared lengths are the diagonal of X X^T.
// constant: 1 or scale. With q come the products q_i k_i, which no decay touches: rows of Mqk may consist of that entry
// alone, and a sum of rounded terms would be wrong where it is small by cancellation.
template <int kSlices>
__device__ __forceinline__ void measure(Stage<kSlices>& stage, Scales& scales, Shrink& shrink, int which, int half,
                                        float constant, float c, int lane) {
  float square[2][4] = {}, product[2][4] = {};  // [octet]: 16 rows x tokens 8 octet .., of X X^T and X K^T
  const int row = half * kHalf + lane % 16;
  const uint32_t x = ptx::shared_address(&stage.x[0][which][row][0]), k = ptx::shared_address(&stage.x[0][0][row][0]);
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    const int at = i / 4 * static_cast<int>(sizeof(stage.x[0])) + unit_128(row, i % 4 * 2 + lane / 16);
    uint32_t a[4], b[4];
    ptx::ldmatrix_x4(a, x + at);
    ptx::ldmatrix_x4(b, k + at);
    // A's fragments are B's of the same rows: tokens 0-7 in 0 and 2, tokens 8-15 in 1 and 3.
    ptx::mma_m16n8k16_bf16(square[0], a, a[0], a[2]);
    ptx::mma_m16n8k16_bf16(square[1], a, a[1], a[3]);
    ptx::mma_m16n8k16_bf16(product[0], a, b[0], b[2]);
    ptx::mma_m16n8k16_bf16(product[1], a, b[1], b[3]);
  }
  // Entry (r, r) is in lane 4 (r % 8) + r % 8 / 2, element r % 2 (+ 2 in the second octet).
  const int r = lane / 4;
  const bool owner = lane % 4 == r / 2;
  bool any = false;
#pragma unroll
  for (int octet = 0; octet < 2; ++octet) {
    const int token = half * kHalf + octet * 8 + r;
    const float s = r % 2 ? square[octet][2 * octet + 1] : square[octet][2 * octet];
    const bool too_long = s > kLongSquare;
    // A power of two that brings the row near 1, by halving the exponent of its square.
    const float factor = too_long ? __uint_as_float((380u - (__float_as_uint(s) >> 23)) / 2 << 23) : 1.0f;
    const float norm = constant * rsqrtf(fminf(s * factor * factor, 3.4028235e38f) + (too_long ? 0.0f : 1e-6f));
    any = any || (owner && too_long);
    if (owner) {
      const float read = norm * ptx::exp2_approx(c * static_cast<float>(token + 1));
      const auto narrow = static_cast<uint16_t>(__float_as_uint(factor) >> 16);
      if (which == 0) {
        shrink.k[token] = narrow;
        scales.read_k[token] = read;
        scales.write_k[token] = norm * ptx::exp2_approx(c * static_cast<float>(kChunk - 1 - token));
      } else {
        shrink.q[token] = narrow;
        scales.read_q[token] = read;
        *reinterpret_cast<float*>(&stage.M[token][unit_64(token, 0)]) =
            r % 2 ? product[octet][2 * octet + 1] : product[octet][2 * octet];
      }
    }
  }
  any = __any_sync(0xffffffffu, any);
  if (lane == 0) shrink.needed[2 * which + half] = any;
}

// fp32 to where the tensor cores' cut to tf32 rounds it, ties away from zero. Of a number: what is NaN in w is so in
// kd.
__device__ __forceinline__ uint32_t rounded_by_the_cut(float x) { return __float_as_uint(x) + 0x1000u; }

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
  const float inclusive = forward ? p.bits : 0.0f, step_bits = direction * p.bits, step_c = -direction * p.c;

  float2 G = make_float2(0.0f, 0.0f);    // bits from the anchor to before the token at hand
  float offset = forward ? -p.c : 0.0f;  // c (15 - token)
#pragma unroll 1
  for (int octet = 0; octet < 2; ++octet) {
    uint32_t k[8], q[8], g[8];
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      g[s] = ptx::load_shared(at[s] + kG);
      k[s] = ptx::load_shared(at[s]);
      q[s] = ptx::load_shared(at[s] + kQ);
    }
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
      offset += step_c;
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
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const auto token = [&](int i) {  // of the octet
        const float up = e == 0 ? wide[i].x : wide[i].y, down = e == 0 ? wide[7 - i].x : wide[7 - i].y;
        return rounded_by_the_cut(forward ? up : down);
      };
      uint32_t first[4], other[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t even = token(2 * i), odd = token(2 * i + 1);
        first[i] = turn ? odd : even;
        other[i] = turn ? even : odd;
      }
      const uint32_t row = w + e * 128;
      ptx::store_shared(row + unit_128(channel + e, unit + turn), first[0], first[1], first[2], first[3]);
      ptx::store_shared(row + unit_128(channel + e, unit + 1 - turn), other[0], other[1], other[2], other[3]);
    }
#pragma unroll
    for (int s = 0; s < 8; ++s) at[s] += direction * 8 * 128;
  }
  *reinterpret_cast<float2*>(&(forward ? stage.tail : stage.F)[channel]) =
      make_float2(direction * G.x, direction * G.y);
}

template <int kSlices>
__device__ __forceinline__ void run_columns(Shared<kSlices>& shared, const FusedParams& p, const Item& item,
                                            int column) {
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
  for (int c = 0; c < item.chunks; ++c) {
    Stage<kSlices>& stage = shared.stages[c % kStages];
    const int rows =
        static_cast<int>(min(static_cast<int64_t>(kChunk), item.length - static_cast<int64_t>(c) * kChunk));
    // The next chunk goes into the stage of the one three before this, which the consumers have long left.
    if (lane == 0 && c + 1 < item.chunks) {
      if (c + 1 >= kStages) ptx::barrier_wait(shared.empty[(c + 1) % kStages], (c + 1 - kStages) / kStages & 1);
      load_part(shared, p, item, c + 1, column, warp);
    }
    __syncwarp();
    ptx::barrier_wait(shared.raw[c % kStages], c / kStages & 1);
    Shrink& shrink = shared.shrink[c % kStages];
    measure(stage, shared.scales[c % kStages], shrink, warp % 2, warp / 2, warp % 2 == 0 ? 1.0f : p.scale, columns.c,
            lane);
    ptx::named_barrier<1, 128>();  // the raw rows have been read and may be overwritten
    if (rows == kChunk && (shrink.needed[0] | shrink.needed[1] | shrink.needed[2] | shrink.needed[3]) == 0) {
      column_pass<true>(stage, shrink, columns, block, forward, rows, lane);
    } else {
      column_pass<false>(stage, shrink, columns, block, forward, rows, lane);
    }
    ptx::async_proxy_fence();
    ptx::barrier_arrive(shared.columns[c % kStages]);
  }
}

}  // namespace flashkda::cuda::sm90
