// The recurrence (docs/algorithm.md, section 1) token by token, on the fp32 state in the caller's order: decode steps
// and short tails. Compiled once per instruction set.
#if defined(FLASHKDA_CPU_TOKEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHKDA_CPU_TOKEN_INL_H_
#undef FLASHKDA_CPU_TOKEN_INL_H_
#else
#define FLASHKDA_CPU_TOKEN_INL_H_
#endif

#include "cpu/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

// One token's vectors, padded with zeros to Kp. Both products with the state are taken with the old one, so that it is
// read once for both and once for the update:
//   u = b (v - S^T kd),   o = S^T qd + (q . k) u,   S <- S o exp(a) + k u^T,   kd = k o exp(a), qd = q o exp(a)
struct TokenRows {
  const float *k, *kd, *qd, *hi, *lo;
  float qk, b;
};

// Whether new states should bypass the caches: they are written to other memory than read, and are far larger.
inline bool should_stream(const Problem& p, const float* from, const float* to) {
  constexpr int64_t kFarLarger = int64_t{64} << 20;
  return from != to && p.N * p.HV * p.K * p.V * static_cast<int64_t>(sizeof(float)) >= kFarLarger &&
         reinterpret_cast<uintptr_t>(to) % (kN * sizeof(float)) == 0 && p.K % kN == 0 && p.V % kN == 0;
}

template <bool kStream>
HWY_INLINE void store_state(VF value, float* p) {
  if constexpr (kStream) {
    hn::Stream(value, kD, p);
  } else {
    hn::StoreU(value, kD, p);
  }
}

// Four rows of [V,K], value columns v .. v+3.
template <bool kStream>
HWY_INLINE void step_v_first(const TokenRows& r, int64_t K, const float* HWY_RESTRICT v, const float* from, float* to,
                             float* HWY_RESTRICT o) {
  // Rows are short and each waits for its own sums: without asking ahead too few loads would be in flight. Past the end
  // this touches the next head's state, or nothing: a prefetch never faults.
  constexpr int64_t kRowsAhead = 16;
  const D4 d4;
  VF kS[4], qS[4];
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) kS[i] = qS[i] = hn::Zero(kD);
  int64_t c = 0;
  for (; c + kN <= K; c += kN) {
    const VF kd = hn::Load(kD, r.kd + c), qd = hn::Load(kD, r.qd + c);
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const VF old = hn::LoadU(kD, from + i * K + c);
      hwy::Prefetch(from + (i + kRowsAhead) * K + c);
      kS[i] = hn::MulAdd(old, kd, kS[i]);
      qS[i] = hn::MulAdd(old, qd, qS[i]);
    }
  }
  V4 k_sum = sum_lanes(kS[0], kS[1], kS[2], kS[3]), q_sum = sum_lanes(qS[0], qS[1], qS[2], qS[3]);
  const int64_t whole = c;
  for (; c < K; ++c) {
    HWY_ALIGN float column[4];
    for (int i = 0; i < 4; ++i) column[i] = from[i * K + c];
    k_sum = hn::MulAdd(hn::Load(d4, column), hn::Set(d4, r.kd[c]), k_sum);
    q_sum = hn::MulAdd(hn::Load(d4, column), hn::Set(d4, r.qd[c]), q_sum);
  }
  HWY_ALIGN float u[4];
  const V4 u4 = hn::Mul(hn::Set(d4, r.b), hn::Sub(hn::LoadU(d4, v), k_sum));
  hn::Store(u4, d4, u);
  hn::StoreU(hn::MulAdd(u4, hn::Set(d4, r.qk), q_sum), d4, o);
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const VF u_i = hn::Set(kD, u[i]);
    for (c = 0; c < whole; c += kN) {
      const VF old = hn::LoadU(kD, from + i * K + c);
      const VF added = hn::MulAdd(hn::Load(kD, r.k + c), u_i, hn::Mul(old, hn::Load(kD, r.lo + c)));
      store_state<kStream>(hn::MulAdd(old, hn::Load(kD, r.hi + c), added), to + i * K + c);
    }
    for (; c < K; ++c) {
      const float old = from[i * K + c];
      to[i * K + c] = old * r.hi[c] + (r.k[c] * u[i] + old * r.lo[c]);
    }
  }
}

// kWide vectors of value columns of [K,V].
template <int kWide, bool kStream>
HWY_INLINE void step_k_first(const TokenRows& r, int64_t K, int64_t V, const float* HWY_RESTRICT v, const float* from,
                             float* to, float* HWY_RESTRICT o) {
  VF u[kWide], out[kWide];
  HWY_UNROLL(8)
  for (int i = 0; i < kWide; ++i) u[i] = out[i] = hn::Zero(kD);
  for (int64_t k = 0; k < K; ++k) {
    const VF kd = hn::Set(kD, r.kd[k]), qd = hn::Set(kD, r.qd[k]);
    HWY_UNROLL(8)
    for (int i = 0; i < kWide; ++i) {
      const VF old = hn::LoadU(kD, from + k * V + i * kN);
      u[i] = hn::MulAdd(old, kd, u[i]);
      out[i] = hn::MulAdd(old, qd, out[i]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kWide; ++i) {
    u[i] = hn::Mul(hn::Set(kD, r.b), hn::Sub(hn::LoadU(kD, v + i * kN), u[i]));
    hn::StoreU(hn::MulAdd(u[i], hn::Set(kD, r.qk), out[i]), kD, o + i * kN);
  }
  for (int64_t k = 0; k < K; ++k) {
    const VF key = hn::Set(kD, r.k[k]), hi = hn::Set(kD, r.hi[k]), lo = hn::Set(kD, r.lo[k]);
    HWY_UNROLL(8)
    for (int i = 0; i < kWide; ++i) {
      const VF old = hn::LoadU(kD, from + k * V + i * kN);
      store_state<kStream>(hn::MulAdd(old, hi, hn::MulAdd(key, u[i], hn::Mul(old, lo))), to + k * V + i * kN);
    }
  }
}

// One value column of [K,V], where V is not a multiple of the vector.
inline void step_k_first_column(const TokenRows& r, int64_t K, int64_t V, float v, const float* from, float* to,
                                float* o) {
  float kS = 0.0f, qS = 0.0f;
  for (int64_t k = 0; k < K; ++k) {
    kS += from[k * V] * r.kd[k];
    qS += from[k * V] * r.qd[k];
  }
  const float u = r.b * (v - kS);
  *o = qS + r.qk * u;
  for (int64_t k = 0; k < K; ++k) {
    const float old = from[k * V];
    to[k * V] = old * r.hi[k] + (r.k[k] * u + old * r.lo[k]);
  }
}

template <bool kStream>
HWY_INLINE void step(const Problem& p, const TokenRows& r, Columns columns, const float* v_row, const float* from,
                     float* to, float* o) {
  int64_t v = columns.begin;
  if (p.state_layout == FKDA_STATE_V_FIRST) {
    for (; v < columns.end; v += 4) step_v_first<kStream>(r, p.K, v_row + v, from + v * p.K, to + v * p.K, o + v);
    return;
  }
  constexpr int kWide = kRows;  // twice as many accumulators
  for (; v + kWide * kN <= columns.end; v += kWide * kN) {
    step_k_first<kWide, kStream>(r, p.K, p.V, v_row + v, from + v, to + v, o + v);
  }
  for (; v + kN <= columns.end; v += kN) {
    step_k_first<1, kStream>(r, p.K, p.V, v_row + v, from + v, to + v, o + v);
  }
  for (; v < columns.end; ++v) step_k_first_column(r, p.K, p.V, v_row[v], from + v, to + v, o + v);
}

// Everything of token t but its value row. k, q, hi, lo and alpha of the scratch are used, and x for kd and qd.
template <int kKind>
inline TokenRows load_token(const Head& head, int64_t t, float b, const Scratch& s) {
  float* HWY_RESTRICT kd = s.x;
  float* HWY_RESTRICT qd = s.x + s.Kp;
  VF qk = hn::Zero(kD);
  load_qk(head, t, s.k, s.q, s.Kp);
  for_each_log_decay<kKind>(head, t, s.alpha, s.bias, s.Kp, [&](int64_t c, VF a) HWY_ATTR {
    VF hi, lo;
    split_exp(a, hi, lo);
    const VF k = hn::Load(kD, s.k + c), q = hn::Load(kD, s.q + c);
    hn::Store(hi, kD, s.hi + c);
    hn::Store(lo, kD, s.lo + c);
    hn::Store(hn::Mul(k, hi), kD, kd + c);
    hn::Store(hn::Mul(q, hi), kD, qd + c);
    qk = hn::MulAdd(q, k, qk);
  });
  return {s.k, kd, qd, s.hi, s.lo, hn::GetLane(hn::SumOfLanes(kD, qk)), b};
}

inline TokenRows load_token(const Head& head, int64_t t, float b, const Scratch& s) {
  switch (head.gate.kind) {
    case FKDA_GATE_BOUNDED: return load_token<FKDA_GATE_BOUNDED>(head, t, b, s);
    case FKDA_GATE_SOFTPLUS: return load_token<FKDA_GATE_SOFTPLUS>(head, t, b, s);
    default: return load_token<FKDA_GATE_LOG>(head, t, b, s);
  }
}

// Tokens [t0, t0 + rows): the first step reads `from` and all write `to` (fp32, caller's order; may be the same).
inline void run_tokens(const Head& head, int64_t t0, int64_t rows, const Scratch& s, Columns columns, const float* from,
                       float* to) {
  const Problem& p = head.p;
  load_beta(head, t0, rows, s.b);
  load_bias(head, s);
  for (int64_t t = t0; t < t0 + rows; ++t) {
    const TokenRows r = load_token(head, t, s.b[t - t0], s);
    load_row(head.row(p.v, t, head.hv) + columns.begin * dtype_size(p.v.dtype), p.v.dtype, columns.end - columns.begin,
             s.u + columns.begin);
    if (rows == 1 && should_stream(p, from, to)) {
      step<true>(p, r, columns, s.u, from, to, s.o);
    } else {
      step<false>(p, r, columns, s.u, from, to, s.o);
    }
    char* out = address(p.out, head.sequence.batch, head.sequence.begin + t, head.hv);
    store_row(s.o + columns.begin, columns.end - columns.begin, out + columns.begin * dtype_size(p.out.dtype),
              p.out.dtype);
    from = to;
  }
}

}  // namespace flashkda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FLASHKDA_CPU_TOKEN_INL_H_
