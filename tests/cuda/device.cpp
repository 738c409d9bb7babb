#include "cuda/device.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/dtype.hpp"
#include "cuda/backend.hpp"

namespace flashkda::test {
namespace {

constexpr size_t kGuardBytes = 4096;

std::vector<fkda_tensor*> views_of(fkda_problem& p) {
  return {&p.q,
          &p.k,
          &p.v,
          &p.g,
          &p.beta,
          &p.A_log,
          &p.dt_bias,
          &p.cu_seqlens,
          &p.initial_state,
          &p.state_indices,
          &p.out,
          &p.final_state,
          &p.checkpoints,
          &p.checkpoint_offsets,
          &p.intermediate_states};
}

std::vector<const Tensor*> inputs_of(const Case& c) {
  return {&c.q,
          &c.k,
          &c.v,
          &c.g,
          &c.beta,
          &c.A_log,
          &c.dt_bias,
          &c.cu_seqlens,
          &c.initial_state,
          &c.state_indices,
          &c.checkpoint_offsets};
}

Tensor copy_of(const checks::HostTensor& tensor) {
  if (!tensor.present()) return {};
  Tensor copy(tensor.dtype(), tensor.shape());
  if (!tensor.bytes().empty()) std::memcpy(copy.data(), tensor.bytes().data(), tensor.bytes().size());
  return copy;
}

}  // namespace

void OnGpu::SetUp() {
  if (!cuda::available()) GTEST_SKIP() << "no CUDA device";
}

void expect_cuda(cudaError_t error, const char* what) {
  EXPECT_EQ(error, cudaSuccess) << what << ": " << cudaGetErrorString(error);
}

DeviceBuffer::DeviceBuffer(size_t bytes, Fence fence, Fill fill)
    : bytes_(bytes), guard_(fence == Fence::kNaN ? kGuardBytes : 0) {
  const size_t all = bytes + 2 * guard_;
  if (all == 0) return;
  void* base = nullptr;
  EXPECT_CUDA(cudaMalloc(&base, all));
  base_ = static_cast<std::byte*>(base);
  data_ = base_ + guard_;
  if (fill == Fill::kPoison) {
    EXPECT_CUDA(cudaMemset(base_, 0xff, all));
  } else if (guard_ > 0) {
    EXPECT_CUDA(cudaMemset(base_, 0xff, guard_));
    EXPECT_CUDA(cudaMemset(data_ + bytes, 0xff, guard_));
  }
}

DeviceBuffer::~DeviceBuffer() { cudaFree(base_); }

void DeviceBuffer::upload(const void* from) {
  if (bytes_ > 0) EXPECT_CUDA(cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice));
}

void DeviceBuffer::download(void* to) const {
  if (bytes_ > 0) EXPECT_CUDA(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost));
}

bool DeviceBuffer::guards_intact() const {
  if (guard_ == 0) return true;
  std::vector<std::byte> zones(2 * guard_);
  EXPECT_CUDA(cudaMemcpy(zones.data(), base_, guard_, cudaMemcpyDeviceToHost));
  EXPECT_CUDA(cudaMemcpy(zones.data() + guard_, data_ + bytes_, guard_, cudaMemcpyDeviceToHost));
  return std::all_of(zones.begin(), zones.end(), [](std::byte b) { return b == std::byte{0xff}; });
}

DeviceCase::DeviceCase(const Case& c, const Want& want, DeviceBuffer::Fill workspace)
    : DeviceCase(c.make_outputs(want), c, workspace) {}

DeviceCase::DeviceCase(Outputs outputs, const Case& c, DeviceBuffer::Fill workspace)
    : problem(c.problem(outputs)), c_(c), outputs_(std::move(outputs)) {
  std::vector<const Tensor*> tensors = inputs_of(c_);
  for (const Tensor* t : {&outputs_.out, &outputs_.final_state, &outputs_.checkpoints, &outputs_.intermediate_states}) {
    tensors.push_back(t);
  }
  for (const Tensor* t : tensors) {
    if (!t->present()) continue;
    const Buffer& host = *t->buffer();
    std::unique_ptr<DeviceBuffer>& copy = memory_[&host];
    if (copy) continue;
    copy = std::make_unique<DeviceBuffer>(host.size(), host.fence());
    copy->upload(host.data());
  }
  int device = 0;
  EXPECT_CUDA(cudaGetDevice(&device));
  for (fkda_tensor* view : views_of(problem)) {
    if (view->ndim == 0) continue;
    view->device_type = FKDA_CUDA;
    view->device_index = device;
    const auto* address = static_cast<const std::byte*>(view->data);
    view->data = nullptr;
    for (const auto& [host, copy] : memory_) {
      if (address >= host->data() && address < host->data() + host->size()) {
        view->data = copy->data() + (address - host->data());
      }
    }
  }
  size_t bytes = 0;
  if (fkda_workspace_size(&problem, &bytes) != FKDA_OK) bytes = 0;  // launch() will say why
  const Fence fence = workspace == DeviceBuffer::Fill::kNone ? Fence::kBehind : Fence::kNaN;
  workspace_ = std::make_unique<DeviceBuffer>(bytes, fence, workspace);
  EXPECT_CUDA(cudaDeviceSynchronize());  // what filled the buffers is not ordered before other streams
}

fkda_status DeviceCase::launch(cudaStream_t stream) {
  return fkda_forward(&problem, workspace_->data(), workspace_->size(), stream);
}

std::vector<const Tensor*> DeviceCase::results() const {
  std::vector<const Tensor*> present;
  for (const Tensor* t : {&outputs_.out, &outputs_.final_state, &outputs_.checkpoints, &outputs_.intermediate_states}) {
    if (t->present()) present.push_back(t);
  }
  return present;
}

void DeviceCase::poison(cudaStream_t stream) {
  for (const Tensor* t : results()) {
    const DeviceBuffer& memory = buffer_of(*t);
    EXPECT_CUDA(cudaMemsetAsync(memory.data(), 0xff, memory.size(), stream));
  }
  EXPECT_CUDA(cudaMemsetAsync(workspace_->data(), 0xff, workspace_->size(), stream));
}

const Outputs& DeviceCase::fetch() {
  EXPECT_CUDA(cudaDeviceSynchronize());
  for (const Tensor* t : results()) {
    buffer_of(*t).download(t->buffer()->data());
    EXPECT_TRUE(gaps_intact(*t));
  }
  for (const auto& [host, copy] : memory_) EXPECT_TRUE(copy->guards_intact()) << "memory around a tensor was written";
  EXPECT_TRUE(workspace_->guards_intact()) << "memory around the workspace was written";
  for (const Tensor* input : inputs_of(c_)) {
    if (!input->present()) continue;
    const Buffer& host = *input->buffer();
    std::vector<std::byte> now(host.size());
    buffer_of(*input).download(now.data());
    EXPECT_TRUE(host.size() == 0 || std::memcmp(now.data(), host.data(), host.size()) == 0) << "an input was modified";
  }
  return outputs_;
}

Outputs run_on_gpu_into(Outputs outputs, const Case& c) {
  DeviceCase device(std::move(outputs), c);
  EXPECT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
  return device.fetch();
}

Outputs run_on_gpu(const Case& c, const Want& want) { return run_on_gpu_into(c.make_outputs(want), c); }

Outputs expect_right_on_gpu(const Case& c, const Want& want, double out_bar, double state_bar) {
  Outputs actual = run_on_gpu(c, want);
  const Outputs expected = reference(c, want);
  EXPECT_LE(rms_error(actual.out, expected.out), out_bar) << "out";
  if (actual.final_state.present()) {
    EXPECT_LE(rms_error(actual.final_state, expected.final_state), state_bar) << "final_state";
  }
  if (actual.intermediate_states.present()) {
    EXPECT_LE(rms_error(actual.intermediate_states, expected.intermediate_states), state_bar) << "intermediate_states";
  }
  return actual;
}

void expect_same_results(const Outputs& actual, const Outputs& expected) {
  EXPECT_TRUE(same_bits(actual.out, expected.out));
  if (expected.final_state.present()) {
    EXPECT_TRUE(same_bits(actual.final_state, expected.final_state));
  }
  if (expected.checkpoints.present()) {
    EXPECT_TRUE(same_bits(actual.checkpoints, expected.checkpoints));
  }
  if (expected.intermediate_states.present()) {
    EXPECT_TRUE(same_bits(actual.intermediate_states, expected.intermediate_states));
  }
}

Case to_case(const checks::OwnedProblem& problem) {
  Case c({.T = 1});
  c.q = copy_of(problem.q);
  c.k = copy_of(problem.k);
  c.v = copy_of(problem.v);
  c.g = copy_of(problem.g);
  c.beta = copy_of(problem.beta);
  c.A_log = copy_of(problem.A_log);
  c.dt_bias = copy_of(problem.dt_bias);
  c.cu_seqlens = copy_of(problem.cu_seqlens);
  c.initial_state = copy_of(problem.initial_state);
  c.state_indices = copy_of(problem.state_indices);
  c.options = problem.options;
  c.B = c.q.shape()[0];
  c.T = c.q.shape()[1];
  c.H = c.q.shape()[2];
  c.K = c.q.shape()[3];
  c.HV = c.v.shape()[2];
  c.V = c.v.shape()[3];
  c.N = problem.sequences();
  c.cu.clear();
  for (int64_t n = 0; n <= c.N; ++n) {
    c.cu.push_back(c.packed() ? load_integer(c.cu_seqlens.data(), c.cu_seqlens.dtype(), n) : n * c.T);
  }
  return c;
}

std::vector<int64_t> cumulative(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> cu = {0};
  for (const int64_t length : lengths) cu.push_back(cu.back() + length);
  return cu;
}

}  // namespace flashkda::test
