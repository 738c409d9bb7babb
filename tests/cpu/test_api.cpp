// The C functions around the operation: workspace, choice of the backend, error messages, description of the
// implementations.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "flashkda/flashkda.h"
#include "support/backends.hpp"
#include "support/case.hpp"
#include "support/environment.hpp"
#include "support/tensor.hpp"

namespace flashkda::test {
namespace {

bool all_poisoned(const Buffer& buffer) {
  return std::all_of(buffer.data(), buffer.data() + buffer.size(), [](std::byte b) { return b == std::byte{0xff}; });
}

class Workspace : public OnBackend {
 protected:
  Workspace()
      : c({.T = 70, .H = 2, .HV = 4, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32}),
        outputs(c.make_outputs({})),
        problem(c.problem(outputs)) {
    problem.backend = GetParam();
    EXPECT_EQ(fkda_workspace_size(&problem, &bytes), FKDA_OK) << fkda_last_error();
  }

  // A refusal with that status, all of these words in the message, and nothing written.
  void expect_refused(void* workspace, size_t size, fkda_status status, const std::vector<std::string>& words) {
    EXPECT_EQ(fkda_forward(&problem, workspace, size, nullptr), status);
    const std::string message = fkda_last_error();
    EXPECT_TRUE(message.starts_with("workspace")) << message;
    for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_TRUE(untouched(outputs.out));
    EXPECT_TRUE(untouched(outputs.final_state));
  }

  Case c;
  Outputs outputs;
  fkda_problem problem;
  size_t bytes = 0;
};
FLASHKDA_ON_EACH_BACKEND(Workspace);

TEST_P(Workspace, Row53_OneByteShortIsRefused) {
  ASSERT_GT(bytes, 0u);
  Buffer workspace(bytes);
  expect_refused(workspace.data(), bytes - 1, FKDA_WORKSPACE_TOO_SMALL,
                 {std::to_string(bytes - 1), std::to_string(bytes)});
  EXPECT_TRUE(all_poisoned(workspace));
}

TEST_P(Workspace, NoBytesAreRefused) {
  Buffer workspace(bytes);
  expect_refused(workspace.data(), 0, FKDA_WORKSPACE_TOO_SMALL, {"0", std::to_string(bytes)});
  EXPECT_TRUE(all_poisoned(workspace));
}

TEST_P(Workspace, NullIsRefused) {
  expect_refused(nullptr, bytes, FKDA_WORKSPACE_TOO_SMALL, {"null", std::to_string(bytes)});
}

TEST_P(Workspace, MisalignedIsRefused) {
  Buffer workspace(bytes + FKDA_WORKSPACE_ALIGNMENT);
  for (const int shift : {1, 8, 64, 128}) {
    expect_refused(workspace.data() + shift, bytes, FKDA_INVALID_ARGUMENT,
                   {std::to_string(shift) + " bytes past a multiple of 256"});
  }
  EXPECT_TRUE(all_poisoned(workspace));
}

TEST_P(Workspace, ExactSizeIsEnoughAndOldContentsDoNotMatter) {
  ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();  // full of NaN
  const Tensor out = outputs.out.clone(), state = outputs.final_state.clone();
  for (const int fill : {0x00, 0x7f, 0x3c}) {
    outputs.out.poison();
    outputs.final_state.poison();
    Buffer workspace(bytes);
    std::memset(workspace.data(), fill, bytes);
    ASSERT_EQ(fkda_forward(&problem, workspace.data(), bytes, nullptr), FKDA_OK) << fkda_last_error();
    EXPECT_TRUE(workspace.guards_intact());
    EXPECT_TRUE(same_bits(outputs.out, out));
    EXPECT_TRUE(same_bits(outputs.final_state, state));
  }
}

TEST_P(Workspace, MoreThanEnoughIsFineAndTheRestIsNotTouched) {
  Buffer workspace(bytes + 4096);
  ASSERT_EQ(fkda_forward(&problem, workspace.data(), workspace.size(), nullptr), FKDA_OK) << fkda_last_error();
  EXPECT_TRUE(std::all_of(workspace.data() + bytes, workspace.data() + workspace.size(),
                          [](std::byte b) { return b == std::byte{0xff}; }));
}

TEST(Choice, TheEnvironmentNamesTheBackend) {
  const Case c({.T = 20});
  Outputs outputs = c.make_outputs({});
  fkda_problem problem = c.problem(outputs);
  const char* name = nullptr;
  for (const char* automatic : {static_cast<const char*>(nullptr), "auto"}) {
    problem.backend = automatic;
    {
      const Environment variable("FLASH_KDA_BACKEND", "reference");
      ASSERT_EQ(fkda_validate(&problem, &name), FKDA_OK) << fkda_last_error();
      EXPECT_STREQ(name, "reference");
    }
    for (const char* no_choice : {static_cast<const char*>(nullptr), "", "auto"}) {
      const Environment variable("FLASH_KDA_BACKEND", no_choice);
      ASSERT_EQ(fkda_validate(&problem, &name), FKDA_OK) << fkda_last_error();
      EXPECT_STREQ(name, "cpu");
    }
  }
}

TEST(Choice, TheProblemsBackendComesBeforeTheEnvironment) {
  const Case c({.T = 20});
  Outputs outputs = c.make_outputs({});
  fkda_problem problem = c.problem(outputs);
  problem.backend = "cpu";
  const Environment variable("FLASH_KDA_BACKEND", "reference");
  const char* name = nullptr;
  ASSERT_EQ(fkda_validate(&problem, &name), FKDA_OK) << fkda_last_error();
  EXPECT_STREQ(name, "cpu");
}

TEST(Choice, AnUnknownNameInTheEnvironmentIsRefused) {
  const Case c({.T = 20});
  Outputs outputs = c.make_outputs({});
  const fkda_problem problem = c.problem(outputs);
  const Environment variable("FLASH_KDA_BACKEND", "abacus");
  EXPECT_EQ(forward(problem), FKDA_INVALID_ARGUMENT);
  const std::string message = fkda_last_error();
  for (const char* word : {"FLASH_KDA_BACKEND", "abacus", "auto", "cpu", "reference"}) {
    EXPECT_NE(message.find(word), std::string::npos) << message;
  }
  EXPECT_TRUE(untouched(outputs.out));
}

TEST(Choice, ANameTooLongForTheMessageIsRefused) {
  const Case c({.T = 20});
  Outputs outputs = c.make_outputs({});
  fkda_problem problem = c.problem(outputs);
  const std::string name(100000, 'x');
  problem.backend = name.c_str();
  EXPECT_EQ(forward(problem), FKDA_INVALID_ARGUMENT);
  EXPECT_TRUE(std::string(fkda_last_error()).starts_with("backend"));
}

TEST(Choice, TheReferenceIsNeverChosenUnasked) {  // K = 100 is nothing for the tuned backends
  const Environment automatic("FLASH_KDA_BACKEND", nullptr);
  const Case c({.T = 20, .K = 100});
  Outputs outputs = c.make_outputs({});
  fkda_problem problem = c.problem(outputs);
  const char* name = nullptr;
  EXPECT_EQ(fkda_validate(&problem, &name), FKDA_UNSUPPORTED);
  problem.backend = "reference";
  EXPECT_EQ(fkda_validate(&problem, &name), FKDA_OK) << fkda_last_error();
}

TEST(LastError, IsEmptyAfterASuccess) {
  const Case c({.T = 20});
  Outputs outputs = c.make_outputs({});
  fkda_problem problem = c.problem(outputs);
  EXPECT_EQ(fkda_validate(nullptr, nullptr), FKDA_INVALID_ARGUMENT);
  EXPECT_STRNE(fkda_last_error(), "");
  EXPECT_EQ(fkda_validate(&problem, nullptr), FKDA_OK);
  EXPECT_STREQ(fkda_last_error(), "");
}

TEST(LastError, BelongsToItsThread) {
  EXPECT_EQ(fkda_validate(nullptr, nullptr), FKDA_INVALID_ARGUMENT);
  std::thread([] {
    EXPECT_STREQ(fkda_last_error(), "");
    EXPECT_EQ(fkda_workspace_size(nullptr, nullptr), FKDA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fkda_last_error()).find("bytes"), std::string::npos) << fkda_last_error();
  }).join();
  EXPECT_TRUE(std::string(fkda_last_error()).starts_with("problem")) << fkda_last_error();
}

TEST(NullPointers, AreRefusedByName) {
  const Case c({.T = 20});
  Outputs outputs = c.make_outputs({});
  const fkda_problem problem = c.problem(outputs);
  size_t bytes = 0;
  const auto expect_named = [](fkda_status status, const char* argument) {
    EXPECT_EQ(status, FKDA_INVALID_ARGUMENT);
    EXPECT_TRUE(std::string(fkda_last_error()).starts_with(argument)) << fkda_last_error();
  };
  expect_named(fkda_validate(nullptr, nullptr), "problem");
  expect_named(fkda_workspace_size(nullptr, &bytes), "problem");
  expect_named(fkda_workspace_size(&problem, nullptr), "bytes");
  expect_named(fkda_forward(nullptr, nullptr, 0, nullptr), "problem");
  expect_named(fkda_implementation_info(0, nullptr), "info");
  expect_named(fkda_inspect_chunk(&problem, nullptr), "chunk");
  fkda_problem_init(nullptr);  // nothing to set, nothing to break
}

TEST(Implementations, AreListedOnceEachAndDescribed) {
  std::vector<std::string> names;
  for (int32_t i = 0; i < fkda_implementation_count(); ++i) {
    fkda_implementation info = {};
    ASSERT_EQ(fkda_implementation_info(i, &info), FKDA_OK);
    names.emplace_back(info.name);
    EXPECT_STRNE(info.features, "");
    if (info.device_type == FKDA_CPU) {
      EXPECT_EQ(info.available, 1);
      EXPECT_STRNE(info.detail, "");
    } else if (info.available == 0) {
      EXPECT_NE(std::string(info.detail).find("no CUDA device"), std::string::npos) << info.detail;
    }
  }
  for (const char* name : {"cpu", "reference"}) EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
}

TEST(Implementations, AnIndexOutsideTheTableIsRefused) {
  fkda_implementation info = {};
  for (const int32_t index : {-1, fkda_implementation_count()}) {
    EXPECT_EQ(fkda_implementation_info(index, &info), FKDA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fkda_last_error()).find(std::to_string(index)), std::string::npos) << fkda_last_error();
    EXPECT_EQ(info.name, nullptr);
  }
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::vector<std::string> names;
  for (int code = FKDA_OK; code <= FKDA_INTERNAL_ERROR; ++code) {
    names.emplace_back(fkda_status_string(static_cast<fkda_status>(code)));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  EXPECT_STRNE(fkda_status_string(static_cast<fkda_status>(7)), "");
}

TEST(Version, IsTheHeaders) { EXPECT_STREQ(fkda_version(), FLASHKDA_VERSION_STRING); }

TEST(Dense, IsRowMajor) {
  float data[24];
  const int64_t shape[] = {2, 3, 4};
  const fkda_tensor t = fkda_dense(data, FKDA_FLOAT32, 3, shape);
  EXPECT_EQ(t.data, data);
  EXPECT_EQ(t.dtype, FKDA_FLOAT32);
  EXPECT_EQ(t.ndim, 3);
  EXPECT_EQ(std::vector<int64_t>(t.shape, t.shape + 3), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(std::vector<int64_t>(t.stride, t.stride + 3), (std::vector<int64_t>{12, 4, 1}));
}

}  // namespace
}  // namespace flashkda::test
