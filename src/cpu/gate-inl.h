// What happens to one token before any token meets another: gate, norms, beta. Compiled once per instruction set.
#if defined(FLASHKDA_CPU_GATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHKDA_CPU_GATE_INL_H_
#undef FLASHKDA_CPU_GATE_INL_H_
#else
#define FLASHKDA_CPU_GATE_INL_H_
#endif

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "cpu/convert-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

// exp(x) for x <= 88, to 0.6 ulp; 0 below -87.3, where the result leaves fp32's normal range; NaN stays NaN.
// x = n ln 2 + r with |r| <= ln(2)/2 and exp(r) = 1 + r + r^2 p(r), p the minimax polynomial of degree 4 (3e-9).
// Half the instructions of Highway's Exp, which also turns NaN into 0.
HWY_INLINE VF exp(VF x) {
  const hn::Rebind<int32_t, DF> d32;
  const VF shifter = hn::Set(kD, 0x1.8p23f);  // adding it rounds to an integer, in the low bits of the sum
  const VF shifted = hn::MulAdd(x, hn::Set(kD, 0x1.715476p+0f), shifter);
  const VF n = hn::Sub(shifted, shifter);
  VF r = hn::NegMulAdd(n, hn::Set(kD, 0x1.62e4p-1f), x);  // ln 2 in two parts: n * the first is exact
  r = hn::NegMulAdd(n, hn::Set(kD, 0x1.7f7d1cp-20f), r);
  VF p = hn::Set(kD, 0.0013814539415761828f);
  p = hn::MulAdd(p, r, hn::Set(kD, 0.00836874544620514f));
  p = hn::MulAdd(p, r, hn::Set(kD, 0.04166838899254799f));
  p = hn::MulAdd(p, r, hn::Set(kD, 0.1666652113199234f));
  p = hn::MulAdd(p, r, hn::Set(kD, 0.4999999403953552f));
  const VF y = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(kD, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(d32, shifted));
  const VF scaled = hn::BitCast(kD, hn::Add(hn::BitCast(d32, y), exponent));
  const VF below = hn::Max(hn::Zero(kD), x);  // 0, or NaN: Max returns its second argument then
  return hn::IfThenElse(hn::Ge(x, hn::Set(kD, -87.3f)), scaled, below);
}

// The clamp keeps exp finite; the sigmoid is below 1e-38 there. Two Newton steps take the approximate reciprocal of
// every instruction set (12 bits or more) to fp32, at a fraction of a division's cost.
HWY_INLINE VF sigmoid(VF x) {
  const VF e = exp(hn::Min(hn::Set(kD, 88.0f), hn::Neg(x)));
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

// The gate of one value head: g + dt_bias in, the log decay a (docs/algorithm.md, section 2) out.
struct Gate {
  int32_t kind;
  float lower_bound;
  float A_log;
  float exp_A;           // clamped to the finite, so that 0 * exp_A is 0 (A_log = 100 is legal)
  const float* dt_bias;  // [K] or null

  Gate(const Problem& p, int64_t hv)
      : kind(p.gate),
        lower_bound(p.lower_bound),
        A_log(present(p.A_log) ? static_cast<const float*>(p.A_log.data)[hv] : 0.0f),
        exp_A(std::min(std::exp(A_log), FLT_MAX)),  // which keeps NaN
        dt_bias(present(p.dt_bias) ? static_cast<const float*>(p.dt_bias.data) + hv * p.K : nullptr) {}

  template <int kKind>
  HWY_INLINE VF log_decay(VF x) const {
    if constexpr (kKind == FKDA_GATE_BOUNDED) {
      return hn::Mul(hn::Set(kD, lower_bound), sigmoid(hn::Mul(x, hn::Set(kD, exp_A))));
    } else if constexpr (kKind == FKDA_GATE_SOFTPLUS) {
      // Below -15 softplus(x) = exp(x) to fp32 accuracy and the product with exp(A_log) is taken in the exponent,
      // where exp(100) * exp(-200) neither overflows nor vanishes early.
      const VF zero = hn::Zero(kD);
      const VF tail = hn::Log1p(kD, exp(hn::Neg(hn::Abs(x))));
      const VF value = hn::Mul(hn::Set(kD, exp_A), hn::Add(hn::Max(zero, x), tail));
      const VF far = exp(hn::Min(hn::Set(kD, 88.0f), hn::Add(hn::Set(kD, A_log), x)));
      const VF magnitude = hn::IfThenElse(hn::Lt(x, hn::Set(kD, -15.0f)), far, value);
      return hn::IfThenElse(hn::IsNaN(x), x, hn::Neg(magnitude));
    } else {
      return x;
    }
  }
};

// exp(a) as hi + lo (eq. 26), so that a decay close to 1, applied 65536 times, does not drift by fp32's rounding of it.
HWY_INLINE void split_exp(VF a, VF& hi, VF& lo) {
  const VF one = hn::Set(kD, 1.0f);
  const VF em1 = hn::Expm1(kD, a);
  const VF near_hi = hn::Add(one, em1);
  const VF near_lo = hn::Sub(em1, hn::Sub(near_hi, one));  // exact while near_hi >= 1/2
  const auto near = hn::Gt(a, hn::Set(kD, -0.5f));
  hi = hn::IfThenElse(near, near_hi, exp(a));
  lo = hn::IfThenElseZero(near, near_lo);
}

HWY_INLINE float sum_of_squares(const float* HWY_RESTRICT row, int64_t Kp) {
  VF sum = hn::Zero(kD);
  for (int64_t i = 0; i < Kp; i += kN) {
    const VF x = hn::Load(kD, row + i);
    sum = hn::MulAdd(x, x, sum);
  }
  return hn::GetLane(hn::SumOfLanes(kD, sum));
}

// row <- row * factor / sqrt(sum(row^2) + 1e-6), or row * factor.
HWY_INLINE void normalise(float* HWY_RESTRICT row, int64_t Kp, bool l2norm, float factor) {
  if (l2norm) {
    float square = sum_of_squares(row, Kp);
    float epsilon = 1e-6f;
    if (!(square <= FLT_MAX)) {  // a row near the end of fp32's range: scaled down, so that 1/norm is a normal number
      for (int64_t i = 0; i < Kp; i += kN) {
        hn::Store(hn::Mul(hn::Load(kD, row + i), hn::Set(kD, 0x1p-70f)), kD, row + i);
      }
      square = sum_of_squares(row, Kp);
      epsilon = 0.0f;  // nothing beside such a row
    }
    const float norm = 1.0f / std::sqrt(square + epsilon);
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
