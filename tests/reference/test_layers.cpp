// The oracle reproduces the fp64 results of the trained layers, and storing them costs what docs/numerics.md says.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "check/accuracy.hpp"
#include "check/layer_file.hpp"

namespace flashkda::test {
namespace {

using checks::measure;

// What rounding to a significand of `bits` bits costs, relative to the rms of the values (docs/numerics.md).
double rounding_floor(int bits) { return std::ldexp(1.0, -bits) / std::sqrt(8.0 * std::log(2.0)); }

void expect_reproduced(const std::string& stem) {
  const checks::LayerResult expected = checks::read_result(stem + "_expected.safetensors");
  const checks::ReferenceResult actual = checks::reference_result(checks::read_layer(stem + ".safetensors").problem);
  // The files hold fp32, and were made with the scale in fp64: the library's fp32 scale is off by 1.7e-8.
  EXPECT_LT(measure(actual.out, expected.out).rms, 1.05 * std::hypot(rounding_floor(24), 1.7e-8));
  EXPECT_LT(measure(actual.final_state, expected.final_state).rms, 1.05 * rounding_floor(24));
}

std::string slice(const std::string& gate) { return FLASHKDA_SOURCE_DIR "/data/kda_" + gate + "_slice"; }

class Layers : public testing::TestWithParam<const char*> {};

TEST_P(Layers, SliceIsReproduced) { expect_reproduced(slice(GetParam())); }

TEST_P(Layers, WholeLayerIsReproduced) {
  const char* wanted = std::getenv("FLASHKDA_DATA_DIR");
  const std::string folder = wanted != nullptr ? wanted : FLASHKDA_SOURCE_DIR "/../shared/data";
  const std::string stem = folder + "/kda_" + GetParam() + "_layer2";
  if (!std::filesystem::exists(stem + ".safetensors")) GTEST_SKIP() << "no full layer files in " << folder;
  expect_reproduced(stem);
}

TEST_P(Layers, StoringCostsTheRoundingFloor) {
  checks::OwnedProblem problem = checks::read_layer(slice(GetParam()) + ".safetensors").problem;
  const checks::ReferenceResult exact = checks::reference_result(problem);
  problem.options.backend = "reference";
  for (const auto& [dtype, bits] : {std::pair{FKDA_BFLOAT16, 8}, {FKDA_FLOAT16, 11}, {FKDA_FLOAT32, 24}}) {
    problem.allocate_outputs(dtype, 0);
    checks::Runner(problem.problem()).run();
    EXPECT_NEAR(measure(problem.out, exact.out).rms / rounding_floor(bits), 1.0, 0.05) << bits << " bits";
  }
}

INSTANTIATE_TEST_SUITE_P(Gate, Layers, testing::Values("bounded", "softplus"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace flashkda::test
