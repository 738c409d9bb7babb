// The recurrence of spec section 1 token by token, on the fp32 state in the caller's order: decode steps and short
// tails. Compiled once per instruction set.
#if defined(FLASHKDA_CPU_TOKEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHKDA_CPU_TOKEN_INL_H_
#undef FLASHKDA_CPU_TOKEN_INL_H_
#else
#define FLASHKDA_CPU_TOKEN_INL_H_
#endif

#include "cpu/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

// One token's vectors. kd = k o exp(a) meets the old state, so that the state is read once for S^T k and once for the
// update: S' = S o exp(a) + k u^T with u = b (v - S^T kd).
struct TokenRows {
  const float *k, *q, *kd, *hi, *lo;
};

// Rows of [V,K]: value column v is a row of K.
HWY_INLINE void step_v_first(const TokenRows& r, int64_t K, float v, float b, const float* from, float* to, float* o) {
  int64_t c = 0;
  VF sum = hn::Zero(kD);
  for (; c + kN <= K; c += kN) sum = hn::MulAdd(hn::LoadU(kD, from + c), hn::Load(kD, r.kd + c), sum);
  float kS = hn::GetLane(hn::SumOfLanes(kD, sum));
  for (; c < K; ++c) kS += from[c] * r.kd[c];

  const float u = b * (v - kS);
  const VF u_v = hn::Set(kD, u);
  VF out = hn::Zero(kD);
  for (c = 0; c + kN <= K; c += kN) {
    const VF old = hn::LoadU(kD, from + c);
    const VF added = hn::MulAdd(hn::Load(kD, r.k + c), u_v, hn::Mul(old, hn::Load(kD, r.lo + c)));
    const VF now = hn::MulAdd(old, hn::Load(kD, r.hi + c), added);
    hn::StoreU(now, kD, to + c);
    out = hn::MulAdd(now, hn::Load(kD, r.q + c), out);
  }
  float qS = hn::GetLane(hn::SumOfLanes(kD, out));
  for (; c < K; ++c) {
    const float now = from[c] * r.hi[c] + (r.k[c] * u + from[c] * r.lo[c]);
    to[c] = now;
    qS += now * r.q[c];
  }
  *o = qS;
}

// Rows of [K,V]: kWide vectors of value columns at a time.
template <int kWide>
HWY_INLINE void step_k_first(const TokenRows& r, int64_t K, int64_t V, const float* HWY_RESTRICT v, float b,
                             const float* from, float* to, float* HWY_RESTRICT o) {
  VF u[kWide], out[kWide];
  HWY_UNROLL(4)
  for (int i = 0; i < kWide; ++i) u[i] = out[i] = hn::Zero(kD);
  for (int64_t k = 0; k < K; ++k) {
    const VF kd = hn::Set(kD, r.kd[k]);
    HWY_UNROLL(4)
    for (int i = 0; i < kWide; ++i) u[i] = hn::MulAdd(hn::LoadU(kD, from + k * V + i * kN), kd, u[i]);
  }
  HWY_UNROLL(4)
  for (int i = 0; i < kWide; ++i) u[i] = hn::Mul(hn::Set(kD, b), hn::Sub(hn::LoadU(kD, v + i * kN), u[i]));
  for (int64_t k = 0; k < K; ++k) {
    const VF key = hn::Set(kD, r.k[k]), q = hn::Set(kD, r.q[k]);
    const VF hi = hn::Set(kD, r.hi[k]), lo = hn::Set(kD, r.lo[k]);
    HWY_UNROLL(4)
    for (int i = 0; i < kWide; ++i) {
      const VF old = hn::LoadU(kD, from + k * V + i * kN);
      const VF now = hn::MulAdd(old, hi, hn::MulAdd(key, u[i], hn::Mul(old, lo)));
      hn::StoreU(now, kD, to + k * V + i * kN);
      out[i] = hn::MulAdd(now, q, out[i]);
    }
  }
  HWY_UNROLL(4)
  for (int i = 0; i < kWide; ++i) hn::StoreU(out[i], kD, o + i * kN);
}

// The same for a single column, where V is not a multiple of the vector.
inline void step_k_first_column(const TokenRows& r, int64_t K, int64_t V, float v, float b, const float* from,
                                float* to, float* o) {
  float kS = 0.0f, qS = 0.0f;
  for (int64_t k = 0; k < K; ++k) kS += from[k * V] * r.kd[k];
  const float u = b * (v - kS);
  for (int64_t k = 0; k < K; ++k) {
    const float old = from[k * V];
    const float now = old * r.hi[k] + (r.k[k] * u + old * r.lo[k]);
    to[k * V] = now;
    qS += now * r.q[k];
  }
  *o = qS;
}

// hi, lo and kd of one token.
template <int kKind>
inline void load_token_decay(const Head& head, int64_t t, const Scratch& s, float* HWY_RESTRICT kd) {
  for_each_log_decay<kKind>(head, t, s.alpha, s.bias, s.Kp, [&](int64_t c, VF a) HWY_ATTR {
    VF hi, lo;
    split_exp(a, hi, lo);
    hn::Store(hi, kD, s.hi + c);
    hn::Store(lo, kD, s.lo + c);
    hn::Store(hn::Mul(hn::Load(kD, s.k + c), hi), kD, kd + c);
  });
}

// Tokens [t0, t0 + rows): the first step reads `from` and all write `to` (fp32, caller's order; may be the same).
inline void run_tokens(const Head& head, int64_t t0, int64_t rows, const Scratch& s, Columns columns,
                       const float* from, float* to) {
  const Problem& p = head.p;
  const TokenRows r{s.k, s.q, s.kr, s.hi, s.lo};
  load_beta(head, t0, rows, s.b);
  load_bias(head, s);
  for (int64_t t = t0; t < t0 + rows; ++t) {
    load_qk(head, t, s.k, s.q, s.Kp);
    switch (head.gate.kind) {
      case FKDA_GATE_BOUNDED: load_token_decay<FKDA_GATE_BOUNDED>(head, t, s, s.kr); break;
      case FKDA_GATE_SOFTPLUS: load_token_decay<FKDA_GATE_SOFTPLUS>(head, t, s, s.kr); break;
      default: load_token_decay<FKDA_GATE_LOG>(head, t, s, s.kr);
    }
    const float b = s.b[t - t0];
    load_row(head.row(p.v, t, head.hv) + columns.begin * dtype_size(p.v.dtype), p.v.dtype,
             columns.end - columns.begin, s.u + columns.begin);
    if (p.state_layout == FKDA_STATE_V_FIRST) {
      for (int64_t v = columns.begin; v < columns.end; ++v) {
        step_v_first(r, p.K, s.u[v], b, from + v * p.K, to + v * p.K, s.o + v);
      }
    } else {
      int64_t v = columns.begin;
      for (; v + 4 * kN <= columns.end; v += 4 * kN) {
        step_k_first<4>(r, p.K, p.V, s.u + v, b, from + v, to + v, s.o + v);
      }
      for (; v + kN <= columns.end; v += kN) step_k_first<1>(r, p.K, p.V, s.u + v, b, from + v, to + v, s.o + v);
      for (; v < columns.end; ++v) step_k_first_column(r, p.K, p.V, s.u[v], b, from + v, to + v, s.o + v);
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
