// The token-parallel kernel: one block turns one chunk of one value head into its image (tile/image.cuh).
//
// A thread owns two neighbouring channels of all 16 tokens, so that decays are running products in its registers and
// every global access of a row is coalesced. L and Mqk come from tensor cores by halving (docs/algorithm.md, eq. 25):
// at half = 8, 4, 2, 1 the pairs across a block's middle factor into two rows that are each decayed to the middle, both
// at most 1, so no gate overflows and none needs a case of its own. The eight right tokens of a level give k and q rows
// (the 16 rows of A), the eight left ones k rows (the 8 columns of B): one accumulator a level holds its L and Mqk.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/block/tf32.cuh"
#include "cuda/params.cuh"
#include "cuda/ptx/mma_sync.cuh"
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
  char* images;  // [chunks][HV] of Image<K>
};

// The chunk a block works on.
struct ChunkPlace {
  int64_t batch, token;  // of its first row
  int rows;              // 0: no such chunk
};

__device__ inline ChunkPlace locate_chunk(const Layout& layout, int64_t chunk) {
  if (layout.begin == nullptr) {
    const int64_t n = chunk / layout.row_chunks, token = chunk % layout.row_chunks * kChunk;
    return {n, token, static_cast<int>(min(static_cast<int64_t>(kChunk), layout.T - token))};
  }
  if (chunk >= layout.chunks[layout.N]) return {0, 0, 0};
  int low = 0, high = layout.N;  // the sequence n with chunks[n] <= chunk < chunks[n + 1]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (layout.chunks[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t token = layout.begin[low] + (chunk - layout.chunks[low]) * kChunk;
  return {0, token, static_cast<int>(min(static_cast<int64_t>(kChunk), layout.begin[low + 1] - token))};
}

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

__device__ __forceinline__ float2 times(float2 x, float2 y) { return make_float2(x.x * y.x, x.y * y.y); }
__device__ __forceinline__ uint32_t decayed(float2 x, float2 decay) { return pack_bf16(x.x * decay.x, x.y * decay.y); }

inline constexpr int kLevels = 4;       // half = 8, 4, 2, 1
inline constexpr int kRoundLevels = 2;  // levels whose rows are in shared memory at a time

template <int K>
struct PrepareShared {
  static constexpr int kPitch = K * 2 + 16;  // bytes; the pad turns ldmatrix's eight rows through the banks
  alignas(16) char rows[kRoundLevels][24]
                       [kPitch];         // a level's 8 k rows and 8 q rows of right tokens, 8 k rows of left ones
  float sums[3][kChunk][K / 64];         // k.k, q.q, q.k a warp
  float norm_k[kChunk], norm_q[kChunk];  // what multiplies a raw row
  float b[kChunk];
  alignas(16) float L[kChunk][kChunk + 4];
  float M[kChunk][kChunk];
};

// The token that row r (0..7) of a level stands for.
__device__ constexpr int right_token(int half, int r) { return r / half * 2 * half + half + r % half; }
__device__ constexpr int left_token(int half, int r) { return r / half * 2 * half + r % half; }

// L and Mqk entries of one level, by one warp.
template <int K>
__device__ __forceinline__ void score_level(PrepareShared<K>& s, int buffer, int half, int lane) {
  float acc[4] = {};
  const uint32_t a_address = ptx::shared_address(&s.rows[buffer][lane % 16][lane / 16 * 16]);
  const uint32_t b_address = ptx::shared_address(&s.rows[buffer][16 + lane % 8][lane / 8 * 16]);
#pragma unroll
  for (int k = 0; k < K; k += 32) {
    uint32_t a0[4], a1[4], b[4];
    ptx::ldmatrix_x4(a0, a_address + k * 2);
    ptx::ldmatrix_x4(a1, a_address + k * 2 + 32);
    ptx::ldmatrix_x4(b, b_address + k * 2);
    ptx::mma_m16n8k16_bf16(acc, a0, b[0], b[1]);
    ptx::mma_m16n8k16_bf16(acc, a1, b[2], b[3]);
  }
  // The lane holds k row and q row lane / 4, columns 2 (lane % 4) and the next; only pairs of one block count.
  const int r = lane / 4;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int l = 2 * (lane % 4) + e;
    if (r / half != l / half) continue;
    const int i = right_token(half, r), j = left_token(half, l);
    s.L[i][j] = s.b[i] * acc[e];
    s.M[i][j] = acc[2 + e];
  }
}

template <int K>
__global__ void __launch_bounds__(K / 2, 1024 / K) prepare(const __grid_constant__ PrepareParams p) {
  constexpr int kThreads = K / 2, kWarps = kThreads / 32;
  using Im = Image<K>;
  __shared__ PrepareShared<K> s;

  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int64_t chunk = blockIdx.x / p.layout.HV;
  const int hv = blockIdx.x % p.layout.HV, h = hv / p.layout.group;
  const ChunkPlace place = locate_chunk(p.layout, chunk);
  if (place.rows <= 0) return;
  const int c = 2 * thread;  // this thread's channels are c, c + 1

  // Inputs, all asked for before any is used. Rows past the end stay zero and are never read.
  const auto offset = [&](const Rows& x, int head) {
    return place.batch * x.batch + place.token * x.token + head * x.head;
  };
  const float A_log = p.A_log != nullptr ? p.A_log[hv] : 0.0f;
  float2 bias = make_float2(0.0f, 0.0f);
  if (p.dt_bias != nullptr) bias = *reinterpret_cast<const float2*>(p.dt_bias + hv * K + c);
  float raw_beta = 0.0f;
  if (thread < place.rows) {
    raw_beta = load_scalar(p.beta.data, offset(p.beta, hv) + thread * p.beta.token, p.beta.dtype);
  }
  const bool fp16 = p.q.dtype == FKDA_FLOAT16;
  uint32_t k_raw[kChunk], q_raw[kChunk];
  float2 bits[kChunk];  // the gate's input, then its bits of decay
  {
    const auto* k = static_cast<const uint16_t*>(p.k.data) + offset(p.k, h) + c;
    const auto* q = static_cast<const uint16_t*>(p.q.data) + offset(p.q, h) + c;
    int64_t g = offset(p.g, hv) + c;
    const auto load_rows = [&](auto load_gate, auto whole) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const bool valid = whole || i < place.rows;
        k_raw[i] = valid ? *reinterpret_cast<const uint32_t*>(k) : 0u;
        q_raw[i] = valid ? *reinterpret_cast<const uint32_t*>(q) : 0u;
        bits[i] = valid ? load_gate(g) : make_float2(0.0f, 0.0f);
        k += p.k.token;
        q += p.q.token;
        g += p.g.token;
      }
    };
    const auto gate_bf16 = [&](int64_t at) { return Memory<FKDA_BFLOAT16>::load_pair(p.g.data, at); };
    const auto gate_any = [&](int64_t at) { return load_pair(p.g.data, at, p.g.dtype); };
    if (place.rows == kChunk && p.g.dtype == FKDA_BFLOAT16) {
      load_rows(gate_bf16, Constant<1>());
    } else {
      load_rows(gate_any, Constant<0>());
    }
  }
  for (int i = thread; i < kChunk * kChunk; i += kThreads) {
    s.L[i / kChunk][i % kChunk] = 0.0f;
    s.M[i / kChunk][i % kChunk] = 0.0f;
  }

  // Norms and the diagonal of Mqk, which no decay touches, from the raw rows in fp32.
  {
    float kk[kChunk], qq[kChunk], qk[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float2 k = unpack(k_raw[i], fp16), q = unpack(q_raw[i], fp16);
      kk[i] = k.x * k.x + k.y * k.y;
      qq[i] = q.x * q.x + q.y * q.y;
      qk[i] = q.x * k.x + q.y * k.y;
    }
    const float sum_kk = reduce_scatter(kk, lane), sum_qq = reduce_scatter(qq, lane), sum_qk = reduce_scatter(qk, lane);
    if (lane % 2 == 0) {
      s.sums[0][lane / 2][warp] = sum_kk;
      s.sums[1][lane / 2][warp] = sum_qq;
      s.sums[2][lane / 2][warp] = sum_qk;
    }
  }
  __syncthreads();
  if (thread < kChunk) {
    s.b[thread] = thread < place.rows ? activate_beta(raw_beta, p.beta_activation) : 0.0f;
    float sum[3] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      for (int i = 0; i < 3; ++i) sum[i] += s.sums[i][thread][w];
    }
    const float norm_k = p.qk_l2norm ? rsqrtf(sum[0] + 1e-6f) : 1.0f;
    const float norm_q = p.scale * (p.qk_l2norm ? rsqrtf(sum[1] + 1e-6f) : 1.0f);
    s.norm_k[thread] = norm_k;
    s.norm_q[thread] = norm_q;
    s.M[thread][thread] = sum[2] * norm_k * norm_q;
  }
  __syncthreads();

  // Decays.
  const Gate gate(p.lower_bound, A_log);
  float2 alpha[kChunk], total = make_float2(0.0f, 0.0f);
  const auto decays = [&](auto kind) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const bool valid = i < place.rows;
      const float x = valid ? gate.template log2_decay<kind>(bits[i].x + bias.x) : 0.0f;
      const float y = valid ? gate.template log2_decay<kind>(bits[i].y + bias.y) : 0.0f;
      total.x += x;
      total.y += y;
      alpha[i] = make_float2(ptx::exp2_approx(x), ptx::exp2_approx(y));
    }
  };
  if (p.gate == FKDA_GATE_BOUNDED) {
    decays(Constant<FKDA_GATE_BOUNDED>());
  } else if (p.gate == FKDA_GATE_SOFTPLUS) {
    decays(Constant<FKDA_GATE_SOFTPLUS>());
  } else {
    decays(Constant<FKDA_GATE_LOG>());
  }

  // Normalised rows, in fp32: a product with a decay is rounded once.
  float2 k[kChunk], q[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    k[i] = times(unpack(k_raw[i], fp16), make_float2(s.norm_k[i], s.norm_k[i]));
    q[i] = times(unpack(q_raw[i], fp16), make_float2(s.norm_q[i], s.norm_q[i]));
  }

  // kd, qd and F, straight to the image.
  char* image = p.images + (chunk * p.layout.HV + hv) * Im::kBytes;
  {
    auto* kd = reinterpret_cast<uint32_t*>(image + Im::kKd);
    auto* qd = reinterpret_cast<uint32_t*>(image + Im::kQd);
    float2 prefix = make_float2(1.0f, 1.0f);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      prefix = times(prefix, alpha[i]);
      kd[i * kThreads + thread] = decayed(k[i], prefix);
      qd[i * kThreads + thread] = decayed(q[i], prefix);
    }
    reinterpret_cast<float2*>(image + Im::kF)[thread] =
        make_float2(ptx::exp2_approx(total.x), ptx::exp2_approx(total.y));
  }

  // L and Mqk, a warp a level.
  static_for<kLevels / kRoundLevels>([&](auto round) {
    static_for<kRoundLevels>([&](auto in_round) {
      constexpr int half = 8 >> (round * kRoundLevels + in_round);
      const auto put = [&](int row, uint32_t pair) {
        *reinterpret_cast<uint32_t*>(&s.rows[in_round][row][4 * thread]) = pair;
      };
      static_for<8 / half>([&](auto block) {
        constexpr int first = block * 2 * half, middle = first + half, row = block * half;
        float2 prefix = make_float2(1.0f, 1.0f), suffix = make_float2(1.0f, 1.0f);
#pragma unroll
        for (int i = 0; i < half; ++i) {
          prefix = times(prefix, alpha[middle + i]);
          put(row + i, decayed(k[middle + i], prefix));
          put(8 + row + i, decayed(q[middle + i], prefix));
        }
#pragma unroll
        for (int i = half - 1; i >= 0; --i) {
          put(16 + row + i, decayed(k[first + i], suffix));
          suffix = times(suffix, alpha[first + i]);
        }
      });
    });
    __syncthreads();
    static_for<kRoundLevels>([&](auto in_round) {
      if (in_round % kWarps == warp) score_level<K>(s, in_round, 8 >> (round * kRoundLevels + in_round), lane);
    });
    __syncthreads();
  });

  // kr, when q's registers are free.
  {
    auto* kr = reinterpret_cast<uint32_t*>(image + Im::kKr);
    float2 suffix = make_float2(1.0f, 1.0f);
#pragma unroll
    for (int i = kChunk - 1; i >= 0; --i) {
      k[i] = times(k[i], suffix);
      suffix = times(suffix, alpha[i]);
    }
    const auto put = [&](int i, int column, float a, float b, float x, float y) {
      *reinterpret_cast<uint4*>(kr + wide_place(i, column)) =
          make_uint4(rounded_by_the_cut(a), rounded_by_the_cut(b), rounded_by_the_cut(x), rounded_by_the_cut(y));
    };
#pragma unroll
    for (int i = 0; i < kChunk / 2; i += 2) {
      put(i, c, k[i].x, k[i + 1].x, k[i + 8].x, k[i + 9].x);
      put(i, c + 1, k[i].y, k[i + 1].y, k[i + 8].y, k[i + 9].y);
    }
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
    for (int i = 0; i < kChunk; ++i) T[wide_place(thread, i)] = rounded_by_the_cut(x[i] * s.b[thread]);
  } else if (thread < 2 * kChunk) {
    const int j = thread - kChunk;
    auto* M = reinterpret_cast<__nv_bfloat16*>(image + Im::kM);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) M[i * kChunk + j] = __float2bfloat16_rn(s.M[i][j]);
  }
}

}  // namespace flashkda::cuda::sm80
