// What happens to one token before any token meets another: gate, norms, beta. Compiled once per instruction set.
#if defined(FLASHKDA_CPU_GATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHKDA_CPU_GATE_INL_H_
#undef FLASHKDA_CPU_GATE_INL_H_
#else
#define FLASHKDA_CPU_GATE_INL_H_
#endif

#include <cfloat>
#include <cmath>

#include "cpu/convert-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

// exp for x <= 88, with NaN kept (Highway's Exp turns it into 0).
HWY_INLINE VF exp_keep_nan(VF x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(kD, x)); }

// The clamp keeps exp finite; the sigmoid is below 1e-38 there. Two Newton steps take the approximate reciprocal of
// every instruction set (12 bits or more) to fp32, at a fraction of a division's cost.
HWY_INLINE VF sigmoid(VF x) {
  const VF e = exp_keep_nan(hn::Min(hn::Set(kD, 88.0f), hn::Neg(x)));
  const VF d = hn::Add(hn::Set(kD, 1.0f), e);
  VF r = hn::ApproximateReciprocal(d);
  r = hn::MulAdd(r, hn::NegMulAdd(d, r, hn::Set(kD, 1.0f)), r);
  return hn::MulAdd(r, hn::NegMulAdd(d, r, hn::Set(kD, 1.0f)), r);
}

// b[0..n) <- activation of b; n is rounded up to whole vectors.
HWY_INLINE void activate_beta(float* HWY_RESTRICT b, int64_t n, int32_t activation) {
  if (activation == FKDA_BETA_ACTIVATED) return;
  const VF factor = hn::Set(kD, activation == FKDA_BETA_TWICE_SIGMOID ? 2.0f : 1.0f);
  for (int64_t i = 0; i < n; i += kN) hn::Store(hn::Mul(factor, sigmoid(hn::Load(kD, b + i))), kD, b + i);
}

// The gate of one value head: its parameters, and the log decay of a token (spec section 1).
struct Gate {
  int32_t kind;
  float lower_bound;
  float A_log;
  float exp_A;          // clamped to the finite, so that 0 * exp_A is 0 (A_log = 100 is legal)
  const float* dt_bias; // [K] or null

  Gate(const Problem& p, int64_t hv)
      : kind(p.gate),
        lower_bound(p.lower_bound),
        A_log(present(p.A_log) ? static_cast<const float*>(p.A_log.data)[hv] : 0.0f),
        exp_A(std::fmin(std::exp(A_log), FLT_MAX)),
        dt_bias(present(p.dt_bias) ? static_cast<const float*>(p.dt_bias.data) + hv * p.K : nullptr) {}

  // row[0..Kp): g on entry, the log decay a on return. Padding channels must hold 0.
  HWY_INLINE void log_decay(float* HWY_RESTRICT row, int64_t K, int64_t Kp) const {
    if (kind == FKDA_GATE_LOG) return;
    if (dt_bias != nullptr) {
      int64_t i = 0;
      for (; i + kN <= K; i += kN) {
        hn::Store(hn::Add(hn::Load(kD, row + i), hn::LoadU(kD, dt_bias + i)), kD, row + i);
      }
      for (; i < K; ++i) row[i] += dt_bias[i];
    }
    for (int64_t i = 0; i < Kp; i += kN) {
      const VF x = hn::Load(kD, row + i);
      hn::Store(kind == FKDA_GATE_BOUNDED ? bounded(x) : softplus(x), kD, row + i);
    }
  }

 private:
  // lower_bound * sigmoid(exp(A_log) x)
  HWY_INLINE VF bounded(VF x) const {
    return hn::Mul(hn::Set(kD, lower_bound), sigmoid(hn::Mul(x, hn::Set(kD, exp_A))));
  }

  // -exp(A_log) * softplus(x). Below -15 softplus(x) = exp(x) to fp32 accuracy and the product is taken in the
  // exponent, where exp(100) * exp(-200) neither overflows nor vanishes early.
  HWY_INLINE VF softplus(VF x) const {
    const VF zero = hn::Zero(kD);
    const VF tail = hn::Log1p(kD, hn::Exp(kD, hn::Neg(hn::Abs(x))));
    const VF value = hn::Mul(hn::Set(kD, exp_A), hn::Add(hn::Max(zero, x), tail));
    const VF exponent = hn::Min(hn::Set(kD, 88.0f), hn::Add(hn::Set(kD, A_log), x));
    const VF far = hn::Exp(kD, exponent);
    const VF magnitude = hn::IfThenElse(hn::Lt(x, hn::Set(kD, -15.0f)), far, value);
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Neg(magnitude));
  }
};

// exp(a) as hi + lo, so that a decay close to 1, applied 65536 times, does not drift by fp32's rounding of it.
HWY_INLINE void split_exp(VF a, VF& hi, VF& lo) {
  const VF one = hn::Set(kD, 1.0f);
  const VF em1 = hn::Expm1(kD, a);
  const VF near_hi = hn::Add(one, em1);
  const VF near_lo = hn::Sub(em1, hn::Sub(near_hi, one));  // exact while near_hi >= 1/2
  const auto near = hn::Gt(a, hn::Set(kD, -0.5f));
  hi = hn::IfThenElse(near, near_hi, exp_keep_nan(a));
  lo = hn::IfThenElseZero(near, near_lo);
}

// row <- row * factor / sqrt(sum(row^2) + 1e-6), or row * factor.
HWY_INLINE void normalise(float* HWY_RESTRICT row, int64_t Kp, bool l2norm, float factor) {
  if (l2norm) {
    VF sum = hn::Zero(kD);
    for (int64_t i = 0; i < Kp; i += kN) {
      const VF x = hn::Load(kD, row + i);
      sum = hn::MulAdd(x, x, sum);
    }
    const float square = hn::GetLane(hn::SumOfLanes(kD, sum));
    float norm = 1.0f / std::sqrt(square + 1e-6f);
    if (!(square <= FLT_MAX)) {  // a row near the end of fp32's range: its squares need fp64's
      double wide = 1e-6;
      for (int64_t i = 0; i < Kp; ++i) wide += static_cast<double>(row[i]) * static_cast<double>(row[i]);
      norm = static_cast<float>(1.0 / std::sqrt(wide));
    }
    // norm * factor may leave fp32's normal range where the product does not: two multiplications.
    for (int64_t i = 0; i < Kp; i += kN) {
      const VF x = hn::Load(kD, row + i);
      hn::Store(hn::Mul(hn::Mul(x, hn::Set(kD, norm)), hn::Set(kD, factor)), kD, row + i);
    }
  } else if (factor != 1.0f) {
    for (int64_t i = 0; i < Kp; i += kN) {
      hn::Store(hn::Mul(hn::Load(kD, row + i), hn::Set(kD, factor)), kD, row + i);
    }
  }
}

}  // namespace flashkda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FLASHKDA_CPU_GATE_INL_H_
