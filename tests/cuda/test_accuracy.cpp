// o and the final state of the CUDA backend against the fp64 recurrence: every family of inputs, the trained layers,
// and numbers that have broken other libraries. RowNN is the row of docs/cases.md.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "check/families.hpp"
#include "check/layer_file.hpp"
#include "cuda/device.hpp"

namespace flashkda::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};

// ------------------------------------------------------------------------------------------------ families and layers

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const checks::Family& family : checks::families()) names.emplace_back(family.name);
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

class CudaFamily : public OnGpu, public testing::WithParamInterface<std::string> {
 protected:
  Case make(const checks::ProblemShape& shape, const checks::ProblemDTypes& dtypes = {}, uint64_t seed = 1) const {
    return to_case(checks::make_problem(*checks::find_family(GetParam()), shape, dtypes, seed));
  }
  void expect_within_bars(const Case& c) const {
    const bool identical = GetParam() == "identical-keys";
    expect_right_on_gpu(c, {}, identical ? kIdenticalKeysBar : kOutBar, identical ? kIdenticalKeysBar : kStateBar);
  }
};
INSTANTIATE_TEST_SUITE_P(Each, CudaFamily, testing::ValuesIn(family_names()), test_name);

TEST_P(CudaFamily, DenseBatch) { expect_within_bars(make({.B = 2, .T = 500, .H = 2})); }

TEST_P(CudaFamily, LongSequenceFromNothing) { expect_within_bars(make({.T = 4096}, {.initial_state = 0}, 2)); }

TEST_P(CudaFamily, PackedBatchOfShortAndLong) {
  expect_within_bars(make({.lengths = {1, 300, 0, 17, 64, 129, 8}, .H = 1, .HV = 3}, {}, 3));
}

TEST_P(CudaFamily, OtherInputDtypes) {
  expect_within_bars(make({.T = 300, .H = 2}, {.qkv = FKDA_FLOAT16, .g = FKDA_FLOAT32, .beta = FKDA_FLOAT32}, 4));
}

TEST_P(CudaFamily, Width64) { expect_within_bars(make({.T = 300, .H = 2, .K = 64, .V = 64}, {}, 5)); }

TEST_P(CudaFamily, ManyHeads) {  // enough for two tiles a warp
  expect_within_bars(make({.B = 3, .T = 50, .H = 2, .HV = 48}, {}, 6));
}

class CudaLayer : public OnGpu, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Each, CudaLayer, testing::Values("bounded", "softplus"), test_name);

TEST_P(CudaLayer, Slice) {
  const std::string stem = FLASHKDA_SOURCE_DIR "/data/kda_" + GetParam() + "_slice";
  expect_right_on_gpu(to_case(checks::read_layer(stem + ".safetensors").problem));
}

// ------------------------------------------------------------------------------------------------------------ rows

class CudaNumerics : public OnGpu {};

void repeat_first_token(Tensor& x) {
  for (int64_t t = 1; t < x.shape()[1]; ++t) x.narrow(1, t, 1).copy_from(x.narrow(1, 0, 1));
}

TEST_F(CudaNumerics, Row01_OneKeyAtEveryToken) {
  for (const int64_t T : {16, 64, 512, 16384}) {
    Case c({.T = T, .A_log = false, .dt_bias = false, .seed = 11});
    repeat_first_token(c.k);
    c.q.copy_from(c.k);
    c.g.fill(-12.0);
    c.beta.fill(8.0);
    SCOPED_TRACE(T);
    expect_right_on_gpu(c, {}, kIdenticalKeysBar, kIdenticalKeysBar);
  }
}

TEST_F(CudaNumerics, Row01_KeysOfCosineNineTenths) {
  Case c({.T = 4096, .g_dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .beta = FKDA_BETA_ACTIVATED, .seed = 12});
  Random random(13);
  std::vector<double> common(128);
  for (double& x : common) x = random.normal();
  int64_t i = 0;  // with independent parts of variance s^2 the cosine of two keys is 1 / (1 + s^2)
  c.k.generate([&] { return common[static_cast<size_t>(i++ % 128)] + std::sqrt(1.0 / 9.0) * random.normal(); });
  c.g.generate([&] { return random.uniform(-0.034, -0.012); });
  c.beta.fill(1.0);
  expect_right_on_gpu(c, {}, kIdenticalKeysBar, kIdenticalKeysBar);
}

TEST_F(CudaNumerics, Row01_IdenticalUnitKeys) {
  Case c({.T = 512, .g_dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .beta = FKDA_BETA_ACTIVATED, .seed = 14});
  repeat_first_token(c.k);
  c.g.fill(-1e-3);
  c.beta.fill(0.835);
  expect_right_on_gpu(c, {}, kIdenticalKeysBar, kIdenticalKeysBar);
}

// Every token of a chunk writes one direction at another decay. Keys rounded to eight bits lie beside it, each
// elsewhere, and what they leave there no later token sees or takes away: 5e-2 of the state.
TEST_F(CudaNumerics, Row01_IdenticalKeysThatForgetSlowly) {
  for (const double a : {1e-4, 1e-3, 1e-2}) {
    for (const bool alike : {true, false}) {  // the channels' rates
      Case c({.T = 2048, .H = 2, .A_log = false, .dt_bias = false, .seed = 15});
      repeat_first_token(c.k);
      Random random(16);
      c.g.generate([&] { return std::log(a / 5.0) + (alike ? 0.0 : 0.7 * random.normal()); });
      repeat_first_token(c.g);
      c.beta.fill(1.6);
      SCOPED_TRACE(testing::Message() << "decays of " << a << (alike ? "" : " or so"));
      expect_right_on_gpu(c, {}, kIdenticalKeysBar, kIdenticalKeysBar);
    }
  }
}

// What is written of such keys has sixteen bits in the fused kernel, in every form of it: one head on two
// multiprocessors, on one, and with its chunks prepared elsewhere. With eight bits of U a state was 1.3e-2 off. What is
// read has eight.
TEST_F(CudaNumerics, Row01_IdenticalKeysInEveryFormOfTheFusedKernel) {
  using Form = std::pair<const char*, int64_t>;
  for (const auto& [backend, heads] : {Form{"cuda_fused", 2}, Form{"cuda_fused", 140}, Form{"cuda_apart", 2}}) {
    for (const int32_t beta : {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID}) {
      for (const double logit : {1.6, 6.0}) {
        if (beta == FKDA_BETA_TWICE_SIGMOID && logit > 2.0) continue;  // an oscillation: docs/kernels/sm90a.md, Known
        Case c({.T = 512, .H = heads, .beta = beta, .A_log = false, .dt_bias = false, .seed = 17});
        repeat_first_token(c.k);
        c.g.fill(std::log(1e-3 / 5.0));
        c.beta.fill(logit);
        c.options.backend = backend;
        SCOPED_TRACE(testing::Message() << backend << ", " << heads << " heads, beta " << beta << " of " << logit);
        expect_right_on_gpu(c, {}, kIdenticalKeysBar, 8e-3);
      }
    }
  }
}

TEST_F(CudaNumerics, Row02_LogDecaysFromNothingToEverything) {
  for (const double a : {0.0, -5.0, -5.5, -5.6, -6.0, -20.0, -88.0, -1000.0}) {
    Case c({.T = 129, .H = 8, .gate = FKDA_GATE_LOG, .initial_state = FKDA_FLOAT32, .seed = 21});
    c.g.fill(a);
    SCOPED_TRACE(a);
    expect_right_on_gpu(c);
    Case one({.T = 129, .H = 2, .gate = FKDA_GATE_LOG, .initial_state = FKDA_FLOAT32, .seed = 22});
    one.g.narrow(1, 37, 1).fill(a);  // inside an ordinary chunk
    expect_right_on_gpu(one);
  }
}

TEST_F(CudaNumerics, Row02_EveryTokenDrawsItsDecay) {
  const std::vector<double> choices = {0.0, -5.0, -5.5, -5.6, -6.0, -20.0, -88.0, -1000.0};
  Case c({.T = 129, .H = 8, .gate = FKDA_GATE_LOG, .initial_state = FKDA_FLOAT32, .seed = 23});
  Random random(24);
  c.g.generate([&] { return choices[static_cast<size_t>(random.integer(0, 7))]; });
  expect_right_on_gpu(c);
}

TEST_F(CudaNumerics, Row02_SoftplusPast35) {
  for (const double g : {5.0, 20.0, 40.0, 100.0, -15.1, -14.9, -3.0}) {
    Case c({.T = 129, .H = 2, .gate = FKDA_GATE_SOFTPLUS, .initial_state = FKDA_FLOAT32, .seed = 25});
    for (int64_t t = 0; t < c.T; t += 3) c.g.narrow(1, t, 1).fill(g);
    SCOPED_TRACE(g);
    expect_right_on_gpu(c);
  }
}

TEST_F(CudaNumerics, Row17_DecaysNextToOneDoNotAddUp) {
  for (const double decay : {0.99992, 1.0}) {
    double before = 0.0;
    for (const int64_t T : {4096, 65536}) {
      for (const int32_t state : {FKDA_BFLOAT16, FKDA_FLOAT32}) {
        Case c({.T = T, .g_dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .initial_state = state, .seed = 31});
        c.g.fill(std::log(decay));
        SCOPED_TRACE(testing::Message() << "decay " << decay << ", T " << T << ", state dtype " << state);
        const Want want = {.out = FKDA_FLOAT32, .final_state = state};
        const Outputs actual = run_on_gpu(c, want), expected = reference(c, want);
        const double error = rms_error(actual.final_state, expected.final_state);
        EXPECT_LE(rms_error(actual.out, expected.out), kOutBar);
        EXPECT_LE(error, kStateBar);
        if (state != FKDA_FLOAT32) continue;
        if (T == 4096) before = error;
        EXPECT_LE(error, 1.25 * before);
      }
    }
  }
}

TEST_F(CudaNumerics, Row17_TheStateFadesByTheExactDecay) {  // nothing is written into it: only products of decays
  for (const double decay : {0.99992, 1.0}) {
    Case c({.T = 65536,
            .g_dtype = FKDA_FLOAT32,
            .gate = FKDA_GATE_LOG,
            .beta = FKDA_BETA_ACTIVATED,
            .initial_state = FKDA_FLOAT32,
            .seed = 32});
    c.g.fill(std::log(decay));
    c.beta.fill(0.0);
    SCOPED_TRACE(decay);
    const Outputs actual = run_on_gpu(c);
    const double faded = std::exp(65536.0 * static_cast<double>(static_cast<float>(std::log(decay))));
    Tensor expected = c.initial_state.to(FKDA_FLOAT64);
    for (int64_t i = 0; i < expected.numel(); ++i) expected.set(i, expected.get(i) * faded);
    // 4096 products of factors of relative error 2^-22.
    EXPECT_LE(rms_error(actual.final_state, expected), decay == 1.0 ? 0.0 : 1e-3);
  }
}

TEST_F(CudaNumerics, Row25_GateInFp32ThenBF16AndBack) {
  Case coarse({.T = 100, .H = 2, .seed = 41});
  Case fine = coarse, widened = coarse;
  fine.g = coarse.g.to(FKDA_FLOAT32);
  Random random(42);
  fine.g.generate([&] { return -2.0 + 2.0 * random.normal(); });
  const Outputs first = expect_right_on_gpu(fine), between = expect_right_on_gpu(coarse);
  expect_same_results(run_on_gpu(fine), first);
  expect_same_results(run_on_gpu(coarse), between);
  widened.g = coarse.g.to(FKDA_FLOAT32);  // the portable path: the same bits, in whichever dtype the same values come
  coarse.options.backend = widened.options.backend = "cuda_portable";
  expect_same_results(run_on_gpu(widened), run_on_gpu(coarse));
}

TEST_F(CudaNumerics, Row37_RowsOfZeroTinyAndHuge) {
  for (const double value : {0.0, 1e-20, 1e18}) {
    for (const bool of_q : {true, false}) {
      Case c({.T = 100, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 51});
      Tensor rows = (of_q ? c.q : c.k).narrow(1, 40, 5);
      Random random(52);
      rows.generate([&] { return value * random.uniform(-1.0, 1.0); });
      SCOPED_TRACE(testing::Message() << value << (of_q ? " in q" : " in k"));
      expect_right_on_gpu(c);
    }
  }
}

TEST_F(CudaNumerics, Row37_HugeRowsAmongManyHeads) {  // both slices of the value columns in one block
  Case c({.T = 40, .H = 140, .initial_state = FKDA_FLOAT32, .seed = 54});
  Random random(55);
  for (Tensor* x : {&c.q, &c.k}) x->narrow(1, 20, 5).generate([&] { return 1e18 * random.uniform(-1.0, 1.0); });
  expect_right_on_gpu(c);
}

TEST_F(CudaNumerics, Row37_AllRowsZero) {
  Case c({.T = 100, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 53});
  c.q.fill(0.0);
  c.k.fill(0.0);
  EXPECT_TRUE(all_zero(expect_right_on_gpu(c).out));
}

TEST_F(CudaNumerics, Row47_BetaLogitsAtTheEnds) {
  for (const int32_t form : {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID}) {
    for (const double logit : {kInfinity, -kInfinity, 100.0, -100.0}) {
      Case c({.T = 100, .H = 2, .beta = form, .seed = 56});
      for (int64_t t = 0; t < c.T; t += 3) c.beta.narrow(1, t, 1).fill(logit);
      SCOPED_TRACE(testing::Message() << "form " << form << ", logit " << logit);
      expect_right_on_gpu(c, {}, form == FKDA_BETA_SIGMOID ? kOutBar : kIdenticalKeysBar,
                          form == FKDA_BETA_SIGMOID ? kStateBar : kIdenticalKeysBar);
    }
  }
}

TEST_F(CudaNumerics, Row47_ActivatedBetaZeroAndOne) {
  for (const double b : {0.0, 1.0}) {
    Case c({.T = 100, .H = 2, .beta = FKDA_BETA_ACTIVATED, .initial_state = FKDA_FLOAT32, .seed = 57});
    c.beta.fill(b);
    SCOPED_TRACE(b);
    expect_right_on_gpu(c);
  }
}

TEST_F(CudaNumerics, Row48_HugeALog) {  // exp(100) times softplus(-200) is decay 1, times softplus(-50) is 0
  for (const double g : {-200.0, -50.0}) {
    Case c({.T = 100, .gate = FKDA_GATE_SOFTPLUS, .dt_bias = false, .initial_state = FKDA_FLOAT32, .seed = 61});
    c.A_log.fill(100.0);
    c.g.fill(g);
    SCOPED_TRACE(g);
    const Outputs actual = expect_right_on_gpu(c);
    Case limit = c;  // the same as the log gate with a = 0 and with a = -1000
    limit.options.gate = FKDA_GATE_LOG;
    limit.A_log = {};
    limit.g = c.g.clone();
    limit.g.fill(g < -100.0 ? 0.0 : -1000.0);
    expect_same_results(actual, run_on_gpu(limit));
  }
  // Products of a huge and a tiny factor that are neither: exp(100) e^-100 is a = -1.
  for (const auto& [A_log, g] : std::vector<std::pair<double, double>>{{100.0, -100.0}, {90.0, -91.0}, {50.0, -52.0}}) {
    Case c({.T = 100, .gate = FKDA_GATE_SOFTPLUS, .dt_bias = false, .initial_state = FKDA_FLOAT32, .seed = 63});
    c.A_log.fill(A_log);
    c.g.fill(g);
    SCOPED_TRACE(testing::Message() << "A_log " << A_log << ", g " << g);
    expect_right_on_gpu(c);
  }
  for (const double A_log : {100.0, -100.0}) {
    for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS}) {
      Case c({.T = 100, .gate = gate, .dt_bias = false, .initial_state = FKDA_FLOAT32, .seed = 62});
      c.A_log.fill(A_log);
      const std::vector<double> gates = {-200.0, -50.0, 0.0, 50.0, 200.0};
      for (int64_t t = 0; t < c.T; ++t) c.g.narrow(1, t, 1).fill(gates[static_cast<size_t>(t % 5)]);
      SCOPED_TRACE(testing::Message() << "A_log " << A_log << ", gate " << gate);
      expect_right_on_gpu(c);
    }
  }
}

TEST_F(CudaNumerics, Row49_TheFirstTokenOfAChunkForgets) {
  for (const int64_t first : {0, 16, 32, 64}) {
    Case c({.T = 128, .gate = FKDA_GATE_LOG, .beta = FKDA_BETA_ACTIVATED, .initial_state = FKDA_FLOAT32, .seed = 64});
    c.g.fill(0.0);
    c.g.narrow(1, first, 1).fill(-90.0);
    expect_right_on_gpu(c);
    c.g.narrow(1, first, 1).fill(-10.0);
    c.beta.fill(0.0);  // nothing written: what remains of the state is its decay
    const Outputs faded = run_on_gpu(c, kFp32);
    for (const int64_t i : {int64_t{0}, c.initial_state.numel() / 2, c.initial_state.numel() - 1}) {
      const double expected = c.initial_state.get(i) * std::exp(-10.0);
      EXPECT_NEAR(faded.final_state.get(i), expected, 1e-5 * std::fabs(expected));
    }
  }
}

// A channel forgets nearly all once in every 4 tokens, each at a token of its own, and next to nothing at the others:
// 2^-90 and more lie between tokens of neighbouring quarters, or nothing. What prepare sums up must not underflow where
// a pair's own decay does not.
TEST_F(CudaNumerics, Row49_OneTokenOfEveryFourForgets) {
  for (const double nats : {20.0, 62.0, 69.0, 90.0, 200.0}) {  // 29, 89.4, 99.5, 130 and 289 bits
    for (const bool alike : {true, false}) {                   // every channel at the same token, or each at its own
      Case c({.T = 256,
              .g_dtype = FKDA_FLOAT32,
              .gate = FKDA_GATE_LOG,
              .beta = FKDA_BETA_ACTIVATED,
              .initial_state = FKDA_FLOAT32,
              .seed = 67});
      Random random(68);
      c.g.fill(-1e-3);
      for (int64_t quarter = 0; quarter < 64; ++quarter) {
        const int64_t common = random.integer(0, 3);
        for (int64_t channel = 0; channel < 128; ++channel) {
          const int64_t token = 4 * quarter + (alike ? common : random.integer(0, 3));
          c.g.set(token * 128 + channel, -nats);
        }
      }
      SCOPED_TRACE(testing::Message() << nats << " nats, alike " << alike);
      expect_right_on_gpu(c, kFp32);
      // What is read of the state before all is forgotten, which is little, is right by itself.
      Case reads = c;
      reads.beta.fill(0.0);
      const Outputs outputs = run_on_gpu(reads, kFp32), expected = reference(reads, kFp32);
      for (int64_t t = 0; t < 8; ++t) {
        const Tensor want = expected.out.narrow(1, t, 1);
        double largest = 0.0;
        for (int64_t i = 0; i < want.numel(); ++i) largest = std::max(largest, std::fabs(want.get(i)));
        if (largest > 1e-30) {
          EXPECT_LE(rms_error(outputs.out.narrow(1, t, 1), want), 2 * kOutBar) << "token " << t;
        }
      }
    }
  }
}

TEST_F(CudaNumerics, ANaNInBetaShows) {  // from its token on, and in the state; nowhere before its chunk
  Case c({.T = 100, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 69});
  c.g.fill(-6.0);  // remembered to the end
  const float nan = std::numeric_limits<float>::quiet_NaN();
  c.beta.set(37 * 2, nan);  // head 0
  const Outputs outputs = run_on_gpu(c, kFp32);
  for (int64_t i = 0; i < outputs.out.numel(); ++i) {
    const int64_t token = i / 256, head = i / 128 % 2;
    if (head == 0 && token >= 32 && token < 37) continue;
    ASSERT_EQ(std::isnan(outputs.out.get(i)), head == 0 && token >= 37) << "token " << token << ", head " << head;
  }
  for (int64_t i = 0; i < outputs.final_state.numel(); ++i) {
    ASSERT_EQ(std::isnan(outputs.final_state.get(i)), i < 128 * 128) << i;
  }
}

TEST_F(CudaNumerics, Row51_WithoutALogOrDtBias) {  // an absent tensor is a tensor of zeros
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS}) {
    const Case both({.T = 100, .H = 2, .HV = 4, .gate = gate, .seed = 65});
    for (const bool drop_A_log : {true, false}) {
      for (const bool drop_dt_bias : {true, false}) {
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
        expect_same_results(expect_right_on_gpu(absent), run_on_gpu(zeros));
      }
    }
  }
}

}  // namespace
}  // namespace flashkda::test
