// Streams, graphs, devices, repeatability, and what a call costs the host. RowNN is the row of docs/cases.md.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "cuda/backend.hpp"
#include "cuda/device.hpp"
#include "cuda/device_kernels.hpp"

namespace flashkda::test {
namespace {

constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};

// ------------------------------------------------------------------------------------- repeatability: rows 10 and 13

class CudaStreams : public OnGpu {
 protected:
  // Copies of a case's results as they are on the device now.
  static std::vector<std::unique_ptr<DeviceBuffer>> snapshot(DeviceCase& device) {
    std::vector<std::unique_ptr<DeviceBuffer>> copies;
    for (const Tensor* t : device.results()) {
      const DeviceBuffer& now = device.buffer_of(*t);
      copies.push_back(std::make_unique<DeviceBuffer>(now.size()));
      EXPECT_CUDA(cudaMemcpy(copies.back()->data(), now.data(), now.size(), cudaMemcpyDeviceToDevice));
    }
    return copies;
  }
};

TEST_F(CudaStreams, Row10_TheSameBitsAThousandTimesUnderLoad) {
  // Packed, an empty sequence, tails, states; many heads and few; states on the way. What has outputs of 16 bits and no
  // such states takes the fused kernel: a block a head, makers and readers, dense and packed, a pair.
  const std::vector<std::pair<Spec, Want>> cases = {
      {{.H = 4, .cu = {0, 33, 33, 300, 333}, .initial_state = FKDA_FLOAT32, .seed = 501}, kFp32},
      {{.H = 64, .cu = {0, 100, 117}, .seed = 502}, {.final_state = FKDA_BFLOAT16}},
      {{.T = 2048, .H = 24, .seed = 505}, {}},
      {{.H = 32, .cu = {0, 1000}, .seed = 506}, {}},
      {{.H = 12, .cu = {0, 300, 333, 333, 900}, .seed = 507}, {}},
      {{.B = 2, .T = 200, .H = 3, .K = 64, .V = 64, .initial_state = FKDA_BFLOAT16, .seed = 503},
       {.final_state = FKDA_BFLOAT16, .intermediate_states = FKDA_FLOAT32}},
  };
  const Case load_case({.T = 512, .H = 16, .seed = 504});
  DeviceCase load(load_case, {});
  Stream stream, load_stream;
  DeviceBuffer counter(sizeof(unsigned long long));
  for (const auto& [spec, want] : cases) {
    DeviceCase device(Case(spec), want);
    ASSERT_EQ(device.launch(stream), FKDA_OK) << fkda_last_error();
    const Outputs first = device.fetch();
    EXPECT_TRUE(all_finite(first.out));
    const auto expected = snapshot(device);
    EXPECT_CUDA(cudaMemset(counter.data(), 0, counter.size()));
    EXPECT_CUDA(cudaDeviceSynchronize());
    for (int repeat = 0; repeat < 1000; ++repeat) {
      device.poison(stream);
      ASSERT_EQ(load.launch(load_stream), FKDA_OK) << fkda_last_error();
      ASSERT_EQ(device.launch(stream), FKDA_OK) << fkda_last_error();
      size_t i = 0;
      for (const Tensor* t : device.results()) {
        const DeviceBuffer& now = device.buffer_of(*t);
        count_differences(now.data(), expected[i++]->data(), now.size(),
                          reinterpret_cast<unsigned long long*>(counter.data()), stream);
      }
    }
    EXPECT_CUDA(cudaDeviceSynchronize());
    unsigned long long differences = 1;
    counter.download(&differences);
    EXPECT_EQ(differences, 0u) << "of 1000 repeats";
  }
}

TEST_F(CudaStreams, Row13_TwoStreamsInterleavedAHundredTimes) {
  const Case a({.T = 300, .H = 8, .initial_state = FKDA_FLOAT32, .seed = 511});
  const Case b({.T = 300, .H = 8, .initial_state = FKDA_FLOAT32, .seed = 512});
  for (const Want& want : {kFp32, Want()}) {  // outputs of 16 bits: the fused kernel, where it is asked for
    SCOPED_TRACE(want.out);
    const Outputs serial_a = run_on_gpu(a, want), serial_b = run_on_gpu(b, want);
    DeviceCase on_a(a, want), on_b(b, want);
    Stream stream_a, stream_b;
    EXPECT_CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(on_a.launch(stream_a), FKDA_OK) << fkda_last_error();
      ASSERT_EQ(on_b.launch(stream_b), FKDA_OK) << fkda_last_error();
    }
    expect_same_results(on_a.fetch(), serial_a);
    expect_same_results(on_b.fetch(), serial_b);
  }
}

// ------------------------------------------------------------------------------------------------------ graphs: row 18

class CudaGraph : public OnGpu {
 protected:
  static cudaGraphExec_t capture(DeviceCase& device, cudaStream_t stream) {
    // The strictest mode: an allocation, a synchronisation or a copy to the host would break the capture.
    EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(device.launch(stream), FKDA_OK) << fkda_last_error();
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t executable = nullptr;
    EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    EXPECT_CUDA(cudaGraphDestroy(graph));
    return executable;
  }
};

// Of two-kernel paths, and of the fused kernel, which starts while the plan is made.
TEST_F(CudaGraph, Row18_ReplayFollowsCuSeqlens) {
  for (const auto& [heads, dtype, want] :
       {std::tuple(int64_t{2}, FKDA_INT32, kFp32), std::tuple(int64_t{2}, FKDA_INT64, Want()),
        std::tuple(int64_t{70}, FKDA_INT32, Want())}) {
    SCOPED_TRACE(testing::Message() << heads << " heads, out of dtype " << want.out);
    Case c({.H = heads, .cu = {0, 64, 128}, .cu_dtype = dtype, .initial_state = FKDA_FLOAT32, .seed = 521});
    DeviceCase device(c, want);
    Stream stream;
    const cudaGraphExec_t graph = capture(device, stream);
    EXPECT_TRUE(untouched(device.fetch().out)) << "captured, yet run";
    for (const std::vector<int64_t>& cu :
         std::vector<std::vector<int64_t>>{{0, 64, 128}, {0, 1, 128}, {0, 0, 40}, {0, 64, 128}}) {
      const Tensor values = Tensor::integers(dtype, cu);
      device.buffer_of(c.cu_seqlens).upload(values.data());
      c.cu_seqlens.copy_from(values);  // what fetch() compares with
      device.poison(stream);
      EXPECT_CUDA(cudaGraphLaunch(graph, stream));
      const Outputs& replayed = device.fetch();
      Case now = c;
      now.cu = cu;
      now.cu_seqlens = values;
      SCOPED_TRACE(testing::PrintToString(cu));
      expect_same_results(replayed, run_on_gpu(now, want));
    }
    EXPECT_CUDA(cudaGraphExecDestroy(graph));
  }
}

TEST_F(CudaGraph, Row18_ReplayFollowsStateIndices) {
  const Spec spec = {
      .B = 2, .T = 40, .H = 2, .initial_state = FKDA_FLOAT32, .slots = 5, .indices = {1, 3}, .seed = 522};
  for (const Want& want : {kFp32, Want()}) {
    SCOPED_TRACE(want.out);
    Case c(spec);
    DeviceCase device(c, want);
    Stream stream;
    const cudaGraphExec_t graph = capture(device, stream);
    for (const std::vector<int64_t>& indices : std::vector<std::vector<int64_t>>{{1, 3}, {4, 0}, {-1, 2}}) {
      const Tensor values = Tensor::integers(FKDA_INT32, indices);
      device.buffer_of(c.state_indices).upload(values.data());
      c.state_indices.copy_from(values);
      device.poison(stream);
      EXPECT_CUDA(cudaGraphLaunch(graph, stream));
      const Outputs& replayed = device.fetch();
      Spec direct = spec;
      direct.indices = indices;
      SCOPED_TRACE(testing::PrintToString(indices));
      expect_same_results(replayed, run_on_gpu(Case(direct), want));
    }
    EXPECT_CUDA(cudaGraphExecDestroy(graph));
  }
}

// ------------------------------------------------------------------------------------------------------------- devices

class CudaDevices : public OnGpu {};

TEST_F(CudaDevices, TensorsDecideTheDevice) {  // with one GPU: the current device stays what it was
  int count = 0;
  EXPECT_CUDA(cudaGetDeviceCount(&count));
  const Case c({.T = 100, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 531});
  const Outputs expected = run_on_gpu(c, kFp32);
  for (int device = 0; device < count; ++device) {
    EXPECT_CUDA(cudaSetDevice(device));
    DeviceCase there(c, kFp32);
    EXPECT_CUDA(cudaSetDevice(0));
    EXPECT_EQ(there.launch(), FKDA_OK) << fkda_last_error();
    int current = -1;
    EXPECT_CUDA(cudaGetDevice(&current));
    EXPECT_EQ(current, 0);
    EXPECT_CUDA(cudaSetDevice(device));
    expect_same_results(there.fetch(), expected);
    EXPECT_CUDA(cudaSetDevice(0));
  }
}

// ----------------------------------------------------------------------------------------------------------- host cost

class CudaHost : public OnGpu {};

TEST_F(CudaHost, CostOfACallIsPrinted) {
  for (const bool packed : {false, true}) {
    Spec spec = {.B = 4, .T = 16, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 541};
    if (packed) spec = {.H = 2, .cu = {0, 16, 32, 48, 64}, .initial_state = FKDA_FLOAT32, .seed = 541};
    DeviceCase device(Case(spec), {});
    Stream stream;
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
      constexpr int kCalls = 100;  // fewer launches than a stream takes before it makes the host wait
      EXPECT_CUDA(cudaDeviceSynchronize());
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) ASSERT_EQ(device.launch(stream), FKDA_OK) << fkda_last_error();
      const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
      best = std::min(best, time.count() / kCalls);
    }
    std::printf("host cost of fkda_forward, %s: %.2f us\n", packed ? "packed" : "dense", best);
    RecordProperty(packed ? "host_us_packed" : "host_us_dense", std::to_string(best));
    EXPECT_TRUE(all_finite(device.fetch().out));
  }
}

// ---------------------------------------------------------------------------------------- small, for compute-sanitizer

// Allocations of exactly the tensors' sizes and a workspace that nobody has written: memcheck sees every access outside
// them, initcheck every read of what was not written before.
class CudaSanitizer : public OnGpu {
 protected:
  static void run_bare(Spec spec, Want want, const char* backend = nullptr) {
    spec.fence = want.fence = Fence::kBehind;
    Case c(spec);
    c.options.backend = backend;
    DeviceCase device(c, want, DeviceBuffer::Fill::kNone);
    ASSERT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
    EXPECT_TRUE(all_finite(device.fetch().out));
  }
};

TEST_F(CudaSanitizer, DenseOfEveryDtypeWidthAndLayout) {
  for (const int64_t D : {64, 128}) {
    for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
      for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
        run_bare({.B = 2,
                  .T = 37,
                  .H = 1,
                  .HV = 2,
                  .K = D,
                  .V = D,
                  .dtype = dtype,
                  .g_dtype = FKDA_FLOAT32,
                  .initial_state = FKDA_BFLOAT16,
                  .state_layout = layout,
                  .seed = 551},
                 {.out = dtype, .final_state = FKDA_FLOAT32});
      }
    }
  }
}

// Gates that remember, so that segments need their transitions, and gates that forget.
TEST_F(CudaSanitizer, EveryPathWholeAndInSegments) {
#define FLASHKDA_BACKEND_NAME(path) "cuda_" #path,
  for (const char* backend : {FLASHKDA_CUDA_PATHS(FLASHKDA_BACKEND_NAME)}) {
#undef FLASHKDA_BACKEND_NAME
    for (const bool packed : {false, true}) {
      for (const double gate : {-9.0, 1.0}) {
        Spec spec{.T = 300, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 555};
        if (packed) spec.cu = {0, 7, 207, 300};
        spec.fence = Fence::kBehind;
        Case c(spec);
        c.g.fill(gate);
        c.options.backend = backend;
        // initcheck does not see what the copy engine stores, and "cuda_split" reads such images by plain loads.
        const auto fill =
            std::strcmp(backend, "cuda_split") == 0 ? DeviceBuffer::Fill::kPoison : DeviceBuffer::Fill::kNone;
        DeviceCase device(c, {.fence = Fence::kBehind}, fill);
        ASSERT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
        EXPECT_TRUE(all_finite(device.fetch().out)) << backend;
      }
    }
  }
}

TEST_F(CudaSanitizer, ThePreparationsRareWay) {
  for (const char* backend : {"cuda_wgmma", "cuda_portable"}) {
    Case c({.T = 70, .g_dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .seed = 557, .fence = Fence::kBehind});
    c.g.fill(-40.0);
    c.options.backend = backend;
    DeviceCase device(c, {.fence = Fence::kBehind}, DeviceBuffer::Fill::kNone);
    ASSERT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
    EXPECT_TRUE(all_finite(device.fetch().out)) << backend;
  }
}

TEST_F(CudaSanitizer, TwoTilesAWarp) {
  run_bare({.B = 2, .T = 37, .H = 48, .seed = 552}, {.final_state = FKDA_FLOAT32}, "cuda_portable");
}

// Both slices of the value columns in one block, and for runs of a few chunks two blocks an SM.
TEST_F(CudaSanitizer, MoreHeadsThanHalfTheMultiprocessors) {
  for (const char* backend : {"cuda_fused", "cuda_wgmma"}) {
    for (const int64_t T : {70, 230}) {
      run_bare({.T = T, .H = 140, .initial_state = FKDA_FLOAT32, .seed = 558}, {}, backend);
    }
  }
}

TEST_F(CudaSanitizer, Row05_Packed) {
  run_bare({.H = 2,
            .cu = {0, 1, 1, 18, 34, 101},
            .g_dtype = FKDA_FLOAT32,
            .initial_state = FKDA_FLOAT32,
            .checkpoint_offsets = {{0}, {0}, {16}, {16}, {64}},
            .seed = 553},
           {.checkpoints = FKDA_FLOAT32, .intermediate_states = FKDA_BFLOAT16, .intermediate_every = 16});
  for (const int32_t gate : {FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
    run_bare({.H = 1, .cu = {0, 7, 40}, .gate = gate, .seed = 554}, {});
  }
  run_bare({.H = 1, .cu = cumulative(std::vector<int64_t>(600, 1)), .seed = 555}, {});  // past one block of the plan
}

TEST_F(CudaSanitizer, Pool) {
  run_bare({.B = 3, .T = 20, .H = 2, .initial_state = FKDA_FLOAT32, .slots = 4, .indices = {3, -1, 0}, .seed = 556},
           {.in_place = true});
}

}  // namespace
}  // namespace flashkda::test
