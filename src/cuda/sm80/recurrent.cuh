// The kernel of sequences of a few tokens, decoding among them: the recurrence itself (docs/algorithm.md, eq. 1 to 4),
// token by token in fp32. Nothing is amortised over a chunk there, and what binds is reading and writing the state.
//
// A work item is 64 value columns of one value head of one sequence. A thread holds four of them times K / 8 channels
// of the state; eight neighbouring lanes share the columns and hold all K channels between them. Blocks go on from item
// to item: the next one's state is on its way to shared memory while this one is computed and stored.
#pragma once

#include <type_traits>

#include "cuda/block/convert.cuh"
#include "cuda/block/gate.cuh"
#include "cuda/params.cuh"
#include "cuda/ptx/cp_async.cuh"

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
  int32_t items;          // sequences x value heads x slices of 64 value columns; the launcher's
};

inline constexpr int kRecurrentWarps = 4, kRecurrentThreads = 32 * kRecurrentWarps;
inline constexpr int kRecurrentBlocks = 4;                            // an SM
inline constexpr int kOwn = 4;                                        // value columns a thread
inline constexpr int kRecurrentColumns = kRecurrentWarps * 4 * kOwn;  // an item
inline constexpr int kBatch = kRecurrentWarps;  // tokens whose rows are made at a time, a warp each

// Rows of a token as the recurrence takes them.
template <int K>
struct TokenRows {
  alignas(16) float k[K], q[K], decay[K];  // normalised k, normalised scale q, exp of the gate
  alignas(16) float v[kRecurrentColumns];
  float b, qk;
};

// An item, and the tokens of its sequence.
struct Work {
  int32_t item;    // none from RecurrentParams::items on
  int32_t hv;      // value head
  int32_t column;  // the first of its value columns
  int32_t slot;    // of the pools; negative for none
  int32_t batch, length;
  int64_t begin;

  __device__ __forceinline__ bool exists(const RecurrentParams& p) const { return item < p.items; }

  // The first of item, item + gridDim.x, ... whose sequence is this kernel's.
  template <int K>
  __device__ __forceinline__ static Work from(const RecurrentParams& p, int64_t item) {
    constexpr int kSlices = K / kRecurrentColumns;
    Work w{};
    for (; item < p.items; item += gridDim.x) {
      const int head = static_cast<int>(item) / kSlices, n = head / p.layout.HV;
      int64_t length = p.layout.T;
      if (p.layout.begin != nullptr) {
        w.begin = p.layout.begin[n];
        length = p.layout.begin[n + 1] - w.begin;
      } else if (p.cu_seqlens.data != nullptr) {  // kept inside the batch whatever it holds
        const auto clamped = [&](int64_t i) { return min(max(p.cu_seqlens[i], int64_t{0}), p.layout.T); };
        w.begin = clamped(n);
        length = max(clamped(n + 1) - w.begin, int64_t{0});
      } else {
        w.batch = n;
      }
      if (length > p.longest) continue;
      w.hv = head % p.layout.HV;
      w.column = static_cast<int>(item) % kSlices * kRecurrentColumns;
      w.length = static_cast<int32_t>(length);
      const int64_t slot = p.slots.data == nullptr ? n : p.slots[n];
      w.slot = slot < p.slot_count ? static_cast<int32_t>(max(slot, int64_t{-1})) : -1;
      break;
    }
    w.item = static_cast<int32_t>(min(item, int64_t{p.items}));
    return w;
  }
};

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(0xffffffffu, x, bit);
  return x;
}

// One token's rows by one warp, as they lie in memory: channels 64 i + 2 lane and the next, value columns 2 lane and
// the next of the item's. No other thread reads what a thread asked for.
template <int K>
struct RawRows {
  static constexpr int kTensor = K / 64, kPairs = 4 * kTensor + 1;

  uint2 pairs[kPairs][kRecurrentThreads];  // k, q, g, dt_bias (if there is one), v

  // What stays in registers meanwhile.
  struct Scalars {
    ushort2 beta;
    float A_log;
  };

  // Asks for them.
  __device__ __forceinline__ Scalars fetch(const RecurrentParams& p, const Work& w, int token, int lane) {
    const auto at = [&](const Rows& x, int head) {
      return w.batch * x.batch + (w.begin + token) * x.token + head * x.head;
    };
    const auto ask = [&](int i, const void* data, int64_t index, int32_t dtype) {
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(&pairs[i][threadIdx.x]));
      if (dtype == FKDA_FLOAT32) {
        ptx::cp_async<8>(to, static_cast<const float*>(data) + index);
      } else {
        ptx::cp_async<4>(to, static_cast<const uint16_t*>(data) + index);
      }
    };
    const int h = w.hv / p.layout.group;
#pragma unroll
    for (int i = 0; i < kTensor; ++i) {
      const int c = 64 * i + 2 * lane;
      ask(i, p.k.data, at(p.k, h) + c, p.k.dtype);
      ask(kTensor + i, p.q.data, at(p.q, h) + c, p.q.dtype);
      ask(2 * kTensor + i, p.g.data, at(p.g, w.hv) + c, p.g.dtype);
      if (p.dt_bias != nullptr) ask(3 * kTensor + i, p.dt_bias, w.hv * K + c, FKDA_FLOAT32);
    }
    ask(4 * kTensor, p.v.data, at(p.v, w.hv) + w.column + 2 * lane, p.v.dtype);
    return {load_scalar_halves(p.beta.data, at(p.beta, 0) + w.hv, p.beta.dtype),
            p.A_log == nullptr ? 0.0f : p.A_log[w.hv]};
  }

  __device__ __forceinline__ float2 pair(int i, int32_t dtype) const {
    const uint2 bits = pairs[i][threadIdx.x];
    const float2 halves = unpack(bits.x, dtype == FKDA_FLOAT16);
    return dtype == FKDA_FLOAT32 ? make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y)) : halves;
  }
};

template <int K>
__device__ __forceinline__ void make_rows(TokenRows<K>& rows, const RawRows<K>& raw,
                                          const typename RawRows<K>::Scalars& scalars, const RecurrentParams& p,
                                          int lane) {
  constexpr int kTensor = RawRows<K>::kTensor;
  const Gate gate(p.lower_bound, scalars.A_log);
  const auto decay = [&](float x) {
    if (p.gate == FKDA_GATE_BOUNDED) return ptx::exp2_approx(gate.log2_decay<FKDA_GATE_BOUNDED>(x));
    if (p.gate == FKDA_GATE_SOFTPLUS) return ptx::exp2_approx(gate.log2_decay<FKDA_GATE_SOFTPLUS>(x));
    return ptx::exp2_approx(gate.log2_decay<FKDA_GATE_LOG>(x));
  };
  float2 k[kTensor], q[kTensor];
  float kk = 0.0f, qq = 0.0f, qk = 0.0f;  // three sums side by side, none waits for a norm
  const float in_advance = p.qk_l2norm ? 1.0f : p.scale;
#pragma unroll
  for (int i = 0; i < kTensor; ++i) {
    k[i] = raw.pair(i, p.k.dtype);
    q[i] = raw.pair(kTensor + i, p.q.dtype);
    kk += k[i].x * k[i].x + k[i].y * k[i].y;
    qq += q[i].x * q[i].x + q[i].y * q[i].y;
    qk += in_advance * q[i].x * k[i].x + in_advance * q[i].y * k[i].y;
  }
  kk = sum_of_warp(kk);
  qq = sum_of_warp(qq);
  qk = sum_of_warp(qk);
  const float norm_k = p.qk_l2norm ? rsqrtf(kk + 1e-6f) : 1.0f;
  const float norm_q = p.scale * (p.qk_l2norm ? rsqrtf(qq + 1e-6f) : 1.0f);
#pragma unroll
  for (int i = 0; i < kTensor; ++i) {
    const int c = 64 * i + 2 * lane;
    const float2 g = raw.pair(2 * kTensor + i, p.g.dtype);
    const float2 bias = p.dt_bias == nullptr ? make_float2(0.0f, 0.0f) : raw.pair(3 * kTensor + i, FKDA_FLOAT32);
    *reinterpret_cast<float2*>(&rows.k[c]) = make_float2(k[i].x * norm_k, k[i].y * norm_k);
    *reinterpret_cast<float2*>(&rows.q[c]) = make_float2(q[i].x * norm_q, q[i].y * norm_q);
    *reinterpret_cast<float2*>(&rows.decay[c]) = make_float2(decay(g.x + bias.x), decay(g.y + bias.y));
  }
  *reinterpret_cast<float2*>(&rows.v[2 * lane]) = raw.pair(4 * kTensor, p.v.dtype);
  if (lane == 0) {
    rows.b = activate_beta(scalar_of_halves(scalars.beta, p.beta.dtype), p.beta_activation);
    // Norms of rows whose squares overflow are 0; a product that did must not make that NaN.
    rows.qk = p.qk_l2norm ? fmaxf(fminf(qk, 3.4028235e38f), -3.4028235e38f) * norm_k * norm_q : qk;
  }
}

// A thread's part of the state: columns v .. v + 3, channels 32 j + c .. 32 j + c + 3. Its accesses are of four
// elements, those of a column (or, K first, of a channel).
template <int K>
struct StatePatch {
  static constexpr int kAccesses = kOwn * K / 32;

  float x[kOwn][K / 8];  // [column][4 j + e]

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int j = 0; j < K / 8; ++j) x[i][j] = 0.0f;
    }
  }

  // The block's patches on their way, in the state's dtype: [access][thread], so that a thread reads what it asked for.
  static constexpr size_t stage_bytes(size_t element) { return 4 * element * kAccesses * kRecurrentThreads; }

  // Asks for the patch of the state at element offset `matrix`.
  __device__ __forceinline__ static void fetch(void* stage, const States& s, int64_t matrix, int v, int c) {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(stage));
    walk(s, [&](auto memory, auto k_first) {
      constexpr int kBytes = 4 * memory.kBytes;
      const char* const from = static_cast<const char*>(s.data) + (matrix + offset<k_first>(0, v, c)) * memory.kBytes;
#pragma unroll
      for (int a = 0; a < kAccesses; ++a) {
        ptx::cp_async<kBytes>(to + (a * kRecurrentThreads + threadIdx.x) * kBytes,
                              from + offset<k_first>(a, 0, 0) * memory.kBytes);
      }
    });
  }

  __device__ __forceinline__ void take(const void* stage, const States& s) {
    walk(s, [&](auto memory, auto k_first) {
#pragma unroll
      for (int a = 0; a < kAccesses; ++a) {
        const float4 y = memory.load_four(stage, 4 * (a * kRecurrentThreads + static_cast<int>(threadIdx.x)));
        at<k_first>(a, 0) = y.x;
        at<k_first>(a, 1) = y.y;
        at<k_first>(a, 2) = y.z;
        at<k_first>(a, 3) = y.w;
      }
    });
  }

  __device__ __forceinline__ void store(const States& s, int64_t matrix, int v, int c) {
    walk(s, [&](auto memory, auto k_first) {
      const int64_t to = matrix + offset<k_first>(0, v, c);
#pragma unroll
      for (int a = 0; a < kAccesses; ++a) {
        memory.store_four(s.data, to + offset<k_first>(a, 0, 0),
                          make_float4(at<k_first>(a, 0), at<k_first>(a, 1), at<k_first>(a, 2), at<k_first>(a, 3)));
      }
    });
  }

 private:
  // Where access a begins in the [V,K] or [K,V] matrix (V = K), and the elements that it has.
  template <bool kKFirst>
  __device__ __forceinline__ static int offset(int a, int v, int c) {
    return kKFirst ? (a / 4 * 32 + a % 4 + c) * K + v : (a % kOwn + v) * K + a / kOwn * 32 + c;
  }

  template <bool kKFirst>
  __device__ __forceinline__ float& at(int a, int e) {
    return kKFirst ? x[e][a] : x[a % kOwn][a / kOwn * 4 + e];
  }

  template <typename Body>
  __device__ __forceinline__ static void walk(const States& s, Body&& body) {
    const auto with = [&](auto memory) {
      if (s.k_first) {
        body(memory, std::true_type());
      } else {
        body(memory, std::false_type());
      }
    };
    if (s.dtype == FKDA_FLOAT32) {
      with(Memory<FKDA_FLOAT32>());
    } else if (s.dtype == FKDA_BFLOAT16) {
      with(Memory<FKDA_BFLOAT16>());
    } else {
      with(Memory<FKDA_FLOAT16>());
    }
  }
};

// Sums of eight values over eight neighbouring lanes: lane l gets that of x[l].
__device__ __forceinline__ float sum_transposed(const float (&x)[8], int lane) {
  float y[4], z[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool high = lane & 4;
    y[i] = (high ? x[4 + i] : x[i]) + __shfl_xor_sync(0xffffffffu, high ? x[i] : x[4 + i], 4);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool high = lane & 2;
    z[i] = (high ? y[2 + i] : y[i]) + __shfl_xor_sync(0xffffffffu, high ? y[i] : y[2 + i], 2);
  }
  const bool high = lane & 1;
  return (high ? z[1] : z[0]) + __shfl_xor_sync(0xffffffffu, high ? z[0] : z[1], 1);
}

// One token. Lanes 4 .. 7 of eight return the output of columns own .. own + 3.
template <int K>
__device__ __forceinline__ float step(StatePatch<K>& S, const TokenRows<K>& token, int own, int c, int lane) {
  float sums[8] = {};  // what the decayed state reads with k, with q
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
      sums[i] = fmaf(k.w, x[3], fmaf(k.z, x[2], fmaf(k.y, x[1], fmaf(k.x, x[0], sums[i]))));
      sums[kOwn + i] = fmaf(q.w, x[3], fmaf(q.z, x[2], fmaf(q.y, x[1], fmaf(q.x, x[0], sums[kOwn + i]))));
    }
  }
  const float sum = sum_transposed(sums, lane);
  const float written = token.b * (token.v[own + lane % kOwn] - sum);  // of lanes 0 .. 3
  float u[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) u[i] = __shfl_sync(0xffffffffu, written, i, 8);
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
  // q reads the new state: the old one and what was written
  return sum + token.qk * __shfl_sync(0xffffffffu, written, lane % kOwn, 8);
}

template <int K>
struct RecurrentShared {
  TokenRows<K> rows[2][kBatch];
  RawRows<K> raw;
  alignas(16) char state[1];  // StatePatch's stage, to the end
};

template <int K>
__global__ void __launch_bounds__(kRecurrentThreads, kRecurrentBlocks)
    recurrent(const __grid_constant__ RecurrentParams p) {
  extern __shared__ float4 memory[];
  auto& shared = *reinterpret_cast<RecurrentShared<K>*>(memory);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int own = (warp * 4 + lane / 8) * kOwn, c = lane % 8 * 4;  // the thread's first column, channel of 32
  const auto fetch_state = [&](const Work& w) {
    const bool wanted = w.exists(p) && p.initial.data != nullptr && w.slot >= 0;
    if (wanted) {
      StatePatch<K>::fetch(shared.state, p.initial, w.slot * p.initial.slot + w.hv * p.initial.head, w.column + own, c);
    }
    return wanted;
  };
  const auto fetch_rows = [&](const Work& w, int first) {
    const bool there = w.exists(p) && first + warp < w.length;
    return there ? shared.raw.fetch(p, w, first + warp, lane) : typename RawRows<K>::Scalars{};
  };

  Work work = Work::from<K>(p, blockIdx.x);
  bool fetched = fetch_state(work);
  auto scalars = fetch_rows(work, 0);
  for (int buffer = 0; work.exists(p);) {
    const Work ahead = Work::from<K>(p, int64_t{work.item} + gridDim.x);
    StatePatch<K> S;
    ptx::cp_async_wait_all();
    if (fetched) {
      S.take(shared.state, p.initial);
    } else {
      S.clear();
    }
    for (int first = 0, next;; first = next, buffer ^= 1) {
      next = first + kBatch;
      const bool last = next >= work.length;
      if (first > 0) ptx::cp_async_wait_all();
      if (last) fetched = fetch_state(ahead);  // no sooner: these rows would be waited for together with it
      if (first + warp < work.length) make_rows(shared.rows[buffer][warp], shared.raw, scalars, p, lane);
      __syncthreads();  // these rows are there; the other buffer has been read
      scalars = last ? fetch_rows(ahead, 0) : fetch_rows(work, next);
      const int count = min(kBatch, work.length - first);
      for (int t = 0; t < count; ++t) {
        const float o = step(S, shared.rows[buffer][t], own, c, lane);
        if (lane % 8 >= kOwn) {
          store_scalar(const_cast<void*>(p.out.data),
                       work.batch * p.out.batch + (work.begin + first + t) * p.out.token + work.hv * p.out.head +
                           work.column + own + lane % kOwn,
                       p.out.dtype, o);
        }
      }
      if (last) break;
    }
    buffer ^= 1;
    if (p.final.data != nullptr && work.slot >= 0) {
      S.store(p.final, work.slot * p.final.slot + work.hv * p.final.head, work.column + own, c);
    }
    work = ahead;
  }
}

}  // namespace flashkda::cuda::sm80
