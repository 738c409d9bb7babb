// The C++ facade (flashkda.hpp): views, the problem builder, errors, and each call against what the C interface says.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "flashkda/flashkda.hpp"

namespace {

using flashkda::bfloat16;
using flashkda::view;

constexpr std::int64_t kT = 40, kH = 2, kD = 32;
constexpr std::size_t kRow = kH * kD;

// A small problem with values that differ in every element: q, k, v and g as columns of one [T, 4*H*D] projection.
struct Inputs {
  std::vector<float> projection = std::vector<float>(kT * 4 * kRow), beta = std::vector<float>(kT * kH);
  std::vector<float> out = std::vector<float>(kT * kRow), state = std::vector<float>(kH * kD * kD);

  Inputs() {
    for (std::size_t i = 0; i < projection.size(); ++i)
      projection[i] = std::sin(0.7f * static_cast<float>(i * i % 977));
    for (std::size_t i = 0; i < beta.size(); ++i) beta[i] = std::cos(static_cast<float>(i));
  }
  // Column block `index` of the projection, and a dense copy of it.
  flashkda::ConstTensor block(std::size_t index) const {
    const std::span<const float> columns(projection);
    return view(columns.subspan(index * kRow), {1, kT, kH, kD}, {0, 4 * kRow, kD, 1});
  }
  std::vector<float> dense_block(std::size_t index) const {
    std::vector<float> dense;
    for (std::size_t t = 0; t < kT; ++t) {
      const auto row = projection.begin() + static_cast<std::ptrdiff_t>((t * 4 + index) * kRow);
      dense.insert(dense.end(), row, row + kRow);
    }
    return dense;
  }
  flashkda::Problem problem() {
    return flashkda::Problem()
        .q(block(0))
        .k(block(1))
        .v(block(2))
        .g(block(3))
        .beta(view(beta, {1, kT, kH}))
        .bounded_gate(-4.0f)
        .out(view(out, {1, kT, kH, kD}))
        .final_state(view(state, {1, kH, kD, kD}));
  }
};

template <typename Call>
flashkda::Error error_of(Call&& call) {
  try {
    call();
  } catch (const flashkda::Error& e) {
    return e;
  }
  ADD_FAILURE() << "no flashkda::Error was thrown";
  return {FKDA_OK, ""};
}

// ------------------------------------------------------------------------------------------------------------- views

TEST(FacadeView, IsReadOnlyOverConstElements) {
  std::vector<float> x(6);
  const std::vector<float>& y = x;
  static_assert(std::is_same_v<decltype(view(x)), flashkda::Tensor>);
  static_assert(std::is_same_v<decltype(view(y)), flashkda::ConstTensor>);
  using Setter = decltype(&flashkda::Problem::out);
  static_assert(std::is_invocable_v<Setter, flashkda::Problem, flashkda::Tensor>);
  static_assert(!std::is_invocable_v<Setter, flashkda::Problem, flashkda::ConstTensor>);
  EXPECT_EQ(view(y).raw.data, x.data());
}

TEST(FacadeView, CarriesDtypeShapeAndStride) {
  std::array<bfloat16, 24> x{};
  const fkda_tensor dense = view(x, {2, 3, 4}).raw;
  EXPECT_EQ(dense.dtype, FKDA_BFLOAT16);
  EXPECT_EQ(dense.device_type, FKDA_CPU);
  ASSERT_EQ(dense.ndim, 3);
  EXPECT_EQ(dense.shape[1], 3);
  EXPECT_EQ(dense.stride[0], 12);
  const fkda_tensor strided = view(x, {2, 3}, {12, 1}).raw;
  EXPECT_EQ(strided.stride[0], 12);
  std::array<std::int32_t, 3> cu{};
  EXPECT_EQ(view(cu).raw.shape[0], 3);
  EXPECT_EQ(view(cu).raw.dtype, FKDA_INT32);
}

TEST(FacadeView, RefusesARangeThatIsTooShort) {
  std::vector<float> x(12), none;
  EXPECT_NO_THROW(view(x, {3, 4}));
  EXPECT_NO_THROW(view(x, {3, 2}, {5, 1}));  // last element: 2*5 + 1 = 11
  EXPECT_THROW(view(x, {3, 2}, {6, 1}), flashkda::Error);
  EXPECT_THROW(view(x, {13}), flashkda::Error);
  EXPECT_THROW(view(none, {1}, {0}), flashkda::Error);
  EXPECT_NO_THROW(view(none, {0, 4}));
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(view(x, {kHuge, kHuge}, {kHuge, 1}), flashkda::Error);
  EXPECT_NE(std::string(error_of([&] { view(x, {13}); }).what()).find("12 elements"), std::string::npos);
}

TEST(FacadeView, RefusesBadDimensions) {
  std::vector<float> x(12);
  EXPECT_THROW(view(x, {}), flashkda::Error);
  EXPECT_THROW(view(x, {1, 1, 1, 1, 1, 1}), flashkda::Error);
  EXPECT_THROW(view(x, {3, 4}, {1}), flashkda::Error);
  EXPECT_THROW(view(x, {-1, 4}), flashkda::Error);
  EXPECT_THROW(view(x, {3, 4}, {-4, 1}), flashkda::Error);
}

TEST(FacadeView, Bfloat16RoundsToNearestEven) {
  EXPECT_EQ(bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bfloat16(1.0f + 0x1p-8f).bits, 0x3f80);            // a tie goes to the even neighbour below
  EXPECT_EQ(bfloat16(1.0f + 0x1p-7f + 0x1p-8f).bits, 0x3f82);  // and here above
  EXPECT_EQ(bfloat16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3f81);
  EXPECT_EQ(static_cast<float>(bfloat16(-2.5f)), -2.5f);
  const auto nan_of_low_bits = std::bit_cast<float>(0x7f800001u);  // truncated, this would be infinity
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(nan_of_low_bits))));
}

// --------------------------------------------------------------------------------------------------------------- run

TEST(Facade, OneTokenWritesOneElementOfTheState) {
  // k = e_0, v = e_1, b = 1, no decay: S = e_0 e_1^T, at [1,0] of the v-first state; o = scale q_0 e_1.
  std::vector<float> q(kD), k(kD), v(kD), g(kD), beta{1.0f}, out(kD), state(kD * kD), expected(kD * kD);
  q[0] = 3.0f;
  k[0] = v[1] = 1.0f;
  expected[1 * kD + 0] = 1.0f;
  flashkda::forward(flashkda::Problem()
                        .q(view(q, {1, 1, 1, kD}))
                        .k(view(k, {1, 1, 1, kD}))
                        .v(view(v, {1, 1, 1, kD}))
                        .g(view(g, {1, 1, 1, kD}))
                        .beta(view(beta, {1, 1, 1}))
                        .log_gate()
                        .beta_activation(FKDA_BETA_ACTIVATED)
                        .qk_l2norm(false)
                        .scale(0.5f)
                        .out(view(out, {1, 1, 1, kD}))
                        .final_state(view(state, {1, 1, kD, kD})));
  EXPECT_EQ(state, expected);
  EXPECT_EQ(out[1], 1.5f);
  EXPECT_EQ(std::count(out.begin(), out.end(), 0.0f), kD - 1);
}

TEST(Facade, StridedViewsEqualDenseCopies) {
  Inputs in;
  flashkda::forward(in.problem());
  const std::vector<float> out = in.out, state = in.state;
  const auto q = in.dense_block(0), k = in.dense_block(1), v = in.dense_block(2), g = in.dense_block(3);
  flashkda::forward(in.problem()
                        .q(view(q, {1, kT, kH, kD}))
                        .k(view(k, {1, kT, kH, kD}))
                        .v(view(v, {1, kT, kH, kD}))
                        .g(view(g, {1, kT, kH, kD})));
  EXPECT_EQ(in.out, out);
  EXPECT_EQ(in.state, state);
}

TEST(Facade, BackendsAgree) {
  Inputs in;
  flashkda::forward(in.problem());
  const std::vector<float> out = in.out;
  EXPECT_EQ(flashkda::validate(in.problem().backend("reference")), "reference");
  flashkda::forward(in.problem().backend("reference"));
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], in.out[i], 1e-5) << i;
}

TEST(Facade, EverySetterReachesTheProblem) {
  std::vector<float> x(64);
  std::vector<std::int64_t> n(4);
  const auto t = view(x, {1, 2, 4, 8});
  const fkda_problem p = flashkda::Problem()
                             .A_log(view(x))
                             .dt_bias(view(x))
                             .cu_seqlens(view(n))
                             .initial_state(t)
                             .state_indices(view(n))
                             .checkpoints(t, view(n, {2, 2}))
                             .intermediate_states(t, 32)
                             .softplus_gate()
                             .beta_activation(FKDA_BETA_TWICE_SIGMOID)
                             .state_layout(FKDA_STATE_K_FIRST)
                             .batch_invariant(true)
                             .sequence_split(FKDA_SPLIT_EXACT)
                             .num_threads(3)
                             .raw();
  EXPECT_EQ(p.struct_size, sizeof(fkda_problem));
  EXPECT_EQ(p.A_log.shape[0], 64);
  EXPECT_EQ(p.dt_bias.shape[0], 64);
  EXPECT_EQ(p.cu_seqlens.dtype, FKDA_INT64);
  EXPECT_EQ(p.initial_state.ndim, 4);
  EXPECT_EQ(p.state_indices.data, n.data());
  EXPECT_EQ(p.checkpoints.ndim, 4);
  EXPECT_EQ(p.checkpoint_offsets.ndim, 2);
  EXPECT_EQ(p.intermediate_states.ndim, 4);
  EXPECT_EQ(p.intermediate_every, 32);
  EXPECT_EQ(p.gate, FKDA_GATE_SOFTPLUS);
  EXPECT_EQ(p.beta_activation, FKDA_BETA_TWICE_SIGMOID);
  EXPECT_EQ(p.state_layout, FKDA_STATE_K_FIRST);
  EXPECT_EQ(p.batch_invariant, 1);
  EXPECT_EQ(p.sequence_split, FKDA_SPLIT_EXACT);
  EXPECT_EQ(p.num_threads, 3);
  EXPECT_TRUE(std::isnan(p.scale));
  EXPECT_EQ(p.backend, nullptr);
  EXPECT_EQ(p.progress, nullptr);

  const fkda_problem log = flashkda::Problem().log_gate().scale(0.25f).qk_l2norm(false).raw();
  EXPECT_EQ(log.gate, FKDA_GATE_LOG);
  EXPECT_EQ(log.scale, 0.25f);
  EXPECT_EQ(log.qk_l2norm, 0);
  const fkda_problem bounded = flashkda::Problem().log_gate().bounded_gate(-3.0f).raw();
  EXPECT_EQ(bounded.gate, FKDA_GATE_BOUNDED);
  EXPECT_EQ(bounded.lower_bound, -3.0f);
}

TEST(Facade, ACopyKeepsBackendAndProgress) {
  Inputs in;
  std::int64_t last = -1, of = 0;
  flashkda::Problem copy;
  {
    flashkda::Problem original = in.problem().backend("a backend with a name too long for the small string");
    original.progress([&](std::int64_t done, std::int64_t total) { last = done, of = total; });
    copy = original;
  }
  EXPECT_NE(std::string(error_of([&] { flashkda::forward(copy); }).what()).find("too long"), std::string::npos);
  flashkda::forward(copy.backend("cpu"));
  EXPECT_GT(of, 0);
  EXPECT_EQ(last, of);
}

TEST(Facade, WorkspaceIsExactAndOneByteShortIsRefused) {
  Inputs in;
  const flashkda::Problem problem = in.problem();
  const std::size_t bytes = flashkda::workspace_size(problem);
  std::size_t expected = 0;
  const fkda_problem raw = problem.raw();
  ASSERT_EQ(fkda_workspace_size(&raw, &expected), FKDA_OK);
  EXPECT_EQ(bytes, expected);
  ASSERT_GT(bytes, 0u);

  EXPECT_EQ(flashkda::Workspace(1000).span().size(), 1000u);
  const flashkda::Workspace workspace(bytes);
  EXPECT_EQ(workspace.span().size(), bytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(workspace.span().data()) % FKDA_WORKSPACE_ALIGNMENT, 0u);
  std::fill(in.out.begin(), in.out.end(), 7.0f);
  const auto refused = error_of([&] { flashkda::forward(problem, workspace.span().first(bytes - 1)); });
  EXPECT_EQ(refused.status(), FKDA_WORKSPACE_TOO_SMALL);
  EXPECT_NE(std::string(refused.what()).find(std::to_string(bytes)), std::string::npos);
  EXPECT_EQ(std::count(in.out.begin(), in.out.end(), 7.0f), static_cast<std::ptrdiff_t>(in.out.size()));

  flashkda::forward(problem, workspace.span());
  const std::vector<float> out = in.out;
  flashkda::forward(problem);
  EXPECT_EQ(in.out, out);
}

TEST(Facade, AnErrorNamesTheArgument) {
  Inputs in;
  const auto e = error_of([&] { flashkda::forward(in.problem().k(view(in.beta, {1, kT, kH}))); });
  EXPECT_EQ(e.status(), FKDA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(e.what()).rfind("k: ", 0), 0u) << e.what();
  EXPECT_THROW(flashkda::validate(flashkda::Problem()), flashkda::Error);
}

TEST(Facade, ListsImplementations) {
  const auto list = flashkda::implementations();
  ASSERT_EQ(list.size(), static_cast<std::size_t>(fkda_implementation_count()));
  const auto cpu = std::find_if(list.begin(), list.end(), [](const auto& i) { return i.name == "cpu"; });
  ASSERT_NE(cpu, list.end());
  EXPECT_TRUE(cpu->available);
  EXPECT_EQ(cpu->device_type, FKDA_CPU);
  EXPECT_FALSE(cpu->detail.empty());
  EXPECT_EQ(std::count(cpu->features.begin(), cpu->features.end(), "gate-bounded"), 1);
}

// ------------------------------------------------------------------------------------------------------- see a chunk

TEST(Facade, InspectGivesTheSymbolsOfAChunk) {
  Inputs in;
  flashkda::forward(in.problem());
  const auto c = flashkda::inspect(in.problem(), /*sequence=*/0, /*head=*/1, /*chunk=*/2);  // the short last chunk
  ASSERT_EQ(c.rows, 8);
  EXPECT_EQ(c.first_token, 32);
  const std::size_t n = 8, D = kD;
  EXPECT_EQ(c.L.size(), n * n);
  EXPECT_EQ(c.kd.size(), n * D);
  EXPECT_EQ(c.b.size(), n);
  EXPECT_EQ(c.S.size(), D * D);
  double off_diagonal = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double identity = c.INV[i * n + j];  // row i of (I + L) INV
      for (std::size_t m = 0; m < n; ++m) identity += c.L[i * n + m] * c.INV[m * n + j];
      EXPECT_NEAR(identity, i == j ? 1.0 : 0.0, 1e-14);
      if (j >= i) {
        EXPECT_EQ(c.L[i * n + j], 0.0);
      }
      off_diagonal += std::fabs(c.L[i * n + j]);
    }
    for (std::size_t d = 0; d < D; ++d) EXPECT_NEAR(c.O[i * D + d], in.out[((32 + i) * kH + 1) * D + d], 1e-5);
  }
  EXPECT_GT(off_diagonal, 0.01);
  for (std::size_t k = 0; k < D; ++k)  // S_next is [K,V], the final state here [V,K]
    for (std::size_t v = 0; v < D; ++v) EXPECT_NEAR(c.S_next[k * D + v], in.state[(D + v) * D + k], 1e-5);
}

TEST(Facade, InspectRefusesAChunkThatIsNotThere) {
  Inputs in;
  EXPECT_EQ(error_of([&] { flashkda::inspect(in.problem(), 0, 0, 3); }).status(), FKDA_INVALID_ARGUMENT);
  EXPECT_EQ(error_of([&] { flashkda::inspect(in.problem(), 0, 0, 0, 24); }).status(), FKDA_INVALID_ARGUMENT);
  EXPECT_THROW(flashkda::inspect(flashkda::Problem(), 0, 0, 0), flashkda::Error);
}

}  // namespace
