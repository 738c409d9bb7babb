// Sizes past 2^31 elements, past 65,535 blocks and past what a test can copy to the host: the inputs are made on the
// device and only what is compared comes back. RowNN is the row of docs/cases.md.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/device_kernels.hpp"

namespace flashkda::test {
namespace {

constexpr int64_t D = 128;

// [1,T,H,D] in bf16 on the device, bounded gate without A_log and dt_bias.
class LargeCase {
 public:
  LargeCase(int64_t tokens, int64_t heads, uint64_t seed) : T(tokens), H(heads) {
    const struct {
      int64_t width;
      float low, high;
    } kinds[5] = {{D, -1.7f, 1.7f}, {D, -1.7f, 1.7f}, {D, -1.7f, 1.7f}, {D, -6.0f, 1.0f}, {1, -2.0f, 2.0f}};
    for (int i = 0; i < 5; ++i) {
      const int64_t count = T * H * kinds[i].width;
      inputs_[i] = std::make_unique<DeviceBuffer>(static_cast<size_t>(count * 2));
      fill_uniform_bf16(inputs_[i]->data(), count, kinds[i].low, kinds[i].high, seed + static_cast<uint64_t>(i));
    }
    out_ = std::make_unique<DeviceBuffer>(static_cast<size_t>(T * H * D * 2));
  }

  // Tokens begin to end, as a problem of its own without states.
  fkda_problem problem(int64_t begin, int64_t end) const {
    fkda_problem p;
    fkda_problem_init(&p);
    fkda_tensor* views[5] = {&p.q, &p.k, &p.v, &p.g, &p.beta};
    for (int i = 0; i < 5; ++i) *views[i] = view(inputs_[i]->data(), begin, end, i < 4 ? D : 1);
    p.beta.ndim = 3;
    p.out = view(out_->data(), begin, end, D);
    return p;
  }

  // The same tokens of one head, on the host.
  Case host(int64_t begin, int64_t end, int64_t head) const {
    Case c({.T = end - begin, .A_log = false, .dt_bias = false});
    int i = 0;
    for (Tensor* x : {&c.q, &c.k, &c.v, &c.g, &c.beta}) {
      fetch(*x, inputs_[i]->data(), begin, head, i < 4 ? D : 1);
      ++i;
    }
    return c;
  }
  Tensor out(int64_t begin, int64_t end, int64_t head) const {
    Tensor rows(FKDA_BFLOAT16, {1, end - begin, 1, D});
    fetch(rows, out_->data(), begin, head, D);
    return rows;
  }
  bool guards_intact() const { return out_->guards_intact(); }
  void poison() const { EXPECT_CUDA(cudaMemset(out_->data(), 0xff, out_->size())); }

  const int64_t T, H;

 private:
  fkda_tensor view(std::byte* data, int64_t begin, int64_t end, int64_t width) const {
    fkda_tensor t = {};
    t.data = data + begin * H * width * 2;
    t.dtype = FKDA_BFLOAT16;
    t.device_type = FKDA_CUDA;
    t.ndim = 4;
    const int64_t shape[4] = {1, end - begin, H, width}, stride[4] = {T * H * width, H * width, width, 1};
    std::copy(shape, shape + 4, t.shape);
    std::copy(stride, stride + 4, t.stride);
    return t;
  }
  void fetch(Tensor& rows, const std::byte* data, int64_t begin, int64_t head, int64_t width) const {
    const auto row = static_cast<size_t>(width * 2);
    EXPECT_CUDA(cudaMemcpy2D(rows.data(), row, data + (begin * H + head) * width * 2, row * static_cast<size_t>(H), row,
                             static_cast<size_t>(rows.shape()[1]), cudaMemcpyDeviceToHost));
  }
  std::unique_ptr<DeviceBuffer> inputs_[5], out_;
};

// [N,H,D,D] fp32 on the device.
struct LargeState {
  LargeState(int64_t sequences, int64_t heads)
      : N(sequences), H(heads), memory(static_cast<size_t>(sequences * heads * D * D * 4)) {}
  fkda_tensor view() const {
    const int64_t shape[4] = {N, H, D, D};
    fkda_tensor t = fkda_dense(memory.data(), FKDA_FLOAT32, 4, shape);
    t.device_type = FKDA_CUDA;
    return t;
  }
  Tensor host(int64_t n, int64_t head) const {
    Tensor state(FKDA_FLOAT32, {1, 1, D, D});
    EXPECT_CUDA(
        cudaMemcpy(state.data(), memory.data() + (n * H + head) * D * D * 4, D * D * 4, cudaMemcpyDeviceToHost));
    return state;
  }
  int64_t N, H;
  DeviceBuffer memory;
};

struct Integers {
  explicit Integers(const std::vector<int64_t>& values)
      : count(static_cast<int64_t>(values.size())), memory(values.size() * 8) {
    memory.upload(values.data());
  }
  fkda_tensor view() const {
    fkda_tensor t = fkda_dense(memory.data(), FKDA_INT64, 1, &count);
    t.device_type = FKDA_CUDA;
    return t;
  }
  int64_t count;
  DeviceBuffer memory;
};

void run_large(const fkda_problem& problem) {
  size_t bytes = 0;
  ASSERT_EQ(fkda_workspace_size(&problem, &bytes), FKDA_OK) << fkda_last_error();
  const DeviceBuffer workspace(bytes);
  ASSERT_EQ(fkda_forward(&problem, workspace.data(), bytes, nullptr), FKDA_OK) << fkda_last_error();
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_TRUE(workspace.guards_intact());
}

class CudaLarge : public OnGpu {
 protected:
  // The last 64 tokens of the whole against a run of them alone, from the state before them: the same bits where the
  // caller asks for that.
  static void expect_right_tail(int64_t T, int64_t H) {
    constexpr int64_t kTail = 64;
    ASSERT_EQ(T % kTail, 0);
    const LargeCase c(T, H, 601);
    const LargeState before(1, H), whole(1, H);
    for (const int32_t invariant : {1, 0}) {
      SCOPED_TRACE(testing::Message() << "batch_invariant " << invariant);
      const auto expect_close = [&](const Tensor& actual, const Tensor& expected, double bar) {
        if (invariant) {
          EXPECT_TRUE(same_bits(actual, expected));
        } else {
          EXPECT_LE(rms_error(actual, expected), bar);
        }
      };
      fkda_problem p = c.problem(0, T - kTail);
      p.batch_invariant = invariant;
      p.final_state = before.view();
      run_large(p);
      c.poison();
      p = c.problem(0, T);
      p.batch_invariant = invariant;
      p.final_state = whole.view();
      run_large(p);
      for (const int64_t head : {int64_t{0}, H / 2, H - 1}) {
        Case tail = c.host(T - kTail, T, head);
        tail.options.batch_invariant = invariant;
        tail.initial_state = before.host(0, head);
        SCOPED_TRACE(head);
        const Outputs alone = expect_right_on_gpu(tail);
        expect_close(c.out(T - kTail, T, head), alone.out, kOutBar);
        expect_close(whole.host(0, head), alone.final_state, kStateBar);
        // And the start, where no offset is large.
        Case start = c.host(0, kTail, head);
        start.options.batch_invariant = invariant;
        expect_close(c.out(0, kTail, head), run_on_gpu(start).out, kOutBar);
      }
      EXPECT_TRUE(c.guards_intact());
    }
  }

  // A packed batch of cu, some sequences of it against fp64.
  static void expect_right_sequences(const std::vector<int64_t>& cu, int64_t H, const std::vector<int64_t>& chosen,
                                     bool with_state = true) {
    const int64_t T = cu.back(), N = static_cast<int64_t>(cu.size()) - 1;
    const LargeCase c(T, H, 602);
    const LargeState state(with_state ? N : 0, H);
    const Integers offsets(cu);
    fkda_problem p = c.problem(0, T);
    p.cu_seqlens = offsets.view();
    if (with_state) p.final_state = state.view();
    run_large(p);
    for (const int64_t n : chosen) {
      const int64_t begin = cu[static_cast<size_t>(n)], end = cu[static_cast<size_t>(n) + 1];
      for (const int64_t head : {int64_t{0}, H - 1}) {
        SCOPED_TRACE(testing::Message() << "sequence " << n << ", head " << head);
        const Outputs expected = reference(c.host(begin, end, head));
        EXPECT_LE(rms_error(c.out(begin, end, head), expected.out), kOutBar);
        if (with_state) {
          EXPECT_LE(rms_error(state.host(n, head), expected.final_state), kStateBar);
        }
        if (H == 1) break;
      }
    }
    EXPECT_TRUE(c.guards_intact());
    EXPECT_TRUE(state.memory.guards_intact());
  }
};

TEST_F(CudaLarge, Row05_OneTokenBesideManyOthers) {
  expect_right_sequences({0, 8191, 8192}, 64, {0, 1});
  expect_right_sequences({0, 1, 8192}, 64, {0, 1});
}

TEST_F(CudaLarge, Row05_AsManySequencesAsTokens) {
  expect_right_sequences(cumulative(std::vector<int64_t>(4096, 1)), 4, {0, 1, 511, 512, 2049, 4095});
}

TEST_F(CudaLarge, Row08_OffsetsPast2To31) { expect_right_tail(174784, 96); }  // takes 40 GB of device memory

TEST_F(CudaLarge, Row09_SeventyThousandSequences) {
  expect_right_sequences(cumulative(std::vector<int64_t>(70000, 1)), 1, {0, 1, 512, 65535, 65536, 69999});
}

TEST_F(CudaLarge, Row09_AHundredThousandSequences) {  // some of none, of one and of two chunks
  std::vector<int64_t> lengths(100000);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int64_t>(i * 7 % 41);
  expect_right_sequences(cumulative(lengths), 1, {1, 5, 40, 65535, 65536, 99998, 99999});
}

TEST_F(CudaLarge, Row09_MoreThan65535Chunks) { expect_right_tail(16 * 65536 + 64, 1); }

TEST_F(CudaLarge, Row16_InPiecesIsTheWhole) {
  const int64_t T = 32768, H = 2;
  const LargeCase c(T, H, 603);
  const LargeState whole(1, H);
  fkda_problem p = c.problem(0, T);
  p.batch_invariant = 1;
  p.final_state = whole.view();
  run_large(p);
  const Tensor expected = c.out(0, T, 1);
  for (const std::vector<int64_t>& cuts : std::vector<std::vector<int64_t>>{{0, 8192, 16384, 24576, T}, {0, 17, T}}) {
    c.poison();
    const LargeState carried(1, H);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      p = c.problem(cuts[i], cuts[i + 1]);
      p.batch_invariant = cuts.size() > 3;
      p.final_state = carried.view();
      if (i > 0) p.initial_state = p.final_state;
      run_large(p);
    }
    if (cuts.size() > 3) {  // cut at chunks
      EXPECT_TRUE(same_bits(c.out(0, T, 1), expected));
      EXPECT_TRUE(same_bits(carried.host(0, 1), whole.host(0, 1)));
    } else {  // both are within the bar of the exact result
      EXPECT_LE(rms_error(c.out(0, T, 1), expected), 2 * kOutBar);
      EXPECT_LE(rms_error(carried.host(0, 1), whole.host(0, 1)), 2 * kStateBar);
    }
  }
}

TEST_F(CudaLarge, Row54_TenThousandShortSequences) {
  expect_right_sequences(cumulative(std::vector<int64_t>(10000, 8)), 8, {0, 4999, 9999});
}

}  // namespace
}  // namespace flashkda::test
