// Tests that run on every backend for host tensors.
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace flashkda::test {

class OnBackend : public testing::TestWithParam<const char*> {};

inline std::string backend_test_name(const testing::TestParamInfo<const char*>& info) { return info.param; }

}  // namespace flashkda::test

// Runs the TEST_Ps of a fixture derived from OnBackend on each backend: its name is GetParam().
#define FLASHKDA_ON_EACH_BACKEND(Fixture) \
  INSTANTIATE_TEST_SUITE_P(Backend, Fixture, testing::Values("cpu", "reference"), ::flashkda::test::backend_test_name)
