#include "check/bench_case.hpp"

#include <charconv>
#include <limits>

namespace flashkda::checks {
namespace {

constexpr int64_t kMixed6[] = {1300, 547, 2048, 963, 271, 3063};
constexpr int64_t kLargest = int64_t{1} << 31;

// A whole positive number.
std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 1 || value > kLargest) return std::nullopt;
  return value;
}

// "<letter><number>"
std::optional<int64_t> parse_letter(std::string_view text, char letter) {
  if (text.empty() || text.front() != letter) return std::nullopt;
  return parse_number(text.substr(1));
}

bool set_tokens(std::string_view text, ProblemShape& shape) {
  if (text == "mixed6") {
    shape.lengths.assign(std::begin(kMixed6), std::end(kMixed6));
    return true;
  }
  if (const auto T = parse_letter(text, 'T')) {
    shape.T = *T;
    return true;
  }
  const size_t cross = text.find('x');
  if (cross == std::string_view::npos) return false;
  const auto count = parse_number(text.substr(0, cross)), length = parse_number(text.substr(cross + 1));
  if (!count || !length || *count > 10'000'000) return false;
  shape.lengths.assign(static_cast<size_t>(*count), *length);
  return true;
}

void finish(OwnedProblem& problem, bool decode, int32_t state_dtype) {
  problem.allocate_outputs(FKDA_BFLOAT16, decode ? 0 : state_dtype);
}

}  // namespace

std::optional<BenchCase> parse_bench_case(std::string_view name) {
  const size_t space = name.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::string_view first = name.substr(0, space), second = name.substr(space + 1);
  BenchCase result{.name = std::string(name)};
  if (const auto B = parse_letter(first, 'B')) {
    const auto H = parse_letter(second, 'H');
    if (!H) return std::nullopt;
    result.decode = true;
    result.shape = {.B = *B, .T = 1, .H = *H};
    return result;
  }
  const auto H = parse_letter(first, 'H');
  if (!H || !set_tokens(second, result.shape)) return std::nullopt;
  result.shape.H = *H;
  return result;
}

OwnedProblem make_bench_problem(const BenchCase& bench_case, const Family& family, int32_t state_dtype) {
  OwnedProblem problem = make_problem(family, bench_case.shape, {.initial_state = state_dtype});
  finish(problem, bench_case.decode, state_dtype);
  return problem;
}

OwnedProblem make_bench_problem(const BenchCase& bench_case, const OwnedProblem& layer, int32_t state_dtype) {
  OwnedProblem problem = tile_layer(layer, bench_case.shape, state_dtype);
  finish(problem, bench_case.decode, state_dtype);
  return problem;
}

fkda_problem bench_views(const BenchCase& bench_case, const OwnedProblem& problem) {
  fkda_problem p = problem.problem();
  if (bench_case.decode) p.final_state = p.initial_state;
  return p;
}

}  // namespace flashkda::checks
