// Every option and every way a tensor may lie in memory. RowNN is the row of docs/cases.md.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "cuda/device.hpp"

namespace flashkda::test {
namespace {

constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};

class CudaOptions : public OnGpu {};
class CudaMemory : public OnGpu {};

TEST_F(CudaOptions, EveryGateBetaFormNormalisationAndWidth) {
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
    for (const int32_t beta : {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID, FKDA_BETA_ACTIVATED}) {
      for (const int32_t norm : {0, 1}) {
        for (const int64_t D : {64, 128}) {
          const Case c({.B = 2,
                        .T = 37,
                        .H = 2,
                        .HV = 4,
                        .K = D,
                        .V = D,
                        .gate = gate,
                        .beta = beta,
                        .qk_l2norm = norm,
                        .initial_state = FKDA_FLOAT32,
                        .seed = 72});
          SCOPED_TRACE(testing::Message() << "gate " << gate << ", beta " << beta << ", norm " << norm << ", D " << D);
          expect_right_on_gpu(c);
        }
      }
    }
  }
}

TEST_F(CudaOptions, EveryInputDtype) {
  for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
    for (const int32_t g : {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32}) {
      for (const int32_t beta : {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32}) {
        const Case c({.T = 75, .H = 2, .dtype = dtype, .g_dtype = g, .beta_dtype = beta, .seed = 43});
        SCOPED_TRACE(testing::Message() << "dtypes " << dtype << ' ' << g << ' ' << beta);
        expect_right_on_gpu(c);
      }
    }
  }
}

TEST_F(CudaOptions, NarrowOutputsAreTheWideOnesRoundedToNearestEven) {
  for (const int64_t D : {64, 128}) {
    Case c({.T = 75, .H = 2, .K = D, .V = D, .seed = 46});
    const Outputs plain = run_on_gpu(c);  // an fp32 state and a bf16 one of the same run, on whichever path that is
    const Outputs half = run_on_gpu(c, {.final_state = FKDA_BFLOAT16});
    EXPECT_TRUE(same_bits(half.out, plain.out));
    EXPECT_TRUE(same_bits(half.final_state, plain.final_state.to(FKDA_BFLOAT16)));
    c.options.backend = "cuda_portable";
    const Outputs wide = expect_right_on_gpu(c, kFp32);
    for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
      const Outputs narrow = run_on_gpu(c, {.out = dtype, .final_state = FKDA_BFLOAT16});
      EXPECT_TRUE(same_bits(narrow.out, wide.out.to(dtype)));
      EXPECT_TRUE(same_bits(narrow.final_state, wide.final_state.to(FKDA_BFLOAT16)));
    }
  }
}

TEST_F(CudaOptions, Row44_ValueHeadsShareKeyHeadsByDivision) {
  for (const auto& [H, HV] : std::vector<std::pair<int64_t, int64_t>>{{2, 6}, {3, 3}, {1, 32}, {4, 8}}) {
    Case c({.T = 70, .H = H, .HV = HV, .initial_state = FKDA_FLOAT32, .seed = 71});
    const char* path = std::getenv("FLASH_KDA_BACKEND");
    if (path == nullptr || *path == '\0') c.options.backend = "cuda_fused";  // one path, and one slice a block
    SCOPED_TRACE(testing::Message() << "H " << H << ", HV " << HV);
    const Outputs together = expect_right_on_gpu(c);
    for (int64_t hv = 0; hv < HV; ++hv) {  // each value head alone, with q and k of head hv / (HV / H)
      const int64_t h = hv / (HV / H);
      Case one = c;
      one.H = one.HV = 1;
      one.q = c.q.narrow(2, h, 1);
      one.k = c.k.narrow(2, h, 1);
      one.v = c.v.narrow(2, hv, 1);
      one.g = c.g.narrow(2, hv, 1);
      one.beta = c.beta.narrow(2, hv, 1);
      one.A_log = c.A_log.narrow(0, hv, 1);
      one.dt_bias = c.dt_bias.narrow(0, hv, 1);
      one.initial_state = c.initial_state.narrow(1, hv, 1);
      const Outputs alone = run_on_gpu(one);
      EXPECT_TRUE(same_bits(alone.out, together.out.narrow(2, hv, 1))) << "value head " << hv;
      EXPECT_TRUE(same_bits(alone.final_state, together.final_state.narrow(1, hv, 1))) << "value head " << hv;
    }
  }
}

TEST_F(CudaOptions, HowValueColumnsAreSplitChangesNoBits) {  // few heads alone against the same heads among many
  Case many({.B = 48, .T = 230, .H = 4, .initial_state = FKDA_FLOAT32, .seed = 76});
  // One or two tiles a warp, one or two slices a block.
  for (const char* backend : {"cuda_portable", "cuda_wgmma"}) {
    many.options.backend = backend;
    const Outputs together = run_on_gpu(many, kFp32);
    for (const int64_t n : {0, 17, 47}) {
      const Outputs alone = run_on_gpu(many.sequence(n), kFp32);
      EXPECT_TRUE(same_bits(alone.out, together.out.narrow(0, n, 1))) << n;
      EXPECT_TRUE(same_bits(alone.final_state, together.final_state.narrow(0, n, 1))) << n;
    }
  }
}

// The same formulas in two instances of the kernel, which the compiler may contract differently.
TEST_F(CudaOptions, HowValueColumnsAreSplitHardlyChangesTheFusedKernel) {
  Case many({.B = 48, .T = 230, .H = 4, .initial_state = FKDA_FLOAT32, .seed = 76});
  many.options.backend = "cuda_fused";
  const Outputs together = run_on_gpu(many);
  for (const int64_t n : {0, 17, 47}) {
    const Outputs alone = run_on_gpu(many.sequence(n));
    EXPECT_LE(rms_error(alone.out, together.out.narrow(0, n, 1)), 2e-4) << n;
    EXPECT_LE(rms_error(alone.final_state, together.final_state.narrow(0, n, 1)), 1e-6) << n;
  }
}

// Which path "cuda" takes shows in the workspace: the fused kernel needs none for a dense batch.
TEST_F(CudaOptions, ThePathIsChosenByHeadsAndLengthAndOptions) {
  int device = 0, major = 0;
  EXPECT_CUDA(cudaGetDevice(&device));
  EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  const auto is_fused = [](Case c, const char* backend, const Want& want = {}) {
    c.options.backend = backend;
    return DeviceCase(c, want).workspace().size() == 0;
  };
  const Case many({.T = 100, .H = 48}), few({.T = 4096, .H = 1}), brief({.B = 3, .T = 9, .H = 16});
  EXPECT_EQ(is_fused(many, "cuda"), major == 9);
  EXPECT_FALSE(is_fused(few, "cuda"));
  for (const Case* c : {&many, &few, &brief}) {
    EXPECT_EQ(is_fused(*c, "cuda_fused"), major == 9);
    EXPECT_FALSE(is_fused(*c, "cuda_portable"));
  }
  // What the fused kernel does not do goes to the other path under either name.
  for (const char* backend : {"cuda", "cuda_fused"}) {
    EXPECT_FALSE(is_fused(many, backend, kFp32));
    EXPECT_FALSE(is_fused(Case({.T = 17, .H = 16, .gate = FKDA_GATE_SOFTPLUS}), backend));
    EXPECT_FALSE(is_fused(Case({.T = 17, .H = 16, .dtype = FKDA_FLOAT16}), backend));
    EXPECT_FALSE(is_fused(Case({.T = 17, .H = 16, .K = 64, .V = 64}), backend));
    EXPECT_FALSE(is_fused(Case({.T = 17, .H = 16, .qk_l2norm = 0}), backend));
    Case invariant = many;
    invariant.options.batch_invariant = 1;
    EXPECT_FALSE(is_fused(invariant, backend));
  }
}

TEST_F(CudaOptions, ScaleAndLowerBound) {
  Case c({.T = 50, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 73});
  const Outputs by_default = expect_right_on_gpu(c, kFp32);
  for (const float scale : {1.0f, -2.0f, 1e-3f, 4096.0f, 1e10f, 1e-15f}) {
    c.options.scale = scale;
    SCOPED_TRACE(scale);
    const Tensor state = expect_right_on_gpu(c, kFp32).final_state;
    if (scale < 4096.0f) {  // long q rows take the portable path's other way to L
      EXPECT_TRUE(same_bits(state, by_default.final_state));
    }
  }
  c.options.scale = 0.0f;
  EXPECT_TRUE(all_zero(run_on_gpu(c, kFp32).out));
  c.options.scale = 0.1f;
  for (const float bound : {-5.0f, -1.0f, -1e-30f}) {
    c.options.lower_bound = bound;
    SCOPED_TRACE(bound);
    expect_right_on_gpu(c);
  }
}

// ------------------------------------------------------------------------------------------- memory: rows 11, 20, 21,
// 22

// A problem that has every tensor.
Spec everything(uint64_t seed) {
  return {.H = 2,
          .HV = 4,
          .cu = {0, 5, 5, 70},
          .initial_state = FKDA_FLOAT32,
          .checkpoint_offsets = {{0, -1}, {-1, -1}, {16, 64}},
          .seed = seed};
}
constexpr Want kEverything = {.out = FKDA_BFLOAT16,
                              .final_state = FKDA_BFLOAT16,
                              .checkpoints = FKDA_FLOAT32,
                              .intermediate_states = FKDA_FLOAT16,
                              .intermediate_every = 16};

TEST_F(CudaMemory, Row11_NaNBehindEveryTensorAndInEveryOutput) {  // fetch() watches the guard zones
  const Outputs outputs = run_on_gpu(Case(everything(303)), kEverything);
  EXPECT_TRUE(all_finite(outputs.out));
  EXPECT_TRUE(all_finite(outputs.final_state));
  EXPECT_TRUE(all_finite(outputs.intermediate_states));
  Spec exact = everything(303);  // allocations of exactly the size
  Want want = kEverything;
  exact.fence = want.fence = Fence::kBehind;
  expect_same_results(run_on_gpu(Case(exact), want), outputs);
}

TEST_F(CudaMemory, Row11_EveryLengthAndDtypeAtTheEndOfItsAllocation) {
  for (const int64_t T : {1, 2, 8, 15, 16, 17, 33}) {
    for (const int64_t D : {64, 128}) {
      for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
        for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
          const Case c({.T = T,
                        .K = D,
                        .V = D,
                        .dtype = dtype,
                        .g_dtype = FKDA_FLOAT32,
                        .initial_state = FKDA_BFLOAT16,
                        .state_layout = layout,
                        .seed = 302,
                        .fence = Fence::kBehind});
          expect_right_on_gpu(c, {.out = dtype, .final_state = FKDA_BFLOAT16, .fence = Fence::kBehind});
        }
      }
    }
  }
}

// q, k and v as slices of one projection [B, T, 2*H*K + HV*V + pad], as a layer that projects once has them.
void fuse_projection(Case& c, int64_t pad) {
  const int64_t qk = c.H * c.K, width = 2 * qk + c.HV * c.V + pad;
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(c.B * c.T * width * dtype_size(c.q.dtype())));
  const auto slice = [&](Tensor& x, int64_t offset, int64_t head_width) {
    Tensor view(buffer, x.dtype(), x.shape(), {c.T * width, width, head_width, 1}, offset);
    view.copy_from(x);
    x = view;
  };
  slice(c.q, 0, c.K);
  slice(c.k, qk, c.K);
  slice(c.v, 2 * qk, c.V);
}

TEST_F(CudaMemory, Row20_SlicesOfOneProjection) {
  for (const int64_t pad : {0, 8, 64}) {
    const Spec spec = {.B = 2, .T = 45, .H = 2, .HV = 4, .seed = 311};
    Case fused(spec);
    fuse_projection(fused, pad);
    SCOPED_TRACE(pad);
    expect_same_results(run_on_gpu(fused, kFp32), run_on_gpu(Case(spec), kFp32));
  }
}

TEST_F(CudaMemory, Row20_BetaWithALongTokenStride) {
  for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT32}) {
    for (const Want& want : {kFp32, Want{}}) {
      const Case dense({.B = 2, .T = 45, .H = 4, .beta_dtype = dtype, .seed = 312});
      Case strided = dense;
      strided.beta = dense.beta.with_stride({45 * 6288, 6288, 1});
      expect_same_results(run_on_gpu(strided, want), run_on_gpu(dense, want));
      Case odd = dense;  // beta needs no alignment but its own
      odd.beta = dense.beta.with_stride({45 * 7, 7, 1});
      expect_same_results(run_on_gpu(odd, want), run_on_gpu(dense, want));
    }
  }
}

TEST_F(CudaMemory, Row20_HeadsOrTokensOutermost) {
  const Case dense({.B = 2, .T = 45, .H = 3, .seed = 314});
  for (const Want& want : {kFp32, Want{}}) {
    const Outputs expected = run_on_gpu(dense, want);
    for (const std::vector<int64_t>& stride :
         std::vector<std::vector<int64_t>>{{3 * 45 * 128, 128, 45 * 128, 1}, {3 * 128, 2 * 3 * 128, 128, 1}}) {
      Case transposed = dense;
      for (Tensor Case::*x : {&Case::q, &Case::k, &Case::v, &Case::g}) transposed.*x = (dense.*x).with_stride(stride);
      Outputs outputs = transposed.make_outputs(want);
      outputs.out = Tensor::strided(expected.out.dtype(), {2, 45, 3, 128}, stride);
      expect_same_results(run_on_gpu_into(outputs, transposed), expected);
    }
  }
}

TEST_F(CudaMemory, Row20_OneRowForAllHeads) {  // stride 0, as expand() makes it
  const Case c({.B = 2, .T = 45, .H = 3, .seed = 316});
  Case full = c, expanded = c;
  full.g = c.g.clone();
  for (int64_t h = 1; h < 3; ++h) full.g.narrow(2, h, 1).copy_from(c.g.narrow(2, 0, 1));
  expanded.g = Tensor(c.g.buffer(), c.g.dtype(), c.g.shape(), {45 * 3 * 128, 3 * 128, 0, 1}, 0);
  expect_same_results(run_on_gpu(expanded, kFp32), run_on_gpu(full, kFp32));
}

TEST_F(CudaMemory, Row21_FlatDtBiasIsTheSquareOne) {
  const Case square({.T = 45, .H = 2, .HV = 4, .seed = 321});
  Case flat = square;
  flat.dt_bias = Tensor(square.dt_bias.buffer(), FKDA_FLOAT32, {4 * 128}, {1}, 0);
  expect_same_results(run_on_gpu(flat, kFp32), run_on_gpu(square, kFp32));
}

TEST_F(CudaMemory, Row22_TwiceWithTheSameTensors) {
  const Case c(everything(323));
  DeviceCase device(c, kEverything);
  ASSERT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
  const Outputs first = device.fetch();
  Outputs copy = first;
  copy.out = first.out.clone();
  copy.final_state = first.final_state.clone();
  copy.checkpoints = first.checkpoints.clone();
  copy.intermediate_states = first.intermediate_states.clone();
  device.poison(nullptr);
  ASSERT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
  expect_same_results(device.fetch(), copy);
}

}  // namespace
}  // namespace flashkda::test
