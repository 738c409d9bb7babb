// The token-parallel kernel of the wgmma path: one block turns 32 tokens of one value head into their image
// (sm90/image.cuh). The halves of the block take 16 tokens each, as the portable kernel does (sm80/rows.cuh); pairs
// across the middle come from the second half's rows and the first half's, decayed on to their anchors. T's lower left
// block is -T22 L21 T11.
#pragma once

#include "cuda/sm80/rows.cuh"
#include "cuda/sm90/image.cuh"

namespace flashkda::cuda::sm90 {

inline constexpr int kPrepareThreads = 128, kPrepareBlocks = 4;  // blocks of an SM

struct PrepareShared {
  static constexpr int kPitch = sm80::AnchoredRows<D>::kPitch;
  union {
    alignas(16) sm80::AnchoredRows<D> anchored[2];  // [half]
    // [half][level of a round], as sm80::PrepareShared has them
    alignas(16) char levels[2][sm80::kRoundLevels][24][kPitch];
    // then [block of the second half]: its k and q, decayed from the boundary
    alignas(16) char right[2][16][kPitch];
    // at last: the image's, from where it goes out in rows that are neighbours
    alignas(128) char w[D][128];
  };
  // k of the first half, decayed to the anchor of either block of the second; by halving: to the boundary, twice
  alignas(16) char left[2][kHalf][kPitch];
  float sums[3][kChunk][2];
  float norm_k[kChunk], norm_q[kChunk], b[kChunk];
  // Blocks above the diagonal are not written.
  alignas(16) float L[kChunk][kChunk + 4];  // then T, without b of the column
  float M[kChunk][kChunk + 1];
  float X[kHalf][kHalf + 1];       // L21 T11
  alignas(16) float total[2][D];   // bits of decay of a half
  alignas(16) float before[2][D];  // of the second half up to the anchor of either block
};

// What a thread writes of its half: channels c and c + 1.
struct Writer {
  PrepareShared& s;
  Image& image;
  int half, c;

  __device__ __forceinline__ void kd_qd(int i, float2 k, float2 q) const {
    const int at = unit_128(i, c % 64 / 8) + c % 8 * 2;
    *reinterpret_cast<uint32_t*>(&image.kd[c / 64][kHalf * half + i][at]) = pack_bf16(k.x, k.y);
    *reinterpret_cast<uint32_t*>(&image.qd[c / 64][kHalf * half + i][at]) = pack_bf16(q.x, q.y);
  }

  __device__ __forceinline__ void left(int block, int i, float2 x) const {
    *reinterpret_cast<uint32_t*>(&s.left[block][i][2 * c]) = pack_bf16(x.x, x.y);
  }
};

// Any gate: the rows of a half by halving, as in sm80/prepare.cuh, read once more. Rare, and not to cost the other way
// registers.
__device__ __noinline__ void halve(const sm80::PrepareParams& p, PrepareShared& s, Image& image,
                                   const sm80::ChunkPlace& place, int h, int hv, float A_log, float2 bias,
                                   float2 (&kr)[kHalf]) {
  using namespace sm80;
  constexpr int kTokens = kHalf;
  const int thread = threadIdx.x, lane = thread % 32, half = thread / 64, warp = thread / 32 % 2;
  const int first = half * kTokens, c = 2 * (thread % 64);
  const bool fp16 = p.q.dtype == FKDA_FLOAT16;
  ChannelRows raw;
  raw.load(p, place.batch, place.token + first, place.rows - first, h, hv, c);
  raw.activate(p, A_log, bias, place.rows - first);
  const Writer write = {s, image, half, c};
  const float2 one = make_float2(1.0f, 1.0f), other = exp2_of(*reinterpret_cast<const float2*>(&s.total[1 - half][c]));
  const auto normalised = [&](uint32_t x, const float(&norm)[sm90::kChunk], int i) {
    return times(unpack(x, fp16), make_float2(norm[first + i], norm[first + i]));
  };
  float2 k[kTokens], q[kTokens], alpha[kTokens];
  raw.decays(alpha);
  float2 prefix = half == 0 ? one : other;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    k[i] = normalised(raw.k[i], s.norm_k, i);
    q[i] = normalised(raw.q[i], s.norm_q, i);
    prefix = times(prefix, alpha[i]);
    write.kd_qd(i, times(k[i], prefix), times(q[i], prefix));
  }
  static_for<kLevels / kRoundLevels>([&](auto round) {
    static_for<kRoundLevels>([&](auto in_round) {
      level_rows<(8 >> (round * kRoundLevels + in_round))>(k, q, alpha, [&](int row, uint32_t pair) {
        *reinterpret_cast<uint32_t*>(&s.levels[half][in_round][row][2 * c]) = pair;
      });
    });
    __syncthreads();
    static_for<kRoundLevels>([&](auto in_round) {
      if (in_round != warp) return;
      score_level<D>(&s.levels[half][in_round][0][0], 8 >> (round * kRoundLevels + in_round), lane,
                     [&](int i, int j, float l, float m) {
                       s.L[first + i][first + j] = s.b[first + i] * l;
                       s.M[first + i][first + j] = m;
                     });
    });
    __syncthreads();
  });
  float2 suffix = one;
#pragma unroll
  for (int i = kTokens - 1; i >= 0; --i) {
    const float2 x = times(k[i], suffix);
    if (half == 0) {
      write.left(0, i, x);
      write.left(1, i, x);
    }
    kr[i] = half == 0 ? times(x, other) : x;
    suffix = times(suffix, alpha[i]);
  }
  if (half == 1) {
    prefix = one;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      prefix = times(prefix, alpha[i]);
      const uint32_t kd = decayed(k[i], prefix), qd = decayed(q[i], prefix);
      *reinterpret_cast<uint32_t*>(&s.right[i / 8][i % 8][2 * c]) = kd;
      *reinterpret_cast<uint32_t*>(&s.right[i / 8][8 + i % 8][2 * c]) = qd;
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kPrepareThreads, kPrepareBlocks)
    prepare(const __grid_constant__ sm80::PrepareParams p) {
  using namespace sm80;
  constexpr int kTokens = cuda::kChunk;  // of a half
  static_assert(kTokens == kHalf);
  extern __shared__ __align__(16) char shared_memory[];
  auto& s = *reinterpret_cast<sm90::PrepareShared*>(shared_memory);

  const int thread = threadIdx.x, lane = thread % 32;
  const int half = thread / 64, warp = thread / 32 % 2;  // the warp of its half
  const int64_t chunk = blockIdx.x / p.layout.HV;
  const int hv = blockIdx.x % p.layout.HV, h = hv / p.layout.group;
  const ChunkPlace place = locate_chunk<sm90::kChunk>(p.layout, chunk);
  if (place.rows <= 0) return;
  const int first = half * kTokens, rows = place.rows - first;  // of this half; may be negative
  const int c = 2 * (thread % 64);                              // this thread's channels are c, c + 1

  const float A_log = p.A_log != nullptr ? p.A_log[hv] : 0.0f;
  float2 bias = make_float2(0.0f, 0.0f);
  if (p.dt_bias != nullptr) bias = *reinterpret_cast<const float2*>(p.dt_bias + hv * D + c);
  float raw_beta = 0.0f;
  if (thread < place.rows) {
    raw_beta = load_scalar(p.beta.data, offset_of(p.beta, place.batch, place.token + thread, hv), p.beta.dtype);
  }
  const bool fp16 = p.q.dtype == FKDA_FLOAT16;
  ChannelRows raw;
  raw.load(p, place.batch, place.token + first, rows, h, hv, c);
  // Norms and the diagonal of Mqk from the raw rows in fp32.
  sum_rows(raw, fp16, lane, [&](int of, int token, float sum) { s.sums[of][first + token][warp] = sum; });
  __syncthreads();
  bool fits = true;  // of this thread's token
  if (thread < sm90::kChunk) {
    s.b[thread] = thread < place.rows ? activate_beta(raw_beta, p.beta_activation) : 0.0f;
    const auto sum = [&](int of) { return s.sums[of][thread][0] + s.sums[of][thread][1]; };
    const TokenScalars scalars(p, sum(0), sum(1), sum(2));
    s.norm_k[thread] = scalars.norm_k;
    s.norm_q[thread] = scalars.norm_q;
    s.M[thread][thread] = scalars.diagonal;
    fits = scalars.fits;
  }
  raw.activate(p, A_log, bias, rows);
  const Anchors anchors(raw);
  const float2 total = anchors.total();
  *reinterpret_cast<float2*>(&s.total[half][c]) = total;
  if (half == 1) {
    *reinterpret_cast<float2*>(&s.before[0][c]) = anchors.before(0);
    *reinterpret_cast<float2*>(&s.before[1][c]) = anchors.before(1);
  }
  const bool anchored = __syncthreads_and(anchors.fit() && fits);

  auto& image = reinterpret_cast<Image*>(p.images)[chunk * p.layout.HV + hv];
  const float2 other_total = *reinterpret_cast<const float2*>(&s.total[1 - half][c]);
  const float2 other = exp2_of(other_total), one = make_float2(1.0f, 1.0f);
  if (half == 0) {
    *reinterpret_cast<float2*>(&image.F[frame_place(c)]) =
        exp2_of(make_float2(total.x + other_total.x, total.y + other_total.y));
  }
  const Writer write = {s, image, half, c};
  float2 kr[kTokens];
  if (anchored) {
    const float2 start = half == 0 ? make_float2(0.0f, 0.0f) : other_total;
    const float2 end = half == 0 ? other_total : make_float2(0.0f, 0.0f);
    float2 before[2], after[2], to_right[2][2];  // bits between a block's anchor and elsewhere
    static_for<2>([&](auto block) {
      before[block] = add(start, anchors.before(block));
      after[block] = add(anchors.after(block), end);
      static_for<2>([&](auto right) {
        to_right[block][right] = add(anchors.after(block), *reinterpret_cast<const float2*>(&s.before[right][c]));
      });
    });
    write_anchored<D>(s.anchored[half], raw, anchors, s.norm_k + first, s.norm_q + first, fp16, c,
                      [&](auto block, int i, float2 E, float2 k, float2 q) {
                        const float2 from_start = exp2_of(add(before[block], E));
                        write.kd_qd(i, times(k, from_start), times(q, from_start));
                        kr[i] = times(k, exp2_of(subtract(after[block], E)));
                        if (half == 0) {
                          write.left(0, i, times(k, exp2_of(subtract(to_right[block][0], E))));
                          write.left(1, i, times(k, exp2_of(subtract(to_right[block][1], E))));
                        }
                      });
    __syncthreads();
    multiply_anchored<D>(s.anchored[half], warp, lane, [&](int i, int j, float l, float m) {
      s.L[first + i][first + j] = s.b[first + i] * l;
      s.M[first + i][first + j] = m;
    });
  } else {
    float2 slow[kTokens];  // kr has no address, and stays in registers
    halve(p, s, image, place, h, hv, A_log, bias, slow);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) kr[i] = slow[i];
  }
  // Between the halves: a block of the second half and 8 tokens of the first, a warp each.
  {
    const int block = half, octet = warp;
    const char* const right = anchored ? s.anchored[1].block[block][0] : s.right[block][0];
    multiply_rows<D>(right, s.left[block][8 * octet], lane, [&](int i, int j, float l, float m) {
      const int row = kTokens + 8 * block + i;
      s.L[row][8 * octet + j] = s.b[row] * l;
      s.M[row][8 * octet + j] = m;
    });
  }
  __syncthreads();

  // w, channel by channel: 16 bytes are tokens odd, odd + 2, .. of 8. Through shared memory, where the image's order
  // costs less than in global memory.
  {
    const auto put = [&](int channel, auto component) {
#pragma unroll
      for (int unit = 0; unit < 4; ++unit) {
        const int i = unit / 2 * 8 + unit % 2;
        *reinterpret_cast<uint4*>(&s.w[channel][unit_128(channel, 4 * half + unit)]) =
            make_uint4(rounded_by_the_cut(component(kr[i])), rounded_by_the_cut(component(kr[i + 2])),
                       rounded_by_the_cut(component(kr[i + 4])), rounded_by_the_cut(component(kr[i + 6])));
      }
    };
    put(c, [](float2 x) { return x.x; });
    put(c + 1, [](float2 x) { return x.y; });
  }
  // T11 and T22, a column a lane: x_i = [i = c] - sum_{j<i} L_ij x_j (eq. 21). The others: Mqk.
  float x[kTokens];
  if (warp == 0 && lane < kTokens) {
    static_for<kTokens>([&](auto i) {
      float sum = i == lane ? 1.0f : 0.0f;
#pragma unroll
      for (int j = 0; j < i; ++j) sum -= s.L[first + i][first + j] * x[j];
      x[i] = sum;
    });
  } else if (warp == 1) {
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      const int i = first + lane / 2, unit = lane % 2 * 2 + of;
      float m[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) m[e] = 8 * unit + e <= i ? s.M[i][8 * unit + e] : 0.0f;
      *reinterpret_cast<uint4*>(&image.M[i][unit_64(i, unit)]) =
          make_uint4(pack_bf16(m[0], m[1]), pack_bf16(m[2], m[3]), pack_bf16(m[4], m[5]), pack_bf16(m[6], m[7]));
    }
  }
  __syncthreads();
#pragma unroll
  for (int unit = 0; unit < static_cast<int>(sizeof(s.w)) / 16; unit += kPrepareThreads) {
    reinterpret_cast<uint4*>(image.w)[unit + thread] = reinterpret_cast<const uint4*>(s.w)[unit + thread];
  }
  if (warp == 0 && lane < kTokens) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) s.L[first + i][first + lane] = x[i];
  }
  __syncthreads();
  const int i = thread / 8, j = thread % 8 * 2;  // of T21
  {
    float sum[2] = {};
#pragma unroll
    for (int y = 0; y < kTokens; ++y) {
      sum[0] += s.L[kTokens + i][y] * s.L[y][j];
      sum[1] += s.L[kTokens + i][y] * s.L[y][j + 1];
    }
    s.X[i][j] = sum[0];
    s.X[i][j + 1] = sum[1];
  }
  __syncthreads();
  {
    float sum[2] = {};
#pragma unroll
    for (int y = 0; y < kTokens; ++y) {
      sum[0] -= s.L[kTokens + i][kTokens + y] * s.X[y][j];
      sum[1] -= s.L[kTokens + i][kTokens + y] * s.X[y][j + 1];
    }
    s.L[kTokens + i][j] = sum[0];
    s.L[kTokens + i][j + 1] = sum[1];
  }
  __syncthreads();
#pragma unroll
  for (int of = 0; of < 2; ++of) {
    const int row = thread / 4, unit = thread % 4 * 2 + of;  // tokens 8 (unit / 2) + unit % 2, and every other one
    const int token = unit / 2 * 8 + unit % 2;
    uint32_t t[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float T = token + 2 * e <= row ? s.L[row][token + 2 * e] : 0.0f;
      t[e] = rounded_by_the_cut_or_nan(T * s.b[token + 2 * e] * kUncut);
    }
    *reinterpret_cast<uint4*>(&image.T[row][unit_128(row, unit)]) = make_uint4(t[0], t[1], t[2], t[3]);
  }
}

}  // namespace flashkda::cuda::sm90
