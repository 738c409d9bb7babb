// The column role: warps measure raw k and q of a chunk and turn k, q and g into kd, qd and ki.
#pragma once

#include <type_traits>

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm90/item.cuh"
#include "cuda/sm90/load.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/scalars.cuh"
#include "cuda/sm90/stage.cuh"
#include "cuda/tile/static_for.cuh"

namespace flashkda::cuda::sm90 {

// What is the same in every chunk for two channels of a head.
struct Columns {
  float2 slope_bias;  // slope * dt_bias
  float slope, bits;  // decay of a token: bits * share
  float c;            // stage.cuh

  // g: of two channels.
  __device__ __forceinline__ float2 share(uint32_t g) const {
    const float2 x = unpack_bf16(g);
    const auto sigmoid = [](float logit) { return ptx::reciprocal_approx(1.0f + ptx::exp2_approx(logit)); };
    return make_float2(sigmoid(fmaf(slope, x.x, slope_bias.x)), sigmoid(fmaf(slope, x.y, slope_bias.y)));
  }
};

// The tokens of an octet as a lane walks them, two channels of each: from the anchor on (forward) or back from it, both
// by the same instructions. The roles of this kernel share one instruction cache, and code that does not fit costs more
// than any arithmetic.
struct Octet {
  static constexpr int kQ = kChunk * 128, kG = 2 * kQ, kRest = 3 * kQ;  // from a row of k to that of q, g, ki's rest
  int direction;                                                        // 1 or -1
  int start;                                                            // the token of step 0
  uint32_t at[8];                                                       // k of each step

  template <int kSlices>
  __device__ __forceinline__ Octet(Stage<kSlices>& stage, int block, bool forward, bool far, int lane)
      : direction(forward ? 1 : -1), start(forward ? kHalf + 8 * far : kHalf - 1 - 8 * far) {
    const int byte = (lane * 4) ^ (forward ? 0 : 7 << 4);  // the row modulo 8 is the step or its complement
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      at[s] = ptx::shared_address(&stage.x[block][0][0][0]) + (start + direction * s) * 128 + (byte ^ (s << 4));
    }
  }

  // G: bits from the anchor to before a token of that share, then to behind it, negative where it lies before.
  __device__ __forceinline__ void walk(const Columns& p, float2 share, float2& G) const {
    const float bits = direction * p.bits;
    G = make_float2(fmaf(bits, share.x, G.x), fmaf(bits, share.y, G.y));
  }

  __device__ __forceinline__ void go_on() {
    start += 8 * direction;
#pragma unroll
    for (int s = 0; s < 8; ++s) at[s] += direction * 8 * 128;
  }
};

// Turns an octet's k, q and g into kd, qd, ki and what ki lacks. G: as of step 0, then behind step 7. load(step) and
// share(step, what it loaded): a step's shares. kBatch: steps whose loads are under way together, as registers allow.
// kPlain: all tokens are there and none's k or q needs shrinking; else tokens from rows on count as zero and decay
// nothing.
template <bool kPlain, int kBatch, typename Load, typename Share>
__device__ __forceinline__ void transform(const Octet& octet, const Shrink& shrink, const Columns& p, int rows,
                                          float2& G, Load&& load, Share&& share) {
  const float inclusive = octet.direction > 0 ? p.bits : 0.0f;
  const float offset = p.c * static_cast<float>(set_aside(octet.start));
#pragma unroll
  for (int first = 0; first < 8; first += kBatch) {
    uint32_t k[kBatch], q[kBatch], g[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      g[i] = load(first + i);
      k[i] = ptx::load_shared(octet.at[first + i]);
      q[i] = ptx::load_shared(octet.at[first + i] + Octet::kQ);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t to = octet.at[first + i];
      float2 part = share(first + i, g[i]);
      if constexpr (!kPlain) {
        const int token = octet.start + octet.direction * (first + i);
        k[i] = multiply_bf16(k[i], shrink.k[token] * 0x10001u);
        q[i] = multiply_bf16(q[i], shrink.q[token] * 0x10001u);
        if (token >= rows) part = make_float2(0.0f, 0.0f), k[i] = q[i] = 0u;
      }
      const float2 E = make_float2(fmaf(inclusive, part.x, G.x) + offset, fmaf(inclusive, part.y, G.y) + offset);
      octet.walk(p, part, G);
      const float2 decay = make_float2(ptx::exp2_approx(E.x), ptx::exp2_approx(E.y));
      const float2 growth = make_float2(ptx::exp2_approx(-E.x), ptx::exp2_approx(-E.y));
      // What reads the state is rounded twice. What is written has 16 bits: keys that repeat are written at many
      // decays, and what a rounded one leaves beside their direction no later token takes away.
      const float2 key = unpack_bf16(k[i]);
      const uint32_t narrow = pack_bf16(decay.x, decay.y);
      ptx::store_shared(to, multiply_bf16(k[i], narrow));
      ptx::store_shared(to + Octet::kQ, multiply_bf16(q[i], narrow));
      const float2 ki = make_float2(key.x * growth.x, key.y * growth.y);
      const uint32_t narrow_ki = pack_bf16(ki.x, ki.y);
      const float2 kept = unpack_bf16(narrow_ki);
      ptx::store_shared(to + Octet::kG, narrow_ki);
      ptx::store_shared(to + Octet::kRest, pack_bf16(ki.x - kept.x, ki.y - kept.y));
    }
  }
}

// Gate constants of a head as they lie in memory, so that they can be asked for long before they are wanted.
struct HeadGate {
  float A_log = 0.0f;
  float2 bias = {0.0f, 0.0f};

  __device__ __forceinline__ void ask(const FusedParams& p, int hv, int channel) {
    if (p.A_log != nullptr) A_log = p.A_log[hv];
    if (p.dt_bias != nullptr) bias = *reinterpret_cast<const float2*>(p.dt_bias + hv * D + channel);
  }
  __device__ __forceinline__ Columns take(const FusedParams& p) const {
    Columns columns;
    columns.slope =
        fmaxf(-Gate(p.lower_bound, A_log).exp_A * kLog2e, -0x1p60f);  // products with any g and bias are finite
    columns.bits = p.lower_bound * kLog2e;
    columns.c = centre(p.lower_bound);
    columns.slope_bias = make_float2(columns.slope * bias.x, columns.slope * bias.y);
    return columns;
  }
};

// A chunk's raw rows to the rows of stage.cuh and their scalars, by the kColumnWarps of a group, which has a named
// barrier of its own. rows: tokens that are there. b(): of the lane's token, asked of warp 0. A warp has 64 channels,
// two a lane, of 16 tokens, or with twice the warps those of 8.
template <typename V, typename B>
__device__ __forceinline__ void prepare_chunk(Stage<V::kSlices>& stage, Shrink& shrink, const Columns& columns,
                                              TokenFrame frame, float scale, int group, int warp, int rows, B&& b) {
  constexpr int kWarps = V::kColumnWarps;
  const int lane = threadIdx.x % 32, block = warp % 2, channel = block * 64 + 2 * lane;
  const bool forward = warp / 2 % 2, far = warp / 4;
  const auto total = [&]() -> float2& {
    return *reinterpret_cast<float2*>(&(forward ? stage.tail : stage.head)[channel]);
  };
  [[maybe_unused]] float2 shares[8];
  if constexpr (kWarps == 8) {  // the gates first, for what the octet farther from the anchor is to start from
    const Octet octet(stage, block, forward, far, lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) shares[i] = columns.share(ptx::load_shared(octet.at[i] + Octet::kG));
    float2 G = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (octet.start + octet.direction * i >= rows) shares[i] = make_float2(0.0f, 0.0f);
      octet.walk(columns, shares[i], G);
    }
    if (!far) total() = G;
  }
  const bool is_long = put_lengths<kWarps>(stage, warp, lane);
  // From here on nobody needs other warps' raw k and q.
  const bool any_long = ptx::named_barrier_any<32 * kWarps>(3 + group, is_long);
  if (warp == 0) finish_lengths(stage, shrink, frame, scale, b(), lane);
  const auto pass = [&](auto plain) {
    constexpr bool kPlain = decltype(plain)::value;
    Octet octet(stage, block, forward, far, lane);
    float2 G = make_float2(0.0f, 0.0f);
    if constexpr (kWarps == 8) {
      if (far) G = total();
      transform<kPlain, V::kColumnBatch>(
          octet, shrink, columns, rows, G, [](int) { return 0u; }, [&](int step, uint32_t) { return shares[step]; });
    } else {
#pragma unroll(kPlain ? 2 : 1)
      for (int i = 0; i < 2; ++i) {
        transform<kPlain, V::kColumnBatch>(
            octet, shrink, columns, rows, G, [&](int step) { return ptx::load_shared(octet.at[step] + Octet::kG); },
            [&](int, uint32_t g) { return columns.share(g); });
        octet.go_on();
      }
    }
    if (kWarps == 4 || far) total() = make_float2(octet.direction * G.x, octet.direction * G.y);
  };
  if (rows == kChunk && !any_long) {
    pass(std::true_type{});
  } else {
    ptx::named_barrier<32 * kWarps>(3 + group);  // shrink is there
    pass(std::false_type{});
  }
  ptx::async_proxy_fence();
}

// group: of kColumnGroups, which take the block's own chunks in turns; warp: of its kColumnWarps; rank: the block's of
// those that share the head.
template <typename V>
__device__ __forceinline__ void run_columns(Shared<V>& shared, const FusedParams& p, const Item& item, int group,
                                            int warp, int rank) {
  const int lane = threadIdx.x % 32;
  HeadGate gate;
  gate.ask(p, item.hv, warp % 2 * 64 + 2 * lane);
  const Columns columns = gate.take(p);
  Scalars scalars(p, lane);  // warp 0
  constexpr int kTurn = V::kColumnGroups * V::kSharers;
  const int first = rank + V::kSharers * group;
  if (warp == 0) scalars.ask_for_b(p, item, first, lane);
  for (int c = first; c < item.chunks; c += kTurn) {
    const int s = c % V::kStages;
    const uint32_t turn = c / V::kOwnPeriod & 1;
    Stage<V::kSlices>& stage = shared.stages[s];
    ptx::barrier_wait(shared.raw[s], turn);
    prepare_chunk<V>(stage, shared.shrink[s], columns, scalars.frame, p.scale, group, warp, item.rows(c), [&] {
      const float b = scalars.take_b(p, item, c, lane);
      scalars.ask_for_b(p, item, c + kTurn, lane);
      return b;
    });
    ptx::barrier_arrive(shared.columns[s]);
    if constexpr (V::kSharers > 1) {
      if (warp == 0 && lane < V::kSharers) {  // a lane for each block
        ptx::barrier_wait(shared.columns[s], turn);
        if (lane != rank) {
          send(stage.head, sizeof(stage.head) + sizeof(stage.tail), shared.bits[s], lane);
          send(stage.x, sizeof(stage.x) + sizeof(stage.scales), shared.full[s], lane);
        }
      }
      __syncwarp();
    }
  }
}

}  // namespace flashkda::cuda::sm90
