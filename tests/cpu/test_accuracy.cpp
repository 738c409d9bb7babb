// The CPU backend's accuracy: rms error of o at most 2e-3 of rms with bf16 output, of the fp32 final state at most
// 2e-5, against the fp64 recurrence, on every family of inputs and on the trained layers.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "check/accuracy.hpp"
#include "check/families.hpp"
#include "check/layer_file.hpp"
#include "support/case.hpp"

namespace flashkda::test {
namespace {

using checks::kOutputBar;
using checks::kStateBar;
using checks::measure;

// What stays below the bars when nothing is rounded to bf16: there a loss of accuracy shows first.
constexpr double kOutputBarFp32 = 2e-5;

void expect_within_bars(checks::OwnedProblem& problem) {
  problem.options.backend = "cpu";
  const checks::ReferenceResult exact = checks::reference_result(problem);
  for (const int32_t out : {FKDA_BFLOAT16, FKDA_FLOAT32}) {
    problem.allocate_outputs(out, FKDA_FLOAT32);
    checks::Runner(problem.problem()).run();
    EXPECT_LE(measure(problem.out, exact.out).rms, out == FKDA_BFLOAT16 ? kOutputBar : kOutputBarFp32);
    EXPECT_LE(measure(problem.final_state, exact.final_state).rms, kStateBar);
  }
}

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

class FamilyAccuracy : public testing::TestWithParam<std::string> {
 protected:
  const checks::Family& family() const { return *checks::find_family(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Each, FamilyAccuracy, testing::ValuesIn(family_names()), test_name);

TEST_P(FamilyAccuracy, DenseBatch) {
  checks::OwnedProblem problem = checks::make_problem(family(), {.B = 2, .T = 500, .H = 2});
  expect_within_bars(problem);
}

TEST_P(FamilyAccuracy, LongSequenceFromNothing) {
  checks::OwnedProblem problem = checks::make_problem(family(), {.T = long_sequence(4096)}, {.initial_state = 0}, 2);
  expect_within_bars(problem);
}

TEST_P(FamilyAccuracy, PackedBatchOfShortAndLong) {
  checks::OwnedProblem problem =
      checks::make_problem(family(), {.lengths = {1, 300, 0, 17, 64, 129, 8}, .H = 1, .HV = 3}, {}, 3);
  expect_within_bars(problem);
}

TEST_P(FamilyAccuracy, EveryInputDtype) {
  for (const int32_t dtype : {FKDA_FLOAT16, FKDA_FLOAT32}) {
    SCOPED_TRACE(dtype);
    checks::OwnedProblem problem =
        checks::make_problem(family(), {.T = 300, .H = 2}, {.qkv = dtype, .g = FKDA_FLOAT32, .beta = FKDA_FLOAT32}, 4);
    expect_within_bars(problem);
  }
}

TEST_P(FamilyAccuracy, OtherWidths) {
  for (const int64_t D : {32, 64, 96, 256}) {
    SCOPED_TRACE(D);
    checks::OwnedProblem problem = checks::make_problem(family(), {.T = 200, .H = 2, .K = D, .V = D}, {}, 5);
    expect_within_bars(problem);
  }
}

TEST_P(FamilyAccuracy, TokenByToken) {  // decode: the state goes through the caller's memory at every token
  checks::OwnedProblem whole = checks::make_problem(family(), {.T = 64, .H = 2}, {}, 6);
  const checks::ReferenceResult exact = checks::reference_result(whole);
  checks::HostTensor state(FKDA_FLOAT32, whole.state_shape());
  for (int64_t i = 0; i < state.size(); ++i) state.set(i, whole.initial_state.get(i));
  checks::HostTensor out(FKDA_FLOAT32, whole.v.shape());
  for (int64_t t = 0; t < 64; ++t) {
    fkda_problem step = whole.problem();
    step.backend = "cpu";
    step.out = out.view();
    for (fkda_tensor* x : {&step.q, &step.k, &step.v, &step.g, &step.beta, &step.out}) {
      const int64_t size = x->dtype == FKDA_FLOAT32 ? 4 : 2;
      x->data = static_cast<std::byte*>(x->data) + t * x->stride[1] * size;
      x->shape[1] = 1;
    }
    step.initial_state = step.final_state = state.view();
    checks::Runner(step).run();
  }
  EXPECT_LE(measure(out, exact.out).rms, kOutputBarFp32);
  EXPECT_LE(measure(state, exact.final_state).rms, kStateBar);
}

// The trained layers, against the fp64 result that came with them.
class LayerAccuracy : public testing::TestWithParam<std::string> {
 protected:
  static void expect_right(const std::string& stem) {
    const checks::LayerResult expected = checks::read_result(stem + "_expected.safetensors");
    checks::OwnedProblem problem = checks::read_layer(stem + ".safetensors").problem;
    problem.options.backend = "cpu";
    for (const int32_t out : {FKDA_BFLOAT16, FKDA_FLOAT32}) {
      problem.allocate_outputs(out, FKDA_FLOAT32);
      checks::Runner(problem.problem()).run();
      EXPECT_LE(measure(problem.out, expected.out).rms, out == FKDA_BFLOAT16 ? kOutputBar : kOutputBarFp32);
      EXPECT_LE(measure(problem.final_state, expected.final_state).rms, kStateBar);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Each, LayerAccuracy, testing::Values("bounded", "softplus"), test_name);

TEST_P(LayerAccuracy, Slice) { expect_right(FLASHKDA_SOURCE_DIR "/data/kda_" + GetParam() + "_slice"); }

TEST_P(LayerAccuracy, WholeLayer) {
  const char* wanted = std::getenv("FLASHKDA_DATA_DIR");
  const std::string folder = wanted != nullptr ? wanted : FLASHKDA_SOURCE_DIR "/../shared/data";
  const std::string stem = folder + "/kda_" + GetParam() + "_layer2";
  if (!std::filesystem::exists(stem + ".safetensors")) GTEST_SKIP() << "no full layer files in " << folder;
  expect_right(stem);
}

}  // namespace
}  // namespace flashkda::test
