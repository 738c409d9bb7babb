// The token-parallel kernel: one block turns one chunk of one value head into its image (tile/image.cuh). rows.cuh has
// what it does with the rows.
#pragma once

#include "cuda/sm80/rows.cuh"
#include "cuda/tile/image.cuh"

namespace flashkda::cuda::sm80 {

template <int K>
struct PrepareShared {
  static constexpr int kPitch = AnchoredRows<K>::kPitch;
  union {
    alignas(16) AnchoredRows<K> anchored;
    // a level's 8 k rows and 8 q rows of right tokens, 8 k rows of left ones
    alignas(16) char levels[kRoundLevels][24][kPitch];
  };
  float sums[3][kChunk][K / 64];         // k.k, q.q, q.k a warp
  float norm_k[kChunk], norm_q[kChunk];  // what multiplies a raw row
  float b[kChunk];
  // What is above the diagonal is not written.
  alignas(16) float L[kChunk][kChunk + 4];
  float M[kChunk][kChunk];
};

// What a thread writes of the image: channels c and c + 1.
template <int K>
struct ImageWriter {
  char* image;
  int c;

  __device__ __forceinline__ void kd_qd(int i, float2 k, float2 q) const {
    *reinterpret_cast<uint32_t*>(image + Image<K>::kKd + (i * K + c) * 2) = pack_bf16(k.x, k.y);
    *reinterpret_cast<uint32_t*>(image + Image<K>::kQd + (i * K + c) * 2) = pack_bf16(q.x, q.y);
  }

  __device__ __forceinline__ void kr(const float2 (&k)[kChunk]) const {
    auto* const at = reinterpret_cast<uint32_t*>(image + Image<K>::kKr);
    const auto put = [&](int i, int column, float a, float b, float x, float y) {
      *reinterpret_cast<uint4*>(at + wide_place(i, column)) =
          make_uint4(rounded_by_the_cut(a), rounded_by_the_cut(b), rounded_by_the_cut(x), rounded_by_the_cut(y));
    };
#pragma unroll
    for (int i = 0; i < kChunk / 2; i += 2) {
      put(i, c, k[i].x, k[i + 1].x, k[i + 8].x, k[i + 9].x);
      put(i, c + 1, k[i].y, k[i + 1].y, k[i + 8].y, k[i + 9].y);
    }
  }
};

// Any gate: everything that decays touch, by halving, from rows read once more. Rare, and not to cost the other way
// registers.
template <int K>
__device__ __noinline__ void halve(const PrepareParams& p, PrepareShared<K>& s, char* image, const ChunkPlace& place,
                                   int h, int hv, float A_log, float2 bias) {
  constexpr int kWarps = K / 64;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, c = 2 * thread;
  const bool fp16 = p.q.dtype == FKDA_FLOAT16;
  const ImageWriter<K> write = {image, c};
  float2 k[kChunk], q[kChunk], alpha[kChunk];
  {
    ChannelRows raw;
    raw.load(p, place.batch, place.token, place.rows, h, hv, c);
    raw.activate(p, A_log, bias, place.rows);
    raw.decays(alpha);
    float2 prefix = make_float2(1.0f, 1.0f);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {  // in fp32: a product with a decay is rounded once
      k[i] = times(unpack(raw.k[i], fp16), make_float2(s.norm_k[i], s.norm_k[i]));
      q[i] = times(unpack(raw.q[i], fp16), make_float2(s.norm_q[i], s.norm_q[i]));
      prefix = times(prefix, alpha[i]);
      write.kd_qd(i, times(k[i], prefix), times(q[i], prefix));
    }
  }
  static_for<kLevels / kRoundLevels>([&](auto round) {
    static_for<kRoundLevels>([&](auto in_round) {
      level_rows<(8 >> (round * kRoundLevels + in_round))>(k, q, alpha, [&](int row, uint32_t pair) {
        *reinterpret_cast<uint32_t*>(&s.levels[in_round][row][2 * c]) = pair;
      });
    });
    __syncthreads();
    static_for<kRoundLevels>([&](auto in_round) {
      if (in_round % kWarps != warp) return;
      score_level<K>(&s.levels[in_round][0][0], 8 >> (round * kRoundLevels + in_round), lane,
                     [&](int i, int j, float l, float m) {
                       s.L[i][j] = s.b[i] * l;
                       s.M[i][j] = m;
                     });
    });
    __syncthreads();
  });
  float2 suffix = make_float2(1.0f, 1.0f);
#pragma unroll
  for (int i = kChunk - 1; i >= 0; --i) {
    k[i] = times(k[i], suffix);
    suffix = times(suffix, alpha[i]);
  }
  write.kr(k);
}

template <int K>
__global__ void __launch_bounds__(K / 2, 1024 / K) prepare(const __grid_constant__ PrepareParams p) {
  constexpr int kThreads = K / 2, kWarps = kThreads / 32;
  using Im = Image<K>;
  __shared__ PrepareShared<K> s;

  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int64_t chunk = blockIdx.x / p.layout.HV;
  const int hv = blockIdx.x % p.layout.HV, h = hv / p.layout.group;
  const ChunkPlace place = locate_chunk<kChunk>(p.layout, chunk);
  if (place.rows <= 0) return;
  const int c = 2 * thread;  // this thread's channels are c, c + 1

  // Inputs, all asked for before any is used.
  const float A_log = p.A_log != nullptr ? p.A_log[hv] : 0.0f;
  float2 bias = make_float2(0.0f, 0.0f);
  if (p.dt_bias != nullptr) bias = *reinterpret_cast<const float2*>(p.dt_bias + hv * K + c);
  float raw_beta = 0.0f;
  if (thread < place.rows) {
    raw_beta = load_scalar(p.beta.data, offset_of(p.beta, place.batch, place.token + thread, hv), p.beta.dtype);
  }
  const bool fp16 = p.q.dtype == FKDA_FLOAT16;
  ChannelRows raw;
  raw.load(p, place.batch, place.token, place.rows, h, hv, c);
  // Norms and the diagonal of Mqk, which no decay touches, from the raw rows in fp32.
  sum_rows(raw, fp16, lane, [&](int of, int token, float sum) { s.sums[of][token][warp] = sum; });
  __syncthreads();
  bool fits = true;  // of this thread's token
  if (thread < kChunk) {
    s.b[thread] = thread < place.rows ? activate_beta(raw_beta, p.beta_activation) : 0.0f;
    float sum[3] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      for (int i = 0; i < 3; ++i) sum[i] += s.sums[i][thread][w];
    }
    const TokenScalars scalars(p, sum[0], sum[1], sum[2]);
    s.norm_k[thread] = scalars.norm_k;
    s.norm_q[thread] = scalars.norm_q;
    s.M[thread][thread] = scalars.diagonal;
    fits = scalars.fits;
  }
  raw.activate(p, A_log, bias, place.rows);
  const Anchors anchors(raw);
  const bool anchored = __syncthreads_and(anchors.fit() && fits);

  char* const image = p.images + (chunk * p.layout.HV + hv) * Im::kBytes;
  const ImageWriter<K> write = {image, c};
  *reinterpret_cast<float2*>(image + Im::kF + c * 4) = exp2_of(anchors.total());
  if (anchored) {
    float2 kr[kChunk];
    const float2 before[2] = {anchors.before(0), anchors.before(1)}, after[2] = {anchors.after(0), anchors.after(1)};
    write_anchored<K>(s.anchored, raw, anchors, s.norm_k, s.norm_q, fp16, c,
                      [&](auto block, int i, float2 E, float2 k, float2 q) {
                        const float2 from_start = exp2_of(add(before[block], E));
                        write.kd_qd(i, times(k, from_start), times(q, from_start));
                        kr[i] = times(k, exp2_of(subtract(after[block], E)));
                      });
    __syncthreads();
    static_for<2>([&](auto part) {
      if (part % kWarps != warp) return;
      multiply_anchored<K>(s.anchored, part, lane, [&](int i, int j, float l, float m) {
        s.L[i][j] = s.b[i] * l;
        s.M[i][j] = m;
      });
    });
    write.kr(kr);
    __syncthreads();
  } else {
    halve<K>(p, s, image, place, h, hv, A_log, bias);
  }

  // The inverse, a column a lane: x_i = [i = c] - sum_{j<i} L_ij x_j (eq. 21).
  if (thread < kChunk) {
    float x[kChunk];
    static_for<kChunk>([&](auto i) {
      float sum = i == thread ? 1.0f : 0.0f;
#pragma unroll
      for (int j = 0; j < i; ++j) sum -= s.L[i][j] * x[j];
      x[i] = sum;
    });
    auto* T = reinterpret_cast<uint32_t*>(image + Im::kT);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) T[wide_place(thread, i)] = rounded_by_the_cut_or_nan(x[i] * s.b[thread]);
  } else if (thread < 2 * kChunk) {
    const int j = thread - kChunk;
    auto* M = reinterpret_cast<__nv_bfloat16*>(image + Im::kM);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) M[i * kChunk + j] = __float2bfloat16_rn(j <= i ? s.M[i][j] : 0.0f);
  }
}

}  // namespace flashkda::cuda::sm80
