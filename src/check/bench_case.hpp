// Names of benchmark cases, e.g. "H96 T8192", and the problems they stand for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "check/families.hpp"

namespace flashkda::checks {

struct BenchCase {
  std::string name;
  bool decode = false;  // one token a sequence, state updated in place
  ProblemShape shape = {};
};

// Understood are (K = V = 128, HV = H):
//   "H8 T8192"     one sequence of 8192 tokens, 8 heads
//   "H32 256x32"   256 packed sequences of 32 tokens
//   "H96 mixed6"   six packed sequences of 1300, 547, 2048, 963, 271 and 3063 tokens
//   "B64 H32"      decode: 64 sequences of one token
std::optional<BenchCase> parse_bench_case(std::string_view name);

// Inputs and outputs of a case: bf16 q k v g beta and output, states of state_dtype at both ends (decode: in place).
// family: of families.hpp.
OwnedProblem make_bench_problem(const BenchCase& bench_case, const Family& family, int32_t state_dtype);
// The same with the tokens of a real layer, in its dtypes.
OwnedProblem make_bench_problem(const BenchCase& bench_case, const OwnedProblem& layer, int32_t state_dtype);

// The problem to run: of a decode case final_state is the view of initial_state.
fkda_problem bench_views(const BenchCase& bench_case, const OwnedProblem& problem);

// Multiply-adds of the chunked form per token and value head at K = V = 128, by which speeds are compared.
constexpr double kFmaPerTokenHead = 57344.0;

}  // namespace flashkda::checks
