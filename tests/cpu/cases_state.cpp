// The state at both ends: layouts, dtypes, pools, resuming, checkpoints and intermediate states. RowNN is the row of
// docs/cases.md.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/backends.hpp"
#include "support/case.hpp"
#include "support/tensor.hpp"

namespace flashkda::test {
namespace {

constexpr double kBar = 3e-6;

class State : public OnBackend {
 protected:
  RunOptions how() const { return {.backend = GetParam()}; }
  // The dtype that carries a state without rounding what the backend computes with.
  int32_t wide() const { return std::string(GetParam()) == "reference" ? FKDA_FLOAT64 : FKDA_FLOAT32; }
  Want wide_want() const { return {.out = wide(), .final_state = wide()}; }

  // Tokens begin to end of sequence 0 of c, from that state.
  Outputs resume(const Case& c, int64_t begin, int64_t end, const Tensor& state) const {
    return run(c.part(0, begin, end, state), wide_want(), how());
  }
};
FLASHKDA_ON_EACH_BACKEND(State);

// ------------------------------------------------------------------------------------------------ layout: row 7

TEST_P(State, Row07_OneTokenWritesOneElement) {  // k = e_0, v = e_1, b = 1: S[k=0, v=1] = 1 and nothing else
  for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
    for (const int32_t dtype : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
      Case c({.T = 1, .K = 64, .V = 32, .beta = FKDA_BETA_ACTIVATED, .qk_l2norm = 0, .state_layout = layout});
      for (Tensor* x : {&c.q, &c.k, &c.v}) x->fill(0.0);
      c.q.set(0, 1.0);
      c.k.set(0, 1.0);
      c.v.set(1, 1.0);
      c.beta.fill(1.0);
      const Outputs outputs = run(c, {.out = FKDA_FLOAT32, .final_state = dtype}, how());
      const int64_t at = layout == FKDA_STATE_V_FIRST ? 1 * 64 + 0 : 0 * 32 + 1;
      for (int64_t i = 0; i < outputs.final_state.numel(); ++i) {
        ASSERT_EQ(outputs.final_state.get(i), i == at ? 1.0 : 0.0) << "element " << i << ", layout " << layout;
      }
      for (int64_t v = 0; v < 32; ++v) ASSERT_EQ(outputs.out.get(v), v == 1 ? 0.125 : 0.0);  // scale 1/sqrt(64)
    }
  }
}

TEST_P(State, Row07_SeventeenThenOneIsEighteen) {
  const Case c({.T = 18, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 201});
  const Outputs whole = resume(c, 0, 18, c.initial_state);
  const Outputs first = resume(c, 0, 17, c.initial_state), last = resume(c, 17, 18, first.final_state);
  EXPECT_LE(rms_error(first.out, whole.out.narrow(1, 0, 17)), kBar);
  EXPECT_LE(rms_error(last.out, whole.out.narrow(1, 17, 1)), kBar);
  EXPECT_LE(rms_error(last.final_state, whole.final_state), kBar);
}

// [N,HV,A,B] as [N,HV,B,A].
Tensor turned(const Tensor& state) {
  const int64_t N = state.shape()[0], HV = state.shape()[1], A = state.shape()[2], B = state.shape()[3];
  Tensor result(state.dtype(), {N, HV, B, A});
  for (int64_t n = 0; n < N; ++n)
    for (int64_t h = 0; h < HV; ++h)
      for (int64_t i = 0; i < A; ++i)
        for (int64_t j = 0; j < B; ++j) result.set_at({n, h, j, i}, state.at({n, h, i, j}));
  return result;
}

TEST_P(State, BothLayoutsHoldTheSameNumbers) {
  for (const int64_t T : {1, 5, 20, 64, 70}) {  // decode, a short tail, whole chunks
    for (const auto& [K, V] : std::vector<std::pair<int64_t, int64_t>>{{128, 128}, {64, 40}}) {
      const Spec spec = {.B = 2, .T = T, .H = 2, .K = K, .V = V, .initial_state = FKDA_FLOAT32, .seed = 202};
      const Case v_first(spec);
      Case k_first = v_first;
      k_first.options.state_layout = FKDA_STATE_K_FIRST;
      k_first.initial_state = turned(v_first.initial_state);
      const Outputs a = run(v_first, wide_want(), how()), b = run(k_first, wide_want(), how());
      SCOPED_TRACE(testing::Message() << "T " << T << ", K " << K << ", V " << V);
      // The order of summation may follow the layout, so not the same bits.
      EXPECT_LE(rms_error(b.out, a.out), kBar);
      EXPECT_LE(rms_error(turned(b.final_state), a.final_state), kBar);
    }
  }
}

TEST_P(State, ALayoutIsOnlyALayoutInWholeChunks) {  // of 32 tokens and more the bits agree too
  Case v_first({.T = 64, .H = 2, .K = 64, .V = 40, .seed = 203});
  Case k_first({.T = 64, .H = 2, .K = 64, .V = 40, .state_layout = FKDA_STATE_K_FIRST, .seed = 203});
  const Outputs a = run(v_first, wide_want(), how()), b = run(k_first, wide_want(), how());
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(turned(b.final_state), a.final_state));
}

// --------------------------------------------------------------------------------------------- dtypes of both ends

TEST_P(State, EveryPairOfStateDtypes) {
  for (const int64_t T : {1, 5, 40, 64, 70}) {
    for (const int32_t initial : {kAbsent, int32_t{FKDA_FLOAT32}, int32_t{FKDA_BFLOAT16}}) {
      for (const int32_t final_state : {kAbsent, int32_t{FKDA_FLOAT32}, int32_t{FKDA_BFLOAT16}}) {
        for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
          const Case c({.B = 2,
                        .T = T,
                        .H = 2,
                        .K = 64,
                        .V = 40,
                        .initial_state = initial,
                        .state_layout = layout,
                        .seed = 211});
          const Want want = {.out = FKDA_FLOAT32, .final_state = final_state};
          const Outputs actual = run(c, want, how()), expected = reference(c, want);
          SCOPED_TRACE(testing::Message()
                       << "T " << T << ", state " << initial << " to " << final_state << ", layout " << layout);
          EXPECT_LE(rms_error(actual.out, expected.out), kBar);
          if (final_state == kAbsent) continue;
          EXPECT_LE(rms_error(actual.final_state, expected.final_state), final_state == FKDA_BFLOAT16 ? 2.5e-3 : kBar);
        }
      }
    }
  }
}

TEST_P(State, TheInitialDtypeIsOnlyARounding) {  // a bf16 state and the same numbers in fp32 give the same bits
  const Case narrow({.T = 40, .H = 2, .initial_state = FKDA_BFLOAT16, .seed = 212});
  Case widened = narrow;
  widened.initial_state = narrow.initial_state.to(FKDA_FLOAT32);
  const Outputs a = run(narrow, wide_want(), how()), b = run(widened, wide_want(), how());
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(a.final_state, b.final_state));
}

TEST_P(State, NoInitialStateIsAStateOfZeros) {
  for (const int64_t T : {1, 40, 70}) {
    const Case absent({.T = T, .H = 2, .seed = 213});
    Case zeros = absent;
    zeros.initial_state = Tensor(FKDA_FLOAT32, zeros.state_shape(1));
    zeros.initial_state.fill(0.0);
    const Outputs a = run(absent, wide_want(), how()), b = run(zeros, wide_want(), how());
    EXPECT_TRUE(same_bits(a.out, b.out)) << T;
    EXPECT_TRUE(same_bits(a.final_state, b.final_state)) << T;
  }
}

TEST_P(State, Row43_NoFinalStateStoresNothingAndChangesNothing) {
  for (const int64_t T : {1, 40, 70}) {
    const Case c({.T = T, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 214});
    const Outputs with = run(c, {.out = FKDA_FLOAT32}, how());
    const Outputs without = run(c, {.out = FKDA_FLOAT32, .final_state = kAbsent}, how());  // guards watch the inputs
    EXPECT_TRUE(same_bits(without.out, with.out)) << T;
  }
}

TEST_P(State, InPlaceIsOutOfPlaceInBits) {
  for (const int64_t T : {0, 1, 5, 40, 64, 70}) {
    for (const int32_t dtype : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
      for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
        const Case c(
            {.B = 3, .T = T, .H = 2, .K = 64, .V = 40, .initial_state = dtype, .state_layout = layout, .seed = 215});
        const Outputs apart = run(c, {.out = FKDA_FLOAT32, .final_state = dtype}, how());
        const Outputs in_place = run(c, {.out = FKDA_FLOAT32, .final_state = dtype, .in_place = true}, how());
        SCOPED_TRACE(testing::Message() << "T " << T << ", dtype " << dtype << ", layout " << layout);
        EXPECT_TRUE(same_bits(in_place.out, apart.out));
        EXPECT_TRUE(same_bits(in_place.final_state, apart.final_state));
      }
    }
  }
}

TEST_P(State, InPlaceInColumnsOfOneHead) {  // one head over several threads: they share the state's memory
  const Case c({.T = 70, .initial_state = FKDA_BFLOAT16, .state_layout = FKDA_STATE_K_FIRST, .seed = 216});
  const Want want = {.out = FKDA_FLOAT32, .final_state = FKDA_BFLOAT16};
  Want in_place = want;
  in_place.in_place = true;
  const Outputs apart = run(c, want, {.backend = GetParam(), .num_threads = 1});
  for (const int threads : {1, 2, 3, 4, 7}) {
    const Outputs together = run(c, in_place, {.backend = GetParam(), .num_threads = threads});
    EXPECT_TRUE(same_bits(together.out, apart.out)) << threads;
    EXPECT_TRUE(same_bits(together.final_state, apart.final_state)) << threads;
  }
}

TEST_P(State, StridesBetweenStatesAreFree) {
  for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
    const Case c({.B = 2,
                  .T = 40,
                  .H = 2,
                  .K = 64,
                  .V = 40,
                  .initial_state = FKDA_FLOAT32,
                  .state_layout = layout,
                  .seed = 217});
    const int64_t row = layout == FKDA_STATE_V_FIRST ? 64 : 40;
    const Outputs dense = run(c, {.out = FKDA_FLOAT32}, how());
    Case padded = c;
    padded.initial_state = c.initial_state.with_stride({2 * 64 * 40 + 100, 64 * 40 + 17, row, 1});
    Outputs outputs = padded.make_outputs({.out = FKDA_FLOAT32});
    // Heads outermost, sequences inside.
    outputs.final_state = Tensor::strided(FKDA_FLOAT32, c.state_shape(2), {64 * 40 + 8, 2 * 64 * 40 + 32, row, 1});
    forward(padded, outputs, how());
    EXPECT_TRUE(same_bits(outputs.out, dense.out));
    EXPECT_TRUE(same_bits(outputs.final_state, dense.final_state));
  }
}

TEST_P(State, StatesMayAlternateInOneBuffer) {  // [N, 2, HV, V, K]: one half is read, the other written
  const Case c({.B = 2, .T = 40, .H = 2, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 218});
  const Outputs apart = run(c, {.out = FKDA_FLOAT32}, how());
  const auto buffer = std::make_shared<Buffer>(sizeof(float) * 2 * 2 * 2 * 32 * 64);
  const std::vector<int64_t> stride = {2 * 2 * 32 * 64, 32 * 64, 64, 1};
  Case alternating = c;
  alternating.initial_state = Tensor(buffer, FKDA_FLOAT32, c.state_shape(2), stride, 0);
  alternating.initial_state.copy_from(c.initial_state);
  Outputs outputs = alternating.make_outputs({.out = FKDA_FLOAT32});
  outputs.final_state = Tensor(buffer, FKDA_FLOAT32, c.state_shape(2), stride, 2 * 32 * 64);
  fkda_problem problem = alternating.problem(outputs);
  problem.backend = GetParam();
  ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();
  EXPECT_TRUE(same_bits(outputs.final_state, apart.final_state));
  EXPECT_TRUE(same_bits(alternating.initial_state, c.initial_state));
}

// ------------------------------------------------------------------------------------------------ pools: rows 6, 62

class Pool : public State {};
FLASHKDA_ON_EACH_BACKEND(Pool);

TEST_P(Pool, Row06_OnlyTheNamedSlotsChange) {
  for (const std::vector<int64_t>& indices : std::vector<std::vector<int64_t>>{{-1, 3}, {3, -1, -1}, {-1}, {4, 0}}) {
    for (const int32_t index_dtype : {FKDA_INT32, FKDA_INT64}) {
      for (const int32_t dtype : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
        for (const bool in_place : {true, false}) {
          const auto N = static_cast<int64_t>(indices.size());
          const Case c({.B = N,
                        .T = 21,
                        .H = 2,
                        .K = 64,
                        .V = 32,
                        .initial_state = dtype,
                        .slots = 5,
                        .indices = indices,
                        .index_dtype = index_dtype,
                        .seed = 221});
          const Outputs outputs = run(c, {.out = FKDA_FLOAT32, .final_state = dtype, .in_place = in_place}, how());
          SCOPED_TRACE(testing::PrintToString(indices) + (in_place ? " in place" : " into another pool"));
          std::vector<bool> named(5, false);
          for (int64_t n = 0; n < N; ++n) {
            const int64_t slot = indices[static_cast<size_t>(n)];
            const Outputs alone = run(c.sequence(n), {.out = FKDA_FLOAT32, .final_state = dtype}, how());
            EXPECT_TRUE(same_bits(outputs.out.narrow(0, n, 1), alone.out)) << "sequence " << n;
            EXPECT_TRUE(all_finite(outputs.out.narrow(0, n, 1)));
            if (slot < 0) continue;
            named[static_cast<size_t>(slot)] = true;
            EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, slot, 1), alone.final_state)) << "slot " << slot;
          }
          for (int64_t slot = 0; slot < 5; ++slot) {
            if (named[static_cast<size_t>(slot)]) continue;
            const Tensor state = outputs.final_state.narrow(0, slot, 1);
            if (in_place) {
              EXPECT_TRUE(same_bits(state, c.initial_state.narrow(0, slot, 1))) << "slot " << slot;
            } else {
              EXPECT_TRUE(untouched(state)) << "slot " << slot;
            }
          }
        }
      }
    }
  }
}

TEST_P(Pool, Row06_ASlotOfMinusOneStartsFromZero) {
  const Case pooled({.T = 21, .H = 2, .initial_state = FKDA_FLOAT32, .slots = 5, .indices = {-1}, .seed = 222});
  Case fresh = pooled;
  fresh.initial_state = {};
  fresh.state_indices = {};
  EXPECT_TRUE(same_bits(run(pooled, {.out = FKDA_FLOAT32, .in_place = true}, how()).out,
                        run(fresh, {.out = FKDA_FLOAT32}, how()).out));
}

TEST_P(Pool, Row06_EmptySequencesLeaveTheirSlotAsItIs) {
  const Case c({.H = 2,
                .K = 64,
                .V = 32,
                .cu = {0, 0, 20, 20},
                .initial_state = FKDA_BFLOAT16,
                .slots = 5,
                .indices = {1, 4, -1},
                .seed = 223});
  const Outputs outputs = run(c, {.out = FKDA_FLOAT32, .in_place = true}, how());
  for (const int64_t slot : {0, 1, 2, 3}) {
    EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, slot, 1), c.initial_state.narrow(0, slot, 1))) << slot;
  }
  EXPECT_FALSE(same_bits(outputs.final_state.narrow(0, 4, 1), c.initial_state.narrow(0, 4, 1)));
}

TEST_P(Pool, Row06_PaddedSlots) {  // the memory between the slots is watched by run()
  for (const int64_t T : {1, 21, 40}) {
    const Case dense({.B = 2,
                      .T = T,
                      .H = 2,
                      .K = 64,
                      .V = 32,
                      .initial_state = FKDA_FLOAT32,
                      .slots = 5,
                      .indices = {3, 0},
                      .seed = 224});
    Case padded = dense;
    padded.initial_state = dense.initial_state.with_stride({2 * 32 * 64 + 1000, 32 * 64, 64, 1});
    const Outputs a = run(dense, {.out = FKDA_FLOAT32, .in_place = true}, how());
    const Outputs b = run(padded, {.out = FKDA_FLOAT32, .in_place = true}, how());
    EXPECT_TRUE(same_bits(a.out, b.out)) << T;
    EXPECT_TRUE(same_bits(a.final_state, b.final_state)) << T;
  }
}

TEST_P(Pool, ReadersMayShareASlotWhenNothingIsStored) {  // one prefix, many continuations
  Case c({.B = 2, .T = 21, .H = 2, .initial_state = FKDA_FLOAT32, .slots = 3, .indices = {1, 1}, .seed = 225});
  const Outputs outputs = run(c, {.out = FKDA_FLOAT32, .final_state = kAbsent}, how());
  for (int64_t n = 0; n < 2; ++n) {
    const Outputs alone = run(c.sequence(n), {.out = FKDA_FLOAT32, .final_state = kAbsent}, how());
    EXPECT_TRUE(same_bits(outputs.out.narrow(0, n, 1), alone.out));
  }
}

TEST_P(Pool, APoolOnlyToStoreIn) {
  Case c({.B = 2, .T = 21, .H = 2, .indices = {3, -1}, .seed = 226});
  Outputs outputs = c.make_outputs({.out = FKDA_FLOAT32});
  outputs.final_state = Tensor(FKDA_FLOAT32, c.state_shape(5));
  forward(c, outputs, how());
  const Outputs alone = run(c.sequence(0), {.out = FKDA_FLOAT32}, how());
  EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, 3, 1), alone.final_state));
  for (const int64_t slot : {0, 1, 2, 4}) EXPECT_TRUE(untouched(outputs.final_state.narrow(0, slot, 1))) << slot;
}

TEST_P(Pool, Row62_OldContentsOfASlotAreNeverRead) {
  // A new sequence goes to slot 3 of a pool that is all NaN: no initial state is given.
  Case c({.T = 40, .H = 2, .indices = {3}, .seed = 227});
  Outputs outputs = c.make_outputs({.out = FKDA_FLOAT32});
  outputs.final_state = Tensor(FKDA_FLOAT32, c.state_shape(5));
  forward(c, outputs, how());
  EXPECT_TRUE(all_finite(outputs.out));
  EXPECT_TRUE(all_finite(outputs.final_state.narrow(0, 3, 1)));

  // A sequence with index -1, and one whose own slot is fine, in a pool with a NaN slot that nobody names.
  for (const int64_t T : {1, 20, 40}) {
    Case pooled({.B = 2, .T = T, .H = 2, .initial_state = FKDA_FLOAT32, .slots = 5, .indices = {-1, 2}, .seed = 228});
    for (const int64_t slot : {0, 1, 3, 4}) Tensor(pooled.initial_state.narrow(0, slot, 1)).poison();
    const Outputs in_place = run(pooled, {.out = FKDA_FLOAT32, .in_place = true}, how());
    EXPECT_TRUE(all_finite(in_place.out)) << T;
    EXPECT_TRUE(all_finite(in_place.final_state.narrow(0, 2, 1))) << T;
  }
}

// --------------------------------------------------------------------------------------------- resuming: row 16

TEST_P(State, Row16_ResumedAtMultiplesOf64IsTheWholeInBits) {
  for (const int64_t T : {65, 72, 73, 95, 96, 97, 127, 128, 129, 192, 200, 321}) {
    const Case c({.T = T, .H = 2, .K = 64, .V = 40, .initial_state = wide(), .seed = 231});
    const Outputs whole = resume(c, 0, T, c.initial_state);
    for (int64_t cut = 64; cut < T; cut += 64) {
      const Outputs first = resume(c, 0, cut, c.initial_state), rest = resume(c, cut, T, first.final_state);
      SCOPED_TRACE(testing::Message() << T << " tokens cut at " << cut);
      EXPECT_TRUE(same_bits(first.out, whole.out.narrow(1, 0, cut)));
      EXPECT_TRUE(same_bits(rest.out, whole.out.narrow(1, cut, T - cut)));
      EXPECT_TRUE(same_bits(rest.final_state, whole.final_state));
    }
  }
}

TEST_P(State, Row16_FourPiecesAreTheWholeInBits) {
  const Case c({.T = 2048, .H = 2, .K = 64, .V = 64, .seed = 232});
  const Outputs whole = resume(c, 0, 2048, {});
  Tensor state;
  for (int64_t piece = 0; piece < 4; ++piece) {
    const Outputs part = resume(c, 512 * piece, 512 * (piece + 1), state);
    EXPECT_TRUE(same_bits(part.out, whole.out.narrow(1, 512 * piece, 512))) << piece;
    state = part.final_state;
  }
  EXPECT_TRUE(same_bits(state, whole.final_state));
}

TEST_P(State, Row16_ResumedAnywhereIsTheWholeWithinRounding) {
  const Case c({.T = 700, .H = 2, .K = 64, .V = 64, .seed = 233});
  const Outputs whole = resume(c, 0, 700, {});
  for (const int64_t cut : {1, 17, 33, 100, 333, 699}) {
    const Outputs first = resume(c, 0, cut, {}), rest = resume(c, cut, 700, first.final_state);
    EXPECT_LE(rms_error(rest.out, whole.out.narrow(1, cut, 700 - cut)), kBar) << cut;
    EXPECT_LE(rms_error(rest.final_state, whole.final_state), kBar) << cut;
  }
}

TEST_P(State, Row16_TokenByTokenIsTheWholeWithinRounding) {  // decode
  const Case c({.T = 100, .H = 2, .K = 64, .V = 64, .seed = 234});
  const Outputs whole = resume(c, 0, 100, {});
  Tensor state;
  for (int64_t t = 0; t < 100; ++t) {
    const Outputs step = resume(c, t, t + 1, state);
    EXPECT_LE(rms_error(step.out, whole.out.narrow(1, t, 1)), 1e-5) << t;
    state = step.final_state;
  }
  EXPECT_LE(rms_error(state, whole.final_state), kBar);
}

TEST_P(State, Row16_AloneAndAmongEightInBits) {
  std::vector<int64_t> cu = {0};
  for (const int64_t length : {300, 1, 64, 200, 17, 128, 5, 90}) cu.push_back(cu.back() + length);
  const Case c({.H = 2, .K = 64, .V = 64, .cu = cu, .initial_state = FKDA_FLOAT32, .seed = 235});
  const Outputs together = run(c, {.out = FKDA_FLOAT32}, how());
  for (int64_t n = 0; n < c.N; ++n) {
    const Outputs alone = run(c.sequence(n), {.out = FKDA_FLOAT32}, how());
    EXPECT_TRUE(same_bits(c.rows(together.out, n), alone.out)) << n;
    EXPECT_TRUE(same_bits(together.final_state.narrow(0, n, 1), alone.final_state)) << n;
  }
}

TEST_P(State, BatchInvarianceAskedForIsGranted) {
  Case c({.T = 100, .H = 2, .K = 64, .V = 64, .seed = 236});
  const Outputs by_default = run(c, {.out = FKDA_FLOAT32}, how());
  c.options.batch_invariant = 1;
  EXPECT_TRUE(same_bits(run(c, {.out = FKDA_FLOAT32}, how()).out, by_default.out));
}

// ----------------------------------------------------------------------- checkpoints and intermediate states: row 61

TEST_P(State, Row61_ACheckpointIsTheFinalStateOfItsPrefixInBits) {
  for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
    for (const int32_t dtype : {wide(), int32_t{FKDA_BFLOAT16}}) {
      const Case c(
          {.H = 2,
           .K = 64,
           .V = 40,
           .cu = {0, 130, 130, 137, 237},
           .initial_state = FKDA_FLOAT32,
           .state_layout = layout,
           .checkpoint_offsets = {{128, 0, 16, 112, -1}, {0, -1, -1, -1, -5}, {0, -1, 0, -1, -1}, {96, 96, 80, 64, 48}},
           .seed = 241});
      const Want want = {.out = FKDA_FLOAT32, .final_state = wide(), .checkpoints = dtype};
      const Outputs outputs = run(c, want, how());
      for (int64_t n = 0; n < c.N; ++n) {
        for (int64_t i = 0; i < c.P; ++i) {
          const Tensor checkpoint = outputs.checkpoints.narrow(0, n, 1).narrow(1, i, 1);
          const auto offset = static_cast<int64_t>(c.checkpoint_offsets.at({n, i}));
          SCOPED_TRACE(testing::Message() << "offset " << offset << " of sequence " << n << ", dtype " << dtype);
          if (offset < 0) {
            EXPECT_TRUE(untouched(checkpoint));
            continue;
          }
          const Case prefix = c.part(n, 0, offset, c.initial_state.narrow(0, n, 1));
          const Outputs alone = run(prefix, {.out = FKDA_FLOAT32, .final_state = dtype}, how());
          const std::vector<int64_t> shape = c.state_shape(1);
          EXPECT_TRUE(same_bits(Tensor(checkpoint.to(dtype).buffer(), dtype, shape, alone.final_state.stride(), 0),
                                alone.final_state));
        }
      }
      // Watching changes nothing.
      const Outputs unwatched = run(c, {.out = FKDA_FLOAT32, .final_state = wide()}, how());
      EXPECT_TRUE(same_bits(outputs.out, unwatched.out));
      EXPECT_TRUE(same_bits(outputs.final_state, unwatched.final_state));
    }
  }
}

TEST_P(State, Row61_EveryOffsetOfOneSequence) {
  std::vector<int64_t> offsets;
  for (int64_t offset = 0; offset <= 200; offset += 16) offsets.push_back(offset);
  for (const int32_t offset_dtype : {FKDA_INT32, FKDA_INT64}) {
    const Case c({.T = 200,
                  .H = 2,
                  .K = 64,
                  .V = 32,
                  .checkpoint_offsets = {offsets},
                  .checkpoint_offset_dtype = offset_dtype,
                  .seed = 242});
    const Outputs outputs = run(c, {.out = wide(), .final_state = kAbsent, .checkpoints = wide()}, how());
    for (int64_t i = 0; i < c.P; ++i) {
      const Outputs prefix = resume(c, 0, offsets[static_cast<size_t>(i)], {});
      const Tensor checkpoint = outputs.checkpoints.narrow(1, i, 1).to(wide());
      EXPECT_TRUE(same_bits(Tensor(checkpoint.buffer(), wide(), c.state_shape(1), prefix.final_state.stride(), 0),
                            prefix.final_state))
          << offsets[static_cast<size_t>(i)];
    }
  }
}

TEST_P(State, Row61_ResumedFromACheckpointIsTheWholeInBits) {
  const Case c({.T = 200, .H = 2, .K = 64, .V = 32, .checkpoint_offsets = {{128}}, .seed = 243});
  const Outputs outputs = run(c, {.out = wide(), .final_state = wide(), .checkpoints = wide()}, how());
  const Tensor state(outputs.checkpoints.buffer(), wide(), c.state_shape(1), outputs.final_state.stride(), 0);
  const Outputs rest = resume(c, 128, 200, state);
  EXPECT_TRUE(same_bits(rest.out, outputs.out.narrow(1, 128, 72)));
  EXPECT_TRUE(same_bits(rest.final_state, outputs.final_state));
}

TEST_P(State, CheckpointsWithFreeStrides) {
  const Case c({.B = 2, .T = 70, .H = 2, .K = 64, .V = 32, .checkpoint_offsets = {{64, 16}, {32, -1}}, .seed = 244});
  const Want want = {.out = FKDA_FLOAT32, .checkpoints = FKDA_FLOAT32};
  const Outputs dense = run(c, want, how());
  Outputs outputs = c.make_outputs(want);
  outputs.checkpoints =
      Tensor::strided(FKDA_FLOAT32, {2, 2, 2, 32, 64}, {5 * 32 * 64, 10 * 32 * 64 + 16, 2 * 32 * 64, 64, 1});
  Case strided = c;  // and a row of offsets with a gap behind it
  strided.checkpoint_offsets = Tensor::integers(FKDA_INT32, {64, 16, 77777, 32, -1});
  strided.checkpoint_offsets = Tensor(strided.checkpoint_offsets.buffer(), FKDA_INT32, {2, 2}, {3, 1}, 0);
  forward(strided, outputs, how());
  EXPECT_TRUE(same_bits(outputs.checkpoints, dense.checkpoints));
}

TEST_P(State, IntermediateStatesAreTheFinalStatesOfTheirPrefixesInBits) {
  for (const int64_t every : {16, 48, 64, 1024}) {
    for (const bool packed : {true, false}) {
      for (const int32_t dtype : {wide(), int32_t{FKDA_BFLOAT16}, int32_t{FKDA_FLOAT16}}) {
        Spec spec = {.B = 2, .T = 100, .H = 2, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 245};
        if (packed) {
          spec.B = 1;
          spec.cu = {0, 64, 64, 69, 169};
        }
        const Case c(spec);
        const Outputs outputs = run(
            c, {.out = FKDA_FLOAT32, .final_state = wide(), .intermediate_states = dtype, .intermediate_every = every},
            how());
        int64_t index = 0;
        for (int64_t n = 0; n < c.N; ++n) {
          if (!packed) index = 0;
          for (int64_t begin = 0; begin < c.length(n); begin += every) {
            const Tensor h = outputs.intermediate_states.narrow(0, packed ? 0 : n, 1).narrow(1, index++, 1).to(dtype);
            const Outputs prefix = run(c.part(n, 0, begin, c.initial_state.narrow(0, n, 1)), wide_want(), how());
            EXPECT_TRUE(same_bits(Tensor(h.buffer(), dtype, c.state_shape(1), prefix.final_state.stride(), 0),
                                  prefix.final_state.to(dtype)))
                << "before token " << begin << " of sequence " << n << ", every " << every << ", dtype " << dtype;
          }
        }
        EXPECT_TRUE(all_finite(outputs.intermediate_states));  // each was written
        const Outputs unwatched = run(c, {.out = FKDA_FLOAT32, .final_state = wide()}, how());
        EXPECT_TRUE(same_bits(outputs.out, unwatched.out));
        EXPECT_TRUE(same_bits(outputs.final_state, unwatched.final_state));
      }
    }
  }
}

TEST_P(State, CheckpointsAndIntermediateStatesOfAPool) {
  const Case c({.B = 2,
                .T = 70,
                .H = 2,
                .K = 64,
                .V = 32,
                .initial_state = FKDA_FLOAT32,
                .slots = 4,
                .indices = {2, -1},
                .checkpoint_offsets = {{0, 48}, {0, 48}},
                .seed = 246});
  const Outputs outputs =
      run(c, {.out = FKDA_FLOAT32, .checkpoints = FKDA_FLOAT32, .intermediate_states = FKDA_FLOAT32, .in_place = true},
          how());
  const auto first = [&](const Tensor& x, int64_t n) {
    const Tensor state = x.narrow(0, n, 1).narrow(1, 0, 1).to(FKDA_FLOAT32);
    return Tensor(state.buffer(), FKDA_FLOAT32, c.state_shape(1), {2 * 32 * 64, 32 * 64, 64, 1}, 0);
  };
  for (const Tensor* x : {&outputs.checkpoints, &outputs.intermediate_states}) {
    EXPECT_TRUE(same_bits(first(*x, 0), c.initial_state.narrow(0, 2, 1)));
    EXPECT_TRUE(all_zero(first(*x, 1)));
    EXPECT_TRUE(all_finite(*x));
  }
}

// -------------------------------------------------------------------------------------------- repeatability: row 10

TEST_P(State, Row10_AThousandRepeatsGiveTheSameBits) {
  const Case with_state({.T = 40, .H = 2, .K = 32, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 251});
  const Case without({.H = 2, .K = 32, .V = 32, .cu = {0, 40, 40, 45}, .seed = 252});
  const Want fp32 = {.out = FKDA_BFLOAT16}, bf16 = {.out = FKDA_BFLOAT16, .final_state = FKDA_BFLOAT16};
  const RunOptions two_threads = {.backend = GetParam(), .num_threads = 2};
  const Outputs a = run(with_state, fp32, two_threads), b = run(without, bf16, two_threads);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) {
    const Outputs again_a = run(with_state, fp32, two_threads), again_b = run(without, bf16, two_threads);
    ASSERT_TRUE(same_bits(again_a.out, a.out)) << i;
    ASSERT_TRUE(same_bits(again_a.final_state, a.final_state)) << i;
    ASSERT_TRUE(same_bits(again_b.out, b.out)) << i;
    ASSERT_TRUE(same_bits(again_b.final_state, b.final_state)) << i;
  }
}

}  // namespace
}  // namespace flashkda::test
