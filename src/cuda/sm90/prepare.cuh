// The token-parallel kernel of the wgmma path: one block turns 32 tokens of one value head into their image
// (sm90/image.cuh), in shared memory, from where the copy engine takes it.
//
// Rows are centred as in the fused kernel (stage.cuh), so that one product of [k; q] 2^E with k 2^-E is all of L and
// Mqk. Channels that forget too much for that are zero there, and what their pairs add comes one by one in fp32: decays
// between two tokens are at most 1, whatever the gate. A trained layer has a few such channels in some of its chunks.
#pragma once

#include <cstddef>

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/sm80/rows.cuh"
#include "cuda/sm90/image.cuh"
#include "cuda/sm90/scores.cuh"

namespace flashkda::cuda::sm90 {

inline constexpr int kPrepareThreads = 128, kPrepareBlocks = 4;  // blocks of an SM

// Bits of every token that are set aside, stage.cuh's c.
inline constexpr float kAside = -3.0f;

// How many bits of decay the 8 tokens next to the anchor and all 16 of a half may have in a channel that is centred:
// |E| stays below 116. Rows are at most 2^10 long, so that products stay below 2^(20 + 31 |c|).
inline constexpr float kCentredOctet = 120.0f, kCentredHalf = 160.0f;
inline constexpr float kLongestRowSquare = 0x1p20f;

// A token that decays by more leaves nothing in fp32. Clamped, sums over a chunk stay below 5,120 and good to 2^-11
// bits.
inline constexpr float kMostBits = 160.0f;

struct PrepareShared {
  // The image's.
  alignas(1024) char kd[2][kChunk][128];
  alignas(1024) char qd[2][kChunk][128];
  union {
    // [channel / 64][k, q, g as they come; then k 2^E, q 2^E, k 2^-E][token]
    alignas(1024) char x[2][3][kChunk][128];
    // then [channel of a round] what add_wild looks at: k, q, bits of decay up to the token
    float wild[kPrepareThreads / 32][3][kChunk];
    // at last the image's
    alignas(1024) char w[D][128];
  };
  alignas(1024) char T[kChunk][128];
  alignas(1024) char M[kChunk][64];
  float F[D];

  float norm_k[kChunk], norm_q[kChunk], b[kChunk];
  float product[kChunk];               // q k of a token's raw rows
  alignas(16) float total[2][D];       // bits of decay of a half
  bool is_wild[2][D];                  // by the half's decays
  bool all_wild;                       // for the length of a row
  alignas(16) float Lt[2][kHalf][20];  // L's diagonal blocks, transposed
  // fp32 as tf32 products take it; T's blocks without b of the column
  uint32_t L21[kHalf][20], T11[kHalf][20], T22[kHalf][20];
};

// What leaves in one copy.
static_assert(offsetof(PrepareShared, qd) == offsetof(PrepareShared, kd) + sizeof(PrepareShared::kd));
static_assert(offsetof(PrepareShared, F) == offsetof(PrepareShared, M) + sizeof(PrepareShared::M));

// A block's work.
struct Place {
  int64_t batch, token;  // of its first row
  int rows, h, hv;
};

// Asks for the raw rows of k, q and (bf16) g, where the centred ones will be. Rows past the end become zero.
__device__ __forceinline__ void fetch_rows(PrepareShared& s, const sm80::PrepareParams& p, const Place& place) {
  // 16 threads a row, so that a thread's rows are eight apart and swizzled alike.
  const int unit = threadIdx.x % 16, row = threadIdx.x / 16;
  const uint32_t to = ptx::shared_address(&s.x[unit / 8][0][row][unit_128(row, unit % 8)]);
  const auto fetch = [&](int of, const Rows& x, int head) {
    const auto* from =
        static_cast<const uint16_t*>(x.data) + sm80::offset_of(x, place.batch, place.token + row, head) + 8 * unit;
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
      const bool valid = row + 8 * octet < place.rows;
      ptx::cp_async_16(to + (of * kChunk + 8 * octet) * 128, valid ? from : static_cast<const uint16_t*>(x.data),
                       valid);
      from += 8 * x.token;
    }
  };
  fetch(0, p.k, place.h);
  fetch(1, p.q, place.h);
  if (p.g.dtype == FKDA_BFLOAT16) fetch(2, p.g, place.hv);
}

// A thread's two channels of 16 tokens; step i is the token i places from the anchor.
struct Steps {
  int channel, block;  // the first of the two; channel / 64
  bool forward;        // the second half
  int start, direction;
  int byte;  // of the channels in a row, before the step's part of the swizzle

  __device__ __forceinline__ Steps()
      : channel(2 * (threadIdx.x % 64)),
        block(channel / 64),
        forward(threadIdx.x / 64),
        start(forward ? kHalf : kHalf - 1),
        direction(forward ? 1 : -1),
        byte((channel % 64 * 2) ^ (forward ? 0 : 7 << 4)) {}
  __device__ __forceinline__ int token(int i) const { return start + direction * i; }
  __device__ __forceinline__ int at(int i) const { return token(i) * 128 + (byte ^ (i % 8 << 4)); }
};

// The gate with its bits of decay clamped.
struct ClampedGate : Gate {
  __device__ __forceinline__ ClampedGate(const sm80::PrepareParams& p, int hv)
      : Gate(fmaxf(p.lower_bound, -kMostBits / kLog2e), p.A_log != nullptr ? p.A_log[hv] : 0.0f) {}

  // x: g + dt_bias. NaN stays.
  template <int kKind>
  __device__ __forceinline__ float bits(float x) const {
    if constexpr (kKind == FKDA_GATE_BOUNDED) return log2_decay<kKind>(x);
    return ptx::max_or_nan(log2_decay<kKind>(x), -kMostBits);
  }
};

template <typename Body>
__device__ __forceinline__ void with_gate(int32_t kind, Body&& body) {
  if (kind == FKDA_GATE_BOUNDED) {
    body(Constant<FKDA_GATE_BOUNDED>());
  } else if (kind == FKDA_GATE_SOFTPLUS) {
    body(Constant<FKDA_GATE_SOFTPLUS>());
  } else {
    body(Constant<FKDA_GATE_LOG>());
  }
}

// Bits of decay of a thread's tokens, in the order of steps. Past the end: anything.
template <bool kTame>
__device__ __forceinline__ void load_bits(const PrepareShared& s, const sm80::PrepareParams& p, const Place& place,
                                          const Steps& steps, const ClampedGate& gate, float2 bias,
                                          float2 (&g)[kHalf]) {
  if (kTame || p.g.dtype == FKDA_BFLOAT16) {
    const char* const rows = &s.x[steps.block][2][0][0];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) g[i] = unpack_bf16(*reinterpret_cast<const uint32_t*>(rows + steps.at(i)));
  } else {
    const int64_t first = sm80::offset_of(p.g, place.batch, place.token, place.hv) + steps.channel;
    const auto load = [&](auto memory) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {  // past the end: the last row
        g[i] = memory.load_pair(p.g.data, first + min(steps.token(i), place.rows - 1) * p.g.token);
      }
    };
    if (p.g.dtype == FKDA_FLOAT32) {
      load(Memory<FKDA_FLOAT32>());
    } else {
      load(Memory<FKDA_FLOAT16>());
    }
  }
  if constexpr (kTame) {                                        // bits / (1 + 2^(slope g + slope bias))
    const float slope = fmaxf(-kLog2e * gate.exp_A, -0x1p60f);  // products with any g and dt_bias stay finite
    const auto bits = [&](float x, float shift) {
      return gate.bound_bits * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(fmaf(slope, x, shift)));
    };
    const float2 shift = make_float2(slope * bias.x, slope * bias.y);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) g[i] = make_float2(bits(g[i].x, shift.x), bits(g[i].y, shift.y));
  } else {
    with_gate(p.gate, [&](auto kind) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        g[i] = make_float2(gate.bits<kind>(g[i].x + bias.x), gate.bits<kind>(g[i].y + bias.y));
      }
    });
  }
}

// [k; q] [k; q]^T of raw rows by the warpgroup. Squared lengths are its diagonal, the products q_i k_i stand left of
// it. No decay touches the latter: rows of Mqk may consist of that entry alone, and a sum of rounded terms would be
// wrong where it is small by cancellation.
template <bool kFp16>
__device__ __forceinline__ void multiply_rows(const char (&x)[2][3][kChunk][128], float (&d)[32]) {
  const uint64_t rows = ptx::rows_of_128(ptx::shared_address(&x[0][0][0][0]));
  static_for<D / 16>([&](auto i) {
    const uint64_t at = ptx::advance(rows, i / 4 * sizeof(x[0]) + i % 4 * 32);
    ptx::wgmma_n64<kFp16, (i > 0)>(d, at, at);
  });
}

// What a lane has of multiply_rows' diagonals. put(of, token, x): |k|^2, |q|^2, q k of the token (of: 0, 1, 2).
template <typename Put>
__device__ __forceinline__ void diagonals(const float (&d)[32], int warp, int lane, Put&& put) {
  // The lane has rows g and g + 8 of the warp's 16; column 16 block + g (+ 8) is its own if g / 2 is lane % 4.
  const int g = lane / 4, first = warp % 2 * kHalf;
  const bool owner = lane % 4 == g / 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto entry = [&](int block) { return g % 2 == 0 ? d[8 * block + 6 * half] : d[8 * block + 6 * half + 1]; };
    const int token = first + g + 8 * half;
    const float even = warp < 2 ? entry(0) : entry(2), odd = warp < 2 ? entry(1) : entry(3);
    const float product = warp == 2 ? entry(0) : entry(1);
    if (owner) put(warp < 2 ? 0 : 1, token, warp % 2 == 0 ? even : odd);
    if (owner && warp >= 2) put(2, token, product);
  }
}

// Centred rows, kd, qd, and of kr what the thread has of them, in the order of steps. Whether a channel is wild: zero
// in the centred rows.
template <bool kFp16, bool kTame>
__device__ __forceinline__ bool centre_rows(const sm80::PrepareParams& p, PrepareShared& s, const Place& place,
                                            float2 (&kr)[kHalf]) {
  using sm80::add, sm80::exp2_of, sm80::times;
  const int thread = threadIdx.x;
  const Steps steps;
  fetch_rows(s, p, place);
  const ClampedGate gate(p, place.hv);
  float2 bias = make_float2(0.0f, 0.0f);
  if (p.dt_bias != nullptr) bias = *reinterpret_cast<const float2*>(p.dt_bias + place.hv * D + steps.channel);
  if (thread < kChunk) {
    s.b[thread] = thread < place.rows
                      ? activate_beta(load_scalar(p.beta.data,
                                                  sm80::offset_of(p.beta, place.batch, place.token + thread, place.hv),
                                                  p.beta.dtype),
                                      p.beta_activation)
                      : 0.0f;
  }
  ptx::cp_async_wait_all();
  ptx::async_proxy_fence();
  __syncthreads();

  float lengths[32];
  ptx::wgmma_begin(lengths);
  multiply_rows<kFp16>(s.x, lengths);
  ptx::wgmma_commit();
  float2 g[kHalf];
  if constexpr (kTame) load_bits<true>(s, p, place, steps, gate, bias, g);  // without a branch, while the product runs
  ptx::wgmma_wait<0>(lengths);
  if constexpr (!kTame) load_bits<false>(s, p, place, steps, gate, bias, g);
  if (place.rows < kChunk) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      if (steps.token(i) >= place.rows) g[i] = make_float2(0.0f, 0.0f);
    }
  }
  bool too_long = false;  // a row
  diagonals(lengths, thread / 32, thread % 32, [&](int of, int token, float sum) {
    if (of == 2) {
      s.product[token] = sum;
      return;
    }
    const float norm = p.qk_l2norm ? rsqrtf(sum + 1e-6f) : 1.0f;
    (of == 0 ? s.norm_k : s.norm_q)[token] = norm;
    too_long |= !(sum * norm * norm <= kLongestRowSquare);
  });
  // Bits of the octet at the anchor and, from the half's far end up to the token, of all others.
  float2 octet = make_float2(0.0f, 0.0f), total = octet, far[kHalf];
  const float inclusive = steps.forward ? 1.0f : 0.0f, sign = steps.forward ? 1.0f : -1.0f;
#pragma unroll
  for (int i = 0; i < kHalf / 2; ++i) octet = add(octet, g[i]);
#pragma unroll
  for (int i = kHalf - 1; i >= 0; --i) {
    far[i] = make_float2(fmaf(1.0f - inclusive, g[i].x, total.x), fmaf(1.0f - inclusive, g[i].y, total.y));
    total = add(total, g[i]);
  }
  *reinterpret_cast<float2*>(&s.total[steps.forward][steps.channel]) = total;
  bool out_x = false, out_y = false;
  if constexpr (kTame) {
    __syncthreads();
  } else {
    s.is_wild[steps.forward][steps.channel] = !(fabsf(octet.x) <= kCentredOctet && fabsf(total.x) <= kCentredHalf);
    s.is_wild[steps.forward][steps.channel + 1] = !(fabsf(octet.y) <= kCentredOctet && fabsf(total.y) <= kCentredHalf);
    const bool all_wild = __syncthreads_or(too_long);
    if (thread == 0) s.all_wild = all_wild;
    const auto is_wild = [&](int channel) { return all_wild || s.is_wild[0][channel] || s.is_wild[1][channel]; };
    out_x = is_wild(steps.channel);
    out_y = is_wild(steps.channel + 1);
  }

  // Bits of the other half, between the anchor and that end of the chunk.
  const float2 other = *reinterpret_cast<const float2*>(&s.total[1 - steps.forward][steps.channel]);
  const float2 head = exp2_of(steps.forward ? other : total), tail = exp2_of(steps.forward ? total : other);
  // scale stays out of the centred rows: they would be as short or as long as it.
  const float2 scaled_head = times(head, make_float2(p.scale, p.scale));
  char* const x = &s.x[steps.block][0][0][0];
  constexpr int kQ = kChunk * 128, kInverse = 2 * kQ;  // from a row of k to those of q and k 2^-E
  char* const kd = &s.kd[steps.block][0][0];
  char* const qd = &s.qd[steps.block][0][0];
  float2 near = make_float2(0.0f, 0.0f);  // bits between the anchor and the token at hand
  static_for<2>([&](auto part) {
    const float aside = kAside * static_cast<float>(set_aside(steps.token(8 * part)));
    const float there = ptx::exp2_approx(aside), back = ptx::exp2_approx(-aside);  // powers of two
    const float none = -INFINITY;
    const float2 to_row = make_float2(out_x ? none : aside, out_y ? none : aside);
    const float2 to_inverse = make_float2(out_x ? none : -aside, out_y ? none : -aside);
    static_for<8>([&](auto step) {
      constexpr int i = 8 * part + step;
      const int at = steps.at(i), token = steps.token(i);
      const float2 S = make_float2(fmaf(inclusive, g[i].x, near.x), fmaf(inclusive, g[i].y, near.y));
      near = add(near, g[i]);
      const float2 decay = exp2_of(make_float2(fmaf(sign, S.x, to_row.x), fmaf(sign, S.y, to_row.y)));
      const float2 growth = exp2_of(make_float2(fmaf(-sign, S.x, to_inverse.x), fmaf(-sign, S.y, to_inverse.y)));
      const float norm_k = s.norm_k[token], norm_q = s.norm_q[token];
      const float2 k = times(unpack(*reinterpret_cast<const uint32_t*>(x + at), kFp16), make_float2(norm_k, norm_k));
      const float2 q =
          times(unpack(*reinterpret_cast<const uint32_t*>(x + kQ + at), kFp16), make_float2(norm_q, norm_q));
      const auto put = [&](char* to, float2 y) { *reinterpret_cast<uint32_t*>(to + at) = pack_bf16(y.x, y.y); };
      const float2 ke = times(k, decay), qe = times(q, decay), ki = times(k, growth);
      put(x, ke);
      put(x + kQ, qe);
      put(x + kInverse, ki);
      if constexpr (kTame) {
        // What was set aside comes back first: head and tail alone may be 2^-122.
        put(kd, times(times(ke, make_float2(back, back)), head));
        put(qd, times(times(qe, make_float2(back, back)), scaled_head));
        kr[i] = times(times(ki, make_float2(there, there)), tail);
      } else {
        // Sums of bits from the chunk's ends and no differences, which would lose digits.
        const float2 over = exp2_of(add(other, S)), within = exp2_of(far[i]);
        const float2 from_start = steps.forward ? over : within, to_end = steps.forward ? within : over;
        put(kd, times(k, from_start));
        put(qd, times(times(q, from_start), make_float2(p.scale, p.scale)));
        kr[i] = times(k, to_end);
      }
    });
  });
  return out_x || out_y;
}

// The inverse of I + L for a diagonal block of 16, by one warp: lane c (and c + 16) gets column c (docs/algorithm.md,
// eq. 21, in fp32, a known x_j at a time). Lt: L transposed.
__device__ __forceinline__ void solve(const float (&Lt)[kHalf][20], float (&x)[kHalf], int column) {
#pragma unroll
  for (int i = 0; i < kHalf; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
  for (int j = 0; j + 1 < kHalf; ++j) {
#pragma unroll
    for (int i = (j + 1) / 4 * 4; i < kHalf; i += 4) {
      const float4 below = *reinterpret_cast<const float4*>(&Lt[j][i]);
      if (i > j) x[i] -= below.x * x[j];
      if (i + 1 > j) x[i + 1] -= below.y * x[j];
      if (i + 2 > j) x[i + 2] -= below.z * x[j];
      x[i + 3] -= below.w * x[j];
    }
  }
}

// L and Mqk of the centred rows: rows of L by warps 0 and 1, of Mqk by warps 2 and 3, 16 tokens each.
__device__ __forceinline__ void put_centred(PrepareShared& s, float scale, float (&d)[16]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const bool of_L = warp < 2, second = warp % 2;
  const int first = second ? kHalf : 0;
  // 2^(c (a_j - a_i)), by octets of j and i.
  float factor[4][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row = of_L ? s.b[first + g + 8 * half] : scale;
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
      const auto power = [&](int i) {
        return __uint_as_float((127 + static_cast<int>(kAside) * (set_aside(8 * octet) - set_aside(i))) << 23);
      };
      factor[octet][half] = row * (second ? power(kHalf + 8 * half) : power(8 * half));
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) d[i] *= factor[i / 4][i % 4 / 2];
  if (of_L) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = g + i % 4 / 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
      s.Lt[warp][column][row] = second ? d[8 + i] : d[i];
      if (second) s.L21[row][column] = rounded_by_the_cut(d[i]);
    }
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // (i, i) of these rows is in the columns of the warp's own block
    const int i = first + g + 8 * half;
    const float exact = s.product[i] * s.norm_k[i] * s.norm_q[i] * scale;  // no decay touches it
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (2 * t + e == g) (second ? d[8 + 6 * half + e] : d[6 * half + e]) = exact;
    }
  }
  put_scores(s.M, d, first, 0, !second, lane);
  if (second) put_scores(s.M, d + 8, first, kHalf, true, lane);
}

// What pairs of tokens add to L and Mqk in the channels that are not centred, in rounds of a channel a warp. Rare, and
// not to cost the other way registers.
template <bool kFp16>
__device__ __noinline__ void add_wild(const sm80::PrepareParams& p, PrepareShared& s, const Place& place) {
  constexpr int kRound = kPrepareThreads / 32, kPairs = kChunk / 4;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int i = thread / 4, first = thread % 4 * kPairs;  // the thread's pairs: i with first, first + 1, ..
  const ClampedGate gate(p, place.hv);
  const int token = min(lane, place.rows - 1);
  const auto load = [&](int channel) {  // lane: token
    const auto index = [&](const Rows& x, int head) {
      return sm80::offset_of(x, place.batch, place.token + token, head) + channel;
    };
    // All of them on their way before the first is looked at.
    const uint16_t raw_k = static_cast<const uint16_t*>(p.k.data)[index(p.k, place.h)];
    const uint16_t raw_q = static_cast<const uint16_t*>(p.q.data)[index(p.q, place.h)];
    const ushort2 raw_g = load_scalar_halves(p.g.data, index(p.g, place.hv), p.g.dtype);
    const float bias = p.dt_bias != nullptr ? p.dt_bias[place.hv * D + channel] : 0.0f;
    float sum = 0.0f;
    with_gate(p.gate, [&](auto kind) { sum = gate.bits<kind>(scalar_of_halves(raw_g, p.g.dtype) + bias); });
    float k = unpack(raw_k, kFp16).x * s.norm_k[token], q = unpack(raw_q, kFp16).x * s.norm_q[token];
    if (lane >= place.rows) k = q = sum = 0.0f;
#pragma unroll
    for (int up = 1; up < 32; up *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, sum, up);
      if (lane >= up) sum += before;
    }
    s.wild[warp][0][lane] = k;
    s.wild[warp][1][lane] = q;
    s.wild[warp][2][lane] = sum;
  };
  float l[kPairs] = {}, m[kPairs] = {};
  const auto multiply = [&](int channels) {
    __syncthreads();
    for (int c = 0; c < channels; ++c) {
      const float k = s.wild[c][0][i], q = s.wild[c][1][i], until = s.wild[c][2][i];
#pragma unroll
      for (int e = 0; e < kPairs; ++e) {
        const float x = s.wild[c][0][first + e] * ptx::exp2_approx(until - s.wild[c][2][first + e]);
        l[e] += k * x;
        m[e] += q * x;
      }
    }
    __syncthreads();
  };
  int count = 0;
#pragma unroll 1
  for (int block = 0; block < D; block += 32) {
    uint32_t left = __ballot_sync(0xffffffffu, s.all_wild || s.is_wild[0][block + lane] || s.is_wild[1][block + lane]);
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      if (count % kRound == warp) load(block + __ffs(static_cast<int>(left)) - 1);
      if (++count % kRound == 0) multiply(kRound);
    }
  }
  if (count % kRound != 0) multiply(count % kRound);
#pragma unroll
  for (int e = 0; e < kPairs; ++e) {
    const int j = first + e;
    if (j >= i) break;
    const float add = s.b[i] * l[e];
    if (i / kHalf == j / kHalf) {
      s.Lt[i / kHalf][j % kHalf][i % kHalf] += add;
    } else {
      uint32_t& L = s.L21[i - kHalf][j];
      L = rounded_by_the_cut(__uint_as_float(L - rounded_by_the_cut(0.0f)) + add);
    }
    auto& M = *reinterpret_cast<__nv_bfloat16*>(&s.M[i][unit_64(i, j / 8) + j % 8 * 2]);
    M = __float2bfloat16_rn(fmaf(m[e], p.scale, __bfloat162float(M)));
  }
  __syncthreads();
}

// T21 = -(T22 L21) T11, by one warp.
__device__ __forceinline__ void put_T21(PrepareShared& s, int lane) {
  const int g = lane / 4, t = lane % 4;
  float z[2][4] = {}, y[2][4] = {};
#pragma unroll
  for (int k = 0; k < kHalf; k += 8) {
    const uint32_t a[4] = {s.T22[g][k + t], s.T22[g + 8][k + t], s.T22[g][k + t + 4], s.T22[g + 8][k + t + 4]};
#pragma unroll
    for (int n = 0; n < 2; ++n) ptx::mma_m16n8k8_tf32(z[n], a, s.L21[k + t][8 * n + g], s.L21[k + t + 4][8 * n + g]);
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {  // inner index t is token 2 t, and t + 4 token 2 t + 1, as z has them
    const uint32_t a[4] = {rounded_by_the_cut(z[k][0]), rounded_by_the_cut(z[k][2]), rounded_by_the_cut(z[k][1]),
                           rounded_by_the_cut(z[k][3])};
    const int token = 8 * k + 2 * t;
#pragma unroll
    for (int n = 0; n < 2; ++n) ptx::mma_m16n8k8_tf32(y[n], a, s.T11[token][8 * n + g], s.T11[token + 1][8 * n + g]);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = kHalf + g + e / 2 * 8, column = 8 * n + 2 * t + e % 2, place = token_place(column);
      *reinterpret_cast<uint32_t*>(&s.T[row][unit_128(row, place / 4) + place % 4 * 4]) =
          rounded_by_the_cut_or_nan(-y[n][e] * (s.b[column] * kUncut));
    }
  }
}

// T's diagonal block of warp 0 or 1, a column a lane (docs/algorithm.md, eq. 21), and T21 by the latter.
__device__ __forceinline__ void put_T(PrepareShared& s, int block, int lane) {
  const int column = lane % kHalf, place = token_place(block * kHalf + column);
  float x[kHalf];
  solve(s.Lt[block], x, column);
  const float b = s.b[block * kHalf + column] * kUncut;
  if (lane < kHalf) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const int row = block * kHalf + i;
      *reinterpret_cast<uint32_t*>(&s.T[row][unit_128(row, place / 4) + place % 4 * 4]) =
          rounded_by_the_cut_or_nan(x[i] * b);
      (block == 0 ? s.T11 : s.T22)[i][column] = rounded_by_the_cut(x[i]);
    }
  }
  ptx::named_barrier<64>(1);
  if (block == 1) put_T21(s, lane);
}

// kr: in the order of steps. A channel's 16 bytes are tokens odd, odd + 2, .. of 8.
__device__ __forceinline__ void put_w(PrepareShared& s, const float2 (&kr)[kHalf]) {
  const Steps steps;
  const auto put = [&](int channel, auto value) {
#pragma unroll
    for (int unit = 0; unit < 4; ++unit) {
      const int i = unit / 2 * 8 + unit % 2;
      *reinterpret_cast<uint4*>(&s.w[channel][unit_128(channel, (steps.forward ? 4 : 0) + unit)]) =
          make_uint4(rounded_by_the_cut(value(i)), rounded_by_the_cut(value(i + 2)), rounded_by_the_cut(value(i + 4)),
                     rounded_by_the_cut(value(i + 6)));
    }
  };
  if (steps.forward) {
    put(steps.channel, [&](int i) { return kr[i].x; });
    put(steps.channel + 1, [&](int i) { return kr[i].y; });
  } else {
    put(steps.channel, [&](int i) { return kr[kHalf - 1 - i].x; });
    put(steps.channel + 1, [&](int i) { return kr[kHalf - 1 - i].y; });
  }
}

// kFp16: q and k are fp16 and not bf16. kTame: no channel can be wild (bounds.hpp).
template <bool kFp16, bool kTame>
__global__ void __launch_bounds__(kPrepareThreads, kPrepareBlocks)
    prepare(const __grid_constant__ sm80::PrepareParams p) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& s = *reinterpret_cast<PrepareShared*>(shared_memory);
  ptx::let_next_start();
  ptx::wait_for_previous();

  const int thread = threadIdx.x, lane = thread % 32;
  const unsigned heads = p.layout.HV, chunk = blockIdx.x / heads;
  const auto hv = static_cast<int>(blockIdx.x % heads);
  const sm80::ChunkPlace rows = sm80::locate_chunk<kChunk>(p.layout, chunk);
  if (rows.rows <= 0) return;
  const Place place = {rows.batch, rows.token, rows.rows, hv / p.layout.group, hv};
  Image& image = reinterpret_cast<Image*>(p.images)[blockIdx.x];

  float2 kr[kHalf];
  const bool wild = centre_rows<kFp16, kTame>(p, s, place, kr);
  ptx::async_proxy_fence();
  bool any_wild = false;
  if constexpr (kTame) {
    __syncthreads();
  } else {
    any_wild = __syncthreads_or(wild);
  }
  if (thread == 0) ptx::store_bytes(image.kd, s.kd, sizeof(s.kd) + sizeof(s.qd));
  {
    float d[16];
    ptx::wgmma_begin(d);
    multiply_scores(s.x, d);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(d);
    put_centred(s, p.scale, d);
  }
  if (thread < D / 2) {
    const float2 x = *reinterpret_cast<const float2*>(&s.total[0][2 * thread]);
    const float2 y = *reinterpret_cast<const float2*>(&s.total[1][2 * thread]);
    *reinterpret_cast<float2*>(&s.F[frame_place(2 * thread)]) = sm80::exp2_of(sm80::add(x, y));
  }
  __syncthreads();
  if (!kTame && any_wild) add_wild<kFp16>(p, s, place);

  put_w(s, kr);
  if (thread < 64) {
    put_T(s, thread / 32, lane);
  } else {  // zeros above the diagonal blocks
    const int row = lane / 2, unit = thread % 2;
    *reinterpret_cast<uint4*>(&s.T[row][unit_128(row, 4 + thread / 32 % 2 * 2 + unit)]) = make_uint4(0u, 0u, 0u, 0u);
    if (thread < 96) *reinterpret_cast<uint4*>(&s.M[row][unit_64(row, 2 + unit)]) = make_uint4(0u, 0u, 0u, 0u);
  }
  ptx::async_proxy_fence();
  __syncthreads();
  if (thread == 0) {
    ptx::store_bytes(image.w, s.w, sizeof(s.w));
    ptx::store_bytes(image.T, s.T, sizeof(s.T));
    ptx::store_bytes(image.M, s.M, sizeof(s.M) + sizeof(s.F));
    ptx::stores_have_read();
  }
}

}  // namespace flashkda::cuda::sm90
