// The state at both ends: layouts, dtypes, pools, resuming, checkpoints and intermediate states. RowNN is the row of
// docs/cases.md.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "support/environment.hpp"

namespace flashkda::test {
namespace {

constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};

class CudaState : public OnGpu {};
class CudaPool : public OnGpu {};

TEST_F(CudaState, EveryDtypeAtEitherEndAndBothLayouts) {
  for (const int32_t first : {kAbsent, int32_t{FKDA_FLOAT32}, int32_t{FKDA_BFLOAT16}}) {
    for (const int32_t last : {kAbsent, int32_t{FKDA_FLOAT32}, int32_t{FKDA_BFLOAT16}}) {
      for (const int64_t D : {64, 128}) {
        Outputs results[2];
        for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
          const Case c(
              {.B = 2, .T = 50, .H = 2, .K = D, .V = D, .initial_state = first, .state_layout = layout, .seed = 201});
          SCOPED_TRACE(testing::Message()
                       << "dtypes " << first << ", " << last << ", layout " << layout << ", D " << D);
          results[layout] = expect_right_on_gpu(c, {.final_state = last});
        }
        if (first != kAbsent || last == kAbsent) continue;
        // The same numbers, transposed.
        const Tensor& v = results[0].final_state;
        const Tensor turned(results[1].final_state.buffer(), last, v.shape(), {2 * D * D, D * D, 1, D}, 0);
        EXPECT_TRUE(same_bits(turned, v));
      }
    }
  }
}

TEST_F(CudaState, Row07_OneTokenWritesOneElement) {  // k = e_0, v = e_1, b = 1: S[k=0, v=1] = 1 and nothing else
  for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
    for (const int32_t dtype : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
      Case c({.T = 1, .beta = FKDA_BETA_ACTIVATED, .qk_l2norm = 0, .state_layout = layout});
      for (Tensor* x : {&c.q, &c.k, &c.v}) x->fill(0.0);
      c.q.set(0, 1.0);
      c.k.set(0, 1.0);
      c.v.set(1, 1.0);
      c.beta.fill(1.0);
      const Outputs outputs = run_on_gpu(c, {.out = FKDA_FLOAT32, .final_state = dtype});
      for (int64_t i = 0; i < 128 * 128; ++i) {
        ASSERT_EQ(outputs.final_state.get(i), i == (layout == FKDA_STATE_V_FIRST ? 128 : 1) ? 1.0 : 0.0) << i;
      }
    }
  }
}

TEST_F(CudaState, Row07_Prefill17Then1IsPrefill18) {
  const Case c({.T = 18, .H = 2, .seed = 202});
  const Outputs whole = run_on_gpu(c, kFp32), head = run_on_gpu(c.part(0, 0, 17, {}), kFp32);
  const Outputs tail = run_on_gpu(c.part(0, 17, 18, head.final_state), kFp32);
  EXPECT_LE(rms_error(tail.final_state, whole.final_state), kStateBar);
  EXPECT_LE(rms_error(tail.out, whole.out.narrow(1, 17, 1)), 2 * kOutBar);
}

TEST_F(CudaState, InPlaceIsOutOfPlace) {
  for (const int32_t dtype : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
    for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
      const Case c({.B = 3, .T = 50, .H = 2, .initial_state = dtype, .state_layout = layout, .seed = 203});
      expect_same_results(run_on_gpu(c, {.final_state = dtype, .in_place = true}),
                          run_on_gpu(c, {.final_state = dtype}));
    }
  }
}

TEST_F(CudaState, Row10_NoStateInBF16StateOutAndAnEmptySequence) {
  const Case c({.H = 2, .cu = {0, 33, 33, 50}, .seed = 204});
  const Outputs outputs = expect_right_on_gpu(c, {.final_state = FKDA_BFLOAT16});
  EXPECT_TRUE(all_zero(outputs.final_state.narrow(0, 1, 1)));
}

TEST_F(CudaState, Row16_ResumedAtMultiplesOf16IsTheWholeInBits) {
  for (const int64_t T : {65, 96, 129, 200}) {
    Case c({.T = T, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 231});
    c.options.batch_invariant = 1;
    const Outputs whole = run_on_gpu(c, kFp32);
    for (int64_t cut = 16; cut < T; cut += 32) {
      const Outputs head = run_on_gpu(c.part(0, 0, cut, c.initial_state), kFp32);
      const Outputs tail = run_on_gpu(c.part(0, cut, T, head.final_state), kFp32);
      EXPECT_TRUE(same_bits(head.out, whole.out.narrow(1, 0, cut))) << cut << " of " << T;
      EXPECT_TRUE(same_bits(tail.out, whole.out.narrow(1, cut, T - cut))) << cut << " of " << T;
      EXPECT_TRUE(same_bits(tail.final_state, whole.final_state)) << cut << " of " << T;
    }
  }
}

TEST_F(CudaState, Row16_AloneAndAmongEightInBits) {
  Case c({.B = 8, .T = 100, .H = 8, .initial_state = FKDA_FLOAT32, .seed = 232});
  c.options.batch_invariant = 1;
  const Outputs together = run_on_gpu(c, kFp32);
  for (const int64_t n : {0, 5, 7}) {
    const Outputs alone = run_on_gpu(c.sequence(n), kFp32);
    EXPECT_TRUE(same_bits(alone.out, together.out.narrow(0, n, 1))) << n;
    EXPECT_TRUE(same_bits(alone.final_state, together.final_state.narrow(0, n, 1))) << n;
  }
}

TEST_F(CudaState, Row43_NoFinalState) {
  const Case c({.T = 50, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 205});
  EXPECT_TRUE(same_bits(run_on_gpu(c, {.final_state = kAbsent}).out, run_on_gpu(c).out));
}

// ------------------------------------------------------------------------------------------- pools: rows 6 and 62

TEST_F(CudaPool, Row06_OnlyTheNamedSlotsChange) {
  for (const std::vector<int64_t>& indices : std::vector<std::vector<int64_t>>{{-1, 3}, {3, -1, -1}, {-1}, {4, 0}}) {
    for (const int32_t index_dtype : {FKDA_INT32, FKDA_INT64}) {
      for (const int32_t dtype : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
        for (const bool in_place : {true, false}) {
          const auto N = static_cast<int64_t>(indices.size());
          const Case c({.B = N,
                        .T = 21,
                        .H = 2,
                        .initial_state = dtype,
                        .slots = 5,
                        .indices = indices,
                        .index_dtype = index_dtype,
                        .seed = 221});
          const Outputs outputs = run_on_gpu(c, {.out = FKDA_FLOAT32, .final_state = dtype, .in_place = in_place});
          SCOPED_TRACE(testing::PrintToString(indices) + (in_place ? " in place" : " into another pool"));
          std::vector<bool> named(5, false);
          for (int64_t n = 0; n < N; ++n) {
            const int64_t slot = indices[static_cast<size_t>(n)];
            const Outputs alone = run_on_gpu(c.sequence(n), {.out = FKDA_FLOAT32, .final_state = dtype});
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

TEST_F(CudaPool, Row06_SlotsOutsideThePoolStartFromZeroAndStoreNothing) {
  for (const int32_t index_dtype : {FKDA_INT32, FKDA_INT64}) {
    Case c({.B = 4,
            .T = 21,
            .H = 2,
            .initial_state = FKDA_FLOAT32,
            .slots = 5,
            .indices = {5, 2, 2000000000, -2000000000},
            .index_dtype = index_dtype,
            .seed = 223});
    const Outputs outputs = run_on_gpu(c, {.out = FKDA_FLOAT32, .in_place = true});
    for (const int64_t slot : {0, 1, 3, 4}) {
      EXPECT_TRUE(same_bits(outputs.final_state.narrow(0, slot, 1), c.initial_state.narrow(0, slot, 1))) << slot;
    }
    Case fresh = c;
    fresh.initial_state = fresh.state_indices = {};
    EXPECT_TRUE(same_bits(outputs.out.narrow(0, 0, 1), run_on_gpu(fresh, {.out = FKDA_FLOAT32}).out.narrow(0, 0, 1)));
  }
}

TEST_F(CudaPool, Row06_PaddedSlots) {  // the memory between the slots is watched
  for (const int64_t T : {1, 21, 40}) {
    const Case dense(
        {.B = 2, .T = T, .H = 2, .initial_state = FKDA_FLOAT32, .slots = 5, .indices = {3, 0}, .seed = 224});
    Case padded = dense;
    padded.initial_state = dense.initial_state.with_stride({2 * 128 * 128 + 1000, 128 * 128, 128, 1});
    expect_same_results(run_on_gpu(padded, {.out = FKDA_FLOAT32, .in_place = true}),
                        run_on_gpu(dense, {.out = FKDA_FLOAT32, .in_place = true}));
  }
}

TEST_F(CudaPool, Row08_TheLastSlotOfALargePool) {  // 4,100 slots of 32 heads: 2^31 elements and more
  constexpr int64_t kSlots = 4100, kHeads = 32, kMatrix = 128 * 128;
  const Case c({.T = 40, .H = 1, .HV = kHeads, .initial_state = FKDA_FLOAT32, .seed = 225});
  const Outputs expected = run_on_gpu(c, kFp32);
  const auto slot_bytes = static_cast<size_t>(kHeads * kMatrix * 4);
  DeviceBuffer pool(kSlots * slot_bytes);
  const Tensor index = Tensor::integers(FKDA_INT64, {kSlots - 1});
  Case pooled = c;
  pooled.state_indices = index;
  DeviceCase device(pooled, kFp32);
  std::byte* last = pool.data() + (kSlots - 1) * slot_bytes;
  EXPECT_CUDA(cudaMemcpy(last, c.initial_state.data(), slot_bytes, cudaMemcpyHostToDevice));
  device.problem.initial_state.data = pool.data();
  device.problem.initial_state.shape[0] = kSlots;
  device.problem.final_state = device.problem.initial_state;
  ASSERT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
  EXPECT_TRUE(same_bits(device.fetch().out, expected.out));
  Tensor state(FKDA_FLOAT32, c.state_shape(1));
  EXPECT_CUDA(cudaMemcpy(state.data(), last, slot_bytes, cudaMemcpyDeviceToHost));
  EXPECT_TRUE(same_bits(state, expected.final_state));
  EXPECT_TRUE(pool.guards_intact());
}

TEST_F(CudaPool, Row62_OldContentsOfASlotAreNeverRead) {
  Case c({.T = 40, .H = 2, .indices = {3}, .seed = 227});  // slot 3 of a pool that is all NaN, no initial state
  Outputs outputs = c.make_outputs({.out = FKDA_FLOAT32});
  outputs.final_state = Tensor(FKDA_FLOAT32, c.state_shape(5));
  outputs = run_on_gpu_into(outputs, c);
  EXPECT_TRUE(all_finite(outputs.out));
  EXPECT_TRUE(all_finite(outputs.final_state.narrow(0, 3, 1)));
  for (const int64_t slot : {0, 1, 2, 4}) EXPECT_TRUE(untouched(outputs.final_state.narrow(0, slot, 1))) << slot;

  for (const int64_t T : {1, 20, 40}) {  // index -1, and a good slot, in a pool of NaN slots that nobody names
    Case pooled({.B = 2, .T = T, .H = 2, .initial_state = FKDA_FLOAT32, .slots = 5, .indices = {-1, 2}, .seed = 228});
    for (const int64_t slot : {0, 1, 3, 4}) Tensor(pooled.initial_state.narrow(0, slot, 1)).poison();
    const Outputs in_place = run_on_gpu(pooled, {.out = FKDA_FLOAT32, .in_place = true});
    EXPECT_TRUE(all_finite(in_place.out)) << T;
    EXPECT_TRUE(all_finite(in_place.final_state.narrow(0, 2, 1))) << T;
  }
}

// --------------------------------------------------------------------------------- states on the way: row 61

TEST_F(CudaState, Row61_ACheckpointIsTheFinalStateOfItsPrefixInBits) {
  for (const int64_t D : {64, 128}) {
    for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
      for (const int32_t dtype : {FKDA_FLOAT32, FKDA_BFLOAT16}) {
        for (const int32_t offset_dtype : {FKDA_INT32, FKDA_INT64}) {
          Case c({.H = 2,
                  .K = D,
                  .V = D,
                  .cu = {0, 130, 130, 137, 237},
                  .initial_state = FKDA_FLOAT32,
                  .state_layout = layout,
                  .checkpoint_offsets =
                      {{128, 0, 16, 112, -1}, {0, -1, -1, -1, -5}, {0, -1, 0, -1, -1}, {96, 96, 80, 64, 48}},
                  .checkpoint_offset_dtype = offset_dtype,
                  .seed = 241});
          c.options.batch_invariant = 1;
          const Want want = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32, .checkpoints = dtype};
          const Outputs outputs = run_on_gpu(c, want);
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
              const Outputs alone = run_on_gpu(prefix, {.out = FKDA_FLOAT32, .final_state = dtype});
              EXPECT_TRUE(same_bits(
                  Tensor(checkpoint.to(dtype).buffer(), dtype, c.state_shape(1), alone.final_state.stride(), 0),
                  alone.final_state));
            }
          }
          Want unseen = want;  // watching changes nothing
          unseen.checkpoints = kAbsent;
          const Outputs plain = run_on_gpu(c, unseen);
          EXPECT_TRUE(same_bits(outputs.out, plain.out));
          EXPECT_TRUE(same_bits(outputs.final_state, plain.final_state));
        }
      }
    }
  }
}

TEST_F(CudaState, Row61_AnUnalignedOffsetIsRefusedInDebugAndStoresNothingElse) {
  Case c({.T = 130, .checkpoint_offsets = {{8, 128, 144}}, .seed = 242});
  const Want want = {.checkpoints = FKDA_FLOAT32};
  {
    const Environment debug("FLASH_KDA_DEBUG", "1");
    DeviceCase device(c, want);
    EXPECT_EQ(device.launch(), FKDA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fkda_last_error()).find("checkpoint_offsets"), std::string::npos) << fkda_last_error();
    EXPECT_TRUE(untouched(device.fetch().out));
  }
  const Outputs outputs = run_on_gpu(c, want);
  EXPECT_TRUE(untouched(outputs.checkpoints.narrow(1, 0, 1)));
  EXPECT_TRUE(all_finite(outputs.checkpoints.narrow(1, 1, 1)));
  EXPECT_TRUE(untouched(outputs.checkpoints.narrow(1, 2, 1)));
}

TEST_F(CudaState, IntermediateStatesArePrefixesInBits) {
  for (const int64_t every : {16, 64}) {
    for (const int32_t dtype : {FKDA_FLOAT32, FKDA_BFLOAT16, FKDA_FLOAT16}) {
      for (const bool packed : {false, true}) {
        Spec spec = {.B = 2, .T = 100, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 251};
        if (packed) {
          spec.B = 1;
          spec.cu = {0, 70, 70, 71, 167};
        }
        Case c(spec);
        c.options.batch_invariant = 1;
        const Want want = {.final_state = FKDA_FLOAT32, .intermediate_states = dtype, .intermediate_every = every};
        const Outputs outputs = expect_right_on_gpu(c, want);
        int64_t index = 0;
        for (int64_t n = 0; n < c.N; ++n) {
          if (!packed) index = 0;
          for (int64_t offset = 0; offset < c.length(n); offset += every, ++index) {
            const Outputs prefix = run_on_gpu(c.part(n, 0, offset, c.initial_state.narrow(0, n, 1)), kFp32);
            const Tensor seen = outputs.intermediate_states.narrow(0, packed ? 0 : n, 1).narrow(1, index, 1).to(dtype);
            EXPECT_TRUE(same_bits(Tensor(seen.buffer(), dtype, c.state_shape(1), prefix.final_state.stride(), 0),
                                  prefix.final_state.to(dtype)))
                << "after " << offset << " tokens of sequence " << n << ", dtype " << dtype;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashkda::test
