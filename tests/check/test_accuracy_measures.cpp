// Error measures, and the oracle they are taken against.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "check/accuracy.hpp"
#include "check/families.hpp"

namespace flashkda::checks {
namespace {

HostTensor tensor(const std::vector<double>& values, int32_t dtype = FKDA_FLOAT64) {
  HostTensor result(dtype, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) result.set(static_cast<int64_t>(i), values[i]);
  return result;
}

TEST(AccuracyMeasures, ByHand) {
  const ErrorMeasures m = measure(tensor({1.0, 2.0, 3.0, 6.0}), tensor({1.0, 2.0, 5.0, 5.0}));
  EXPECT_DOUBLE_EQ(m.rms, std::sqrt(5.0 / 55.0));
  EXPECT_DOUBLE_EQ(m.max, 2.0);
  EXPECT_DOUBLE_EQ(m.mae, 0.75);
  EXPECT_DOUBLE_EQ(m.reference_rms, std::sqrt(55.0 / 4.0));
}

TEST(AccuracyMeasures, EqualIsZero) {
  EXPECT_EQ(measure(tensor({1.0, -2.0}, FKDA_BFLOAT16), tensor({1.0, -2.0})).rms, 0.0);
  EXPECT_EQ(measure(tensor({}), tensor({})).rms, 0.0);
}

TEST(AccuracyMeasures, ZeroReferenceIsAbsolute) {
  EXPECT_EQ(measure(tensor({0.0, 0.0}), tensor({0.0, 0.0})).rms, 0.0);
  EXPECT_DOUBLE_EQ(measure(tensor({3.0, 4.0}), tensor({0.0, 0.0})).rms, std::sqrt(12.5));
}

TEST(AccuracyMeasures, WhatIsNotFiniteMissesEveryBar) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  const HostTensor reference = tensor({1.0, 2.0, 3.0});
  for (const auto& values : {std::vector{kNaN, 2.0, 3.0}, {1.0, 2.0, kNaN}, {1.0, kInf, 3.0}, {-kInf, kInf, kNaN}}) {
    const ErrorMeasures m = measure(tensor(values), reference);
    EXPECT_FALSE(m.rms <= 1e30);
    EXPECT_FALSE(m.max <= 1e30);
    EXPECT_FALSE(m.mae <= 1e30);
  }
}

TEST(ReferenceResult, LeavesTheProblemAloneAndIgnoresItsBackend) {
  OwnedProblem p = make_problem(*find_family("random"), {.T = 20});
  p.allocate_outputs(FKDA_BFLOAT16, FKDA_FLOAT32);
  p.options.backend = "cpu";
  const ReferenceResult reference = reference_result(p);
  EXPECT_EQ(p.out.get(5), 0.0);
  EXPECT_EQ(p.final_state.get(5), 0.0);
  EXPECT_STREQ(p.options.backend, "cpu");
  EXPECT_EQ(reference.out.dtype(), FKDA_FLOAT64);
  EXPECT_EQ(reference.out.shape(), p.v.shape());
  EXPECT_EQ(reference.final_state.shape(), p.state_shape());
  EXPECT_NE(reference.out.get(5), 0.0);
}

TEST(Runner, ReportsWhatTheLibraryRejects) {
  OwnedProblem p = make_problem(*find_family("random"), {.T = 4});
  try {
    Runner runner(p.problem());  // no outputs
    FAIL() << "accepted";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), FKDA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.what()).find("out"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace flashkda::checks
