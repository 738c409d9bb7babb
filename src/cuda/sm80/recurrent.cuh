// The kernel of sequences of a few tokens, decoding among them: the recurrence itself (docs/algorithm.md, eq. 1 to 4),
// token by token in fp32. Nothing is amortised over a chunk there, and what binds is reading and writing the state.
//
// One block carries 64 value columns of one value head of one sequence. A thread holds four of them times K / 8
// channels of the state; eight neighbouring lanes share the columns and hold all K channels between them.
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/params.cuh"
#include "cuda/tile/static_for.cuh"

namespace flashkda::cuda::sm80 {

struct RecurrentParams {
  Layout layout;         // packed: begin may be null, cu_seqlens is read instead
  Integers cu_seqlens;   // packed: [N+1]
  int64_t longest;       // sequences of more tokens are left to the other kernels
  Rows q, k, g, v;       // [B,T,H,K], [B,T,H,K], [B,T,HV,K], [B,T,HV,V]
  Rows beta;             // [B,T,HV]: head stride 1
  Rows out;              // [B,T,HV,V]
  const float* A_log;    // [HV] or null
  const float* dt_bias;  // [HV,K] or null
  float lower_bound, scale;
  int32_t gate, beta_activation;
  bool qk_l2norm;
  States initial, final;  // slot = sequence, or state_indices[sequence]
  Integers slots;         // data null: slot = sequence
  int64_t slot_count;     // slots of the pools; an index outside 0..slot_count-1 is treated as negative
};

inline constexpr int kRecurrentWarps = 4, kRecurrentThreads = 32 * kRecurrentWarps;
inline constexpr int kOwn = 4;                                        // value columns a thread
inline constexpr int kRecurrentColumns = kRecurrentWarps * 4 * kOwn;  // a block
inline constexpr int kBatch = 8;  // tokens whose rows are in shared memory at a time

// Rows of a token as the recurrence takes them.
template <int K>
struct TokenRows {
  alignas(16) float k[K], q[K], decay[K];  // normalised k, normalised scale q, exp of the gate
  alignas(16) float v[kRecurrentColumns];
  float b, qk;
};

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(0xffffffffu, x, bit);
  return x;
}

// One token's rows, by one warp: channels 64 i + 2 lane and the next, value columns 2 lane and the next of the block's.
template <int K>
__device__ __forceinline__ void fill_rows(TokenRows<K>& rows, const RecurrentParams& p, const Gate& gate, int64_t batch,
                                          int64_t token, int hv, int column, int lane) {
  const int h = hv / p.layout.group;
  const auto at = [&](const Rows& x, int head) { return batch * x.batch + token * x.token + head * x.head; };
  float2 k[K / 64], q[K / 64], g[K / 64];
#pragma unroll
  for (int i = 0; i < K / 64; ++i) {
    const int c = 64 * i + 2 * lane;
    k[i] = load_pair(p.k.data, at(p.k, h) + c, p.k.dtype);
    q[i] = load_pair(p.q.data, at(p.q, h) + c, p.q.dtype);
    g[i] = load_pair(p.g.data, at(p.g, hv) + c, p.g.dtype);
    if (p.dt_bias != nullptr) {
      const float2 bias = *reinterpret_cast<const float2*>(p.dt_bias + hv * K + c);
      g[i] = make_float2(g[i].x + bias.x, g[i].y + bias.y);
    }
  }
  const float2 v = load_pair(p.v.data, at(p.v, hv) + column + 2 * lane, p.v.dtype);
  const float b = activate_beta(load_scalar(p.beta.data, at(p.beta, 0) + hv, p.beta.dtype), p.beta_activation);

  float kk = 0.0f, qq = 0.0f;
#pragma unroll
  for (int i = 0; i < K / 64; ++i) {
    kk += k[i].x * k[i].x + k[i].y * k[i].y;
    qq += q[i].x * q[i].x + q[i].y * q[i].y;
  }
  const float norm_k = p.qk_l2norm ? rsqrtf(sum_of_warp(kk) + 1e-6f) : 1.0f;
  const float norm_q = p.scale * (p.qk_l2norm ? rsqrtf(sum_of_warp(qq) + 1e-6f) : 1.0f);
  const auto decay = [&](float x) {
    if (p.gate == FKDA_GATE_BOUNDED) return ptx::exp2_approx(gate.log2_decay<FKDA_GATE_BOUNDED>(x));
    if (p.gate == FKDA_GATE_SOFTPLUS) return ptx::exp2_approx(gate.log2_decay<FKDA_GATE_SOFTPLUS>(x));
    return ptx::exp2_approx(gate.log2_decay<FKDA_GATE_LOG>(x));
  };
  float qk = 0.0f;
#pragma unroll
  for (int i = 0; i < K / 64; ++i) {
    const int c = 64 * i + 2 * lane;
    k[i] = make_float2(k[i].x * norm_k, k[i].y * norm_k);
    q[i] = make_float2(q[i].x * norm_q, q[i].y * norm_q);
    qk += q[i].x * k[i].x + q[i].y * k[i].y;
    *reinterpret_cast<float2*>(&rows.k[c]) = k[i];
    *reinterpret_cast<float2*>(&rows.q[c]) = q[i];
    *reinterpret_cast<float2*>(&rows.decay[c]) = make_float2(decay(g[i].x), decay(g[i].y));
  }
  *reinterpret_cast<float2*>(&rows.v[2 * lane]) = v;
  qk = sum_of_warp(qk);
  if (lane == 0) {
    rows.b = b;
    rows.qk = qk;
  }
}

// A thread's part of the state: columns v .. v + 3, channels 32 j + c .. 32 j + c + 3.
template <int K>
struct StatePatch {
  float x[kOwn][K / 8];  // [column][4 j + e]

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int j = 0; j < K / 8; ++j) x[i][j] = 0.0f;
    }
  }

  // matrix: element offset of the [V,K] or [K,V] matrix.
  __device__ __forceinline__ void load(const States& s, int64_t matrix, int V, int v, int c) {
    walk(s, [&](auto memory) {
      if (s.k_first) {
#pragma unroll
        for (int j = 0; j < K / 8; ++j) {
          const float4 y = memory.load_four(s.data, matrix + (j / 4 * 32 + c + j % 4) * V + v);
          x[0][j] = y.x;
          x[1][j] = y.y;
          x[2][j] = y.z;
          x[3][j] = y.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
#pragma unroll
          for (int j = 0; j < K / 32; ++j) {
            const float4 y = memory.load_four(s.data, matrix + (v + i) * K + j * 32 + c);
            x[i][4 * j] = y.x;
            x[i][4 * j + 1] = y.y;
            x[i][4 * j + 2] = y.z;
            x[i][4 * j + 3] = y.w;
          }
        }
      }
    });
  }

  __device__ __forceinline__ void store(const States& s, int64_t matrix, int V, int v, int c) {
    walk(s, [&](auto memory) {
      if (s.k_first) {
#pragma unroll
        for (int j = 0; j < K / 8; ++j) {
          memory.store_four(s.data, matrix + (j / 4 * 32 + c + j % 4) * V + v,
                            make_float4(x[0][j], x[1][j], x[2][j], x[3][j]));
        }
      } else {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
#pragma unroll
          for (int j = 0; j < K / 32; ++j) {
            memory.store_four(s.data, matrix + (v + i) * K + j * 32 + c,
                              make_float4(x[i][4 * j], x[i][4 * j + 1], x[i][4 * j + 2], x[i][4 * j + 3]));
          }
        }
      }
    });
  }

 private:
  template <typename Body>
  __device__ __forceinline__ void walk(const States& s, Body&& body) {
    if (s.dtype == FKDA_FLOAT32) {
      body(Memory<FKDA_FLOAT32>());
    } else if (s.dtype == FKDA_BFLOAT16) {
      body(Memory<FKDA_BFLOAT16>());
    } else {
      body(Memory<FKDA_FLOAT16>());
    }
  }
};

template <int K>
__global__ void __launch_bounds__(kRecurrentThreads, 4) recurrent(const __grid_constant__ RecurrentParams p) {
  constexpr int V = K, kSlices = V / kRecurrentColumns;
  __shared__ TokenRows<K> rows[kBatch];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int column = static_cast<int>(blockIdx.x % kSlices) * kRecurrentColumns;
  const auto head = static_cast<int>(blockIdx.x / kSlices);
  const int hv = head % p.layout.HV;
  const int64_t n = head / p.layout.HV;

  int64_t batch = 0, begin = 0, length = p.layout.T;
  if (p.layout.begin != nullptr) {
    begin = p.layout.begin[n];
    length = p.layout.begin[n + 1] - begin;
  } else if (p.cu_seqlens.data != nullptr) {  // kept inside the batch whatever it holds
    const auto clamped = [&](int64_t i) { return min(max(p.cu_seqlens[i], int64_t{0}), p.layout.T); };
    begin = clamped(n);
    length = max(clamped(n + 1) - begin, int64_t{0});
  } else {
    batch = n;
  }
  if (length > p.longest) return;
  const int64_t slot = p.slots.data == nullptr ? n : p.slots[n];
  const bool stateful = slot >= 0 && slot < p.slot_count;

  const int own = (warp * 4 + lane / 8) * kOwn, c = lane % 8 * 4;  // the thread's first column, channel of 32
  StatePatch<K> S;                                                 // asked for before anything else: it takes longest
  if (stateful && p.initial.data != nullptr) {
    S.load(p.initial, slot * p.initial.slot + hv * p.initial.head, V, column + own, c);
  } else {
    S.clear();
  }
  const Gate gate(p.lower_bound, p.A_log != nullptr ? p.A_log[hv] : 0.0f);
  for (int64_t first = 0; first < length; first += kBatch) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kBatch), length - first));
    if (first > 0) __syncthreads();  // the rows before have been read
    for (int t = warp; t < count; t += kRecurrentWarps) {
      fill_rows(rows[t], p, gate, batch, begin + first + t, hv, column, lane);
    }
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      const TokenRows<K>& token = rows[t];
      float read[kOwn] = {}, o[kOwn] = {};
#pragma unroll
      for (int j = 0; j < K / 32; ++j) {
        const float4 a = *reinterpret_cast<const float4*>(&token.decay[32 * j + c]);
        const float4 k = *reinterpret_cast<const float4*>(&token.k[32 * j + c]);
        const float4 q = *reinterpret_cast<const float4*>(&token.q[32 * j + c]);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          float* const x = &S.x[i][4 * j];
          x[0] *= a.x;
          x[1] *= a.y;
          x[2] *= a.z;
          x[3] *= a.w;
          read[i] += k.x * x[0] + k.y * x[1] + k.z * x[2] + k.w * x[3];
          o[i] += q.x * x[0] + q.y * x[1] + q.z * x[2] + q.w * x[3];
        }
      }
#pragma unroll
      for (int bit = 1; bit < 8; bit *= 2) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          read[i] += __shfl_xor_sync(0xffffffffu, read[i], bit);
          o[i] += __shfl_xor_sync(0xffffffffu, o[i], bit);
        }
      }
      const float4 v = *reinterpret_cast<const float4*>(&token.v[own]);
      const float u[kOwn] = {token.b * (v.x - read[0]), token.b * (v.y - read[1]), token.b * (v.z - read[2]),
                             token.b * (v.w - read[3])};
#pragma unroll
      for (int j = 0; j < K / 32; ++j) {
        const float4 k = *reinterpret_cast<const float4*>(&token.k[32 * j + c]);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          float* const x = &S.x[i][4 * j];
          x[0] += k.x * u[i];
          x[1] += k.y * u[i];
          x[2] += k.z * u[i];
          x[3] += k.w * u[i];
        }
      }
      if (c == 0) {  // q reads the new state: the old one and what was written
        const int64_t to = batch * p.out.batch + (begin + first + t) * p.out.token + hv * p.out.head + column + own;
        store_four(const_cast<void*>(p.out.data), to, p.out.dtype,
                   make_float4(o[0] + token.qk * u[0], o[1] + token.qk * u[1], o[2] + token.qk * u[2],
                               o[3] + token.qk * u[3]));
      }
    }
  }
  if (stateful && p.final.data != nullptr) {
    S.store(p.final, slot * p.final.slot + hv * p.final.head, V, column + own, c);
  }
}

}  // namespace flashkda::cuda::sm80
