// Cases on the GPU: every tensor a copy between guard zones, every output and the workspace poisoned before the call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "check/problem.hpp"
#include "flashkda/flashkda.h"
#include "support/case.hpp"
#include "support/tensor.hpp"

namespace flashkda::test {

// Largest relative rms error against fp64 of the CUDA backend, whose operands are bf16.
constexpr double kOutBar = 5.5e-3, kStateBar = 5e-3;
constexpr double kIdenticalKeysBar = 2e-2;  // one key at every token, b near 1, no decay

// Tests that need a GPU.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override;
};

// Fails the test with the runtime's message.
void expect_cuda(cudaError_t error, const char* what);
#define EXPECT_CUDA(call) ::flashkda::test::expect_cuda(call, #call)

class Stream {
 public:
  Stream() { EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Device memory, aligned to 256 bytes. Fence::kNaN: between guard zones of 0xff; any other fence: an allocation of
// exactly that size, whose ends compute-sanitizer watches.
class DeviceBuffer {
 public:
  enum class Fill { kPoison, kNone };  // all 0xff; whatever lay there
  explicit DeviceBuffer(size_t bytes, Fence fence = Fence::kNaN, Fill fill = Fill::kPoison);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  void upload(const void* from);
  void download(void* to) const;
  bool guards_intact() const;

 private:
  std::byte *base_ = nullptr, *data_ = nullptr;
  size_t bytes_ = 0, guard_ = 0;
};

// A case on the current device. Buffers that tensors share on the host are shared there too, gaps and strides included.
class DeviceCase {
 public:
  DeviceCase(const Case& c, const Want& want, DeviceBuffer::Fill workspace = DeviceBuffer::Fill::kPoison);
  DeviceCase(Outputs outputs, const Case& c, DeviceBuffer::Fill workspace = DeviceBuffer::Fill::kPoison);

  fkda_problem problem;  // views of device memory; a test may change them before a launch

  // Asynchronous. The workspace has exactly the size that was asked for.
  fkda_status launch(cudaStream_t stream = nullptr);
  // Waits for the device and copies the outputs back. Expects guard zones, gaps and inputs unchanged.
  const Outputs& fetch();
  const Outputs& outputs() const { return outputs_; }
  const DeviceBuffer& workspace() const { return *workspace_; }
  DeviceBuffer& buffer_of(const Tensor& tensor) { return *memory_.at(tensor.buffer().get()); }
  // The outputs that the problem has.
  std::vector<const Tensor*> results() const;
  // Fills the outputs and the workspace with 0xff again. Asynchronous.
  void poison(cudaStream_t stream);

 private:
  Case c_;
  Outputs outputs_;
  std::map<const Buffer*, std::unique_ptr<DeviceBuffer>> memory_;
  std::unique_ptr<DeviceBuffer> workspace_;
};

// Launches and fetches. Expects success.
Outputs run_on_gpu(const Case& c, const Want& want = {});
Outputs run_on_gpu_into(Outputs outputs, const Case& c);

// Runs on the GPU and expects out and final state to be finite and within the bars of fp64.
Outputs expect_right_on_gpu(const Case& c, const Want& want = {}, double out_bar = kOutBar,
                            double state_bar = kStateBar);

// Same bits in every output that both have.
void expect_same_results(const Outputs& actual, const Outputs& expected);

// An input family's problem, or a layer, as a case.
Case to_case(const checks::OwnedProblem& problem);

// Running sums, from 0.
std::vector<int64_t> cumulative(const std::vector<int64_t>& lengths);

}  // namespace flashkda::test
