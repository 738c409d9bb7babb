// The symbols of a chunk against their definitions (docs/algorithm.md, eq. 10-20) and against the recurrence.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/chunk.hpp"
#include "support/case.hpp"

namespace flashkda::test {
namespace {

using Rows = std::vector<double>;

double at(const Rows& x, int64_t columns, int64_t i, int64_t j) { return x[static_cast<size_t>(i * columns + j)]; }

// A request that inspect must fulfil: outputs stay absent.
void inspect(const Case& c, Chunk& chunk) {
  const fkda_problem problem = c.problem({});
  ASSERT_EQ(fkda_inspect_chunk(&problem, &chunk.request), FKDA_OK) << fkda_last_error();
}

std::string refusal(const Case& c, int32_t chunk_size, int64_t sequence, int64_t head, int64_t chunk) {
  Chunk request(c.K, c.V, chunk_size, sequence, head, chunk);
  const fkda_problem problem = c.problem({});
  EXPECT_EQ(fkda_inspect_chunk(&problem, &request.request), FKDA_INVALID_ARGUMENT);
  EXPECT_EQ(request.rows(), 0) << "a refused request was written to";
  return fkda_last_error();
}

// Every equation that ties the symbols of a chunk together.
void expect_definitions_hold(const Case& c, const Chunk& x) {
  const int64_t C = x.rows(), K = c.K, V = c.V;
  const double scale = c.options.scale;
  for (int64_t i = 0; i < C; ++i) {
    for (int64_t m = 0; m < K; ++m) {
      const double G = at(x.G, K, i, m), k = at(x.k, K, i, m), to_the_end = at(x.G, K, C - 1, m) - G;
      EXPECT_NEAR(G, at(x.a, K, i, m) + (i ? at(x.G, K, i - 1, m) : 0.0), 1e-12);     // eq. 10
      EXPECT_NEAR(at(x.kd, K, i, m), k * std::exp(G), 1e-12);                         // eq. 11
      EXPECT_NEAR(at(x.qd, K, i, m), scale * at(x.q, K, i, m) * std::exp(G), 1e-12);  // eq. 11
      EXPECT_NEAR(at(x.ki, K, i, m) * std::exp(G), k, 1e-12);                         // eq. 11
      EXPECT_NEAR(at(x.kr, K, i, m), k * std::exp(to_the_end), 1e-12);                // eq. 11
    }
    for (int64_t j = 0; j < C; ++j) {
      double L = 0.0, Mqk = 0.0, identity = at(x.INV, C, i, j);
      for (int64_t m = 0; m < K; ++m) {
        L += x.b[static_cast<size_t>(i)] * at(x.kd, K, i, m) * at(x.ki, K, j, m);
        Mqk += at(x.qd, K, i, m) * at(x.ki, K, j, m);
      }
      for (int64_t m = 0; m < i; ++m) identity += at(x.L, C, i, m) * at(x.INV, C, m, j);
      EXPECT_NEAR(at(x.L, C, i, j), i > j ? L : 0.0, 1e-12);       // eq. 14
      EXPECT_NEAR(at(x.Mqk, C, i, j), i >= j ? Mqk : 0.0, 1e-12);  // eq. 15
      EXPECT_NEAR(identity, i == j ? 1.0 : 0.0, 1e-12);            // eq. 17
      if (i < j) {
        EXPECT_EQ(at(x.L, C, i, j), 0.0);
        EXPECT_EQ(at(x.Mqk, C, i, j), 0.0);
        EXPECT_EQ(at(x.INV, C, i, j), 0.0);
      }
    }
    for (int64_t d = 0; d < V; ++d) {
      double left = 0.0, right = at(x.v, V, i, d), O = 0.0;
      for (int64_t j = 0; j <= i; ++j) {
        left += (i == j ? 1.0 : at(x.L, C, i, j)) * at(x.U, V, j, d);
        O += at(x.Mqk, C, i, j) * at(x.U, V, j, d);
      }
      for (int64_t m = 0; m < K; ++m) {
        right -= at(x.kd, K, i, m) * at(x.S, V, m, d);
        O += at(x.qd, K, i, m) * at(x.S, V, m, d);
      }
      EXPECT_NEAR(left, x.b[static_cast<size_t>(i)] * right, 1e-12);  // eq. 16
      EXPECT_NEAR(at(x.O, V, i, d), O, 1e-12);                        // eq. 19
    }
  }
}

// The recurrence says the same: output rows, the state before the chunk and the state after it.
void expect_equal_to_recurrence(const Case& c, const Chunk& x) {
  const int64_t n = x.request.sequence, head = x.request.head, first = x.request.first_token;
  const int64_t slot = c.state_indices.present() ? static_cast<int64_t>(c.state_indices.get(n)) : n;
  const Tensor start = c.initial_state.present() && slot >= 0 ? c.initial_state.narrow(0, slot, 1) : Tensor();
  const Outputs before = reference(c.part(n, 0, first, start));
  const Outputs after = reference(c.part(n, 0, first + x.rows(), start));
  const bool v_first = c.options.state_layout == FKDA_STATE_V_FIRST;
  for (int64_t d = 0; d < c.V; ++d) {
    for (int64_t i = 0; i < x.rows(); ++i)
      EXPECT_NEAR(at(x.O, c.V, i, d), after.out.at({0, first + i, head, d}), 1e-12);
    for (int64_t m = 0; m < c.K; ++m) {
      const auto element = [&](const Tensor& state) {
        return v_first ? state.at({0, head, d, m}) : state.at({0, head, m, d});
      };
      EXPECT_EQ(at(x.S, c.V, m, d), element(before.final_state));
      EXPECT_NEAR(at(x.S_next, c.V, m, d), element(after.final_state), 1e-12);
    }
  }
}

TEST(Inspect, EverySymbolOfEveryKindOfProblem) {
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
    for (const int32_t chunk_size : {16, 32, 64}) {
      Spec spec;
      spec.H = 2;
      spec.HV = 4;
      spec.K = 6;
      spec.V = 5;
      spec.cu = {0, 9, 9, 85, 90};
      spec.gate = gate;
      spec.beta = chunk_size == 16   ? FKDA_BETA_SIGMOID
                  : chunk_size == 32 ? FKDA_BETA_TWICE_SIGMOID
                                     : FKDA_BETA_ACTIVATED;
      spec.qk_l2norm = gate != FKDA_GATE_LOG;
      spec.initial_state = FKDA_FLOAT32;
      spec.state_layout = chunk_size == 32 ? FKDA_STATE_K_FIRST : FKDA_STATE_V_FIRST;
      Case c(spec);
      c.options.scale = 0.5f;
      // Decays that exp(-G) can still undo in fp64, so that ki serves as a check of L and Mqk.
      c.g.generate([random = Random(5)]() mutable { return random.uniform(-4.0, -0.01); });
      if (gate == FKDA_GATE_LOG) c.g.generate([random = Random(6)]() mutable { return random.uniform(-0.3, -0.001); });
      if (c.A_log.present()) c.A_log.fill(-1.5);
      if (c.dt_bias.present()) c.dt_bias.fill(-0.5);
      for (int64_t head = 0; head < c.HV; ++head) {
        for (int64_t chunk = 0; chunk * chunk_size < 76; ++chunk) {
          SCOPED_TRACE(testing::Message()
                       << "gate " << gate << " size " << chunk_size << " head " << head << " chunk " << chunk);
          Chunk x(c.K, c.V, chunk_size, 2, head, chunk);
          inspect(c, x);
          EXPECT_EQ(x.request.first_token, chunk * chunk_size);
          EXPECT_EQ(x.rows(), std::min<int64_t>(chunk_size, 76 - chunk * chunk_size));
          expect_definitions_hold(c, x);
          expect_equal_to_recurrence(c, x);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Inspect, DenseBatchAndPool) {
  const Case c({.B = 3, .T = 40, .K = 6, .V = 5, .initial_state = FKDA_BFLOAT16, .slots = 4, .indices = {2, -1, 0}});
  for (int64_t n = 0; n < 3; ++n) {
    Chunk x(c.K, c.V, 32, n, 0, 1);
    inspect(c, x);
    expect_equal_to_recurrence(c, x);
  }
}

TEST(Inspect, TwoTokensByHand) {
  Case c({.T = 2,
          .K = 2,
          .V = 1,
          .dtype = FKDA_FLOAT32,
          .gate = FKDA_GATE_LOG,
          .beta = FKDA_BETA_ACTIVATED,
          .qk_l2norm = 0});
  c.options.scale = 2.0f;
  const auto row = [](Tensor& x, int64_t t, double first, double second) {
    x.set_at({0, t, 0, 0}, first);
    x.set_at({0, t, 0, 1}, second);
  };
  row(c.g, 0, -1.0, 0.0);
  row(c.g, 1, -2.0, -0.5);
  row(c.k, 0, 1.0, 3.0);
  row(c.k, 1, 2.0, 1.0);
  row(c.q, 0, 1.0, 1.0);
  row(c.q, 1, 0.0, 4.0);
  c.v.set_at({0, 0, 0, 0}, 5.0);
  c.v.set_at({0, 1, 0, 0}, 7.0);
  c.beta.fill(0.5);
  Chunk x(2, 1, 16, 0, 0, 0);
  inspect(c, x);
  const double between = 2.0 * std::exp(-2.0) + 3.0 * std::exp(-0.5);  // k_1 . diag(exp(a_1)) k_0
  EXPECT_NEAR(x.L[2], 0.5 * between, 1e-15);
  EXPECT_NEAR(x.INV[2], -0.5 * between, 1e-15);
  EXPECT_NEAR(x.Mqk[0], 2.0 * (1.0 + 3.0), 1e-15);
  EXPECT_NEAR(x.Mqk[2], 2.0 * 12.0 * std::exp(-0.5), 1e-14);
  EXPECT_NEAR(x.Mqk[3], 2.0 * 4.0, 1e-15);
  EXPECT_NEAR(x.U[0], 2.5, 1e-15);
  EXPECT_NEAR(x.U[1], 3.5 - 0.5 * between * 2.5, 1e-15);
  EXPECT_NEAR(x.O[0], 8.0 * 2.5, 1e-14);
  EXPECT_NEAR(x.O[1], x.Mqk[2] * 2.5 + 8.0 * x.U[1], 1e-14);
  EXPECT_NEAR(x.S_next[0], std::exp(-2.0) * 2.5 + 2.0 * x.U[1], 1e-15);
  EXPECT_NEAR(x.S_next[1], 3.0 * std::exp(-0.5) * 2.5 + x.U[1], 1e-15);
}

// b = 1, one unit key, no decay: L is all ones below the diagonal, and powers of L reach 10^17, while the inverse is
// 1 on the diagonal and -1 below it.
TEST(Inspect, IdenticalKeysHaveTheSimplestInverse) {
  Case c({.T = 64,
          .K = 4,
          .V = 2,
          .dtype = FKDA_FLOAT32,
          .gate = FKDA_GATE_LOG,
          .beta = FKDA_BETA_ACTIVATED,
          .qk_l2norm = 0});
  c.g.fill(0.0);
  c.k.fill(0.5);
  c.beta.fill(1.0);
  Chunk x(c.K, c.V, 64, 0, 0, 0);
  inspect(c, x);
  for (int64_t i = 0; i < 64; ++i) {
    for (int64_t j = 0; j < 64; ++j) {
      EXPECT_EQ(at(x.L, 64, i, j), i > j ? 1.0 : 0.0);
      EXPECT_EQ(at(x.INV, 64, i, j), i == j ? 1.0 : i == j + 1 ? -1.0 : 0.0);
    }
  }
}

// eq. 23: no entry of INV below the diagonal exceeds b_i |k_i| |k_j|, whatever the keys.
TEST(Inspect, InverseIsBounded) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Case c({.T = 64,
            .K = 3,
            .V = 2,
            .gate = FKDA_GATE_LOG,
            .beta = seed % 2 ? FKDA_BETA_SIGMOID : FKDA_BETA_TWICE_SIGMOID,
            .seed = seed});
    c.g.fill(seed % 3 ? -1e-3 : 0.0);
    c.beta.fill(8.0);
    Chunk x(c.K, c.V, 64, 0, 0, 0);
    inspect(c, x);
    for (int64_t i = 0; i < 64; ++i)
      for (int64_t j = 0; j < i; ++j) EXPECT_LE(std::fabs(at(x.INV, 64, i, j)), x.b[static_cast<size_t>(i)] + 1e-9);
  }
}

// A channel that forgets everything: exp(-G) overflows, L and Mqk must not notice.
TEST(Inspect, ForgettingChannelsStayFinite) {
  for (const double forget : {-1000.0, -std::numeric_limits<double>::infinity()}) {
    Case c({.T = 40, .K = 4, .V = 3, .dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .qk_l2norm = 0});
    for (int64_t t = 3; t < 40; t += 5) c.g.set_at({0, t, 0, t % 4}, forget);
    c.k.set_at({0, 9, 0, 3}, 0.0);
    Chunk x(c.K, c.V, 32, 0, 0, 0);
    inspect(c, x);
    for (const Rows* symbol : {&x.kd, &x.qd, &x.kr, &x.L, &x.Mqk, &x.INV, &x.U, &x.O, &x.S, &x.S_next})
      EXPECT_TRUE(std::all_of(symbol->begin(), symbol->end(), [](double y) { return std::isfinite(y); }));
    EXPECT_TRUE(std::isinf(at(x.ki, 4, 10, 3)));
    EXPECT_EQ(at(x.ki, 4, 9, 3), 0.0) << "a zero of k stays zero";
    expect_equal_to_recurrence(c, x);
  }
}

TEST(Inspect, FillsWantedBuffersOnly) {
  const Case c({.T = 20, .K = 4, .V = 3});
  Chunk all(c.K, c.V, 16, 0, 0, 1);
  inspect(c, all);
  EXPECT_EQ(all.rows(), 4);
  EXPECT_EQ(all.L[16], 0.0) << "a matrix of 4 rows is packed: [4,4]";
  Rows Mqk(16);
  fkda_chunk one = {};
  one.struct_size = sizeof(one);
  one.chunk_size = 16;
  one.chunk = 1;
  one.Mqk = Mqk.data();
  const fkda_problem problem = c.problem({});
  ASSERT_EQ(fkda_inspect_chunk(&problem, &one), FKDA_OK) << fkda_last_error();
  EXPECT_EQ(Mqk, Rows(all.Mqk.begin(), all.Mqk.begin() + 16));
}

TEST(Inspect, LeavesTheOutputsAlone) {
  const Case c({.T = 20, .K = 4, .V = 3, .initial_state = FKDA_FLOAT32});
  const Outputs outputs = c.make_outputs({.in_place = true});
  const fkda_problem problem = c.problem(outputs);
  Chunk x(c.K, c.V, 16, 0, 0, 1);
  ASSERT_EQ(fkda_inspect_chunk(&problem, &x.request), FKDA_OK) << fkda_last_error();
  EXPECT_TRUE(untouched(outputs.out));
  EXPECT_TRUE(same_bits(outputs.final_state, c.initial_state));
}

TEST(Inspect, RefusesWhatIsNotThere) {
  const Case c({.HV = 2, .K = 4, .V = 3, .cu = {0, 20, 20}});
  EXPECT_EQ(refusal(c, 8, 0, 0, 0), "chunk_size: got 8, needs 16, 32 or 64");
  EXPECT_EQ(refusal(c, 0, 0, 0, 0), "chunk_size: got 0, needs 16, 32 or 64");
  EXPECT_EQ(refusal(c, 16, 2, 0, 0), "sequence: got 2, needs 0..1 (the number of sequences is 2)");
  EXPECT_EQ(refusal(c, 16, -1, 0, 0), "sequence: got -1, needs 0..1 (the number of sequences is 2)");
  EXPECT_EQ(refusal(c, 16, 0, 2, 0), "head: got 2, needs 0..1 (the number of value heads is 2)");
  EXPECT_EQ(refusal(c, 16, 0, -1, 0), "head: got -1, needs 0..1 (the number of value heads is 2)");
  EXPECT_EQ(refusal(c, 16, 0, 0, 2), "chunk: got 2, needs 0..1 (the number of chunks of this sequence is 2)");
  EXPECT_EQ(refusal(c, 32, 0, 0, 1), "chunk: got 1, needs 0..0 (the number of chunks of this sequence is 1)");
  EXPECT_EQ(refusal(c, 16, 1, 0, 0), "chunk: got 0, but the number of chunks of this sequence is 0");
}

}  // namespace
}  // namespace flashkda::test
