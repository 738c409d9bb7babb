// Sequences cut into segments: against the recurrence in fp64, against the same sequence in one piece, and the shortcut
// that drops what a segment forgets. RowNN is the row of docs/cases.md.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/split_plan.hpp"

namespace flashkda::test {
namespace {

constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};
// Split against whole. Neither is the truth: both read the state in bf16.
constexpr double kSplitOutBar = 4e-3, kSplitStateBar = 3e-3;

// Of either engine: the backend that FLASH_KDA_BACKEND names, if it splits.
Case split_case(const Spec& spec) {
  Case c(spec);
  const char* named = std::getenv("FLASH_KDA_BACKEND");
  const bool portable = named != nullptr && std::strcmp(named, "cuda_portable_split") == 0;
  c.options.backend = portable ? "cuda_portable_split" : "cuda_split";
  return c;
}

Outputs run_whole(Case c, const Want& want = kFp32) {
  c.options.sequence_split = FKDA_SPLIT_NEVER;
  return run_on_gpu(c, want);
}

// ---------------------------------------------------------------------------------------------------------- the plan

Problem sizes(int64_t N, int64_t T, int64_t HV, bool packed) {
  Problem p{};
  p.B = packed ? 1 : N;
  p.T = packed ? N * T : T;
  p.N = N;
  p.H = p.HV = HV;
  p.K = p.V = 128;
  p.cu_seqlens.ndim = packed ? 1 : 0;
  return p;
}

TEST(SplitPlan, CoversEverySequenceWithinItsBound) {
  for (const int processors : {1, 46, 108, 132}) {
    for (const int64_t N : {1, 2, 7, 300}) {
      for (const int64_t T : {17, 64, 1000, 8192, 1048576}) {
        if (N * T > 10'000'000) continue;
        for (const int64_t HV : {1, 8, 33}) {
          for (const auto& [packed, engine] : {std::pair{false, cuda::Engine::kMmaSync},
                                               {true, cuda::Engine::kMmaSync},
                                               {false, cuda::Engine::kWgmma},
                                               {true, cuda::Engine::kWgmma}}) {
            const Problem p = sizes(N, T, HV, packed);
            const cuda::SplitPlan plan = cuda::plan_split(p, engine, processors);
            SCOPED_TRACE(testing::Message() << processors << " SMs, " << N << " x " << T << ", " << HV
                                            << " heads, packed " << packed << ": " << cuda::describe(plan, engine));
            const int64_t chunk = cuda::chunk_tokens(engine);
            EXPECT_GE(plan.segment_chunks * chunk, 64);
            // What the device will count, of these lengths and of one sequence that has all tokens.
            const auto count = [&](int64_t tokens) {
              return std::max<int64_t>(((tokens + chunk - 1) / chunk + plan.segment_chunks - 1) / plan.segment_chunks,
                                       1);
            };
            EXPECT_GE(plan.segments, N * count(T));
            if (packed) {
              EXPECT_GE(plan.segments, count(N * T) + N - 1);
            } else {
              EXPECT_EQ(plan.segments, N * plan.row_segments);
              EXPECT_EQ(plan.row_segments, count(T));
            }
            EXPECT_GT(plan.microseconds, 0.0);
          }
        }
      }
    }
  }
}

TEST(SplitPlan, SplitsFewHeadsAndNotMany) {
  const auto pays = [](int64_t T, int64_t HV) {
    const Problem p = sizes(1, T, HV, false);
    const auto engine = cuda::Engine::kWgmma;
    return cuda::plan_split(p, engine, 132).microseconds <
           std::min(cuda::whole_microseconds(p, engine, 132), cuda::fused_microseconds(p, 132));
  };
  for (const int64_t HV : {1, 4, 8, 16}) {
    EXPECT_TRUE(pays(8192, HV)) << HV;
    EXPECT_TRUE(pays(65536, HV)) << HV;
    EXPECT_FALSE(pays(64, HV)) << HV;
  }
  EXPECT_FALSE(pays(8192, 96));
}

TEST(SplitPlan, MakersAndReadersWhereHeadsLeaveMultiprocessors) {
  const auto pays = [](int64_t T, int64_t HV) {
    const Problem p = sizes(1, T, HV, false);
    const double apart = cuda::apart_microseconds(p, 132);
    return apart < std::min(cuda::whole_microseconds(p, cuda::Engine::kWgmma, 132), cuda::fused_microseconds(p, 132));
  };
  for (const int64_t HV : {20, 32}) EXPECT_TRUE(pays(8192, HV)) << HV;
  for (const int64_t HV : {48, 65, 66, 96}) EXPECT_FALSE(pays(8192, HV)) << HV;
  EXPECT_FALSE(pays(64, 32));
  EXPECT_FALSE(pays(1 << 20, 32));  // images of 42 GB
  EXPECT_EQ(cuda::makers(32, 132), 68);
}

// ------------------------------------------------------------------------------------------------------------ results

class CudaSplit : public OnGpu {
 protected:
  // Right against fp64, and near the same sequences in one piece.
  static void expect_right_and_near_whole(const Case& c) {
    const Outputs split = expect_right_on_gpu(c, kFp32), whole = run_whole(c);
    EXPECT_LE(rms_error(split.out, whole.out), kSplitOutBar);
    EXPECT_LE(rms_error(split.final_state, whole.final_state), kSplitStateBar);
  }
};

TEST_F(CudaSplit, LongMemoryOfEveryWidthGateAndBeta) {  // decays from 0.9 to next to 1: every segment needs its M
  for (const int64_t D : {64, 128}) {
    for (const int32_t beta : {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID}) {
      for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
        Case c = split_case({.T = 700,
                             .H = 2,
                             .HV = 4,
                             .K = D,
                             .V = D,
                             .gate = gate,
                             .beta = beta,
                             .initial_state = FKDA_FLOAT32,
                             .seed = 901});
        Random random(902);
        c.g.generate([&] {
          const double decay = std::exp(random.uniform(std::log(1e-4), std::log(0.1)));
          return gate == FKDA_GATE_LOG ? -decay : std::log(decay);
        });
        SCOPED_TRACE(testing::Message() << "D " << D << ", beta " << beta << ", gate " << gate);
        expect_right_and_near_whole(c);
      }
    }
  }
}

TEST_F(CudaSplit, PackedOfAnyLengthsWithPoolAndEveryStateOnTheWay) {
  const std::vector<int64_t> lengths = {0, 1, 15, 16, 17, 300, 63, 1000, 64, 129, 0};
  Spec spec{.H = 2, .cu = cumulative(lengths), .initial_state = FKDA_FLOAT32, .slots = 13};
  spec.indices = {3, 12, -1, 8, 0, 5, 1, 2, -1, 10, 11};
  spec.seed = 903;
  for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
    spec.state_layout = layout;
    const Case c = split_case(spec);
    const Outputs split = run_on_gpu(c, kFp32);
    for (int64_t n = 0; n < c.N; ++n) {
      SCOPED_TRACE(testing::Message() << "layout " << layout << ", sequence " << n);
      const Outputs expected = reference(c.sequence(n), kFp32);
      if (lengths[static_cast<size_t>(n)] > 0) {
        EXPECT_LE(rms_error(c.rows(split.out, n), expected.out), kOutBar);
      }
      const int64_t slot = spec.indices[static_cast<size_t>(n)];
      if (slot < 0) continue;
      EXPECT_LE(rms_error(split.final_state.narrow(0, slot, 1), expected.final_state), kStateBar);
    }
  }
}

TEST_F(CudaSplit, StatesOnTheWayAreFinalStatesOfPrefixes) {
  std::vector<std::vector<int64_t>> offsets(2);
  for (int64_t at = 0; at <= 400; at += 16) {
    for (auto& row : offsets) row.push_back(at);
  }
  const Case c =
      split_case({.B = 2, .T = 400, .H = 2, .initial_state = FKDA_FLOAT32, .checkpoint_offsets = offsets, .seed = 904});
  const Want want = {.out = FKDA_FLOAT32,
                     .final_state = FKDA_FLOAT32,
                     .checkpoints = FKDA_FLOAT32,
                     .intermediate_states = FKDA_FLOAT32,
                     .intermediate_every = 48};
  const Outputs outputs = run_on_gpu(c, want), expected = reference(c, want);
  EXPECT_LE(rms_error(outputs.checkpoints, expected.checkpoints), kStateBar);
  EXPECT_LE(rms_error(outputs.intermediate_states, expected.intermediate_states), kStateBar);
  const auto checkpoint = [&](int64_t n, int64_t i) {
    const Tensor at = outputs.checkpoints.narrow(0, n, 1).narrow(1, i, 1).to(FKDA_FLOAT32);
    return Tensor(at.buffer(), FKDA_FLOAT32, c.state_shape(1), c.initial_state.stride(), 0);
  };
  EXPECT_TRUE(same_bits(checkpoint(0, 0), c.initial_state.narrow(0, 0, 1)));
  EXPECT_TRUE(same_bits(checkpoint(1, 25), outputs.final_state.narrow(0, 1, 1)));
}

TEST_F(CudaSplit, Row04_NoTokensAndStatesOnTheWay) {  // what asks for states on the way is not the recurrent kernel's
  for (const bool checkpoints : {false, true}) {
    Spec spec{.H = 2, .cu = {0, 0, 0}, .initial_state = FKDA_FLOAT32, .seed = 912};
    if (checkpoints) spec.checkpoint_offsets = {{0}, {0}};
    for (const char* backend : {"cuda", "cuda_split", "cuda_portable_split"}) {
      Case c(spec);
      c.options.backend = backend;
      Want want = {.final_state = FKDA_FLOAT32, .checkpoints = FKDA_FLOAT32};
      if (!checkpoints) want.intermediate_states = FKDA_FLOAT32;
      SCOPED_TRACE(testing::Message() << backend << ", checkpoints " << checkpoints);
      EXPECT_TRUE(same_bits(run_on_gpu(c, want).final_state, c.initial_state));
    }
  }
}

TEST_F(CudaSplit, InPlaceIsOutOfPlace) {  // the last segment may be a single chunk, done before the first has begun
  for (const int64_t T : {80, 272, 1040}) {
    const Case c = split_case({.B = 3, .T = T, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 913});
    const Outputs apart = run_on_gpu(c, kFp32);
    for (int run = 0; run < 5; ++run) {
      expect_same_results(run_on_gpu(c, {.out = FKDA_FLOAT32, .in_place = true}), apart);
    }
  }
}

// One channel that never forgets among channels that do at once: a test on mean decays would drop it.
TEST_F(CudaSplit, OneChannelRemembers) {
  for (const double decay : {1.0, 0.99, 0.9}) {  // over 64 tokens 1, 0.5 and 1e-3
    Case c = split_case({.T = 640,
                         .H = 2,
                         .g_dtype = FKDA_FLOAT32,
                         .gate = FKDA_GATE_LOG,
                         .beta = FKDA_BETA_ACTIVATED,
                         .initial_state = FKDA_FLOAT32,
                         .seed = 905});
    c.g.fill(-4.0);
    c.beta.fill(1e-3);
    for (int64_t row = 0; row < c.g.numel() / 128; ++row) c.g.set(row * 128 + 77, std::log(decay));
    SCOPED_TRACE(decay);
    expect_right_and_near_whole(c);
  }
}

TEST_F(CudaSplit, WhatIsForgottenIsDroppedAndNothingElse) {
  Case c = split_case({.T = 1500, .H = 3, .initial_state = FKDA_FLOAT32, .seed = 906});  // head 1 remembers
  Random random(907);
  for (int64_t i = 0; i < c.g.numel(); ++i) c.g.set(i, i / 128 % 3 == 1 ? -6.0 : random.normal());
  const Outputs shortcut = expect_right_on_gpu(c, kFp32);
  c.options.sequence_split = FKDA_SPLIT_EXACT;
  const Outputs exact = expect_right_on_gpu(c, kFp32);
  EXPECT_TRUE(same_bits(shortcut.out.narrow(2, 1, 1), exact.out.narrow(2, 1, 1)));
  EXPECT_TRUE(same_bits(shortcut.final_state.narrow(1, 1, 1), exact.final_state.narrow(1, 1, 1)));
  // The others differ by what the tensor cores round, of states that began elsewhere.
  EXPECT_LE(rms_error(shortcut.final_state, exact.final_state), 1e-6);
  EXPECT_LE(rms_error(shortcut.out, exact.out), kSplitOutBar);
}

TEST_F(CudaSplit, Row16_NeverIsOnePieceAndBatchInvariantThePortablePath) {
  Case c = split_case({.T = 500, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 908});
  const Outputs whole = run_whole(c), split = run_on_gpu(c, kFp32);
  EXPECT_FALSE(same_bits(split.out, whole.out)) << "this case was not split";
  c.options.batch_invariant = 1;
  const Outputs invariant = run_on_gpu(c, kFp32);
  c.options.backend = "cuda_portable";
  expect_same_results(invariant, run_on_gpu(c, kFp32));
}

TEST_F(CudaSplit, TheSameBitsEveryTimeAndWhateverTheWorkspaceHeld) {
  const Case c = split_case({.H = 3, .cu = {0, 700, 701, 1300}, .initial_state = FKDA_FLOAT32, .seed = 909});
  const Outputs first = run_on_gpu(c, kFp32);
  for (int run = 0; run < 3; ++run) expect_same_results(run_on_gpu(c, kFp32), first);
  DeviceCase again(c, kFp32, DeviceBuffer::Fill::kNone);
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(again.launch(), FKDA_OK) << fkda_last_error();
    expect_same_results(again.fetch(), first);
  }
}

TEST_F(CudaSplit, Row19_CumulativeLengthsThatLie) {
  for (const std::vector<int64_t>& cu : std::vector<std::vector<int64_t>>{
           {0, 900, 900, 900}, {0, 0, 0, 900}, {-5, 1, 2, 1800}, {900, 2, 1, 0}, {INT64_MIN, 1, 1, INT64_MAX}}) {
    Case c = split_case({.H = 2, .cu = {0, 300, 600, 900}, .initial_state = FKDA_FLOAT32, .seed = 910});
    c.cu_seqlens = Tensor::integers(FKDA_INT64, cu);
    DeviceCase device(c, {});
    EXPECT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
    device.fetch();  // no memory but the outputs' has been written
  }
}

TEST_F(CudaSplit, CudaTakesItForFewHeads) {  // which shows in the workspace
  Case c({.T = 16384, .H = 1, .seed = 911});
  const auto bytes = [&](const char* backend) {
    c.options.backend = backend;
    return DeviceCase(c, kFp32).workspace().size();
  };
  EXPECT_EQ(bytes("cuda"), bytes("cuda_split"));
  EXPECT_GT(bytes("cuda"), bytes("cuda_wgmma"));
}

TEST_F(CudaSplit, CudaTakesMakersAndReadersForHeadsBetween) {  // which shows in the workspace and in the bits
  int major = 0, processors = 0;
  EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  EXPECT_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  if (major != 9 || processors != 132) GTEST_SKIP() << "the numbers of heads are those of another GPU";
  const auto run = [](int64_t heads, const char* backend) {
    Case c({.T = 2048, .H = heads, .seed = 416});
    c.options.backend = backend;
    DeviceCase device(c, {});
    EXPECT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
    return std::pair(device.workspace().size(), device.fetch());
  };
  const auto expect_path = [&](int64_t heads, const char* path, const char* not_that) {
    SCOPED_TRACE(heads);
    const auto [bytes, outputs] = run(heads, "cuda");
    const auto [expected_bytes, expected] = run(heads, path);
    EXPECT_EQ(bytes, expected_bytes);
    EXPECT_TRUE(same_bits(outputs.out, expected.out));
    EXPECT_TRUE(same_bits(outputs.final_state, expected.final_state));
    EXPECT_NE(bytes, run(heads, not_that).first);
  };
  expect_path(24, "cuda_apart", "cuda_fused");
  expect_path(48, "cuda_fused", "cuda_apart");
}

}  // namespace
}  // namespace flashkda::test
