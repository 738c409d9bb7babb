// The oracle against results known by hand, against a second implementation, and against its own contract.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/validate.hpp"
#include "reference/dense_kda.hpp"
#include "reference/gate.hpp"
#include "reference/oracle.hpp"
#include "support/case.hpp"

namespace flashkda::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const RunOptions kReference = {.backend = "reference"};

// Both are NaN (not written), or |actual - expected| <= relative * |expected| + absolute, element by element.
testing::AssertionResult near(const Tensor& actual, const Tensor& expected, double relative, double absolute) {
  if (actual.shape() != expected.shape()) return testing::AssertionFailure() << "shapes differ";
  for (int64_t i = 0; i < actual.numel(); ++i) {
    const double x = actual.get(i), y = expected.get(i);
    if (std::isnan(x) && std::isnan(y)) continue;
    if (!(std::fabs(x - y) <= relative * std::fabs(y) + absolute))
      return testing::AssertionFailure() << "element " << i << " is " << testing::PrintToString(x) << ", expected "
                                         << testing::PrintToString(y);
  }
  return testing::AssertionSuccess();
}

// Half a unit in the last place of a stored dtype, relative to the value, and its smallest step.
double rounding(int32_t dtype) {
  switch (dtype) {
    case FKDA_BFLOAT16: return 0x1p-8;
    case FKDA_FLOAT16: return 0x1p-11;
    case FKDA_FLOAT32: return 0x1p-24;
    default: return 0.0;
  }
}

void expect_equal(const Outputs& actual, const Outputs& expected) {
  for (const auto member :
       {&Outputs::out, &Outputs::final_state, &Outputs::checkpoints, &Outputs::intermediate_states}) {
    const Tensor& x = actual.*member;
    ASSERT_EQ(x.present(), (expected.*member).present());
    if (x.present()) {
      EXPECT_TRUE(near(x, expected.*member, 1e-12 + rounding(x.dtype()), x.dtype() == FKDA_FLOAT16 ? 0x1p-25 : 1e-12));
    }
  }
}

// A case without gate, normalisation and activation: what the tensors hold is what the recurrence sees. All zero.
Case plain(const Spec& wanted) {
  Spec spec = wanted;
  spec.dtype = FKDA_FLOAT32;
  spec.gate = FKDA_GATE_LOG;
  spec.beta = FKDA_BETA_ACTIVATED;
  spec.qk_l2norm = 0;
  Case c(spec);
  for (Tensor* tensor : {&c.q, &c.k, &c.v, &c.g, &c.beta}) tensor->fill(0.0);
  c.options.scale = 1.0f;
  return c;
}

const Want kWide = {.out = FKDA_FLOAT64, .final_state = FKDA_FLOAT64};

// ------------------------------------------------------------------------------------------ known by hand

TEST(Oracle, OneTokenWritesOneElement) {
  for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
    Case c = plain({.T = 1, .K = 4, .V = 3, .state_layout = layout});
    c.k.set_at({0, 0, 0, 0}, 1.0);
    c.v.set_at({0, 0, 0, 1}, 1.0);
    c.beta.fill(1.0);
    c.q.set_at({0, 0, 0, 0}, 3.0);
    c.options.scale = 0.5f;
    const Outputs outputs = run(c, kWide, kReference);
    for (int64_t k = 0; k < 4; ++k) {
      for (int64_t v = 0; v < 3; ++v) {
        const double element =
            layout == FKDA_STATE_V_FIRST ? outputs.final_state.at({0, 0, v, k}) : outputs.final_state.at({0, 0, k, v});
        EXPECT_EQ(element, k == 0 && v == 1 ? 1.0 : 0.0) << "k " << k << " v " << v << " layout " << layout;
      }
    }
    EXPECT_EQ(outputs.out.values(), (std::vector<double>{0.0, 1.5, 0.0}));
  }
}

TEST(Oracle, TwoTokensDecayThenCorrect) {
  Case c = plain({.T = 2, .K = 2, .V = 1});
  c.k.set_at({0, 0, 0, 0}, 1.0);
  c.v.set_at({0, 0, 0, 0}, 1.0);
  c.beta.set_at({0, 0, 0}, 1.0);  // S = (1, 0)
  c.g.set_at({0, 1, 0, 0}, -1.0);
  c.k.set_at({0, 1, 0, 0}, 1.0);
  c.k.set_at({0, 1, 0, 1}, 2.0);
  c.v.set_at({0, 1, 0, 0}, 3.0);
  c.beta.set_at({0, 1, 0}, 0.5);  // S' = (1/e, 0), u = 0.5 (3 - 1/e), S = (1/e + u, 2 u)
  c.q.set_at({0, 1, 0, 0}, 1.0);
  c.q.set_at({0, 1, 0, 1}, 1.0);
  const Outputs outputs = run(c, kWide, kReference);
  const double decayed = std::exp(-1.0), u = 0.5 * (3.0 - decayed);
  EXPECT_NEAR(outputs.final_state.at({0, 0, 0, 0}), decayed + u, 1e-15);
  EXPECT_NEAR(outputs.final_state.at({0, 0, 0, 1}), 2.0 * u, 1e-15);
  EXPECT_EQ(outputs.out.at({0, 0, 0, 0}), 0.0);
  EXPECT_NEAR(outputs.out.at({0, 1, 0, 0}), decayed + 3.0 * u, 1e-15);
}

TEST(Oracle, NormalisationHasItsEpsilon) {
  Case c = plain({.T = 2, .K = 2, .V = 1});
  c.options.qk_l2norm = 1;
  c.beta.fill(1.0);
  c.v.fill(1.0);
  c.k.set_at({0, 0, 0, 0}, 3.0);  // norm 5
  c.k.set_at({0, 0, 0, 1}, 4.0);
  c.q.set_at({0, 0, 0, 0}, 1e-3);  // the sum of squares equals the epsilon
  c.g.fill(-kInfinity);            // token 1 sees an empty state
  c.k.set_at({0, 1, 0, 1}, 1e18);
  c.q.set_at({0, 1, 0, 1}, 1e18);
  const Outputs outputs = run(c, kWide, kReference);
  const double small = static_cast<double>(1e-3f);
  EXPECT_NEAR(outputs.out.at({0, 0, 0, 0}), 3.0 / std::sqrt(25.0 + 1e-6) * small / std::sqrt(small * small + 1e-6),
              1e-15);
  EXPECT_NEAR(outputs.out.at({0, 1, 0, 0}), 1.0, 1e-15);
  EXPECT_NEAR(outputs.final_state.at({0, 0, 0, 1}), 1.0, 1e-15);
  EXPECT_EQ(outputs.final_state.at({0, 0, 0, 0}), 0.0);
}

TEST(Oracle, ValueHeadReadsKeyHeadByDivision) {
  Case c = plain({.T = 1, .H = 2, .HV = 6, .K = 1, .V = 1});
  c.k.set_at({0, 0, 0, 0}, 1.0);
  c.k.set_at({0, 0, 1, 0}, 10.0);
  c.beta.fill(1.0);
  for (int64_t head = 0; head < 6; ++head) c.v.set_at({0, 0, head, 0}, static_cast<double>(head + 1));
  const Outputs outputs = run(c, kWide, kReference);
  EXPECT_EQ(outputs.final_state.values(), (std::vector<double>{1, 2, 3, 40, 50, 60}));
}

// ------------------------------------------------------------------------------------------ gates at their limits

TEST(Gate, SoftplusUnderAHugeRate) {
  EXPECT_EQ(std::exp(softplus_gate(-200.0, 100.0)), 1.0);  // in fp32 exp(100) is infinite and softplus(-200) is 0
  EXPECT_EQ(std::exp(softplus_gate(-50.0, 100.0)), 0.0);
  EXPECT_NEAR(softplus_gate(-795.0, 795.5), -std::exp(0.5), 1e-12);  // either factor alone leaves the range of fp64
  EXPECT_EQ(softplus_gate(-1e30, 1e3), 0.0);
  EXPECT_EQ(softplus_gate(0.0, 1e3), -kInfinity);  // decay 0, never NaN
}

TEST(Gate, SoftplusOfLargeAndOrdinaryArguments) {
  EXPECT_EQ(softplus_gate(1e5, 0.0), -1e5);
  EXPECT_NEAR(softplus_gate(0.0, std::log(3.0)), -3.0 * std::log(2.0), 1e-15);
  EXPECT_NEAR(softplus_gate(1.25, 0.0), -std::log1p(std::exp(1.25)), 1e-15);
  const double below = softplus_gate(std::nextafter(-40.0, -41.0), 0.0), above = softplus_gate(-40.0, 0.0);
  EXPECT_NEAR(below / above, 1.0, 1e-14);  // the two forms meet
}

TEST(Gate, BoundedSaturates) {
  EXPECT_EQ(bounded_gate(0.0, 1e3, -5.0), -2.5);  // exp(1e3) * 0 is 0
  EXPECT_EQ(bounded_gate(1e-3, 1e3, -5.0), -5.0);
  EXPECT_EQ(bounded_gate(-1e-3, 1e3, -5.0), 0.0);
  EXPECT_NEAR(bounded_gate(2.0, std::log(0.5), -4.0), -4.0 / (1.0 + std::exp(-1.0)), 1e-15);
}

TEST(Gate, BetaForms) {
  fkda_problem p;
  fkda_problem_init(&p);
  EXPECT_EQ(activate_beta(p, kInfinity), 1.0);
  EXPECT_EQ(activate_beta(p, -kInfinity), 0.0);
  EXPECT_NEAR(activate_beta(p, -100.0), std::exp(-100.0), 1e-57);
  p.beta_activation = FKDA_BETA_TWICE_SIGMOID;
  EXPECT_EQ(activate_beta(p, 0.0), 1.0);
  p.beta_activation = FKDA_BETA_ACTIVATED;
  EXPECT_EQ(activate_beta(p, 0.75), 0.75);
}

TEST(Oracle, ExtremeInputsStayFinite) {
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
    Case c({.T = 12, .H = 1, .K = 4, .V = 4, .dtype = FKDA_FLOAT32, .gate = gate});
    const double logits[] = {kInfinity, -kInfinity, 100.0, -100.0};
    const double gates[] = {-200.0, -50.0, -1000.0, 0.0};
    for (int64_t t = 0; t < 12; ++t) {
      c.beta.set_at({0, t, 0}, logits[t % 4]);
      for (int64_t i = 0; i < 4; ++i) c.g.set_at({0, t, 0, i}, gates[(t + i) % 4]);
    }
    if (c.A_log.present()) c.A_log.fill(100.0);
    if (c.dt_bias.present()) c.dt_bias.fill(0.0);
    for (int64_t i = 0; i < 4; ++i) {
      c.q.set_at({0, 2, 0, i}, 0.0);
      c.k.set_at({0, 3, 0, i}, 0.0);
      c.k.set_at({0, 4, 0, i}, 1e-20);
      c.k.set_at({0, 5, 0, i}, 1e18);
      c.q.set_at({0, 5, 0, i}, 1e18);
    }
    const Outputs outputs = run(c, kWide, kReference);
    EXPECT_TRUE(all_finite(outputs.out)) << "gate " << gate;
    EXPECT_TRUE(all_finite(outputs.final_state)) << "gate " << gate;
    EXPECT_TRUE(all_zero(outputs.out.narrow(1, 2, 1))) << "the output of an all-zero q";
  }
}

// ------------------------------------------------------------------------------- against the second implementation

template <typename T>
T pick(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.integer(0, static_cast<int64_t>(choices.size()) - 1)];
}

Spec random_spec(Random& random, uint64_t seed) {
  const auto coin = [&] { return random.integer(0, 1) == 1; };
  Spec spec;
  spec.seed = seed;
  spec.H = random.integer(1, 2);
  spec.HV = spec.H * random.integer(1, 3);
  spec.K = random.integer(1, 9);
  spec.V = random.integer(1, 7);
  if (coin()) {
    spec.cu = {0};
    for (int64_t n = random.integer(0, 4); n > 0; --n)
      spec.cu.push_back(spec.cu.back() + (coin() ? random.integer(0, 5) : random.integer(0, 40)));
  } else {
    spec.B = random.integer(1, 3);
    spec.T = random.integer(0, 40);
  }
  const int64_t N = spec.cu.empty() ? spec.B : static_cast<int64_t>(spec.cu.size()) - 1;
  spec.dtype = pick(random, {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32});
  spec.g_dtype = pick<int32_t>(random, {kAbsent, FKDA_FLOAT32});
  spec.beta_dtype = pick<int32_t>(random, {kAbsent, FKDA_FLOAT32});
  spec.cu_dtype = pick(random, {FKDA_INT32, FKDA_INT64});
  spec.gate = pick(random, {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG});
  spec.beta = pick(random, {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID, FKDA_BETA_ACTIVATED});
  spec.qk_l2norm = coin();
  spec.A_log = coin();
  spec.dt_bias = coin();
  spec.initial_state = pick<int32_t>(random, {kAbsent, FKDA_FLOAT32, FKDA_BFLOAT16, FKDA_FLOAT64});
  spec.state_layout = pick(random, {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST});
  if (spec.initial_state != kAbsent && N > 0 && coin()) {  // a pool: slot 2 n + 1 of 2 N + 1, or none
    spec.slots = 2 * N + 1;
    for (int64_t n = N - 1; n >= 0; --n) spec.indices.push_back(coin() ? 2 * n + 1 : -1);
    spec.index_dtype = pick(random, {FKDA_INT32, FKDA_INT64});
  }
  if (N > 0 && coin()) {
    for (int64_t n = 0; n < N; ++n) {
      const int64_t length =
          spec.cu.empty() ? spec.T : spec.cu[static_cast<size_t>(n) + 1] - spec.cu[static_cast<size_t>(n)];
      spec.checkpoint_offsets.push_back({16 * random.integer(0, length / 16), -1, length / 16 * 16});
    }
    spec.checkpoint_offset_dtype = pick(random, {FKDA_INT32, FKDA_INT64});
  }
  return spec;
}

TEST(Oracle, AgreesWithDenseMatricesForEveryMixOfOptions) {
  Random random(20);
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Spec spec = random_spec(random, seed);
    Case c(spec);
    c.options.lower_bound = static_cast<float>(random.uniform(-5.0, -0.1));
    if (random.integer(0, 1)) c.options.scale = 0.75f;
    if (random.integer(0, 1)) {  // tokens and heads with gaps between them
      for (Tensor* tensor : {&c.q, &c.k, &c.v, &c.g}) {
        const std::vector<int64_t>& shape = tensor->shape();
        const int64_t head = shape[3] + 3, token = head * shape[2] + 5;
        *tensor = tensor->with_stride({token * shape[1] + 7, token, head, 1});
      }
      c.beta = c.beta.with_stride({(c.HV + 2) * c.T + 1, c.HV + 2, 1});
    }
    Want want;
    want.out = pick(random, {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32, FKDA_FLOAT64});
    want.final_state = pick<int32_t>(random, {kAbsent, FKDA_FLOAT32, FKDA_BFLOAT16, FKDA_FLOAT64});
    want.checkpoints = pick<int32_t>(random, {FKDA_FLOAT32, FKDA_BFLOAT16, FKDA_FLOAT64});
    want.intermediate_states = pick<int32_t>(random, {kAbsent, FKDA_FLOAT32, FKDA_BFLOAT16, FKDA_FLOAT64});
    want.intermediate_every = pick<int64_t>(random, {16, 32});
    want.in_place = spec.initial_state != kAbsent && random.integer(0, 1);

    Outputs actual = c.make_outputs(want);
    if (random.integer(0, 1)) {  // the output too; a state with a padded slot and head stride
      actual.out =
          Tensor::strided(want.out, {c.B, c.T, c.HV, c.V}, {(c.V + 1) * c.HV * c.T + 2, (c.V + 1) * c.HV, c.V + 1, 1});
      if (actual.final_state.present()) {
        const int64_t head = c.K * c.V + 4;
        actual.final_state = actual.final_state.with_stride({head * c.HV + 1, head, actual.final_state.shape()[3], 1});
      }
    }
    forward(c, actual, kReference);
    expect_equal(actual, dense_kda(c, want));
    if (HasFailure()) return;
  }
}

// ------------------------------------------------------------------------------------------ contracts

TEST(Oracle, EmptySequencesKeepTheirStateBitForBit) {
  for (const std::vector<int64_t>& cu :
       std::vector<std::vector<int64_t>>{{0, 0, 5}, {0, 5, 5}, {0, 5, 5, 5, 9}, {0, 0}, {0, 0, 0}, {0}}) {
    for (const int32_t dtype : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
      for (const bool in_place : {false, true}) {
        Case c({.K = 4, .V = 3, .cu = cu, .initial_state = dtype});
        if (c.N == 0) c.initial_state = Tensor(dtype, c.state_shape(0));
        for (int64_t n = 0; n < c.N; ++n)  // NaNs with a payload, signalling ones too
          if (c.length(n) == 0) {
            Tensor state = c.initial_state.narrow(0, n, 1);
            if (dtype == FKDA_FLOAT32) {
              static_cast<uint32_t*>(state.data())[1] = 0x7f812345u;
            } else {
              static_cast<uint16_t*>(state.data())[1] = 0xff8au;
            }
          }
        Outputs outputs = run(c, {.final_state = dtype, .in_place = in_place}, kReference);
        for (int64_t n = 0; n < c.N; ++n)
          if (c.length(n) == 0) {
            EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, n, 1), c.initial_state.narrow(0, n, 1)));
          }
      }
    }
  }
}

TEST(Oracle, EmptySequenceWithoutStateEndsInZero) {
  const Case c({.K = 4, .V = 3, .cu = {0, 0, 3}});
  const Outputs outputs = run(c, {.final_state = FKDA_BFLOAT16}, kReference);
  EXPECT_TRUE(all_zero(outputs.final_state.narrow(0, 0, 1)));
}

TEST(Oracle, NoTokensAtAll) {
  const Case c({.B = 2, .T = 0, .K = 4, .V = 3, .initial_state = FKDA_FLOAT32});
  const Outputs outputs = run(c, {}, kReference);
  EXPECT_TRUE(same_bits(outputs.final_state, c.initial_state));
}

TEST(Oracle, NeighboursNeverReachASequence) {
  for (const double poison : {1e4, std::nan("")}) {
    Case c({.H = 2, .K = 4, .V = 3, .cu = {0, 7, 20, 31}, .initial_state = FKDA_FLOAT32});
    const Outputs clean = run(c, kWide, kReference);
    for (Tensor* tensor : {&c.q, &c.k, &c.v, &c.g, &c.beta}) {
      tensor->narrow(1, 0, 7).fill(poison);
      tensor->narrow(1, 20, 11).fill(poison);
    }
    c.initial_state.narrow(0, 0, 1).fill(poison);
    c.initial_state.narrow(0, 2, 1).fill(poison);
    const Outputs poisoned = run(c, kWide, kReference);
    EXPECT_TRUE(same_bits(poisoned.out.narrow(1, 7, 13), clean.out.narrow(1, 7, 13)));
    EXPECT_TRUE(same_bits(poisoned.final_state.narrow(0, 1, 1), clean.final_state.narrow(0, 1, 1)));
  }
}

TEST(Oracle, RowsOutsideEverySequenceAreNotWritten) {
  const Case c({.K = 4, .V = 3, .cu = {0, 4, 9}});
  const Outputs outputs = c.make_outputs(kWide);
  const Problem p = validate(c.problem(outputs));
  // Validation wants a packed batch to be covered. A caller on a device may still leave rows out, so the oracle follows
  // the values it finds when it runs.
  auto* cu = static_cast<int64_t*>(c.cu_seqlens.data());
  cu[0] = 2;
  cu[2] = 7;
  Buffer workspace(reference_workspace_size(p));
  forward_reference(p, workspace.data(), nullptr);
  EXPECT_TRUE(untouched(outputs.out.narrow(1, 0, 2)));
  EXPECT_TRUE(all_finite(outputs.out.narrow(1, 2, 5)));
  EXPECT_TRUE(untouched(outputs.out.narrow(1, 7, 2)));
}

TEST(Oracle, PoolTouchesTheNamedSlotsOnly) {
  for (const int32_t index_dtype : {FKDA_INT32, FKDA_INT64}) {
    for (const std::vector<int64_t>& indices : std::vector<std::vector<int64_t>>{{-1, 3}, {3, -1, -1}, {-1}}) {
      std::vector<int64_t> cu = {0};
      for (size_t n = 0; n < indices.size(); ++n) cu.push_back(cu.back() + 6);
      Case c({.K = 4,
              .V = 3,
              .cu = cu,
              .initial_state = FKDA_FLOAT32,
              .slots = 5,
              .indices = indices,
              .index_dtype = index_dtype});
      const Outputs outputs = run(c, {.out = FKDA_FLOAT64, .in_place = true}, kReference);
      for (int64_t slot = 0; slot < 5; ++slot) {
        const bool used = std::find(indices.begin(), indices.end(), slot) != indices.end();
        EXPECT_EQ(bool(same_bits(outputs.final_state.narrow(0, slot, 1), c.initial_state.narrow(0, slot, 1))), !used)
            << "slot " << slot;
      }
      for (int64_t n = 0; n < c.N; ++n) {  // each sequence alone, from its slot or from zero
        const Outputs alone = run(c.sequence(n), kWide, kReference);
        EXPECT_TRUE(same_bits(outputs.out.narrow(1, 6 * n, 6), alone.out));
      }
    }
  }
}

TEST(Oracle, OldContentsOfAFreshSlotAreNeverRead) {
  Case c({.K = 4, .V = 3, .cu = {0, 6}, .initial_state = FKDA_FLOAT32, .slots = 5, .indices = {-1}});
  c.initial_state.fill(std::nan(""));
  EXPECT_TRUE(all_finite(run(c, {.out = FKDA_FLOAT64, .in_place = true}, kReference).out));
}

TEST(Oracle, ResumingIsTheSameComputation) {
  const Case whole({.T = 50, .H = 2, .HV = 4, .K = 8, .V = 6, .initial_state = FKDA_FLOAT64});
  const Outputs at_once = run(whole, kWide, kReference);
  const Outputs first = run(whole.part(0, 0, 33, whole.initial_state), kWide, kReference);
  const Outputs second = run(whole.part(0, 33, 50, first.final_state), kWide, kReference);
  EXPECT_TRUE(same_bits(first.out, at_once.out.narrow(1, 0, 33)));
  EXPECT_TRUE(same_bits(second.out, at_once.out.narrow(1, 33, 17)));
  EXPECT_TRUE(same_bits(second.final_state, at_once.final_state));
}

TEST(Oracle, StatesOnTheWayAreFinalStatesOfPrefixes) {
  const Case c({.H = 1,
                .HV = 2,
                .K = 4,
                .V = 3,
                .cu = {0, 40, 40, 73},
                .initial_state = FKDA_FLOAT32,
                .checkpoint_offsets = {{0, 32}, {-1, 0}, {16, -1}}});
  const Outputs outputs = run(
      c,
      {.out = FKDA_FLOAT64, .checkpoints = FKDA_FLOAT64, .intermediate_states = FKDA_FLOAT64, .intermediate_every = 16},
      kReference);
  const auto prefix = [&](int64_t n, int64_t tokens) {
    return run(c.part(n, 0, tokens, c.initial_state.narrow(0, n, 1)), kWide, kReference).final_state;
  };
  const auto matrix = [](const Tensor& states, int64_t i, int64_t j) {  // [1, HV, V, K] out of [i, j, HV, V, K]
    const Tensor cut = states.narrow(0, i, 1).narrow(1, j, 1).to(FKDA_FLOAT64);
    return Tensor(cut.buffer(), FKDA_FLOAT64, {1, 2, 3, 4}, {24, 12, 4, 1}, 0);
  };
  EXPECT_TRUE(same_bits(matrix(outputs.checkpoints, 0, 0), prefix(0, 0)));
  EXPECT_TRUE(same_bits(matrix(outputs.checkpoints, 0, 1), prefix(0, 32)));
  EXPECT_TRUE(untouched(outputs.checkpoints.narrow(0, 1, 1).narrow(1, 0, 1)));
  EXPECT_TRUE(same_bits(matrix(outputs.checkpoints, 1, 1), prefix(1, 0)));
  EXPECT_TRUE(same_bits(matrix(outputs.checkpoints, 2, 0), prefix(2, 16)));
  EXPECT_TRUE(untouched(outputs.checkpoints.narrow(0, 2, 1).narrow(1, 1, 1)));
  const std::vector<std::pair<int64_t, int64_t>> starts = {{0, 0}, {0, 16}, {0, 32}, {2, 0}, {2, 16}, {2, 32}};
  ASSERT_EQ(outputs.intermediate_states.shape()[1], static_cast<int64_t>(starts.size()));
  for (size_t i = 0; i < starts.size(); ++i) {
    EXPECT_TRUE(same_bits(matrix(outputs.intermediate_states, 0, static_cast<int64_t>(i)),
                          prefix(starts[i].first, starts[i].second)));
  }
}

TEST(Oracle, ProgressRisesToItsTotal) {
  Case c({.H = 2, .K = 2, .V = 2, .cu = {0, 3, 3, 1500}});
  std::vector<int64_t> done;
  c.options.progress_user = &done;
  c.options.progress = [](void* user, int64_t now, int64_t total) {
    EXPECT_EQ(total, 1500 * 2);
    static_cast<std::vector<int64_t>*>(user)->push_back(now);
  };
  run(c, kWide, kReference);
  ASSERT_GE(done.size(), 4u);
  EXPECT_EQ(std::adjacent_find(done.begin(), done.end(), std::greater_equal<>()), done.end()) << "must rise";
  EXPECT_EQ(done.back(), 1500 * 2);
}

TEST(Oracle, WorkspaceIsOneStateAndTheRowsOfAToken) {
  const Case c({.K = 5, .V = 3});
  const Outputs outputs = c.make_outputs(kWide);
  EXPECT_EQ(reference_workspace_size(validate(c.problem(outputs))), (5 * 3 + 3 * 5 + 3 * 3) * sizeof(double));
}

}  // namespace
}  // namespace flashkda::test
