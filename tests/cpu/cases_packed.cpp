// Sequences of every length, alone, packed and in dense batches. RowNN is the row of docs/cases.md.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/backends.hpp"
#include "support/case.hpp"
#include "support/tensor.hpp"

namespace flashkda::test {
namespace {

constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};
constexpr double kBar = 3e-6;

std::vector<int64_t> cumulative(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> cu = {0};
  for (const int64_t length : lengths) cu.push_back(cu.back() + length);
  return cu;
}

class Packed : public OnBackend {
 protected:
  RunOptions how() const { return {.backend = GetParam()}; }

  void expect_right(const Case& c, const Want& want = kFp32) const {
    const Outputs actual = run(c, want, how()), expected = reference(c, want);
    EXPECT_LE(rms_error(actual.out, expected.out), kBar);
    EXPECT_LE(rms_error(actual.final_state, expected.final_state), kBar);
  }

  // Sequence n run by itself gives these bits.
  void expect_same_alone(const Case& c, const Outputs& together, int64_t n, const Want& want = kFp32) const {
    const Outputs alone = run(c.sequence(n), want, how());
    EXPECT_TRUE(same_bits(c.rows(together.out, n), alone.out)) << "sequence " << n << " of length " << c.length(n);
    EXPECT_TRUE(same_bits(together.final_state.narrow(0, n, 1), alone.final_state))
        << "final state of sequence " << n << " of length " << c.length(n);
  }
};
FLASHKDA_ON_EACH_BACKEND(Packed);

const std::vector<int64_t> kLengths = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 500, 1000, 1500};

// ------------------------------------------------------------------------------------------------ lengths: row 3

TEST_P(Packed, Row03_EveryLengthInADenseBatch) {
  for (const int64_t T : kLengths) {
    const Case c({.B = 2, .T = T, .H = 2, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 101});
    SCOPED_TRACE(T);
    expect_right(c);
    expect_same_alone(c, run(c, kFp32, how()), 1);
  }
}

TEST_P(Packed, Row03_EveryLengthFrom1To130) {
  std::vector<int64_t> lengths;
  for (int64_t length = 1; length <= 130; ++length) lengths.push_back(length);
  const Case c({.K = 32, .V = 32, .cu = cumulative(lengths), .initial_state = FKDA_FLOAT32, .seed = 102});
  expect_right(c);
}

TEST_P(Packed, Row03_AndRow39_PackedIsApartInBits) {
  const Case c(
      {.H = 2, .HV = 4, .K = 64, .V = 32, .cu = cumulative(kLengths), .initial_state = FKDA_FLOAT32, .seed = 103});
  expect_right(c);
  const Outputs together = run(c, kFp32, how());
  for (int64_t n = 0; n < c.N; ++n) expect_same_alone(c, together, n);
}

TEST_P(Packed, Row39_TheOrderOfTheSequencesDoesNotMatter) {
  const std::vector<int64_t> lengths = {17, 64, 1, 100};
  const Case c({.cu = cumulative(lengths), .seed = 104});
  Case reversed({.cu = cumulative({100, 1, 64, 17}), .seed = 104});
  const auto copy = [&](Tensor Case::*tensor) {
    for (int64_t n = 0; n < 4; ++n) reversed.rows(reversed.*tensor, n).copy_from(c.rows(c.*tensor, 3 - n));
  };
  for (Tensor Case::*tensor : {&Case::q, &Case::k, &Case::v, &Case::g, &Case::beta}) copy(tensor);
  const Outputs forwards = run(c, kFp32, how()), backwards = run(reversed, kFp32, how());
  for (int64_t n = 0; n < 4; ++n) {
    EXPECT_TRUE(same_bits(reversed.rows(backwards.out, n), c.rows(forwards.out, 3 - n))) << n;
    EXPECT_TRUE(same_bits(backwards.final_state.narrow(0, n, 1), forwards.final_state.narrow(0, 3 - n, 1))) << n;
  }
}

// The rows of every sequence but n are overwritten with a value, or with NaN.
void overwrite_neighbours(Case& c, int64_t n, const double* value) {
  for (int64_t other = 0; other < c.N; ++other) {
    if (other == n) continue;
    for (const Tensor* x : {&c.q, &c.k, &c.v, &c.g, &c.beta}) {
      Tensor rows = c.rows(*x, other);
      if (value != nullptr) {
        rows.fill(*value);
      } else {
        rows.poison();
      }
    }
    if (c.initial_state.present()) {
      Tensor state = c.initial_state.narrow(0, other, 1);
      if (value != nullptr) {
        state.fill(*value);
      } else {
        state.poison();
      }
    }
  }
}

TEST_P(Packed, Row03_NeighboursNeverChangeBits) {
  const double huge = 1e4;
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {15, 17, 33}, {1, 1, 1}, {64, 1, 64}, {31, 100, 2}, {8, 9, 8}, {40, 5, 24}, {16, 16, 16}}) {
    const Case c({.H = 2, .K = 64, .V = 32, .cu = cumulative(lengths), .initial_state = FKDA_FLOAT32, .seed = 105});
    const Outputs before = run(c, kFp32, how());
    for (int64_t n = 0; n < c.N; ++n) {
      for (const double* value : {&huge, static_cast<const double*>(nullptr)}) {
        Case changed({.H = 2, .K = 64, .V = 32, .cu = c.cu, .initial_state = FKDA_FLOAT32, .seed = 105});
        overwrite_neighbours(changed, n, value);
        const Outputs after = run(changed, kFp32, how());
        SCOPED_TRACE(testing::Message() << "sequence " << n << " of lengths " << testing::PrintToString(lengths)
                                        << (value ? ", neighbours 1e4" : ", neighbours NaN"));
        EXPECT_TRUE(same_bits(c.rows(after.out, n), c.rows(before.out, n)));
        EXPECT_TRUE(same_bits(after.final_state.narrow(0, n, 1), before.final_state.narrow(0, n, 1)));
      }
    }
  }
}

TEST_P(Packed, Row03_NeighboursNeverChangeBitsInADenseBatch) {
  const Spec spec = {.B = 3, .T = 45, .H = 2, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 106};
  const Case c(spec);
  const Outputs before = run(c, kFp32, how());
  for (int64_t n = 0; n < 3; ++n) {
    Case changed(spec);
    overwrite_neighbours(changed, n, nullptr);
    const Outputs after = run(changed, kFp32, how());
    EXPECT_TRUE(same_bits(c.rows(after.out, n), c.rows(before.out, n))) << n;
    EXPECT_TRUE(same_bits(after.final_state.narrow(0, n, 1), before.final_state.narrow(0, n, 1))) << n;
  }
}

TEST_P(Packed, NeighbouringHeadsNeverChangeBits) {
  const Spec spec = {.T = 45, .H = 3, .HV = 6, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 107};
  const Case c(spec);
  const Outputs before = run(c, kFp32, how());
  Case changed(spec);  // value heads 2 and 3 read key head 1: they stay
  for (const int64_t h : {0, 2}) {
    for (const Tensor* x : {&changed.q, &changed.k}) Tensor(x->narrow(2, h, 1)).poison();
    for (const Tensor* x : {&changed.v, &changed.g, &changed.beta}) Tensor(x->narrow(2, 2 * h, 2)).poison();
    Tensor(changed.A_log.narrow(0, 2 * h, 2)).poison();
    Tensor(changed.dt_bias.narrow(0, 2 * h, 2)).poison();
    Tensor(changed.initial_state.narrow(1, 2 * h, 2)).poison();
  }
  const Outputs after = run(changed, kFp32, how());
  EXPECT_TRUE(same_bits(after.out.narrow(2, 2, 2), before.out.narrow(2, 2, 2)));
  EXPECT_TRUE(same_bits(after.final_state.narrow(1, 2, 2), before.final_state.narrow(1, 2, 2)));
}

TEST_P(Packed, LaterTokensNeverChangeEarlierOutputs) {  // causal: finite changes leave the bits
  for (const int64_t t : {1, 7, 8, 20, 33, 50, 64, 90}) {
    const Spec spec = {.T = 100, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 108};
    const Case c(spec);
    Case changed(spec);
    const Case other({.T = 100, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 109});
    for (Tensor Case::*x : {&Case::q, &Case::k, &Case::v, &Case::g, &Case::beta}) {
      (changed.*x).narrow(1, t, c.T - t).copy_from((other.*x).narrow(1, t, c.T - t));
    }
    EXPECT_TRUE(same_bits(run(changed, kFp32, how()).out.narrow(1, 0, t), run(c, kFp32, how()).out.narrow(1, 0, t)))
        << "tokens from " << t;
  }
}

TEST_P(Packed, LaterNaNsNeverReachEarlierOutputs) {
  for (const int64_t t : {1, 7, 8, 20, 33, 50, 64, 90}) {
    const Spec spec = {.T = 100, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 108};
    const Case c(spec);
    const Outputs before = run(c, kFp32, how());
    for (Tensor Case::*x : {&Case::q, &Case::k, &Case::v, &Case::g, &Case::beta}) {
      Case changed(spec);
      Tensor((changed.*x).narrow(1, t, c.T - t)).poison();
      EXPECT_TRUE(same_bits(run(changed, kFp32, how()).out.narrow(1, 0, t), before.out.narrow(1, 0, t)))
          << "tokens from " << t;
    }
  }
}

// --------------------------------------------------------------------------------------- empty sequences: row 4

TEST_P(Packed, Row04_EmptySequencesKeepTheirState) {
  const std::vector<std::vector<int64_t>> batches = {
      {0, 0, 5}, {0, 5, 5}, {0, 5, 5, 5, 9}, {0, 0}, {0, 0, 0}, {0, 0, 64, 64}, {0}, {0, 0, 1, 1}, {0, 40, 40, 40}};
  for (const std::vector<int64_t>& cu : batches) {
    for (const int32_t state : {kAbsent, int32_t{FKDA_BFLOAT16}, int32_t{FKDA_FLOAT32}}) {
      for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
        const Case c({.H = 2, .K = 64, .V = 32, .cu = cu, .initial_state = state, .state_layout = layout, .seed = 111});
        const Outputs outputs =
            run(c, {.out = FKDA_FLOAT32, .final_state = state ? state : int32_t{FKDA_FLOAT32}}, how());
        SCOPED_TRACE(testing::PrintToString(cu) + ", state dtype " + std::to_string(state));
        for (int64_t n = 0; n < c.N; ++n) {
          const Tensor final_state = outputs.final_state.narrow(0, n, 1);
          EXPECT_TRUE(all_finite(final_state)) << n;
          if (c.length(n) > 0) continue;
          if (state == kAbsent) {
            EXPECT_TRUE(all_zero(final_state)) << n;
          } else {
            EXPECT_TRUE(same_bits(final_state, c.initial_state.narrow(0, n, 1))) << n;
          }
        }
        EXPECT_TRUE(all_finite(outputs.out));
      }
    }
  }
}

TEST_P(Packed, Row04_AnEmptySequenceKeepsEveryBitPattern) {  // NaN payloads, infinities, subnormals
  const Case c({.K = 64, .V = 32, .cu = {0, 0, 20}, .initial_state = FKDA_FLOAT32, .seed = 112});
  const std::vector<uint32_t> patterns = {0x7f800001u, 0xffc12345u, 0x7f800000u, 0x00000001u, 0x807fffffu, 0x80000000u};
  auto* bits = static_cast<uint32_t*>(c.initial_state.data());
  for (int64_t i = 0; i < 64 * 32; ++i) bits[i] = patterns[static_cast<size_t>(i) % patterns.size()];
  const Outputs outputs = run(c, kFp32, how());
  EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, 0, 1), c.initial_state.narrow(0, 0, 1)));
  EXPECT_TRUE(all_finite(outputs.out));
}

TEST_P(Packed, Row04_NoTokensAtAll) {
  for (const int64_t B : {0, 1, 3}) {
    const Case c({.B = B, .T = 0, .H = 2, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 113});
    const Outputs outputs = run(c, kFp32, how());
    EXPECT_TRUE(same_bits(outputs.final_state, c.initial_state)) << B;
  }
}

TEST_P(Packed, Row04_NoSequencesOfSomeTokens) {  // B 0, T 20
  const Case c({.B = 0, .T = 20, .H = 2, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 114});
  const Outputs outputs = run(c, kFp32, how());
  EXPECT_EQ(outputs.out.numel(), 0);
}

TEST_P(Packed, Row04_TensorsWithoutElementsMayBeNull) {
  const Case c({.T = 0, .H = 2, .K = 64, .V = 32, .seed = 115});
  Outputs outputs = c.make_outputs(kFp32);
  fkda_problem problem = c.problem(outputs);
  problem.backend = GetParam();
  for (fkda_tensor fkda_problem::*view : {&fkda_problem::q, &fkda_problem::k, &fkda_problem::v, &fkda_problem::g,
                                          &fkda_problem::beta, &fkda_problem::out}) {
    (problem.*view).data = nullptr;
  }
  ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();
  EXPECT_TRUE(all_zero(outputs.final_state));
}

// ------------------------------------------------------------------------------------ lopsided and many: rows 5, 9, 54

TEST_P(Packed, Row05_OneTokenBesideManyOthers) {
  for (const std::vector<int64_t>& cu : std::vector<std::vector<int64_t>>{{0, 2047, 2048}, {0, 1, 2048}}) {
    const Case c({.H = 4, .K = 64, .V = 64, .cu = cu, .seed = 121});
    SCOPED_TRACE(testing::PrintToString(cu));
    expect_right(c);
  }
}

TEST_P(Packed, Row05_AsManySequencesAsTokens) {
  const Case c({.H = 2,
                .K = 64,
                .V = 32,
                .cu = cumulative(std::vector<int64_t>(1024, 1)),
                .initial_state = FKDA_BFLOAT16,
                .seed = 122});
  expect_right(c);
}

// A sequence of one token from nothing: o = scale (q . k) b v, S = b v k^T, whatever the gate.
void expect_one_token_each(const Case& c, const Outputs& outputs, int64_t n) {
  const auto row = [&](const Tensor& x) { return x.narrow(1, n, 1).values(); };
  const std::vector<double> q = row(c.q), k = row(c.k), v = row(c.v), b = row(c.beta), out = row(outputs.out);
  for (int64_t hv = 0; hv < c.HV; ++hv) {
    double qk = 0.0;
    const auto at = [](int64_t head, int64_t width, int64_t i) { return static_cast<size_t>(head * width + i); };
    for (int64_t i = 0; i < c.K; ++i) qk += q[at(hv, c.K, i)] * k[at(hv, c.K, i)];
    for (int64_t i = 0; i < c.V; ++i) {
      const double u = b[static_cast<size_t>(hv)] * v[at(hv, c.V, i)];
      ASSERT_NEAR(out[at(hv, c.V, i)], static_cast<double>(c.options.scale) * qk * u, 1e-5) << "sequence " << n;
      if (!outputs.final_state.present()) continue;
      ASSERT_NEAR(outputs.final_state.at({n, hv, i, 3}), u * k[at(hv, c.K, 3)], 1e-5) << "sequence " << n;
    }
  }
}

TEST_P(Packed, Row09_ManySequencesOfLengthOne) {  // 2048 x 32 heads: 65,536 work items
  Case c({.H = 32,
          .K = 32,
          .V = 8,
          .cu = cumulative(std::vector<int64_t>(2048, 1)),
          .dtype = FKDA_FLOAT32,
          .beta = FKDA_BETA_ACTIVATED,
          .qk_l2norm = 0,
          .seed = 123});
  c.options.scale = 0.5f;
  const Outputs outputs = run(c, kFp32, how());
  for (int64_t n = 0; n < c.N; n += 89) expect_one_token_each(c, outputs, n);
  expect_one_token_each(c, outputs, c.N - 1);
}

TEST_P(Packed, Row09_AndRow54_SeventyThousandSequences) {
  Case c({.K = 32,
          .V = 8,
          .cu = cumulative(std::vector<int64_t>(70000, 1)),
          .dtype = FKDA_FLOAT32,
          .beta = FKDA_BETA_ACTIVATED,
          .qk_l2norm = 0,
          .seed = 124});
  c.options.scale = 0.5f;
  const Outputs outputs = run(c, {.out = FKDA_FLOAT32, .final_state = kAbsent}, how());
  for (int64_t n = 0; n < c.N; n += 1009) expect_one_token_each(c, outputs, n);
  expect_one_token_each(c, outputs, c.N - 1);
}

TEST(PackedOnTheCpu, Row09_MoreThan65535Chunks) {  // of 16 tokens; the end against a short run from the state before it
  const int64_t T = 16 * 65536 + 64, tail = 64;
  const Case c({.T = T, .K = 8, .V = 8, .gate = FKDA_GATE_LOG, .seed = 125});
  const Outputs whole = run(c, kFp32, {});
  const Outputs before = run(c.part(0, 0, T - tail, {}), kFp32, {});
  const Outputs after = run(c.part(0, T - tail, T, before.final_state), kFp32, {});
  EXPECT_TRUE(same_bits(whole.out.narrow(1, T - tail, tail), after.out));
  EXPECT_TRUE(same_bits(whole.final_state, after.final_state));
  // Old tokens are forgotten: what the last 4096 leave from nothing is all of it but a little.
  EXPECT_LE(rms_error(whole.final_state, reference(c.part(0, T - 4096, T, {})).final_state), 1e-3);
}

TEST(PackedWorkspace, Row54_DoesNotGrowWithTheNumberOfSequences) {
  size_t few = 0, many = 0;
  for (auto& [count, bytes] : std::vector<std::pair<int64_t, size_t*>>{{256, &few}, {10000, &many}}) {
    const Case c({.K = 32, .V = 8, .cu = cumulative(std::vector<int64_t>(static_cast<size_t>(count), 1)), .seed = 126});
    Outputs outputs = c.make_outputs({});
    fkda_problem problem = c.problem(outputs);
    problem.backend = "cpu";
    ASSERT_EQ(fkda_workspace_size(&problem, bytes), FKDA_OK) << fkda_last_error();
  }
  EXPECT_EQ(few, many);
}

// ----------------------------------------------------------------------------------- forms of cu_seqlens: row 19

TEST_P(Packed, Row19_Int32AndInt64) {
  const Spec spec = {.H = 2, .K = 64, .V = 32, .cu = {0, 17, 17, 100}, .initial_state = FKDA_FLOAT32, .seed = 131};
  Spec narrow = spec;
  narrow.cu_dtype = FKDA_INT32;
  const Outputs wide = run(Case(spec), kFp32, how()), with_int32 = run(Case(narrow), kFp32, how());
  EXPECT_TRUE(same_bits(with_int32.out, wide.out));
  EXPECT_TRUE(same_bits(with_int32.final_state, wide.final_state));
}

TEST_P(Packed, Row19_OneSequenceIsTheDenseBatch) {
  const Spec packed = {.H = 2, .K = 64, .V = 32, .cu = {0, 77}, .initial_state = FKDA_FLOAT32, .seed = 132};
  Spec dense = packed;
  dense.cu = {};
  dense.T = 77;
  const Outputs a = run(Case(packed), kFp32, how()), b = run(Case(dense), kFp32, how());
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(a.final_state, b.final_state));
}

TEST_P(Packed, DenseBatchIsThePackedBatchOfEqualLengths) {
  const Spec dense = {.B = 3, .T = 50, .H = 2, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 133};
  Spec packed = dense;
  packed.B = 1;
  packed.cu = {0, 50, 100, 150};
  const Case d(dense), p(packed);  // same seed, same number of elements: the same numbers in the same order
  const Outputs a = run(d, kFp32, how()), b = run(p, kFp32, how());
  for (int64_t n = 0; n < 3; ++n) {
    EXPECT_TRUE(same_bits(d.rows(a.out, n), p.rows(b.out, n))) << n;
    EXPECT_TRUE(same_bits(a.final_state.narrow(0, n, 1), b.final_state.narrow(0, n, 1))) << n;
  }
}

}  // namespace
}  // namespace flashkda::test
