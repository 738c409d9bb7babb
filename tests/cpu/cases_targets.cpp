// The CPU backend on every instruction set that it was compiled for and this machine has, not only the best one.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "support/case.hpp"
#include "support/tensor.hpp"

namespace flashkda::test {
namespace {

constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};
constexpr double kBar = 3e-6;

// Until the end of its life the only instruction set that Highway finds.
class OnlyTarget {
 public:
  explicit OnlyTarget(int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~OnlyTarget() { hwy::SetSupportedTargetsForTest(0); }
  OnlyTarget(const OnlyTarget&) = delete;
  OnlyTarget& operator=(const OnlyTarget&) = delete;
};

std::string running_target() {
  fkda_implementation info = {};
  EXPECT_EQ(fkda_implementation_info(0, &info), FKDA_OK);
  EXPECT_STREQ(info.name, "cpu");
  return info.detail;
}

// The instruction sets that the backend really runs, each once: one it was not compiled for falls back to another.
std::vector<int64_t> targets() {
  std::vector<int64_t> result;
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    const OnlyTarget only(target);
    if (running_target() == hwy::TargetName(target)) result.push_back(target);
  }
  return result;
}

class Target : public testing::TestWithParam<int64_t> {
 protected:
  OnlyTarget only_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Cpu, Target, testing::ValuesIn(targets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

void expect_right(const Case& c) {
  const Outputs actual = run(c, kFp32, {}), expected = reference(c, kFp32);
  EXPECT_LE(rms_error(actual.out, expected.out), kBar);
  EXPECT_LE(rms_error(actual.final_state, expected.final_state), kBar);
}

TEST(Targets, TheBestOneRunsByDefault) {
  const std::string best = running_target();
  ASSERT_FALSE(targets().empty());
  EXPECT_EQ(best, hwy::TargetName(targets().front()));  // Highway numbers the better ones lower
}

TEST_P(Target, EveryGateBetaFormAndDtype) {
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
    for (const int32_t beta : {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID, FKDA_BETA_ACTIVATED}) {
      for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32}) {
        SCOPED_TRACE(testing::Message() << "gate " << gate << ", beta " << beta << ", dtype " << dtype);
        expect_right(Case({.T = 77,
                           .H = 2,
                           .HV = 4,
                           .K = 64,
                           .V = 40,
                           .dtype = dtype,
                           .gate = gate,
                           .beta = beta,
                           .initial_state = FKDA_FLOAT32,
                           .seed = 401}));
      }
    }
  }
}

TEST_P(Target, EveryWidthAndLayout) {
  for (const auto& [K, V] : std::vector<std::pair<int64_t, int64_t>>{
           {128, 128}, {8, 8}, {24, 40}, {32, 32}, {64, 512}, {96, 96}, {128, 64}, {256, 256}, {512, 8}}) {
    for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
      for (const int64_t T : {1, 70}) {
        SCOPED_TRACE(testing::Message() << "K " << K << ", V " << V << ", layout " << layout << ", T " << T);
        expect_right(
            Case({.T = T, .H = 2, .K = K, .V = V, .initial_state = FKDA_FLOAT32, .state_layout = layout, .seed = 402}));
      }
    }
  }
}

TEST_P(Target, EveryLength) {
  std::vector<int64_t> cu = {0};
  for (int64_t length = 0; length <= 100; ++length) cu.push_back(cu.back() + length);
  expect_right(Case({.K = 32, .V = 24, .cu = cu, .initial_state = FKDA_FLOAT32, .seed = 403}));
}

TEST_P(Target, NarrowOutputsAreTheWideOnesRoundedToNearestEven) {
  for (const double factor : {1.0, 1e-6, 1e6}) {  // fp16 subnormal, and past its largest number
    Case c({.T = 75, .H = 2, .K = 64, .V = 24, .seed = 404});
    for (int64_t i = 0; i < c.v.numel(); ++i) c.v.set(i, factor * c.v.get(i));
    const Outputs wide = run(c, kFp32, {});
    for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
      SCOPED_TRACE(testing::Message() << "factor " << factor << ", dtype " << dtype);
      const Outputs narrow = run(c, {.out = dtype, .final_state = FKDA_BFLOAT16}, {});
      EXPECT_TRUE(same_bits(narrow.out, wide.out.to(dtype)));
      EXPECT_TRUE(same_bits(narrow.final_state, wide.final_state.to(FKDA_BFLOAT16)));
    }
  }
}

TEST_P(Target, WideInputsAreTheNarrowOnes) {  // every 16-bit value is read exactly
  for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
    Case narrow({.T = 75, .H = 2, .K = 64, .V = 24, .dtype = dtype, .seed = 405});
    narrow.v.set(5, 3e-8);  // subnormal in fp16
    narrow.v.set(6, -0.0);
    Case wide = narrow;
    for (Tensor Case::*x : {&Case::q, &Case::k, &Case::v, &Case::g, &Case::beta}) {
      wide.*x = (narrow.*x).to(FKDA_FLOAT32);
    }
    const Outputs a = run(narrow, kFp32, {}), b = run(wide, kFp32, {});
    EXPECT_TRUE(same_bits(a.out, b.out)) << dtype;
    EXPECT_TRUE(same_bits(a.final_state, b.final_state)) << dtype;
  }
}

TEST_P(Target, ExtremeGates) {
  for (const double a : {0.0, -1e-5, -5.6, -88.0, -1000.0}) {
    Case c({.T = 129, .H = 2, .gate = FKDA_GATE_LOG, .initial_state = FKDA_FLOAT32, .seed = 406});
    c.g.fill(a);
    SCOPED_TRACE(a);
    expect_right(c);
  }
  for (const double g : {-200.0, -50.0, 0.0, 50.0}) {
    for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS}) {
      Case c({.T = 70, .gate = gate, .dt_bias = false, .initial_state = FKDA_FLOAT32, .seed = 407});
      c.A_log.fill(100.0);
      c.g.fill(g);
      SCOPED_TRACE(testing::Message() << "g " << g << ", gate " << gate);
      expect_right(c);
    }
  }
}

TEST_P(Target, PackedIsApartAndResumedIsWholeInBits) {
  const Case c({.H = 2, .K = 64, .V = 40, .cu = {0, 1, 66, 166, 182}, .initial_state = FKDA_FLOAT32, .seed = 408});
  const Outputs together = run(c, kFp32, {});
  for (int64_t n = 0; n < c.N; ++n) {
    const Outputs alone = run(c.sequence(n), kFp32, {.num_threads = 3});
    EXPECT_TRUE(same_bits(c.rows(together.out, n), alone.out)) << n;
    EXPECT_TRUE(same_bits(together.final_state.narrow(0, n, 1), alone.final_state)) << n;
    if (c.length(n) <= 64) continue;
    const Outputs first = run(c.part(n, 0, 64, c.initial_state.narrow(0, n, 1)), kFp32, {});
    const Outputs rest = run(c.part(n, 64, c.length(n), first.final_state), kFp32, {});
    EXPECT_TRUE(same_bits(rest.out, alone.out.narrow(1, 64, c.length(n) - 64))) << n;
    EXPECT_TRUE(same_bits(rest.final_state, alone.final_state)) << n;
  }
}

TEST_P(Target, LargeDecodeBatch) {  // 64 MiB of states and more are written past the caches, unless in place
  for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
    const Case c({.B = 64, .T = 1, .H = 16, .initial_state = FKDA_FLOAT32, .state_layout = layout, .seed = 410});
    const Outputs apart = run(c, kFp32, {});
    const Outputs in_place = run(c, {.out = FKDA_FLOAT32, .in_place = true}, {});
    EXPECT_TRUE(same_bits(apart.out, in_place.out)) << layout;
    EXPECT_TRUE(same_bits(apart.final_state, in_place.final_state)) << layout;
    const Outputs last = run(c.sequence(63), kFp32, {});
    EXPECT_TRUE(same_bits(apart.out.narrow(0, 63, 1), last.out)) << layout;
    EXPECT_TRUE(same_bits(apart.final_state.narrow(0, 63, 1), last.final_state)) << layout;
  }
}

TEST_P(Target, NothingIsReadOrWrittenOutsideTheTensors) {
  for (const Fence fence : {Fence::kBehind, Fence::kBefore}) {
    for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT32}) {
      for (const int64_t T : {1, 9, 40}) {
        const Case c({.T = T,
                      .H = 2,
                      .K = 24,
                      .V = 40,
                      .dtype = dtype,
                      .initial_state = FKDA_FLOAT32,
                      .seed = 409,
                      .fence = fence});
        run(c, {.out = dtype, .fence = fence}, {});
        run(c, {.out = dtype, .final_state = FKDA_BFLOAT16, .fence = fence}, {});
      }
    }
  }
}

}  // namespace
}  // namespace flashkda::test
