// The oracle reproduces the fp64 results of the trained layers, and storing them costs what docs/numerics.md says.
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "support/layer.hpp"

namespace flashkda::test {
namespace {

// What rounding to a significand of `bits` bits costs, relative to the rms of the values (docs/numerics.md).
double rounding_floor(int bits) { return std::ldexp(1.0, -bits) / std::sqrt(8.0 * std::log(2.0)); }

void expect_reproduced(const Layer& layer) {
  const Outputs wide = reference(layer.inputs);
  // The files hold fp32, and were made with the scale in fp64: the library's fp32 scale is off by 1.7e-8.
  EXPECT_LT(rms_error(wide.out, layer.o), 1.05 * std::hypot(rounding_floor(24), 1.7e-8));
  EXPECT_LT(rms_error(wide.final_state, layer.final_state), 1.05 * rounding_floor(24));
}

void expect_floor(const Layer& layer) {
  const Outputs wide = reference(layer.inputs);
  for (const auto& [dtype, bits] : {std::pair{FKDA_BFLOAT16, 8}, {FKDA_FLOAT16, 11}, {FKDA_FLOAT32, 24}}) {
    const Outputs rounded = run(layer.inputs, {.out = dtype}, {.backend = "reference"});
    EXPECT_NEAR(rms_error(rounded.out, wide.out) / rounding_floor(bits), 1.0, 0.05) << bits << " bits";
  }
}

class Layers : public testing::TestWithParam<const char*> {};

TEST_P(Layers, SliceIsReproduced) { expect_reproduced(load_slice(GetParam())); }

TEST_P(Layers, WholeLayerIsReproduced) {
  const std::optional<Layer> layer = load_full_layer(GetParam());
  if (!layer) GTEST_SKIP() << "no full layer files in " << full_layer_directory();
  expect_reproduced(*layer);
}

TEST_P(Layers, StoringCostsTheRoundingFloor) { expect_floor(load_slice(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Gate, Layers, testing::Values("bounded", "softplus"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace flashkda::test
