// What the portable prepare does with 16 tokens of a head: their rows decayed, and the products that are L and Mqk. Its
// parameters, the place of a chunk and the arithmetic of pairs are sm90/prepare.cuh's as well.
//
// A thread owns two neighbouring channels of all 16 tokens, so that decays are running sums in its registers and every
// global access of a row is coalesced. L and Mqk come from tensor cores: eight right tokens give k and q rows (the 16
// rows of A), eight left ones k rows (the 8 columns of B), and one accumulator holds the L and the Mqk of their pairs.
// Rows are decayed to the middle of their block of eight where the decays allow it, and by halving (docs/algorithm.md,
// eq. 25) where they do not.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/block/tf32.cuh"
#include "cuda/params.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm80/segment.cuh"
#include "cuda/tile/image.cuh"
#include "cuda/tile/static_for.cuh"

namespace flashkda::cuda::sm80 {

struct PrepareParams {
  Layout layout;
  Rows q, k, g;          // [B,T,H,K], [B,T,H,K], [B,T,HV,K]
  Rows beta;             // [B,T,HV]: head stride 1
  const float* A_log;    // [HV] or null
  const float* dt_bias;  // [HV,K] or null
  float lower_bound, scale;
  int32_t gate, beta_activation;
  bool qk_l2norm;
  bool tame;     // sm90/bounds.hpp
  char* images;  // [chunks][HV] of Image<K>
};

// The chunk a block works on.
struct ChunkPlace {
  int64_t batch, token;  // of its first row
  int rows;              // 0: no such chunk
};

// kTokens: of a chunk.
template <int kTokens>
__device__ inline ChunkPlace locate_chunk(const Layout& layout, int64_t chunk) {
  if (layout.begin == nullptr) {
    const auto index = static_cast<uint32_t>(chunk), a_row = static_cast<uint32_t>(layout.row_chunks);
    const int64_t token = static_cast<int64_t>(index % a_row) * kTokens;
    return {index / a_row, token, static_cast<int>(min(static_cast<int64_t>(kTokens), layout.T - token))};
  }
  if (chunk >= layout.chunks[layout.N]) return {0, 0, 0};
  const int n = owner(layout.chunks, layout.N, chunk);
  const int64_t token = layout.begin[n] + (chunk - layout.chunks[n]) * kTokens;
  return {0, token, static_cast<int>(min(static_cast<int64_t>(kTokens), layout.begin[n + 1] - token))};
}

__device__ __forceinline__ float2 times(float2 x, float2 y) { return make_float2(x.x * y.x, x.y * y.y); }
__device__ __forceinline__ uint32_t decayed(float2 x, float2 decay) { return pack_bf16(x.x * decay.x, x.y * decay.y); }
__device__ __forceinline__ float2 exp2_of(float2 x) {
  return make_float2(ptx::exp2_approx(x.x), ptx::exp2_approx(x.y));
}

__device__ __forceinline__ int64_t offset_of(const Rows& x, int64_t batch, int64_t token, int head) {
  return batch * x.batch + token * x.token + head * x.head;
}

// A thread's two neighbouring channels of 16 tokens, as they lie in memory.
struct ChannelRows {
  uint32_t k[kChunk], q[kChunk];
  float2 g[kChunk];

  // Asks for them all. Rows past the end stay zero and are never read.
  __device__ __forceinline__ void load(const PrepareParams& p, int64_t batch, int64_t token, int rows, int h, int hv,
                                       int channel) {
    const auto* k_row = static_cast<const uint16_t*>(p.k.data) + offset_of(p.k, batch, token, h) + channel;
    const auto* q_row = static_cast<const uint16_t*>(p.q.data) + offset_of(p.q, batch, token, h) + channel;
    int64_t g_row = offset_of(p.g, batch, token, hv) + channel;
    const auto load_rows = [&](auto load_gate, auto whole) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const bool valid = whole || i < rows;
        k[i] = valid ? *reinterpret_cast<const uint32_t*>(k_row) : 0u;
        q[i] = valid ? *reinterpret_cast<const uint32_t*>(q_row) : 0u;
        g[i] = valid ? load_gate(g_row) : make_float2(0.0f, 0.0f);
        k_row += p.k.token;
        q_row += p.q.token;
        g_row += p.g.token;
      }
    };
    const auto gate_bf16 = [&](int64_t at) { return Memory<FKDA_BFLOAT16>::load_pair(p.g.data, at); };
    const auto gate_any = [&](int64_t at) { return load_pair(p.g.data, at, p.g.dtype); };
    if (rows >= kChunk && p.g.dtype == FKDA_BFLOAT16) {
      load_rows(gate_bf16, Constant<1>());
    } else {
      load_rows(gate_any, Constant<0>());
    }
  }

  // g becomes the bits of decay of every token.
  __device__ __forceinline__ void activate(const PrepareParams& p, float A_log, float2 bias, int rows) {
    const Gate gate(p.lower_bound, A_log);
    const auto run = [&](auto kind) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        // Computed for every row, so that there is no branch a row.
        const float x = gate.template log2_decay<kind>(g[i].x + bias.x);
        const float y = gate.template log2_decay<kind>(g[i].y + bias.y);
        g[i] = i < rows ? make_float2(x, y) : make_float2(0.0f, 0.0f);
      }
    };
    if (p.gate == FKDA_GATE_BOUNDED) {
      run(Constant<FKDA_GATE_BOUNDED>());
    } else if (p.gate == FKDA_GATE_SOFTPLUS) {
      run(Constant<FKDA_GATE_SOFTPLUS>());
    } else {
      run(Constant<FKDA_GATE_LOG>());
    }
  }

  // Bits of decay of tokens from..to-1, after activate().
  __device__ __forceinline__ float2 bits(int from, int to) const {
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = from; i < to; ++i) {
      sum.x += g[i].x;
      sum.y += g[i].y;
    }
    return sum;
  }

  // The decay of every token, after activate().
  __device__ __forceinline__ void decays(float2 (&alpha)[kChunk]) const {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) alpha[i] = exp2_of(g[i]);
  }
};

// Sums v[0..16) over the warp's lanes: lane l returns the sum of v[l / 2]. Halves the array at every step.
__device__ __forceinline__ float reduce_scatter(float (&v)[kChunk], int lane) {
  static_for<4>([&](auto step) {
    constexpr int half = 8 >> step, bit = 16 >> step;
    const bool upper = lane & bit;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float keep = upper ? v[i + half] : v[i];
      const float give = upper ? v[i] : v[i + half];
      v[i] = keep + __shfl_xor_sync(0xffffffffu, give, bit);
    }
  });
  return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 1);
}

inline constexpr int kLevels = 4;       // half = 8, 4, 2, 1
inline constexpr int kRoundLevels = 2;  // levels whose rows are in shared memory at a time

// The token that row r (0..7) of a level stands for.
__device__ constexpr int right_token(int half, int r) { return r / half * 2 * half + half + r % half; }
__device__ constexpr int left_token(int half, int r) { return r / half * 2 * half + r % half; }

// Sums over a warp's 64 channels of k k, q q and q k (of: 0, 1, 2) of 16 raw tokens, in fp32. put(of, token, sum).
template <typename Put>
__device__ __forceinline__ void sum_rows(const ChannelRows& raw, bool fp16, int lane, Put&& put) {
  const auto sum_up = [&](int of, const uint32_t(&x)[kChunk], const uint32_t(&y)[kChunk]) {
    float products[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float2 a = unpack(x[i], fp16), b = unpack(y[i], fp16);
      products[i] = a.x * b.x + a.y * b.y;
    }
    const float sum = reduce_scatter(products, lane);
    if (lane % 2 == 0) put(of, lane / 2, sum);
  };
  sum_up(0, raw.k, raw.k);
  sum_up(1, raw.q, raw.q);
  sum_up(2, raw.q, raw.k);
}

// Up to which squared length rows are anchored (below); normalised ones have 1.
inline constexpr float kAnchoredSquare = 0x1p20f;

// What a token's sums make of its rows.
struct TokenScalars {
  float norm_k, norm_q;  // what multiplies a raw row, with scale in norm_q
  float diagonal;        // of Mqk, which no decay touches
  bool fits;             // whether its rows may be anchored

  __device__ __forceinline__ TokenScalars(const PrepareParams& p, float kk, float qq, float qk)
      : norm_k(p.qk_l2norm ? rsqrtf(kk + 1e-6f) : 1.0f),
        norm_q(p.scale * (p.qk_l2norm ? rsqrtf(qq + 1e-6f) : 1.0f)),
        diagonal(qk * norm_k * norm_q),
        fits(kk * norm_k * norm_k <= kAnchoredSquare && qq * norm_q * norm_q <= kAnchoredSquare) {}
};

// ---------------------------------------------------------------------------------------- rows of 16 tokens, anchored
//
// The ordinary way: decays are taken from the middle of each block of 8 tokens, the anchor, both ways. With E a token's
// bits of decay from the anchor (positive before it),
//   ke = k 2^E   qe = q 2^E   ki = k 2^-E
// one product of [ke; qe] with ki has L and Mqk of the block, and of two blocks if ki is decayed on to the later one's
// anchor. That holds while 2^E and 2^-E leave bf16 its digits. Exponents are added and not powers multiplied: two
// factors of 2^-100 and 2^100 must make 1, and a decay of 2^-150 may lie between places whose tokens are near.

// Up to how many bits of decay in half a block. The bounded gate stays below 29; a trained softplus layer's seldom are
// more. Of what passes from one block to another less than 2^-26 is lost.
inline constexpr float kAnchoredBits = 100.0f;

inline constexpr int kBlock = 8;  // tokens of an anchor

template <int K>
struct AnchoredRows {
  static constexpr int kPitch = K * 2 + 16;  // bytes; the pad turns ldmatrix's eight rows through the banks
  char block[2][24][kPitch];                 // 8 ke, 8 qe, 8 ki
  char left[kBlock][kPitch];                 // ki of the first block, decayed to the second's anchor
};

// Bits of decay, two channels, between the places that matter.
struct Anchors {
  float2 quarter[4];  // of 4 tokens each

  __device__ __forceinline__ explicit Anchors(const ChannelRows& rows) {
#pragma unroll
    for (int i = 0; i < 4; ++i) quarter[i] = rows.bits(4 * i, 4 * i + 4);
  }
  __device__ __forceinline__ bool fit() const {
    float least = 0.0f;
#pragma unroll
    for (const float2 x : quarter) least = fminf(least, fminf(x.x, x.y));
    return least >= -kAnchoredBits;
  }
  // From the first token to a block's anchor, and from there past the last token.
  __device__ __forceinline__ float2 before(int block) const { return sum(0, 2 * block + 1); }
  __device__ __forceinline__ float2 after(int block) const { return sum(2 * block + 1, 4); }
  __device__ __forceinline__ float2 between() const { return sum(1, 3); }  // the anchors
  __device__ __forceinline__ float2 total() const { return sum(0, 4); }

 private:
  __device__ __forceinline__ float2 sum(int from, int to) const {
    float2 x = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = from; i < to; ++i) {
      x.x += quarter[i].x;
      x.y += quarter[i].y;
    }
    return x;
  }
};

__device__ __forceinline__ float2 add(float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); }
__device__ __forceinline__ float2 subtract(float2 x, float2 y) { return make_float2(x.x - y.x, x.y - y.y); }

// Writes the rows of a thread's two channels (the first is `channel`) of 16 tokens. token(block, i, E, k, q) is told of
// every token, with its normalised rows in fp32.
template <int K, typename Token>
__device__ __forceinline__ void write_anchored(AnchoredRows<K>& rows, const ChannelRows& raw, const Anchors& anchors,
                                               const float* norm_k, const float* norm_q, bool fp16, int channel,
                                               Token&& token) {
  const float2 onwards = anchors.between();
  static_for<2>([&](auto block) {
    const auto one = [&](int i, float2 E) {
      const int at = block * kBlock + i;
      const float2 e = exp2_of(E), k = times(unpack(raw.k[at], fp16), make_float2(norm_k[at], norm_k[at]));
      const float2 q = times(unpack(raw.q[at], fp16), make_float2(norm_q[at], norm_q[at]));
      const auto put = [&](char* row, float2 x) {
        *reinterpret_cast<uint32_t*>(row + 2 * channel) = pack_bf16(x.x, x.y);
      };
      put(rows.block[block][i], times(k, e));
      put(rows.block[block][kBlock + i], times(q, e));
      put(rows.block[block][2 * kBlock + i], times(k, exp2_of(make_float2(-E.x, -E.y))));
      if constexpr (block == 0) put(rows.left[i], times(k, exp2_of(subtract(onwards, E))));
      token(block, at, E, k, q);
    };
    float2 E = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = kBlock / 2 - 1; i >= 0; --i) {
      one(i, E);
      E.x -= raw.g[block * kBlock + i].x;
      E.y -= raw.g[block * kBlock + i].y;
    }
    E = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = kBlock / 2; i < kBlock; ++i) {
      E = add(E, raw.g[block * kBlock + i]);
      one(i, E);
    }
  });
}

// Products of 16 rows (8 of k, 8 of q) with 8, by one warp: put(i, j, l, m) gets the entries of k rows and of q rows.
template <int K, typename Put>
__device__ __forceinline__ void multiply_rows(const char* right, const char* left, int lane, Put&& put) {
  constexpr int kPitch = AnchoredRows<K>::kPitch;
  float acc[4] = {};
  const uint32_t a_address = ptx::shared_address(right + lane % 16 * kPitch + lane / 16 * 16);
  const uint32_t b_address = ptx::shared_address(left + lane % 8 * kPitch + lane / 8 * 16);
#pragma unroll
  for (int k = 0; k < K; k += 32) {
    uint32_t a0[4], a1[4], b[4];
    ptx::ldmatrix_x4(a0, a_address + k * 2);
    ptx::ldmatrix_x4(a1, a_address + k * 2 + 32);
    ptx::ldmatrix_x4(b, b_address + k * 2);
    ptx::mma_m16n8k16_bf16(acc, a0, b[0], b[1]);
    ptx::mma_m16n8k16_bf16(acc, a1, b[2], b[3]);
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) put(lane / 4, 2 * (lane % 4) + e, acc[e], acc[2 + e]);
}

// L (short of b) and Mqk below the diagonal of 16 tokens, by two warps (part 0 and 1). put(i, j, l, m).
template <int K, typename Put>
__device__ __forceinline__ void multiply_anchored(const AnchoredRows<K>& rows, int part, int lane, Put&& put) {
  const int first = part * kBlock;
  multiply_rows<K>(rows.block[part][0], rows.block[part][2 * kBlock], lane, [&](int i, int j, float l, float m) {
    if (i > j) put(first + i, first + j, l, m);
  });
  if (part == 1) {
    multiply_rows<K>(rows.block[1][0], rows.left[0], lane,
                     [&](int i, int j, float l, float m) { put(kBlock + i, j, l, m); });
  }
}

// ------------------------------------------------------------------------------------ rows of 16 tokens, by halving
//
// Any gate: at half = 8, 4, 2, 1 the pairs across a block's middle factor into two rows that are each decayed to the
// middle, both at most 1, so no gate overflows and none needs a case of its own.

// L (short of b) and Mqk entries of one level, by one warp. rows: the level's 24. put(i, j, l, m).
template <int K, typename Put>
__device__ __forceinline__ void score_level(const char* rows, int half, int lane, Put&& put) {
  multiply_rows<K>(rows, rows + 16 * AnchoredRows<K>::kPitch, lane, [&](int r, int l, float x, float m) {
    if (r / half == l / half) put(right_token(half, r), left_token(half, l), x, m);  // only pairs of one block count
  });
}

// The rows of one level, from a thread's two channels of 16 tokens. put(row, pair of bf16).
template <int kHalf, typename Put>
__device__ __forceinline__ void level_rows(const float2 (&k)[kChunk], const float2 (&q)[kChunk],
                                           const float2 (&alpha)[kChunk], Put&& put) {
  static_for<8 / kHalf>([&](auto block) {
    constexpr int first = block * 2 * kHalf, middle = first + kHalf, row = block * kHalf;
    float2 prefix = make_float2(1.0f, 1.0f), suffix = make_float2(1.0f, 1.0f);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      prefix = times(prefix, alpha[middle + i]);
      put(row + i, decayed(k[middle + i], prefix));
      put(8 + row + i, decayed(q[middle + i], prefix));
    }
#pragma unroll
    for (int i = kHalf - 1; i >= 0; --i) {
      put(16 + row + i, decayed(k[first + i], suffix));
      suffix = times(suffix, alpha[first + i]);
    }
  });
}

}  // namespace flashkda::cuda::sm80
