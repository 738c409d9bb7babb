// Sequences of every length, alone, packed and in dense batches. RowNN is the row of docs/cases.md.
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "cuda/device.hpp"

namespace flashkda::test {
namespace {

constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};

class CudaPacked : public OnGpu {};

TEST_F(CudaPacked, Row03_EveryLengthDenseAndPacked) {
  for (const int64_t T : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 500, 1000, 1500}) {
    SCOPED_TRACE(T);
    expect_right_on_gpu(Case({.B = 2, .T = T, .H = 1, .HV = 2, .initial_state = FKDA_FLOAT32, .seed = 101}));
    expect_right_on_gpu(Case({.cu = {0, T, T + 20, 2 * T + 20}, .initial_state = FKDA_FLOAT32, .seed = 102}));
    expect_right_on_gpu(Case({.T = T, .K = 64, .V = 64, .seed = 103}));
  }
}

// Overwrites the rows and states of all sequences but n by NaN, or by a value.
void overwrite_neighbours(Case& c, int64_t n, const double* value) {
  for (int64_t other = 0; other < c.N; ++other) {
    if (other == n) continue;
    for (const Tensor* x : {&c.q, &c.k, &c.v, &c.g, &c.beta}) {
      Tensor rows = c.rows(*x, other);
      value != nullptr ? rows.fill(*value) : rows.poison();
    }
    Tensor state = c.initial_state.narrow(0, other, 1);
    value != nullptr ? state.fill(*value) : state.poison();
  }
}

TEST_F(CudaPacked, Row03_NeighboursNeverChangeBits) {
  const double huge = 1e4;
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {15, 17, 33}, {1, 1, 1}, {64, 1, 64}, {31, 100, 2}, {40, 5, 24}, {16, 16, 16}}) {
    const Spec spec = {.H = 2, .cu = cumulative(lengths), .initial_state = FKDA_FLOAT32, .seed = 105};
    const Case c(spec);
    const Outputs before = run_on_gpu(c, kFp32);
    for (int64_t n = 0; n < c.N; ++n) {
      for (const double* value : {&huge, static_cast<const double*>(nullptr)}) {
        Case changed(spec);
        overwrite_neighbours(changed, n, value);
        const Outputs after = run_on_gpu(changed, kFp32);
        SCOPED_TRACE(testing::Message() << "sequence " << n << " of lengths " << testing::PrintToString(lengths)
                                        << (value ? ", neighbours 1e4" : ", neighbours NaN"));
        EXPECT_TRUE(same_bits(c.rows(after.out, n), c.rows(before.out, n)));
        EXPECT_TRUE(same_bits(after.final_state.narrow(0, n, 1), before.final_state.narrow(0, n, 1)));
      }
    }
  }
}

// The fused kernel, which writes bf16, with one slice of the value columns a block and with both.
TEST_F(CudaPacked, Row03_NeighboursNeverChangeTheFusedKernelsBits) {
  const double huge = 1e4;
  for (const int64_t H : {2, 70}) {
    const Spec spec = {.H = H, .cu = {0, 31, 131, 133}, .initial_state = FKDA_FLOAT32, .seed = 107};
    Case c(spec);
    c.options.backend = "cuda_fused";
    const Outputs before = run_on_gpu(c);
    for (int64_t n = 0; n < c.N; ++n) {
      for (const double* value : {&huge, static_cast<const double*>(nullptr)}) {
        Case changed(spec);
        changed.options.backend = c.options.backend;
        overwrite_neighbours(changed, n, value);
        const Outputs after = run_on_gpu(changed);
        SCOPED_TRACE(testing::Message() << H << " heads, sequence " << n << (value ? ", 1e4" : ", NaN"));
        EXPECT_TRUE(same_bits(c.rows(after.out, n), c.rows(before.out, n)));
        EXPECT_TRUE(same_bits(after.final_state.narrow(0, n, 1), before.final_state.narrow(0, n, 1)));
      }
    }
  }
}

TEST_F(CudaPacked, Row03_NeighboursNeverChangeBitsInADenseBatch) {
  const Spec spec = {.B = 3, .T = 45, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 106};
  const Case c(spec);
  const Outputs before = run_on_gpu(c, kFp32);
  for (int64_t n = 0; n < 3; ++n) {
    Case changed(spec);
    overwrite_neighbours(changed, n, nullptr);
    const Outputs after = run_on_gpu(changed, kFp32);
    EXPECT_TRUE(same_bits(c.rows(after.out, n), c.rows(before.out, n))) << n;
    EXPECT_TRUE(same_bits(after.final_state.narrow(0, n, 1), before.final_state.narrow(0, n, 1))) << n;
  }
}

TEST_F(CudaPacked, Row04_EmptySequencesKeepTheirState) {
  const std::vector<std::vector<int64_t>> batches = {{0, 0, 5},      {0, 5, 5}, {0, 5, 5, 5, 9}, {0, 0}, {0, 0, 0},
                                                     {0, 0, 64, 64}, {0},       {0, 40, 40, 40}};
  for (const std::vector<int64_t>& cu : batches) {
    for (const int32_t state : {kAbsent, int32_t{FKDA_BFLOAT16}, int32_t{FKDA_FLOAT32}}) {
      for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
        const Case c({.H = 2, .cu = cu, .initial_state = state, .state_layout = layout, .seed = 111});
        const Outputs outputs =
            run_on_gpu(c, {.out = FKDA_FLOAT32, .final_state = state ? state : int32_t{FKDA_FLOAT32}});
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

TEST_F(CudaPacked, Row04_AnEmptySequenceKeepsEveryBitPattern) {  // NaN payloads, infinities, subnormals
  const Case c({.cu = {0, 0, 20}, .initial_state = FKDA_FLOAT32, .seed = 112});
  const std::vector<uint32_t> patterns = {0x7f800001u, 0xffc12345u, 0x7f800000u, 0x00000001u, 0x807fffffu, 0x80000000u};
  auto* bits = static_cast<uint32_t*>(c.initial_state.data());
  for (size_t i = 0; i < 128 * 128; ++i) bits[i] = patterns[i % patterns.size()];
  const Outputs outputs = run_on_gpu(c, kFp32);
  EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, 0, 1), c.initial_state.narrow(0, 0, 1)));
  EXPECT_TRUE(all_finite(outputs.out));
}

TEST_F(CudaPacked, Row04_AnEmptySequenceOfManyHeadsKeepsItsState) {
  Case c({.H = 140, .cu = {0, 0, 20}, .initial_state = FKDA_FLOAT32, .seed = 113});
  for (const char* backend : {"cuda_fused", "cuda_wgmma"}) {
    c.options.backend = backend;
    const Outputs outputs = run_on_gpu(c);
    EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, 0, 1), c.initial_state.narrow(0, 0, 1))) << backend;
    EXPECT_TRUE(all_finite(outputs.out)) << backend;
  }
}

TEST_F(CudaPacked, Row04_NoTokensOrNoSequencesAtAll) {
  for (const int64_t B : {0, 1, 3}) {
    const Case c({.B = B, .T = 0, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 113});
    EXPECT_TRUE(same_bits(run_on_gpu(c, kFp32).final_state, c.initial_state)) << B;
  }
  EXPECT_EQ(run_on_gpu(Case({.B = 0, .T = 20, .H = 2, .seed = 114}), kFp32).out.numel(), 0);
}

TEST_F(CudaPacked, Row09_ManySequencesOfLengthOne) {  // 2048 x 32 heads: 65,536 heads of sequences
  const Case c({.H = 1, .HV = 32, .cu = cumulative(std::vector<int64_t>(2048, 1)), .seed = 123});
  const Outputs outputs = run_on_gpu(c, {.final_state = kAbsent});
  EXPECT_LE(rms_error(outputs.out, reference(c, {.final_state = kAbsent}).out), kOutBar);
}

TEST_F(CudaPacked, Row19_Int32AndInt64) {
  const Spec spec = {.H = 2, .cu = {0, 17, 17, 100}, .initial_state = FKDA_FLOAT32, .seed = 131};
  Spec narrow = spec;
  narrow.cu_dtype = FKDA_INT32;
  expect_same_results(run_on_gpu(Case(narrow), kFp32), expect_right_on_gpu(Case(spec), kFp32));
}

TEST_F(CudaPacked, Row19_OneSequenceIsTheDenseBatch) {
  const Spec spec = {.H = 2, .cu = {0, 77}, .initial_state = FKDA_FLOAT32, .seed = 132};
  Spec rows = spec;
  rows.cu = {};
  rows.T = 77;
  Case packed(spec), dense(rows);
  packed.options.batch_invariant = dense.options.batch_invariant = 1;
  expect_same_results(run_on_gpu(packed, kFp32), run_on_gpu(dense, kFp32));
}

TEST_F(CudaPacked, Row19_RowsOutsideEverySequenceAreNotWritten) {  // cu[0] != 0 and cu[-1] < T: legal on the device
  for (const int32_t invariant : {0, 1}) {
    Case c({.H = 2, .cu = {0, 20, 50, 70}, .seed = 134});
    c.options.batch_invariant = invariant;
    const Outputs whole = run_on_gpu(c, kFp32);
    c.cu_seqlens = Tensor::integers(FKDA_INT64, {20, 50});
    c.N = 1;
    const Outputs middle = run_on_gpu(c, kFp32);
    EXPECT_TRUE(untouched(middle.out.narrow(1, 0, 20)));
    EXPECT_TRUE(untouched(middle.out.narrow(1, 50, 20)));
    EXPECT_LE(rms_error(middle.out.narrow(1, 20, 30), whole.out.narrow(1, 20, 30)), kOutBar);
    if (invariant == 0) continue;  // how many sequences there are may decide the path
    EXPECT_TRUE(same_bits(middle.out.narrow(1, 20, 30), whole.out.narrow(1, 20, 30)));
    EXPECT_TRUE(same_bits(middle.final_state, whole.final_state.narrow(0, 1, 1)));
  }
}

TEST_F(CudaPacked, Row19_GarbageWithEveryTensor) {  // guard zones are watched, and the call returns
  for (const int32_t dtype : {FKDA_INT32, FKDA_INT64}) {
    for (const std::vector<int64_t>& cu : std::vector<std::vector<int64_t>>{
             {0, 40, 20, 70}, {70, 0, 70, 0}, {-100, 1000000, -7, 1 << 30}, {3, 3, 3, 3}, {0, 10, 30, 71}}) {
      Case c({.H = 2,
              .cu = {0, 5, 5, 70},
              .initial_state = FKDA_FLOAT32,
              .checkpoint_offsets = {{0, 16}, {-7, 1 << 20}, {16, 5}},
              .seed = 135});
      c.cu_seqlens = Tensor::integers(dtype, cu);
      const Want want = {.final_state = FKDA_FLOAT32,
                         .checkpoints = FKDA_FLOAT32,
                         .intermediate_states = FKDA_BFLOAT16,
                         .intermediate_every = 16};
      DeviceCase device(c, want);
      EXPECT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
      device.fetch();
    }
  }
}

TEST_F(CudaPacked, Row39_PackedIsApartInBits) {
  Case c({.H = 2, .cu = {0, 33, 33, 90, 106}, .initial_state = FKDA_FLOAT32, .seed = 136});
  c.options.batch_invariant = 1;
  const Outputs together = run_on_gpu(c, kFp32);
  for (int64_t n = 0; n < c.N; ++n) {
    const Outputs alone = run_on_gpu(c.sequence(n), kFp32);
    EXPECT_TRUE(same_bits(c.rows(together.out, n), alone.out)) << n;
    EXPECT_TRUE(same_bits(together.final_state.narrow(0, n, 1), alone.final_state)) << n;
  }
}

}  // namespace
}  // namespace flashkda::test
