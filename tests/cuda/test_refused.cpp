// What the CUDA backend refuses: with the argument's name, before anything is launched. RowNN is the row of
// docs/cases.md.
#include <functional>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "support/environment.hpp"

namespace flashkda::test {
namespace {

class CudaRefused : public OnGpu {
 protected:
  // The call fails with that status, a message with every one of these words, and an empty stream.
  static void expect_refused(DeviceCase& device, fkda_status status, const std::vector<std::string>& words) {
    Stream stream;
    EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_EQ(device.launch(stream), status) << fkda_last_error();
    const std::string message = fkda_last_error();
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 0u) << "something was launched";
    EXPECT_CUDA(cudaGraphDestroy(graph));
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
    const Outputs& outputs = device.fetch();
    EXPECT_TRUE(untouched(outputs.out));
    if (outputs.final_state.present()) {
      EXPECT_TRUE(untouched(outputs.final_state));
    }
  }
  static fkda_tensor& shift(fkda_tensor& view, int64_t bytes) {
    view.data = static_cast<std::byte*>(view.data) + bytes;
    return view;
  }
};

const Spec kSpec = {.T = 40, .H = 2, .initial_state = FKDA_FLOAT32, .seed = 401};

TEST_F(CudaRefused, Row20_AddressesThatAreNoMultipleOf16) {
  const std::vector<std::pair<const char*, fkda_tensor fkda_problem::*>> views = {
      {"q", &fkda_problem::q},
      {"k", &fkda_problem::k},
      {"v", &fkda_problem::v},
      {"g", &fkda_problem::g},
      {"out", &fkda_problem::out},
      {"dt_bias", &fkda_problem::dt_bias},
      {"initial_state", &fkda_problem::initial_state},
      {"final_state", &fkda_problem::final_state}};
  for (const auto& [name, view] : views) {
    for (const int64_t bytes : {4, 8}) {
      DeviceCase device(Case(kSpec), {});
      shift(device.problem.*view, bytes);
      SCOPED_TRACE(name);
      expect_refused(device, FKDA_INVALID_ARGUMENT, {std::string(name) + ":", "16-byte", std::to_string(bytes)});
    }
  }
  DeviceCase device(Case(kSpec), {});
  shift(device.problem.q, 2);  // a view that starts one element into its storage
  expect_refused(device, FKDA_INVALID_ARGUMENT, {"q:", "2 bytes"});
}

TEST_F(CudaRefused, Row20_StridesThatAreNoMultipleOf16Bytes) {
  for (Tensor Case::*x : {&Case::q, &Case::k, &Case::v, &Case::g}) {
    Case c(kSpec);
    c.*x = (c.*x).with_stride({40 * 258, 258, 129, 1});
    DeviceCase device(c, {});
    expect_refused(device, FKDA_INVALID_ARGUMENT, {"stride", "16 bytes"});
  }
}

TEST_F(CudaRefused, Row42_AndRow28_OtherWidthsSayWhatIsSupported) {
  for (const auto& [K, V] :
       std::vector<std::pair<int64_t, int64_t>>{{32, 32}, {96, 96}, {256, 256}, {64, 512}, {128, 64}}) {
    DeviceCase good(Case({.T = 40, .H = 2, .seed = 402}), {});
    fkda_problem& p = good.problem;
    p.q.shape[3] = p.k.shape[3] = p.g.shape[3] = p.dt_bias.shape[1] = K;
    p.v.shape[3] = p.out.shape[3] = V;
    for (fkda_tensor* t : {&p.q, &p.k, &p.g}) t->stride[2] = K, t->stride[1] = 2 * K, t->stride[0] = 80 * K;
    for (fkda_tensor* t : {&p.v, &p.out}) t->stride[2] = V, t->stride[1] = 2 * V, t->stride[0] = 80 * V;
    p.dt_bias.stride[0] = K;
    p.final_state = {};
    SCOPED_TRACE(testing::Message() << "K " << K << ", V " << V);
    expect_refused(good, FKDA_UNSUPPORTED,
                   {"K = " + std::to_string(K), "V = " + std::to_string(V), "K=V=64", "K=V=128", "supports"});
  }
}

TEST_F(CudaRefused, Fp32InputsAndFp64Outputs) {
  DeviceCase fp32(Case({.T = 40, .H = 2, .dtype = FKDA_FLOAT32, .seed = 403}), {});
  expect_refused(fp32, FKDA_UNSUPPORTED, {" misses: fp32", "supports: ", "bf16", "fp16"});
  DeviceCase fp64(Case(kSpec), {.out = FKDA_FLOAT64});
  expect_refused(fp64, FKDA_UNSUPPORTED, {" misses: fp64-out"});
}

TEST_F(CudaRefused, Row19_TensorsOnAnotherDevice) {
  DeviceCase device(Case({.cu = {0, 20, 40}, .seed = 404}), {});
  device.problem.cu_seqlens.device_type = FKDA_CPU;
  device.problem.cu_seqlens.device_index = 0;
  expect_refused(device, FKDA_INVALID_ARGUMENT, {"cu_seqlens:", "cpu", "cuda:0"});
  DeviceCase other(Case(kSpec), {});
  other.problem.beta.device_index = 1;
  expect_refused(other, FKDA_INVALID_ARGUMENT, {"beta:", "cuda:1", "cuda:0"});
}

TEST_F(CudaRefused, Row19_FormsOfCuSeqlens) {
  DeviceCase strided(Case({.cu = {0, 20, 40}, .seed = 405}), {});
  strided.problem.cu_seqlens.stride[0] = 2;
  expect_refused(strided, FKDA_INVALID_ARGUMENT, {"cu_seqlens:", "stride"});
  DeviceCase batch(Case({.B = 2, .T = 20, .seed = 406}), {});
  batch.problem.cu_seqlens = DeviceCase(Case({.cu = {0, 20, 40}, .seed = 405}), {}).problem.cu_seqlens;
  expect_refused(batch, FKDA_INVALID_ARGUMENT, {"B = 2", "B = 1"});
}

TEST_F(CudaRefused, Row19_BadValuesUnderDebug) {
  const Environment debug("FLASH_KDA_DEBUG", "1");
  for (const std::vector<int64_t>& cu :
       std::vector<std::vector<int64_t>>{{0, 30, 20, 40}, {1, 20, 30, 40}, {0, 20, 30, 39}, {0, 20, 30, 41}}) {
    for (const int32_t dtype : {FKDA_INT32, FKDA_INT64}) {
      Case c({.cu = {0, 10, 20, 40}, .seed = 407});
      c.cu_seqlens = Tensor::integers(dtype, cu);
      DeviceCase device(c, {});
      EXPECT_EQ(device.launch(), FKDA_INVALID_ARGUMENT);
      EXPECT_NE(std::string(fkda_last_error()).find("cu_seqlens:"), std::string::npos) << fkda_last_error();
      EXPECT_TRUE(untouched(device.fetch().out));
    }
  }
  Case pool({.B = 2, .T = 20, .initial_state = FKDA_FLOAT32, .slots = 5, .indices = {1, 5}, .seed = 408});
  DeviceCase device(pool, {.in_place = true});
  EXPECT_EQ(device.launch(), FKDA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fkda_last_error()).find("state_indices:"), std::string::npos) << fkda_last_error();
  expect_right_on_gpu(Case({.cu = {0, 10, 20, 40}, .seed = 407}));  // good values pass
}

TEST_F(CudaRefused, Row53_AWorkspaceOneByteShort) {
  Case dense(kSpec), packed({.cu = {0, 10, 20, 40}, .seed = 409});
  dense.options.backend = "cuda_portable";  // the fused kernel needs none for a dense batch
  for (const Case& c : {dense, packed}) {
    DeviceCase device(c, {});
    const DeviceBuffer& workspace = device.workspace();
    EXPECT_EQ(fkda_forward(&device.problem, workspace.data(), workspace.size() - 1, nullptr), FKDA_WORKSPACE_TOO_SMALL);
    EXPECT_EQ(fkda_forward(&device.problem, workspace.data() + 16, workspace.size(), nullptr), FKDA_INVALID_ARGUMENT);
    EXPECT_EQ(fkda_forward(&device.problem, nullptr, workspace.size(), nullptr), FKDA_WORKSPACE_TOO_SMALL);
    EXPECT_TRUE(untouched(device.fetch().out));
  }
}

TEST_F(CudaRefused, ForcedBackends) {
  DeviceCase device(Case(kSpec), {});
  device.problem.backend = "cpu";
  expect_refused(device, FKDA_UNSUPPORTED, {"cpu"});
  device.problem.backend = "cuda_portable";
  DeviceBuffer workspace(8 << 20);  // the device case has what the backend of this run needs
  EXPECT_EQ(fkda_forward(&device.problem, workspace.data(), workspace.size(), nullptr), FKDA_OK) << fkda_last_error();
  EXPECT_CUDA(cudaDeviceSynchronize());
}

TEST_F(CudaRefused, Row09_AFailedLaunchIsRaised) {  // the default stream must not be used while another is captured
  cudaStream_t capturing = nullptr;                 // one that the default stream waits for
  EXPECT_CUDA(cudaStreamCreate(&capturing));
  DeviceCase device(Case(kSpec), {});
  EXPECT_CUDA(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(device.launch(nullptr), FKDA_DEVICE_ERROR);
  const std::string message = fkda_last_error();
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(capturing, &graph);  // reports that the capture was broken
  cudaGetLastError();
  EXPECT_CUDA(cudaStreamDestroy(capturing));
  EXPECT_NE(message.find("cuda: launch of the "), std::string::npos) << message;
  // Nothing of it is left: the next call succeeds.
  EXPECT_EQ(device.launch(nullptr), FKDA_OK) << fkda_last_error();
  EXPECT_TRUE(all_finite(device.fetch().out));
}

}  // namespace
}  // namespace flashkda::test
