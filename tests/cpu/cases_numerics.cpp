// Inputs whose numbers have broken libraries of this kind. RowNN is the row of docs/cases.md.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/backends.hpp"
#include "support/case.hpp"
#include "support/tensor.hpp"

namespace flashkda::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Everything fp32 and the state too, so that an error is the backend's own and not the rounding of its result.
constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};

// Relative rms error of a backend that computes in fp32, on benign inputs: some 2e-7 of rounding, and room.
constexpr double kBar = 3e-6;

class Numerics : public OnBackend {
 protected:
  // Runs and compares with fp64. Returns the result.
  Outputs expect_right(const Case& c, double bar = kBar, const Want& want = kFp32) const {
    Outputs actual = run(c, want, {.backend = GetParam()});
    const Outputs expected = reference(c, want);
    EXPECT_TRUE(all_finite(actual.out));
    EXPECT_LE(rms_error(actual.out, expected.out), bar);
    if (actual.final_state.present()) {
      EXPECT_TRUE(all_finite(actual.final_state));
      EXPECT_LE(rms_error(actual.final_state, expected.final_state), bar);
    }
    return actual;
  }
};
FLASHKDA_ON_EACH_BACKEND(Numerics);

// Every token gets the row of token 0 of its head.
void repeat_first_token(Tensor& x) {
  for (int64_t t = 1; t < x.shape()[1]; ++t) x.narrow(1, t, 1).copy_from(x.narrow(1, 0, 1));
}

// --------------------------------------------------------------------------------- near-singular chunks: row 1

TEST_P(Numerics, Row01_OneKeyAtEveryToken) {
  for (const int64_t T : {int64_t{16}, int64_t{64}, int64_t{512}, long_sequence(16384)}) {
    Case c({.T = T, .A_log = false, .dt_bias = false, .seed = 11});
    repeat_first_token(c.k);
    c.q.copy_from(c.k);
    c.g.fill(-12.0);
    c.beta.fill(8.0);
    SCOPED_TRACE(T);
    expect_right(c, 2e-4);
  }
}

TEST_P(Numerics, Row01_KeysOfCosineNineTenths) {
  Case c({.T = long_sequence(8192),
          .H = 2,
          .dtype = FKDA_FLOAT32,
          .gate = FKDA_GATE_LOG,
          .beta = FKDA_BETA_ACTIVATED,
          .seed = 12});
  Random random(13);
  std::vector<double> common(128);
  for (double& x : common) x = random.normal();
  // With independent parts of variance s^2 the cosine of two keys is 1 / (1 + s^2).
  for (int64_t i = 0; i < c.k.numel(); ++i) {
    c.k.set(i, common[static_cast<size_t>(i % 128)] + std::sqrt(1.0 / 0.9 - 1.0) * random.normal());
  }
  c.g.generate([&] { return random.uniform(-0.034, -0.012); });
  c.beta.fill(1.0);
  expect_right(c, 2e-5);
}

TEST_P(Numerics, Row01_IdenticalKeysAndNextToNoDecay) {
  Case c({.T = 1024, .dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .beta = FKDA_BETA_ACTIVATED, .seed = 14});
  repeat_first_token(c.k);
  c.g.fill(-1e-3);
  c.beta.fill(0.835);
  expect_right(c, 2e-5);
}

TEST_P(Numerics, Row01_IdenticalKeysFullStrengthNoDecay) {  // the inverse has entries of size 1 everywhere
  Case c({.T = 1024, .dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .beta = FKDA_BETA_ACTIVATED, .seed = 15});
  repeat_first_token(c.k);
  c.g.fill(0.0);
  c.beta.fill(1.0);
  expect_right(c, 2e-4);
}

TEST_P(Numerics, Row01_IdenticalKeysNegativeEigenvalues) {  // b near 2: each token reflects the one before
  Case c({.T = 512, .dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .beta = FKDA_BETA_TWICE_SIGMOID, .seed = 16});
  repeat_first_token(c.k);
  c.g.fill(-1e-2);
  c.beta.fill(4.0);
  expect_right(c, 1e-3);
}

// --------------------------------------------------------------------------------------------- strong decay: row 2

TEST_P(Numerics, Row02_GivenLogDecay) {
  for (const double a : {0.0, -5.0, -5.5, -5.6, -6.0, -20.0, -88.0, -1000.0}) {
    Case c({.T = 129, .H = 8, .gate = FKDA_GATE_LOG, .seed = 21});
    c.g.fill(a);
    SCOPED_TRACE(a);
    expect_right(c);
  }
}

TEST_P(Numerics, Row02_MixedChannels) {  // each channel with a decay of its own, from none to total
  const std::vector<double> decays = {0.0, -1e-4, -0.1, -5.0, -5.6, -20.0, -88.0, -1000.0};
  Case c({.T = 200, .H = 2, .gate = FKDA_GATE_LOG, .initial_state = FKDA_FLOAT32, .seed = 22});
  for (int64_t i = 0; i < c.g.numel(); ++i) c.g.set(i, decays[static_cast<size_t>((i * 5 + i / 128) % 8)]);
  expect_right(c);
}

TEST_P(Numerics, Row02_OneTokenForgetsAll) {  // at every place of a chunk
  for (int64_t t = 0; t < 64; t += 7) {
    Case c({.T = 100, .gate = FKDA_GATE_LOG, .initial_state = FKDA_FLOAT32, .seed = 23});
    c.g.narrow(1, t, 1).fill(-1000.0);
    SCOPED_TRACE(t);
    expect_right(c);
  }
}

TEST_P(Numerics, Row02_MinusInfinityForgetsAll) {
  Case c({.T = 100, .gate = FKDA_GATE_LOG, .initial_state = FKDA_FLOAT32, .seed = 24});
  c.g.narrow(1, 37, 1).fill(-kInfinity);
  expect_right(c);
}

TEST_P(Numerics, Row02_SoftplusGatePassesMinus35) {
  Case c({.T = 129, .H = 8, .gate = FKDA_GATE_SOFTPLUS, .seed = 25});
  Random random(26);
  c.A_log.generate([&] { return random.uniform(0.5, 2.5); });
  c.g.generate([&] { return random.uniform(-8.0, 12.0); });
  expect_right(c);
}

TEST_P(Numerics, Row02_AlternatingDecay) {  // a total loss and no loss in turn, token by token
  Case c({.T = 130, .gate = FKDA_GATE_LOG, .seed = 27});
  for (int64_t t = 0; t < c.T; ++t) c.g.narrow(1, t, 1).fill(t % 2 == 0 ? -1000.0 : 0.0);
  expect_right(c);
}

TEST_P(Numerics, Row02_SaturatedBoundedGate) {
  for (const double g : {-1e4, -30.0, 30.0, 1e4}) {
    Case c({.T = 129, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 28});
    c.g.fill(g);
    SCOPED_TRACE(g);
    expect_right(c);
  }
}

// ------------------------------------------------------------------------------- no decay over a long time: row 17

TEST_P(Numerics, Row17_ErrorDoesNotGrowWithT) {
  for (const double decay : {0.99992, 1.0}) {
    for (const int64_t T : {long_sequence(4096), long_sequence(32768)}) {
      Case c({.T = T, .K = 64, .V = 64, .g_dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .seed = 31});
      c.g.fill(std::log(decay));
      SCOPED_TRACE(testing::Message() << "decay " << decay << ", T " << T);
      expect_right(c);
    }
  }
}

TEST_P(Numerics, Row17_TheStateFadesByTheExactDecay) {  // nothing is written into it: only products of decays
  for (const double decay : {0.99992, 1.0}) {
    Case c({.T = long_sequence(32768),
            .K = 64,
            .V = 64,
            .g_dtype = FKDA_FLOAT32,
            .gate = FKDA_GATE_LOG,
            .beta = FKDA_BETA_ACTIVATED,
            .initial_state = FKDA_FLOAT32,
            .seed = 32});
    c.g.fill(std::log(decay));
    c.beta.fill(0.0);
    SCOPED_TRACE(decay);
    const Outputs actual = run(c, kFp32, {.backend = GetParam()});
    const double faded = std::exp(static_cast<double>(c.T) * static_cast<double>(static_cast<float>(std::log(decay))));
    Tensor expected = c.initial_state.to(FKDA_FLOAT64);
    for (int64_t i = 0; i < expected.numel(); ++i) expected.set(i, expected.get(i) * faded);
    EXPECT_LE(rms_error(actual.final_state, expected), kBar);
  }
}

TEST_P(Numerics, Row17_StateInBF16) {
  Case c({.T = long_sequence(4096),
          .K = 64,
          .V = 64,
          .g_dtype = FKDA_FLOAT32,
          .gate = FKDA_GATE_LOG,
          .initial_state = FKDA_BFLOAT16,
          .seed = 33});
  c.g.fill(std::log(0.99992));
  expect_right(c, 2e-3, {.out = FKDA_BFLOAT16, .final_state = FKDA_BFLOAT16});
}

// -------------------------------------------------------------------------------- dtypes and sizes: rows 25, 28, 42

TEST_P(Numerics, Row25_GateInFp32ThenBF16AndBack) {
  const Case coarse({.T = 100, .H = 2, .seed = 41});
  Case fine = coarse;
  fine.g = coarse.g.to(FKDA_FLOAT32);
  Random random(42);
  fine.g.generate([&] { return -2.0 + 2.0 * random.normal(); });
  const Outputs first = expect_right(fine);
  expect_right(coarse);
  const Outputs again = expect_right(fine);
  EXPECT_TRUE(same_bits(again.out, first.out));
  // The same values give the same bits, in whichever dtype they come.
  Case widened = coarse;
  widened.g = coarse.g.to(FKDA_FLOAT32);
  EXPECT_TRUE(same_bits(expect_right(widened).out, expect_right(coarse).out));
}

TEST_P(Numerics, EveryInputDtype) {
  for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32}) {
    for (const int32_t small : {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32}) {  // of g, then of beta
      const Spec g_differs = {.T = 75, .H = 2, .K = 64, .V = 32, .dtype = dtype, .g_dtype = small, .seed = 43};
      const Spec beta_differs = {.T = 75, .H = 2, .K = 64, .V = 32, .dtype = dtype, .beta_dtype = small, .seed = 44};
      SCOPED_TRACE(testing::Message() << "dtype " << dtype << ", g or beta " << small);
      expect_right(Case(g_differs));
      expect_right(Case(beta_differs));
    }
  }
}

TEST_P(Numerics, EveryOutputDtype) {
  const Case c({.T = 75, .H = 2, .K = 64, .V = 32, .seed = 45});
  expect_right(c, 1e-6, {.out = FKDA_FLOAT32});
  expect_right(c, 2.5e-3, {.out = FKDA_BFLOAT16, .final_state = FKDA_BFLOAT16});
  expect_right(c, 3e-4, {.out = FKDA_FLOAT16, .final_state = kAbsent});
}

TEST_P(Numerics, NarrowOutputsAreTheWideOnesRoundedToNearestEven) {
  const Case c({.T = 75, .H = 2, .K = 64, .V = 24, .seed = 46});
  const RunOptions how = {.backend = GetParam()};
  const Outputs wide = run(c, kFp32, how);
  for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
    const int32_t state = dtype == FKDA_BFLOAT16 ? FKDA_BFLOAT16 : FKDA_FLOAT32;
    const Outputs narrow = run(c, {.out = dtype, .final_state = state}, how);
    if (std::string(GetParam()) == "reference") {  // rounds from fp64, once
      const Outputs exact = run(c, {.out = FKDA_FLOAT64, .final_state = FKDA_FLOAT64}, how);
      EXPECT_TRUE(same_bits(narrow.out, exact.out.to(dtype)));
    } else {
      EXPECT_TRUE(same_bits(narrow.out, wide.out.to(dtype)));
    }
    EXPECT_TRUE(same_bits(narrow.final_state, wide.final_state.to(state)));
  }
}

TEST_P(Numerics, Row28_KeyAndValueWidthDiffer) {
  for (const auto& [K, V] : std::vector<std::pair<int64_t, int64_t>>{
           {64, 512}, {512, 64}, {128, 64}, {64, 128}, {8, 40}, {40, 8}, {24, 24}, {128, 256}, {256, 32}, {120, 136}}) {
    for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
      const Case c(
          {.T = 70, .H = 2, .K = K, .V = V, .initial_state = FKDA_FLOAT32, .state_layout = layout, .seed = 47});
      SCOPED_TRACE(testing::Message() << "K " << K << ", V " << V << ", layout " << layout);
      expect_right(c);
    }
  }
}

TEST_P(Numerics, Row42_EveryWidth) {
  for (const int64_t D : {8, 16, 32, 64, 96, 128, 160, 192, 256, 512}) {
    const Case c({.T = 70, .H = 2, .K = D, .V = D, .initial_state = FKDA_FLOAT32, .seed = 48});
    SCOPED_TRACE(D);
    expect_right(c);
  }
}

TEST(NumericsOfTheReference, AnyWidthAtAll) {
  for (const int64_t D : {1, 3, 7, 100, 513}) {
    const Case c({.T = 20, .K = D, .V = D + 1, .initial_state = FKDA_FLOAT32, .seed = 49});
    SCOPED_TRACE(D);
    const Outputs narrow = run(c, kFp32, {.backend = "reference"});
    EXPECT_LE(rms_error(narrow.out, reference(c).out), 1e-7);
  }
}

// ------------------------------------------------------------------------------ rows of odd magnitude: rows 37 and 47

TEST_P(Numerics, Row37_RowsOfZeroTinyAndHuge) {
  for (const double value : {0.0, 1e-20, 1e18, 3e38}) {
    for (const bool of_q : {true, false}) {
      Case c({.T = 100, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 51});
      Tensor rows = (of_q ? c.q : c.k).narrow(1, 40, 5);
      Random random(52);
      rows.generate([&] { return value * random.uniform(-1.0, 1.0); });
      SCOPED_TRACE(testing::Message() << value << (of_q ? " in q" : " in k"));
      expect_right(c);
    }
  }
}

TEST_P(Numerics, Row37_AllRowsZero) {
  Case c({.T = 100, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 53});
  c.q.fill(0.0);
  c.k.fill(0.0);
  EXPECT_TRUE(all_zero(expect_right(c).out));
}

TEST_P(Numerics, Row37_ZeroRowsWithoutNormalisation) {
  Case c({.T = 100, .H = 2, .qk_l2norm = 0, .seed = 54});
  c.q.narrow(1, 10, 3).fill(0.0);
  c.k.narrow(1, 20, 30).fill(0.0);
  expect_right(c);
}

TEST_P(Numerics, Row37_HugeAndTinyValues) {
  for (const double factor : {1e-30, 1e30}) {
    Case c({.T = 100, .H = 2, .seed = 55});
    for (int64_t i = 0; i < c.v.numel(); ++i) c.v.set(i, factor * c.v.get(i));
    SCOPED_TRACE(factor);
    expect_right(c);
  }
}

TEST_P(Numerics, Row47_BetaLogitsAtTheEnds) {
  for (const int32_t form : {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID}) {
    for (const double logit : {kInfinity, -kInfinity, 100.0, -100.0, 1e4}) {
      Case c({.T = 100, .H = 2, .beta = form, .seed = 56});
      for (int64_t t = 0; t < c.T; t += 3) c.beta.narrow(1, t, 1).fill(logit);
      SCOPED_TRACE(testing::Message() << "form " << form << ", logit " << logit);
      expect_right(c, form == FKDA_BETA_SIGMOID ? kBar : 1e-5);
    }
  }
}

TEST_P(Numerics, Row47_ActivatedBetaZeroAndOne) {
  for (const double b : {0.0, 1.0}) {
    Case c({.T = 100, .H = 2, .beta = FKDA_BETA_ACTIVATED, .initial_state = FKDA_FLOAT32, .seed = 57});
    c.beta.fill(b);
    SCOPED_TRACE(b);
    expect_right(c);
  }
}

// A NaN is neither hidden nor spread: the outputs and states that have one are those of the recurrence.
TEST_P(Numerics, NaNsGoWhereTheRecurrencePutsThem) {
  for (const int64_t T : {100, 5}) {
    for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
      const Spec spec = {.T = T, .H = 2, .K = 64, .V = 32, .gate = gate, .initial_state = FKDA_FLOAT32, .seed = 58};
      for (Tensor Case::*x :
           {&Case::q, &Case::k, &Case::v, &Case::g, &Case::beta, &Case::initial_state, &Case::A_log, &Case::dt_bias}) {
        Case c(spec);
        if (!(c.*x).present()) continue;
        const int64_t element = (c.*x).numel() * 2 / 5 + 3;
        (c.*x).set(std::min(element, (c.*x).numel() - 1), std::numeric_limits<double>::quiet_NaN());
        const Outputs actual = run(c, kFp32, {.backend = GetParam()}), expected = reference(c);
        for (const auto& [a, e] :
             {std::pair{&actual.out, &expected.out}, {&actual.final_state, &expected.final_state}}) {
          int64_t different = 0, nans = 0;
          for (int64_t i = 0; i < a->numel(); ++i) {
            different += std::isnan(a->get(i)) != std::isnan(e->get(i)) ? 1 : 0;
            nans += std::isnan(e->get(i)) ? 1 : 0;
          }
          EXPECT_EQ(different, 0) << "of " << a->numel() << ", " << nans << " of them NaN; input "
                                  << (x == &Case::q   ? "q"
                                      : x == &Case::k ? "k"
                                      : x == &Case::v ? "v"
                                                      : "another")
                                  << ", gate " << gate << ", T " << T;
        }
      }
    }
  }
}

// ---------------------------------------------------------------------------- gates at their limits: rows 48, 49, 51

TEST_P(Numerics,
       Row48_SoftplusGateWithHugeALog) {  // exp(100) times softplus(-200) is decay 1, times softplus(-50) is 0
  for (const double g : {-200.0, -50.0}) {
    Case c({.T = 100, .gate = FKDA_GATE_SOFTPLUS, .dt_bias = false, .initial_state = FKDA_FLOAT32, .seed = 61});
    c.A_log.fill(100.0);
    c.g.fill(g);
    SCOPED_TRACE(g);
    const Outputs actual = expect_right(c);
    // The same as the log gate with a = 0 and with a = -1000.
    Case limit = c;
    limit.options.gate = FKDA_GATE_LOG;
    limit.A_log = {};
    limit.g.fill(g < -100.0 ? 0.0 : -1000.0);
    EXPECT_TRUE(same_bits(actual.out, run(limit, kFp32, {.backend = GetParam()}).out));
  }
}

TEST_P(Numerics, Row48_SoftplusGateWhereOnlyTheProductIsOrdinary) {  // exp(100) times exp(-100.5) is exp(-0.5)
  for (const double g : {-103.0, -101.0, -100.5, -99.0, -95.0}) {
    Case c({.T = 100, .gate = FKDA_GATE_SOFTPLUS, .dt_bias = false, .initial_state = FKDA_FLOAT32, .seed = 67});
    c.A_log.fill(100.0);
    c.g.fill(g);
    SCOPED_TRACE(g);
    expect_right(c);
  }
}

TEST_P(Numerics, Row48_BoundedGateWithHugeALog) {
  Case c({.T = 100, .dt_bias = false, .initial_state = FKDA_FLOAT32, .seed = 62});
  c.A_log.fill(100.0);
  const std::vector<double> gates = {-200.0, -50.0, 0.0, 50.0, 200.0};  // at 0 the gate is half open, not NaN
  for (int64_t t = 0; t < c.T; ++t) c.g.narrow(1, t, 1).fill(gates[static_cast<size_t>(t % 5)]);
  expect_right(c);
}

TEST_P(Numerics, Row48_VerySmallALog) {  // exp(-100): no decay at all
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS}) {
    Case c({.T = 100, .gate = gate, .initial_state = FKDA_FLOAT32, .seed = 63});
    c.A_log.fill(-100.0);
    SCOPED_TRACE(gate);
    expect_right(c);
  }
}

TEST_P(Numerics, Row49_TheFirstTokenOfAChunkForgets) {
  for (const int64_t first : {0, 16, 32, 64}) {
    for (const double a : {-10.0, -90.0}) {
      Case c({.T = 128, .gate = FKDA_GATE_LOG, .initial_state = FKDA_FLOAT32, .seed = 64});
      c.g.fill(0.0);
      c.g.narrow(1, first, 1).fill(a);
      SCOPED_TRACE(testing::Message() << a << " at token " << first);
      expect_right(c);
      // Nothing written: what remains of the state is its decay.
      c.options.beta_activation = FKDA_BETA_ACTIVATED;
      c.beta.fill(0.0);
      const Outputs faded = run(c, kFp32, {.backend = GetParam()});
      for (const int64_t i : {int64_t{0}, c.initial_state.numel() / 2, c.initial_state.numel() - 1}) {
        const double expected = c.initial_state.get(i) * std::exp(a);
        EXPECT_NEAR(faded.final_state.get(i), expected, 1e-6 * std::fabs(expected) + 1e-38);
      }
    }
  }
}

TEST_P(Numerics, Row51_WithoutALogOrDtBias) {
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS}) {
    const Case both({.T = 100, .H = 2, .HV = 4, .gate = gate, .seed = 65});
    for (const bool drop_A_log : {true, false}) {
      for (const bool drop_dt_bias : {true, false}) {
        // An absent tensor is a tensor of zeros.
        Case absent = both, zeros = both;
        if (drop_A_log) {
          absent.A_log = {};
          zeros.A_log = both.A_log.clone();
          zeros.A_log.fill(0.0);
        }
        if (drop_dt_bias) {
          absent.dt_bias = {};
          zeros.dt_bias = both.dt_bias.clone();
          zeros.dt_bias.fill(0.0);
        }
        SCOPED_TRACE(testing::Message() << "gate " << gate << (drop_A_log ? ", no A_log" : "")
                                        << (drop_dt_bias ? ", no dt_bias" : ""));
        EXPECT_TRUE(same_bits(expect_right(absent).out, expect_right(zeros).out));
      }
    }
  }
}

TEST_P(Numerics, Row51_TheGateFormula) {  // one token, nothing written: the state shows exp(a) by itself
  Case c({.T = 1,
          .K = 8,
          .V = 8,
          .dtype = FKDA_FLOAT32,
          .beta = FKDA_BETA_ACTIVATED,
          .initial_state = FKDA_FLOAT32,
          .seed = 66});
  c.beta.fill(0.0);
  c.initial_state.fill(1.0);
  c.A_log.fill(0.7);
  for (int64_t i = 0; i < 8; ++i) {
    c.g.set(i, -2.0 + 0.5 * static_cast<double>(i));
    c.dt_bias.set(i, 0.25 * static_cast<double>(i % 3));
  }
  c.options.lower_bound = -2.5f;
  const double A = std::exp(static_cast<double>(0.7f));
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS}) {
    c.options.gate = gate;
    const Outputs actual = run(c, kFp32, {.backend = GetParam()});
    for (int64_t k = 0; k < 8; ++k) {
      const double x = c.g.get(k) + c.dt_bias.get(k);
      const double a = gate == FKDA_GATE_BOUNDED ? -2.5 / (1.0 + std::exp(-A * x)) : -A * std::log1p(std::exp(x));
      EXPECT_NEAR(actual.final_state.at({0, 0, 3, k}), std::exp(a), 1e-6) << "gate " << gate << ", channel " << k;
    }
  }
}

// ------------------------------------------------------------------------------------- heads, scale, beta forms

TEST_P(Numerics, Row44_ValueHeadsShareKeyHeadsByDivision) {
  for (const auto& [H, HV] : std::vector<std::pair<int64_t, int64_t>>{{2, 6}, {3, 3}, {1, 32}, {4, 8}}) {
    const Case c({.T = 70, .H = H, .HV = HV, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 71});
    SCOPED_TRACE(testing::Message() << "H " << H << ", HV " << HV);
    const Outputs together = expect_right(c);
    // Each value head alone, with q and k of head hv / (HV / H).
    for (int64_t hv = 0; hv < HV; ++hv) {
      const int64_t h = hv / (HV / H);
      Case one = c;
      one.H = one.HV = 1;
      one.q = c.q.narrow(2, h, 1);
      one.k = c.k.narrow(2, h, 1);
      one.v = c.v.narrow(2, hv, 1);
      one.g = c.g.narrow(2, hv, 1);
      one.beta = c.beta.narrow(2, hv, 1);
      one.A_log = c.A_log.narrow(0, hv, 1);
      one.dt_bias = c.dt_bias.narrow(0, hv, 1);
      one.initial_state = c.initial_state.narrow(1, hv, 1);
      const Outputs alone = run(one, kFp32, {.backend = GetParam()});
      EXPECT_TRUE(same_bits(alone.out, together.out.narrow(2, hv, 1))) << "value head " << hv;
      EXPECT_TRUE(same_bits(alone.final_state, together.final_state.narrow(1, hv, 1))) << "value head " << hv;
    }
  }
}

TEST_P(Numerics, EveryBetaFormGateAndNormalisation) {
  for (const int32_t beta : {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID, FKDA_BETA_ACTIVATED}) {
    for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
      for (const int32_t norm : {0, 1}) {
        const Case c({.B = 2,
                      .T = 37,
                      .H = 2,
                      .HV = 4,
                      .K = 64,
                      .V = 32,
                      .gate = gate,
                      .beta = beta,
                      .qk_l2norm = norm,
                      .initial_state = FKDA_FLOAT32,
                      .seed = 72});
        SCOPED_TRACE(testing::Message() << "beta " << beta << ", gate " << gate << ", norm " << norm);
        expect_right(c);
      }
    }
  }
}

TEST_P(Numerics, ScaleIsAppliedAndDefaultsToTheInverseRootOfK) {
  Case c({.T = 50, .H = 2, .K = 64, .V = 32, .seed = 73});
  const Outputs by_default = expect_right(c);
  c.options.scale = 0.125f;
  EXPECT_TRUE(same_bits(expect_right(c).out, by_default.out));
  for (const float scale : {1.0f, -2.0f, 1e-3f}) {
    c.options.scale = scale;
    const Outputs scaled = expect_right(c);
    EXPECT_TRUE(same_bits(scaled.final_state, by_default.final_state)) << scale;
    EXPECT_NEAR(scaled.out.get(777), by_default.out.get(777) * 8.0 * static_cast<double>(scale), 1e-5);
  }
  c.options.scale = 0.0f;
  EXPECT_TRUE(all_zero(expect_right(c).out));
}

TEST_P(Numerics, LowerBoundAtBothEnds) {
  for (const float bound : {-5.0f, -1.0f, -1e-30f}) {
    Case c({.T = 70, .H = 2, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 74});
    c.options.lower_bound = bound;
    SCOPED_TRACE(bound);
    expect_right(c);
  }
}

TEST_P(Numerics, LowerBoundIsIgnoredByTheOtherGates) {
  for (const int32_t gate : {FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
    Case c({.T = 20, .K = 64, .V = 32, .gate = gate, .seed = 75});
    c.options.lower_bound = std::numeric_limits<float>::quiet_NaN();
    SCOPED_TRACE(gate);
    expect_right(c);
  }
}

}  // namespace
}  // namespace flashkda::test
