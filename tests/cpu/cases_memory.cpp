// Where the tensors lie, who else is computing, and what is left alone. RowNN is the row of docs/cases.md.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.hpp"
#include "support/backends.hpp"
#include "support/case.hpp"
#include "support/tensor.hpp"

namespace flashkda::test {
namespace {

constexpr Want kFp32 = {.out = FKDA_FLOAT32, .final_state = FKDA_FLOAT32};
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

class Memory : public OnBackend {
 protected:
  RunOptions how() const { return {.backend = GetParam()}; }
};
FLASHKDA_ON_EACH_BACKEND(Memory);

// A problem that has every tensor.
Spec everything(uint64_t seed) {
  return {.H = 2,
          .HV = 4,
          .K = 64,
          .V = 40,
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

// --------------------------------------------------------------------------------- edges of the allocations: row 11

TEST_P(Memory, Row11_EveryTensorAtTheEndOfItsAllocation) {
  const Outputs expected = run(Case(everything(301)), kEverything, how());
  for (const Fence fence : {Fence::kBehind, Fence::kBefore}) {
    Spec spec = everything(301);
    Want want = kEverything;
    spec.fence = want.fence = fence;
    expect_same_results(run(Case(spec), want, how()), expected);
  }
}

TEST_P(Memory, Row11_EverySizeAtTheEndOfItsAllocation) {  // tails of vectors, of chunks, of panels
  for (const int64_t T : {1, 2, 8, 9, 33}) {
    for (const int64_t width : {8, 24, 40, 128}) {
      for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32}) {
        for (const int32_t layout : {FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST}) {
          const Case c({.T = T,
                        .K = width,
                        .V = 48 - width % 48,
                        .dtype = dtype,
                        .initial_state = FKDA_BFLOAT16,
                        .state_layout = layout,
                        .seed = 302,
                        .fence = Fence::kBehind});
          Want want = {.out = dtype, .final_state = FKDA_BFLOAT16, .fence = Fence::kBehind};
          const Outputs fenced = run(c, want, how());
          EXPECT_TRUE(all_finite(fenced.out));
        }
      }
    }
  }
}

TEST_P(Memory, Row11_NaNBehindEveryTensorAndInEveryOutput) {
  // Buffers are NaN outside the inputs, and outputs and workspace are NaN before the call.
  const Outputs outputs = run(Case(everything(303)), kEverything, how());
  EXPECT_TRUE(all_finite(outputs.out));
  EXPECT_TRUE(all_finite(outputs.final_state));
  EXPECT_TRUE(all_finite(outputs.intermediate_states));
}

TEST_P(Memory, RowsOutsideEverySequenceDoNotExist) {  // cu_seqlens ends at T: every row of out is written
  const Outputs outputs = run(Case(everything(304)), kEverything, how());
  for (int64_t t = 0; t < 70; ++t) EXPECT_TRUE(all_finite(outputs.out.narrow(1, t, 1))) << t;
}

// ------------------------------------------------------------------------------------------ strided inputs: row 20

// q, k and v as slices of one projection [B, T, 2*H*K + HV*V + pad], as a layer that projects once has them.
void fuse_projection(Case& c, int64_t pad, Fence fence = Fence::kNaN) {
  const int64_t qk = c.H * c.K, width = 2 * qk + c.HV * c.V + pad;
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(c.B * c.T * width * dtype_size(c.q.dtype())), fence);
  const auto slice = [&](Tensor& x, int64_t offset, int64_t head_width) {
    Tensor view(buffer, x.dtype(), x.shape(), {c.T * width, width, head_width, 1}, offset);
    view.copy_from(x);
    x = view;
  };
  slice(c.q, 0, c.K);
  slice(c.k, qk, c.K);
  slice(c.v, 2 * qk, c.V);
}

TEST_P(Memory, Row20_SlicesOfOneProjection) {
  for (const int64_t pad : {0, 1, 7, 64}) {
    for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT32}) {
      const Spec spec = {.B = 2, .T = 45, .H = 2, .HV = 4, .K = 64, .V = 32, .dtype = dtype, .seed = 311};
      Case fused(spec);
      fuse_projection(fused, pad);
      SCOPED_TRACE(pad);
      expect_same_results(run(fused, kFp32, how()), run(Case(spec), kFp32, how()));
    }
  }
}

TEST_P(Memory, Row20_BetaWithALongTokenStride) {
  const Case dense({.B = 2, .T = 45, .H = 4, .seed = 312});
  Case strided = dense;
  strided.beta = dense.beta.with_stride({45 * 6288, 6288, 1});
  expect_same_results(run(strided, kFp32, how()), run(dense, kFp32, how()));
}

TEST_P(Memory, Row20_ViewsThatStartOneElementIntoTheirStorage) {
  const Spec spec = {.T = 45, .H = 2, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 313};
  const Case dense(spec);
  Case shifted(spec);
  for (Tensor Case::*x :
       {&Case::q, &Case::k, &Case::v, &Case::g, &Case::beta, &Case::A_log, &Case::dt_bias, &Case::initial_state}) {
    const Tensor& original = dense.*x;
    const auto bytes = static_cast<size_t>((original.numel() + 1) * dtype_size(original.dtype()));
    shifted.*x = Tensor(std::make_shared<Buffer>(bytes), original.dtype(), original.shape(), original.stride(), 1);
    (shifted.*x).copy_from(original);
  }
  Outputs outputs = shifted.make_outputs(kFp32);
  for (Tensor* x : {&outputs.out, &outputs.final_state}) {
    const auto bytes = static_cast<size_t>((x->numel() + 1) * dtype_size(x->dtype()));
    *x = Tensor(std::make_shared<Buffer>(bytes), x->dtype(), x->shape(), x->stride(), 1);
  }
  forward(shifted, outputs, how());
  expect_same_results(outputs, run(dense, kFp32, how()));
}

TEST_P(Memory, Row20_HeadsOutermost) {  // [B,H,T,D] seen as [B,T,H,D]
  const Case dense({.B = 2, .T = 45, .H = 3, .K = 64, .V = 32, .seed = 314});
  Case transposed = dense;
  for (Tensor Case::*x : {&Case::q, &Case::k, &Case::v, &Case::g}) {
    const int64_t width = (dense.*x).shape()[3];
    transposed.*x = (dense.*x).with_stride({3 * 45 * width, width, 45 * width, 1});
  }
  Outputs outputs = transposed.make_outputs(kFp32);
  outputs.out = Tensor::strided(FKDA_FLOAT32, {2, 45, 3, 32}, {3 * 45 * 32, 32, 45 * 32, 1});
  forward(transposed, outputs, how());
  expect_same_results(outputs, run(dense, kFp32, how()));
}

TEST_P(Memory, Row20_TokensOutermost) {  // [T,B,H,D] seen as [B,T,H,D]
  const Case dense({.B = 2, .T = 45, .H = 3, .K = 64, .V = 32, .seed = 315});
  Case transposed = dense;
  for (Tensor Case::*x : {&Case::q, &Case::k, &Case::v, &Case::g}) {
    const int64_t width = (dense.*x).shape()[3];
    transposed.*x = (dense.*x).with_stride({3 * width, 2 * 3 * width, width, 1});
  }
  Outputs outputs = transposed.make_outputs(kFp32);
  outputs.out = Tensor::strided(FKDA_FLOAT32, {2, 45, 3, 32}, {3 * 32, 2 * 3 * 32, 32, 1});
  forward(transposed, outputs, how());
  expect_same_results(outputs, run(dense, kFp32, how()));
}

TEST_P(Memory, Row20_OneRowForAllHeadsOrTokens) {  // stride 0, as expand() makes it
  const Case c({.B = 2, .T = 45, .H = 3, .K = 64, .V = 32, .seed = 316});
  Case full = c, expanded = c;
  full.g = c.g.clone();
  for (int64_t h = 1; h < 3; ++h) full.g.narrow(2, h, 1).copy_from(c.g.narrow(2, 0, 1));
  expanded.g = Tensor(c.g.buffer(), c.g.dtype(), c.g.shape(), {45 * 3 * 64, 3 * 64, 0, 1}, 0);
  expect_same_results(run(expanded, kFp32, how()), run(full, kFp32, how()));
  full.k = c.k.clone();
  for (int64_t t = 1; t < 45; ++t) full.k.narrow(1, t, 1).copy_from(c.k.narrow(1, 0, 1));
  expanded.k = Tensor(c.k.buffer(), c.k.dtype(), c.k.shape(), {45 * 3 * 64, 0, 64, 1}, 0);
  expect_same_results(run(expanded, kFp32, how()), run(full, kFp32, how()));
}

TEST_P(Memory, InputsMayBeOneTensor) {  // q = k = v
  const Case c({.T = 45, .H = 2, .K = 64, .V = 64, .seed = 317});
  Case copies = c, shared = c;
  copies.k = copies.q.clone();
  copies.v = copies.q.clone();
  shared.k = shared.v = shared.q;
  expect_same_results(run(shared, kFp32, how()), run(copies, kFp32, how()));
}

TEST_P(Memory, OutMayBeASliceOfTheProjection) {  // columns beside q, k and v: nothing overlaps
  const Spec spec = {.B = 2, .T = 45, .H = 2, .K = 64, .V = 64, .seed = 318};
  const Case dense(spec);
  Case fused(spec);
  fuse_projection(fused, 2 * 64);
  const int64_t width = 4 * 2 * 64;
  Outputs outputs = fused.make_outputs({});
  outputs.out = Tensor(fused.q.buffer(), FKDA_BFLOAT16, {2, 45, 2, 64}, {45 * width, width, 64, 1}, 3 * 2 * 64);
  fkda_problem problem = fused.problem(outputs);
  problem.backend = GetParam();
  ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();
  const Outputs expected = run(dense, {}, how());
  EXPECT_TRUE(same_bits(outputs.out, expected.out));
  EXPECT_TRUE(same_bits(outputs.final_state, expected.final_state));
  EXPECT_TRUE(same_bits(fused.q, dense.q));
  EXPECT_TRUE(same_bits(fused.v, dense.v));
}

TEST_P(Memory, StridesOfDimensionsOfSizeOneMeanNothing) {
  const Case c({.T = 45, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32, .seed = 319});
  const Outputs expected = run(c, kFp32, how());
  Outputs outputs = c.make_outputs(kFp32);
  fkda_problem problem = c.problem(outputs);
  problem.backend = GetParam();
  for (fkda_tensor* t : {&problem.q, &problem.k, &problem.v, &problem.g, &problem.out}) t->stride[0] = t->stride[2] = 7;
  problem.beta.stride[2] = 5;  // HV = 1: the last dimension
  problem.A_log.stride[0] = 9;
  problem.initial_state.stride[0] = problem.final_state.stride[1] = 3;
  ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();
  expect_same_results(outputs, expected);
}

// ------------------------------------------------------------------------------------- parameters: rows 21 and 22

TEST_P(Memory, Row21_FlatDtBiasIsTheSquareOne) {
  const Case square({.T = 45, .H = 2, .HV = 4, .K = 64, .V = 32, .seed = 321});
  Case flat = square;
  flat.dt_bias = Tensor(square.dt_bias.buffer(), FKDA_FLOAT32, {4 * 64}, {1}, 0);
  expect_same_results(run(flat, kFp32, how()), run(square, kFp32, how()));
}

TEST_P(Memory, Row21_ALogOfAnyShape) {
  const Case vector({.T = 45, .H = 2, .HV = 4, .K = 64, .V = 32, .seed = 322});
  const Outputs expected = run(vector, kFp32, how());
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1, 1, 4, 1}, {4, 1}, {1, 4}, {2, 2}}) {
    Case reshaped = vector;
    std::vector<int64_t> stride(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) stride[d - 1] = stride[d] * shape[d];
    reshaped.A_log = Tensor(vector.A_log.buffer(), FKDA_FLOAT32, shape, stride, 0);
    expect_same_results(run(reshaped, kFp32, how()), expected);
  }
}

TEST_P(Memory, Row22_TwiceWithTheSameTensors) {  // run() compares the inputs before and after
  const Case c(everything(323));
  const Outputs first = run(c, kEverything, how());
  expect_same_results(run(c, kEverything, how()), first);
}

// --------------------------------------------------------------------------- offsets past 2^31 elements: row 8

// Address space without memory behind it until it is touched.
class SparseMemory {
 public:
  explicit SparseMemory(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~SparseMemory() { munmap(data_, bytes_); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  // Copies a tensor there, with those strides and that many elements from the start, and returns the view.
  fkda_tensor place(const Tensor& tensor, const std::vector<int64_t>& stride, int64_t offset = 0) const {
    fkda_tensor view = tensor.view();
    view.data = static_cast<std::byte*>(data_) + offset * dtype_size(view.dtype);
    std::copy(stride.begin(), stride.end(), view.stride);
    for_each_row(view, [&](void* far, int64_t first) {
      for (int64_t i = 0; i < row_size(view); ++i) store_scalar(far, view.dtype, i, tensor.get(first + i));
    });
    return view;
  }

  // What lies there, in the shape of the view.
  static Tensor collect(const fkda_tensor& view) {
    Tensor result(view.dtype, std::vector<int64_t>(view.shape, view.shape + view.ndim));
    for_each_row(view, [&](const void* far, int64_t first) {
      for (int64_t i = 0; i < row_size(view); ++i) result.set(first + i, load_scalar(far, view.dtype, i));
    });
    return result;
  }

 private:
  static int64_t row_size(const fkda_tensor& view) { return view.shape[view.ndim - 1]; }

  // body(address of a row of the last dimension, number of its first element)
  template <typename Body>
  static void for_each_row(const fkda_tensor& view, Body body) {
    int64_t rows = 1;
    for (int d = 0; d < view.ndim - 1; ++d) rows *= view.shape[d];
    for (int64_t row = 0; row < rows; ++row) {
      int64_t offset = 0, rest = row;
      for (int d = view.ndim - 2; d >= 0; --d) {
        offset += rest % view.shape[d] * view.stride[d];
        rest /= view.shape[d];
      }
      body(static_cast<std::byte*>(view.data) + offset * dtype_size(view.dtype), row * row_size(view));
    }
  }

  void* data_;
  size_t bytes_;
};

TEST_P(Memory, Row08_TokensFarApart) {  // H 96, T 174,800 has 2^31 elements; here 70 tokens span 2^33
  const int64_t far = (int64_t{1} << 33) / 69;
  const Case c({.T = 70, .H = 2, .K = 64, .V = 32, .seed = 331});
  const Outputs expected = run(c, kFp32, how());
  Outputs outputs = c.make_outputs(kFp32);
  fkda_problem problem = c.problem(outputs);
  problem.backend = GetParam();
  const SparseMemory q(size_t{17} << 30), k(size_t{17} << 30), v(size_t{17} << 30), g(size_t{17} << 30),
      beta(size_t{17} << 30), out(size_t{34} << 30);
  problem.q = q.place(c.q, {1, far, 64, 1});
  problem.k = k.place(c.k, {1, far, 64, 1});
  problem.v = v.place(c.v, {1, far, 32, 1});
  problem.g = g.place(c.g, {1, far, 64, 1});
  problem.beta = beta.place(c.beta, {1, far, 1});
  problem.out = out.place(outputs.out, {1, far, 32, 1});
  ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();
  EXPECT_TRUE(same_bits(SparseMemory::collect(problem.out), expected.out));
  EXPECT_TRUE(same_bits(outputs.final_state, expected.final_state));
}

TEST_P(Memory, Row08_BatchRowsAndHeadsFarApart) {
  const int64_t far = int64_t{1} << 32, apart = int64_t{1} << 31;
  const Case c({.B = 2, .T = 20, .H = 2, .K = 64, .V = 32, .seed = 332});
  const Outputs expected = run(c, kFp32, how());
  Outputs outputs = c.make_outputs(kFp32);
  fkda_problem problem = c.problem(outputs);
  problem.backend = GetParam();
  const SparseMemory q(size_t{13} << 30), k(size_t{13} << 30), v(size_t{13} << 30), g(size_t{13} << 30),
      out(size_t{25} << 30), state(size_t{25} << 30);
  problem.q = q.place(c.q, {far, 64, apart, 1});
  problem.k = k.place(c.k, {far, 64, apart, 1});
  problem.v = v.place(c.v, {far, 32, apart, 1});
  problem.g = g.place(c.g, {far, 64, apart, 1});
  problem.out = out.place(outputs.out, {far, 32, apart, 1});
  problem.final_state = state.place(outputs.final_state, {far, apart, 64, 1});
  ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();
  EXPECT_TRUE(same_bits(SparseMemory::collect(problem.out), expected.out));
  EXPECT_TRUE(same_bits(SparseMemory::collect(problem.final_state), expected.final_state));
}

TEST_P(Memory, Row08_LastSlotOfALargePool) {  // 4,100 slots of 32 heads of 128 x 128: 2^31 elements and a few
  const int64_t slots = 4100, slot_size = 32 * 128 * 128;
  const std::vector<int64_t> stride = {slot_size, 128 * 128, 128, 1};
  Case c({.B = 2, .T = 40, .H = 32, .initial_state = FKDA_FLOAT32, .seed = 333});
  const Outputs expected = run(c, kFp32, how());
  const SparseMemory memory(static_cast<size_t>(slots * slot_size) * sizeof(float));
  const fkda_tensor last_two = memory.place(c.initial_state, stride, (slots - 2) * slot_size);
  c.state_indices = Tensor::integers(FKDA_INT32, {slots - 2, slots - 1});

  Outputs outputs = c.make_outputs({.out = FKDA_FLOAT32, .final_state = kAbsent});
  fkda_problem problem = c.problem(outputs);
  problem.backend = GetParam();
  fkda_tensor pool = last_two;
  pool.data = static_cast<float*>(last_two.data) - (slots - 2) * slot_size;
  pool.shape[0] = slots;
  problem.initial_state = problem.final_state = pool;
  ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();
  EXPECT_TRUE(same_bits(outputs.out, expected.out));
  EXPECT_TRUE(same_bits(SparseMemory::collect(last_two), expected.final_state));
}

// -------------------------------------------------------------------------------- threads: row 13, and repeatability

TEST_P(Memory, TheNumberOfThreadsNeverChangesBits) {
  for (const Spec& spec : std::vector<Spec>{
           everything(341),
           {.T = 100, .seed = 342},  // one head: its columns are shared out
           {.T = 3, .V = 72, .initial_state = FKDA_FLOAT32, .state_layout = FKDA_STATE_K_FIRST, .seed = 343},
           {.B = 3, .T = 70, .H = 5, .V = 512, .initial_state = FKDA_BFLOAT16, .seed = 344}}) {
    const Case c(spec);
    const Outputs one = run(c, kEverything, {.backend = GetParam(), .num_threads = 1});
    for (const int threads : {0, 2, 3, 4, 7, 16}) {
      SCOPED_TRACE(threads);
      expect_same_results(run(c, kEverything, {.backend = GetParam(), .num_threads = threads}), one);
    }
  }
}

TEST_P(Memory, FarMoreThreadsThanWork) {
  const Case c({.T = 20, .K = 32, .V = 32, .seed = 345});
  const Outputs one = run(c, kFp32, {.backend = GetParam(), .num_threads = 1});
  expect_same_results(run(c, kFp32, {.backend = GetParam(), .num_threads = 1 << 30}), one);
}

TEST_P(Memory, Row13_ConcurrentCallsAreSerialCallsInBits) {
  const Case a({.T = 70, .H = 3, .K = 64, .V = 64, .initial_state = FKDA_FLOAT32, .seed = 346});
  const Case b({.T = 70, .H = 3, .K = 64, .V = 64, .initial_state = FKDA_FLOAT32, .seed = 347});
  const Outputs serial_a = run(a, kFp32, how()), serial_b = run(b, kFp32, how());
  std::atomic<int> waiting{2};
  const auto repeat = [&](const Case& c, const Outputs& serial) {
    --waiting;
    while (waiting > 0) std::this_thread::yield();
    for (int i = 0; i < 100; ++i) {
      expect_same_results(run(c, kFp32, {.backend = GetParam(), .num_threads = 1 + i % 3}), serial);
    }
  };
  std::thread other([&] { repeat(b, serial_b); });
  repeat(a, serial_a);
  other.join();
}

TEST_P(Memory, Row13_ConcurrentCallsMayShareTheirInputs) {
  const Case c(everything(348));
  const Outputs serial = run(c, kEverything, how());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 25; ++k) {
        Outputs outputs = c.make_outputs(kEverything);
        fkda_problem problem = c.problem(outputs);
        problem.backend = GetParam();
        ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();
        expect_same_results(outputs, serial);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST_P(Memory, ProgressComesOnTheCallingThreadAndNeverRunsBackwards) {
  struct Seen {
    std::thread::id caller = std::this_thread::get_id();
    std::vector<int64_t> done;
    int64_t total = 0;
    bool elsewhere = false;
  } seen;
  const Case c({.B = 4, .T = 100, .H = 4, .K = 32, .V = 32, .seed = 349});
  Outputs outputs = c.make_outputs(kFp32);
  fkda_problem problem = c.problem(outputs);
  problem.backend = GetParam();
  problem.num_threads = 2;
  problem.progress_user = &seen;
  problem.progress = [](void* user, int64_t done, int64_t total) {
    Seen& s = *static_cast<Seen*>(user);
    s.elsewhere = s.elsewhere || std::this_thread::get_id() != s.caller;
    s.done.push_back(done);
    s.total = total;
  };
  ASSERT_EQ(forward(problem), FKDA_OK) << fkda_last_error();
  EXPECT_FALSE(seen.elsewhere);
  ASSERT_FALSE(seen.done.empty());
  EXPECT_TRUE(std::is_sorted(seen.done.begin(), seen.done.end()));
  EXPECT_GT(seen.done.front(), 0);
  EXPECT_EQ(seen.done.back(), seen.total);  // ends at 100 %
}

TEST_P(Memory, TheCallLeavesTheFloatingPointEnvironmentAsItWas) {
  const Case c({.T = 40, .H = 2, .K = 32, .V = 32, .seed = 350});
  volatile float tiny = 1e-38f;
  run(c, kFp32, {.backend = GetParam(), .num_threads = 2});
  tiny = tiny * 0.5f;  // a subnormal number survives
  EXPECT_GT(tiny, 0.0f);
}

}  // namespace
}  // namespace flashkda::test
