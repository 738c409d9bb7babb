// The C++ interface as a server uses it: a prompt in one call, then one token a call, the state updated in place.
// Checks the outputs against one call of the fp64 reference over everything.
//
//   c++ -std=c++20 generate.cpp -lflashkda
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <flashkda/flashkda.hpp>
#include <random>
#include <vector>

using flashkda::bfloat16;
using flashkda::view;

constexpr std::int64_t kPrompt = 80, kTokens = 100, kH = 2, kD = 128;

static std::vector<bfloat16> random_rows(std::int64_t width) {
  static std::mt19937 engine;
  std::normal_distribution<float> normal;
  std::vector<bfloat16> x;
  for (std::int64_t i = 0; i < kTokens * width; ++i) x.emplace_back(normal(engine));
  return x;
}

int main() try {
  const auto q = random_rows(kH * kD), k = random_rows(kH * kD), v = random_rows(kH * kD), g = random_rows(kH * kD);
  const auto beta = random_rows(kH);
  const std::vector<float> A_log(kH, 0.5f), dt_bias(kH * kD, -2.0f);

  // README: begin
  // Tokens begin .. end-1, starting from `state` and leaving the new state there.
  const auto problem = [&](std::int64_t begin, std::int64_t end, std::vector<float>& out, std::vector<float>& state) {
    const auto rows = [&](auto& x) { return view(std::span(x).subspan(begin * kH * kD), {1, end - begin, kH, kD}); };
    return flashkda::Problem()
        .q(rows(q))
        .k(rows(k))
        .v(rows(v))
        .g(rows(g))
        .beta(view(std::span(beta).subspan(begin * kH), {1, end - begin, kH}))
        .A_log(view(A_log))
        .dt_bias(view(dt_bias))
        .bounded_gate(-5.0f)
        .initial_state(view(state, {1, kH, kD, kD}))
        .final_state(view(state, {1, kH, kD, kD}))
        .out(rows(out));
  };

  std::vector<float> out(v.size()), state(kH * kD * kD);
  flashkda::forward(problem(0, kPrompt, out, state));
  for (std::int64_t t = kPrompt; t < kTokens; ++t) flashkda::forward(problem(t, t + 1, out, state));
  // README: end

  std::vector<float> reference(v.size()), reference_state(state.size());
  flashkda::forward(problem(0, kTokens, reference, reference_state).backend("reference"));

  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    difference += std::pow(out[i] - reference[i], 2);
    norm += std::pow(reference[i], 2);
  }
  const double error = std::sqrt(difference / norm);
  std::printf("prompt of %d tokens, then %d one by one: o differs from the fp64 reference by %.1e of its rms\n",
              int{kPrompt}, int{kTokens - kPrompt}, error);
  return error < 1e-5 ? 0 : 1;
} catch (const flashkda::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());  // the argument, what it got and what it needs
  return 1;
}
