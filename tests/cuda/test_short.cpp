// Sequences of a few tokens, which the portable path gives to its recurrent kernel. RowNN is the row of docs/cases.md.
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/device.hpp"

namespace flashkda::test {
namespace {

// The recurrence in fp32: nothing is rounded to 16 bits but what the caller wants so.
constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};
constexpr double kFp32Bar = 5e-6;

class CudaShort : public OnGpu {
 protected:
  static Case portable(const Spec& spec) {
    Case c(spec);
    c.options.backend = "cuda_portable";
    return c;
  }
};

TEST_F(CudaShort, EveryGateBetaFormNormalisationAndWidth) {
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
    for (const int32_t beta : {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID, FKDA_BETA_ACTIVATED}) {
      for (const int32_t norm : {0, 1}) {
        for (const int64_t D : {64, 128}) {
          const Case c = portable({.B = 3,
                                   .T = 7,
                                   .H = 2,
                                   .HV = 4,
                                   .K = D,
                                   .V = D,
                                   .gate = gate,
                                   .beta = beta,
                                   .qk_l2norm = norm,
                                   .initial_state = FKDA_FLOAT32,
                                   .seed = 701});
          SCOPED_TRACE(testing::Message() << "gate " << gate << ", beta " << beta << ", norm " << norm << ", D " << D);
          expect_right_on_gpu(c, kFp32, kFp32Bar, kFp32Bar);
        }
      }
    }
  }
}

TEST_F(CudaShort, EveryDtypeAndLayout) {
  for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
    for (const int32_t small : {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32}) {
      for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
        for (const int64_t D : {64, 128}) {
          const int32_t state = small == FKDA_FLOAT16 ? FKDA_BFLOAT16 : small;
          const Case c = portable({.T = 3,
                                   .H = 2,
                                   .K = D,
                                   .V = D,
                                   .dtype = dtype,
                                   .g_dtype = small,
                                   .beta_dtype = small,
                                   .initial_state = state,
                                   .state_layout = layout,
                                   .seed = 702});
          SCOPED_TRACE(testing::Message()
                       << "dtypes " << dtype << ' ' << small << ", layout " << layout << ", D " << D);
          expect_right_on_gpu(c, kFp32, kFp32Bar, kFp32Bar);
          expect_right_on_gpu(c, {.out = dtype, .final_state = state});
        }
      }
    }
  }
}

TEST_F(CudaShort, AStepOfDecodingInAPoolWithoutAnyWorkspace) {
  for (const int32_t index_dtype : {FKDA_INT32, FKDA_INT64}) {
    for (const bool packed : {false, true}) {
      Spec spec{.B = 6, .T = 1, .H = 2, .HV = 4, .initial_state = FKDA_FLOAT32, .slots = 9};
      spec.indices = {3, -1, 8, 0, -1, 5};
      spec.index_dtype = index_dtype;
      spec.seed = 703;
      if (packed) spec.B = 1, spec.cu = {0, 1, 2, 3, 4, 5, 6};
      const Case c = portable(spec);
      SCOPED_TRACE(testing::Message() << "packed " << packed);
      const Want want = {.out = FKDA_FLOAT32, .in_place = true};
      EXPECT_EQ(DeviceCase(c, want).workspace().size(), 0u);
      const Outputs outputs = run_on_gpu(c, want);
      std::vector<bool> named(9, false);
      for (int64_t n = 0; n < 6; ++n) {
        const Outputs expected = reference(c.sequence(n), kFp32);
        const int64_t slot = spec.indices[static_cast<size_t>(n)];
        SCOPED_TRACE(n);
        EXPECT_LE(rms_error(outputs.out.narrow(packed ? 1 : 0, n, 1), expected.out), kFp32Bar);
        if (slot < 0) continue;
        named[static_cast<size_t>(slot)] = true;
        EXPECT_LE(rms_error(outputs.final_state.narrow(0, slot, 1), expected.final_state), kFp32Bar);
      }
      for (int64_t slot = 0; slot < 9; ++slot) {
        if (named[static_cast<size_t>(slot)]) continue;
        EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, slot, 1), c.initial_state.narrow(0, slot, 1))) << slot;
      }
    }
  }
}

TEST_F(CudaShort, LongOnesAmongShortOnesGoTheOtherWay) {
  std::vector<int64_t> lengths(40, 1);
  lengths[3] = 61;  // by chunks
  lengths[4] = 0;
  lengths[7] = 8;
  lengths[8] = 9;  // by chunks
  lengths[39] = 3;
  const Case c = portable({.H = 2, .HV = 4, .cu = cumulative(lengths), .initial_state = FKDA_FLOAT32, .seed = 704});
  const Outputs together = expect_right_on_gpu(c, kFp32);
  // What the others are changes no bit, here of those that are left to either kernel.
  for (const int64_t n : {3, 4, 7, 8, 39}) {
    const auto i = static_cast<size_t>(n);
    Case alone = c;
    const int64_t begin = cumulative(lengths)[i];
    for (Tensor* t : {&alone.q, &alone.k, &alone.v, &alone.g, &alone.beta}) *t = t->narrow(1, begin, lengths[i]);
    alone.T = lengths[i];
    alone.N = 1;
    alone.cu_seqlens = Tensor::integers(FKDA_INT64, {0, lengths[i]});
    alone.initial_state = c.initial_state.narrow(0, n, 1);
    const Outputs single = run_on_gpu(alone, kFp32);
    SCOPED_TRACE(testing::Message() << "sequence " << n);
    EXPECT_TRUE(same_bits(single.out, together.out.narrow(1, begin, lengths[i])));
    EXPECT_TRUE(same_bits(single.final_state, together.final_state.narrow(0, n, 1)));
  }
}

// More sequences and heads than blocks: a block's next state and rows are fetched while it still works.
TEST_F(CudaShort, BlocksThatGoOnFromHeadToHead) {
  constexpr int64_t kPattern[] = {1, 8, 0, 3, 5, 1, 9, 2, 4, 1, 7}, kSequences = 331, kSlots = 400;
  std::vector<int64_t> lengths, indices;
  for (int64_t n = 0; n < kSequences; ++n) {
    lengths.push_back(kPattern[n % 11]);
    indices.push_back(n % 17 == 5 ? -1 : (n * 7 + 3) % kSlots);
  }
  for (const int64_t D : {64, 128}) {
    for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
      for (const int32_t state : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
        Spec spec{.H = 2, .HV = 4, .K = D, .V = D, .cu = cumulative(lengths), .initial_state = state};
        spec.state_layout = layout;
        spec.slots = kSlots;
        spec.indices = indices;
        spec.seed = 706;
        const Case c = portable(spec);
        SCOPED_TRACE(testing::Message() << "D " << D << ", layout " << layout << ", state " << state);
        const Outputs outputs = run_on_gpu(c, {.out = FKDA_FLOAT32, .in_place = true});
        int64_t begin = 0;
        for (int64_t n = 0; n < kSequences; ++n) {
          const int64_t length = lengths[static_cast<size_t>(n)], slot = indices[static_cast<size_t>(n)];
          SCOPED_TRACE(testing::Message() << "sequence " << n << " of " << length << " tokens");
          if (length == 0) {
            if (slot < 0) continue;
            EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, slot, 1), c.initial_state.narrow(0, slot, 1)));
            continue;
          }
          const Outputs expected = reference(c.sequence(n), kFp32);
          const double bar = length > 8 ? kOutBar : kFp32Bar;  // by chunks
          EXPECT_LE(rms_error(outputs.out.narrow(1, begin, length), expected.out), bar);
          if (slot >= 0) {
            EXPECT_LE(rms_error(outputs.final_state.narrow(0, slot, 1), expected.final_state),
                      state == FKDA_FLOAT32 ? bar : kOutBar);
          }
          begin += length;
        }
      }
    }
  }
}

TEST_F(CudaShort, BlocksThatGoOnWithStatesOfEveryKind) {
  for (const int32_t initial : {kAbsent, int32_t{FKDA_FLOAT32}, int32_t{FKDA_BFLOAT16}}) {
    for (const int32_t final_state : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
      for (const int64_t T : {1, 6}) {
        const Case c = portable({.B = 300,
                                 .T = T,
                                 .HV = 2,
                                 .g_dtype = FKDA_FLOAT16,
                                 .beta_dtype = FKDA_FLOAT32,
                                 .initial_state = initial,
                                 .seed = 707});
        SCOPED_TRACE(testing::Message() << "states " << initial << ' ' << final_state << ", T " << T);
        expect_right_on_gpu(c, {.out = FKDA_FLOAT32, .final_state = final_state}, kFp32Bar,
                            final_state == FKDA_FLOAT32 ? kFp32Bar : kStateBar);
      }
    }
  }
}

TEST_F(CudaShort, LongRows) {  // longer than a square can be: such a row counts as zero, and nothing is NaN
  Case c = portable({.T = 3, .seed = 708});
  for (const Tensor* t : {&c.q, &c.k}) t->narrow(1, 1, 1).fill(1e25);
  const Outputs outputs = run_on_gpu(c, kFp32);
  for (int64_t i = 0; i < outputs.out.numel(); ++i) ASSERT_TRUE(std::isfinite(outputs.out.get(i))) << i;
}

TEST_F(CudaShort, Row19_CumulativeLengthsThatLie) {  // a step of decoding reads them as they are
  for (const std::vector<int64_t>& cu : std::vector<std::vector<int64_t>>{
           {0, 1, 2, 3}, {0, 3, 3, 3}, {0, 0, 0, 3}, {-5, 1, 2, 900}, {3, 2, 1, 0}, {INT64_MIN, 1, 1, INT64_MAX}}) {
    Case c = portable({.H = 2, .cu = {0, 1, 2, 3}, .seed = 705});
    c.cu_seqlens = Tensor::integers(FKDA_INT64, cu);
    DeviceCase device(c, {});
    EXPECT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
    device.fetch();  // no memory but the outputs' has been written
  }
}

}  // namespace
}  // namespace flashkda::test
