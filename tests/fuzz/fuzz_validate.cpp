// The C interface on any problem: it rejects it with a message, or it runs it inside the memory that the views
// describe.
//
// The bytes make a small valid problem, then change some of its members to anything. Views whose memory is small get
// exactly that much of it, so that an access past it is seen; others get an address that nobody may touch. Integers are
// the exception: their values are read during validation, so that they need real memory or none.
#include <fuzzer/FuzzedDataProvider.h>
#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "core/dtype.hpp"
#include "flashkda/flashkda.h"

namespace {

constexpr int64_t kMostBytes = 1 << 20;         // of a view that gets memory
constexpr int64_t kMostWork = 1'000'000;        // multiply-adds of a problem that is run
constexpr uintptr_t kNowhere = 0x100000000000;  // 16 TiB: nothing is mapped there

// Members of fkda_problem, outputs last.
constexpr fkda_tensor fkda_problem::*kViews[] = {&fkda_problem::q,
                                                 &fkda_problem::k,
                                                 &fkda_problem::v,
                                                 &fkda_problem::g,
                                                 &fkda_problem::beta,
                                                 &fkda_problem::A_log,
                                                 &fkda_problem::dt_bias,
                                                 &fkda_problem::cu_seqlens,
                                                 &fkda_problem::initial_state,
                                                 &fkda_problem::state_indices,
                                                 &fkda_problem::checkpoint_offsets,
                                                 &fkda_problem::out,
                                                 &fkda_problem::final_state,
                                                 &fkda_problem::checkpoints,
                                                 &fkda_problem::intermediate_states};

void check(bool holds) {
  if (!holds) std::abort();
}

class Generator {
 public:
  Generator(const uint8_t* data, size_t size) : bytes_(data, size) { fkda_problem_init(&problem_); }

  // In this order.
  void make_valid() {
    B_ = pick<int64_t>({1, 1, 2, 0});
    T_ = pick<int64_t>({1, 17, 70, 5, 16, 64, 0});
    H_ = pick<int64_t>({1, 2, 3});
    HV_ = H_ * pick<int64_t>({1, 2, 3});
    K_ = pick<int64_t>({8, 16, 64, 128, 32, 4, 96});
    V_ = coin() ? K_ : pick<int64_t>({8, 16, 64, 128, 40, 5});
    const bool packed = coin();
    if (packed) B_ = 1;
    N_ = packed ? pick<int64_t>({1, 2, 3, 0, 5}) : B_;

    const int32_t dtype = pick({FKDA_BFLOAT16, FKDA_FLOAT32, FKDA_FLOAT16});
    problem_.q = tokens(dtype, {B_, T_, H_, K_});
    problem_.k = tokens(dtype, {B_, T_, H_, K_});
    problem_.v = tokens(dtype, {B_, T_, HV_, V_});
    problem_.g = tokens(coin() ? dtype : FKDA_FLOAT32, {B_, T_, HV_, K_});
    problem_.beta = tokens(coin() ? dtype : FKDA_FLOAT32, {B_, T_, HV_});
    problem_.out = tokens(pick({FKDA_BFLOAT16, FKDA_FLOAT32, FKDA_FLOAT16}), {B_, T_, HV_, V_});
    problem_.gate = pick({FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG});
    if (problem_.gate != FKDA_GATE_LOG) {
      if (coin()) problem_.A_log = dense(FKDA_FLOAT32, {HV_});
      if (coin()) problem_.dt_bias = dense(FKDA_FLOAT32, {HV_, K_});
    }
    if (packed) problem_.cu_seqlens = dense(integer_dtype(), {N_ + 1});
    problem_.state_layout = pick({FKDA_STATE_V_FIRST, FKDA_STATE_K_FIRST});
    const bool pool = coin();
    slots_ = pool ? N_ + pick<int64_t>({0, 1, 3}) : N_;
    if (coin() || pool) problem_.initial_state = states(FKDA_FLOAT32, FKDA_BFLOAT16, {slots_});
    if (coin()) problem_.final_state = states(FKDA_FLOAT32, FKDA_BFLOAT16, {slots_});
    if (pool) problem_.state_indices = dense(integer_dtype(), {N_});
    in_place_ = coin();
    if (coin()) {
      const int64_t P = pick<int64_t>({1, 2, 0});
      problem_.checkpoint_offsets = dense(integer_dtype(), {N_, P});
      problem_.checkpoints = states(FKDA_FLOAT32, FKDA_BFLOAT16, {N_, P});
    }
    if (!packed && coin()) {
      problem_.intermediate_every = pick({16, 64, 48});
      const int64_t count = (T_ + problem_.intermediate_every - 1) / problem_.intermediate_every;
      problem_.intermediate_states = states(FKDA_FLOAT32, FKDA_FLOAT16, {B_, count});
    }
    problem_.lower_bound = pick({-5.0f, -0.5f, -1e-3f});
    problem_.qk_l2norm = pick({1, 0});
    problem_.beta_activation = pick({FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID, FKDA_BETA_ACTIVATED});
    problem_.batch_invariant = pick({0, 1});
    problem_.sequence_split = pick({FKDA_SPLIT_AUTO, FKDA_SPLIT_EXACT, FKDA_SPLIT_NEVER});
    problem_.num_threads = pick({1, 2});
    problem_.backend = pick<const char*>({nullptr, "auto", "cpu", "reference"});
  }

  void change_members() {
    for (int left = bytes_.ConsumeIntegralInRange(0, 3); left > 0; --left) {
      if (coin()) {
        change_option();
      } else {
        change_view(problem_.*kViews[bytes_.ConsumeIntegralInRange<size_t>(0, std::size(kViews) - 1)]);
      }
    }
  }

  void give_memory() {
    for (const auto member : kViews) give_memory(problem_.*member);
    if (in_place_ && problem_.final_state.ndim != 0) problem_.final_state = problem_.initial_state;
    fill_integers();
  }

  const fkda_problem& problem() const { return problem_; }
  // Whether every view has real memory.
  bool has_memory() const { return all_real_; }
  FuzzedDataProvider& bytes() { return bytes_; }

 private:
  bool coin() { return bytes_.ConsumeBool(); }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[bytes_.ConsumeIntegralInRange<size_t>(0, values.size() - 1)];
  }
  fkda_dtype integer_dtype() { return coin() ? FKDA_INT64 : FKDA_INT32; }

  static fkda_tensor dense(int32_t dtype, const std::vector<int64_t>& shape) {
    return fkda_dense(nullptr, static_cast<fkda_dtype>(dtype), static_cast<int32_t>(shape.size()), shape.data());
  }
  // With any gap between tokens.
  fkda_tensor tokens(int32_t dtype, const std::vector<int64_t>& shape) {
    fkda_tensor view = dense(dtype, shape);
    view.stride[1] += pick<int64_t>({0, 0, 8, 3});
    view.stride[0] = view.stride[1] * view.shape[1];
    return view;
  }
  fkda_tensor states(fkda_dtype one, fkda_dtype other, std::vector<int64_t> shape) {
    shape.push_back(HV_);
    const bool v_first = problem_.state_layout == FKDA_STATE_V_FIRST;
    shape.push_back(v_first ? V_ : K_);
    shape.push_back(v_first ? K_ : V_);
    return dense(coin() ? one : other, shape);
  }

  int64_t any_integer() {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
    return coin() ? pick<int64_t>({0, 1, -1, 2, 129, 1 << 20, int64_t{1} << 31, int64_t{1} << 32, int64_t{1} << 61,
                                   kMax, kMax - 1, kMin})
                  : bytes_.ConsumeIntegral<int64_t>();
  }

  void change_view(fkda_tensor& view) {
    const size_t d = bytes_.ConsumeIntegralInRange<size_t>(0, FKDA_MAX_DIMS - 1);
    switch (bytes_.ConsumeIntegralInRange(0, 6)) {
      case 0: view.shape[d] = any_integer(); break;
      case 1: view.stride[d] = any_integer(); break;
      case 2: view.ndim = static_cast<int32_t>(any_integer()); break;
      case 3: view.dtype = pick<int32_t>({0, 1, 2, 3, 4, 5, 6, 7, -1, 1 << 30}); break;
      case 4: view.device_type = pick<int32_t>({0, 1, 2, -1}); break;
      case 5: view.device_index = static_cast<int32_t>(any_integer()); break;
      default: view = problem_.*kViews[bytes_.ConsumeIntegralInRange<size_t>(0, std::size(kViews) - 1)];
    }
  }

  void change_option() {
    switch (bytes_.ConsumeIntegralInRange(0, 11)) {
      case 0: problem_.gate = static_cast<int32_t>(any_integer()); break;
      case 1: problem_.lower_bound = bytes_.ConsumeFloatingPoint<float>(); break;
      case 2: problem_.scale = bytes_.ConsumeFloatingPoint<float>(); break;
      case 3: problem_.qk_l2norm = static_cast<int32_t>(any_integer()); break;
      case 4: problem_.beta_activation = static_cast<int32_t>(any_integer()); break;
      case 5: problem_.state_layout = static_cast<int32_t>(any_integer()); break;
      case 6: problem_.intermediate_every = static_cast<int32_t>(any_integer()); break;
      case 7: problem_.batch_invariant = static_cast<int32_t>(any_integer()); break;
      case 8: problem_.num_threads = pick<int32_t>({0, -1, 3, std::numeric_limits<int32_t>::min()}); break;
      case 9: problem_.sequence_split = static_cast<int32_t>(any_integer()); break;
      case 10: problem_.struct_size = bytes_.ConsumeIntegral<uint32_t>(); break;
      default: problem_.backend = pick<const char*>({"cuda", "", "auto ", "no such backend %s %n"});
    }
  }

  // Bytes from the first to the last element, if they are few.
  static std::optional<size_t> extent(const fkda_tensor& view) {
    const int64_t size = std::max<int64_t>(1, flashkda::dtype_size(view.dtype));
    int64_t last = 0;
    if (view.ndim < 0 || view.ndim > FKDA_MAX_DIMS) return std::nullopt;
    for (int d = 0; d < view.ndim; ++d) {
      if (view.shape[d] == 0) return 0;
    }
    for (int d = 0; d < view.ndim; ++d) {
      int64_t reach = 0;
      if (view.shape[d] < 0 || view.stride[d] < 0 ||
          __builtin_mul_overflow(view.shape[d] - 1, view.stride[d], &reach) ||
          __builtin_add_overflow(last, reach, &last) || last > kMostBytes / size) {
        return std::nullopt;
      }
    }
    return static_cast<size_t>((last + 1) * size);
  }

  void give_memory(fkda_tensor& view) {
    if (view.ndim == 0) return;
    const bool integers = view.dtype == FKDA_INT32 || view.dtype == FKDA_INT64;
    const std::optional<size_t> bytes = extent(view);
    if (!bytes) {
      all_real_ = false;
      view.data = integers ? nullptr : reinterpret_cast<void*>(kNowhere * ++fakes_);
      return;
    }
    // In bytes of its own size and no more; malloc aligns it for every dtype.
    memory_.emplace_back(static_cast<std::byte*>(std::malloc(*bytes)), &std::free);
    view.data = memory_.back().get();
    if (integers || *bytes == 0) return;
    const int fill = bytes_.ConsumeIntegral<uint8_t>();  // any value of a float may come in
    std::memset(view.data, fill, *bytes);
  }

  static void store(fkda_tensor& view, int64_t index, int64_t value) {
    if (view.dtype == FKDA_INT32) {
      static_cast<int32_t*>(view.data)[index] = static_cast<int32_t>(value);
    } else {
      static_cast<int64_t*>(view.data)[index] = value;
    }
  }

  // Good values, then some of any kind.
  void fill_integers() {
    for (fkda_tensor* view : {&problem_.cu_seqlens, &problem_.state_indices, &problem_.checkpoint_offsets}) {
      const std::optional<size_t> bytes = extent(*view);
      if (view->ndim == 0 || view->data == nullptr || !bytes) continue;
      if (view->dtype != FKDA_INT32 && view->dtype != FKDA_INT64) continue;
      const auto count = static_cast<int64_t>(*bytes) / flashkda::dtype_size(view->dtype);
      int64_t value = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (view == &problem_.cu_seqlens)
          value = i + 1 == count ? T_ : std::min(T_, value + pick<int64_t>({0, 1, 16, 33}));
        if (view == &problem_.cu_seqlens && i == 0) value = 0;
        if (view == &problem_.state_indices) value = coin() ? i : -1;
        if (view == &problem_.checkpoint_offsets) value = pick<int64_t>({0, 16, -1, 64});
        store(*view, i, value);
      }
      if (count > 0 && bytes_.ConsumeIntegralInRange(0, 9) == 0) {
        store(*view, bytes_.ConsumeIntegralInRange<int64_t>(0, count - 1), any_integer());
      }
    }
  }

  FuzzedDataProvider bytes_;
  fkda_problem problem_;
  int64_t B_ = 0, T_ = 0, H_ = 0, HV_ = 0, K_ = 0, V_ = 0, N_ = 0, slots_ = 0;
  bool in_place_ = false, all_real_ = true;
  uintptr_t fakes_ = 0;
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory_;
};

// Multiply-adds, if they are few.
bool is_small(const fkda_problem& p) {
  int64_t work = 1;
  for (const int64_t factor : {p.v.shape[0], p.v.shape[1], p.v.shape[2], p.q.shape[3], p.v.shape[3]}) work *= factor;
  return work <= kMostWork;
}

void expect_rejection(fkda_status status, const fkda_problem& problem) {
  check(status == FKDA_INVALID_ARGUMENT || status == FKDA_UNSUPPORTED);
  check(std::strlen(fkda_last_error()) > 0);
  size_t bytes = 0;
  check(fkda_workspace_size(&problem, &bytes) == status);
  check(fkda_forward(&problem, nullptr, 0, nullptr) == status);
}

void run(const fkda_problem& problem, size_t bytes) {
  const size_t rounded = (bytes / FKDA_WORKSPACE_ALIGNMENT + 1) * FKDA_WORKSPACE_ALIGNMENT;
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(FKDA_WORKSPACE_ALIGNMENT, rounded),
                                                              &std::free);
  std::memset(workspace.get(), 0xff, rounded);
  auto* const end = static_cast<std::byte*>(workspace.get()) + bytes;
  ASAN_POISON_MEMORY_REGION(end, rounded - bytes);
  if (bytes > 0) check(fkda_forward(&problem, workspace.get(), bytes - 1, nullptr) == FKDA_WORKSPACE_TOO_SMALL);
  check(fkda_forward(&problem, workspace.get(), bytes, nullptr) == FKDA_OK);
  ASAN_UNPOISON_MEMORY_REGION(end, rounded - bytes);
}

void inspect(const fkda_problem& problem, FuzzedDataProvider& bytes) {
  fkda_chunk chunk = {};
  chunk.struct_size = sizeof(chunk);
  chunk.chunk_size = bytes.PickValueInArray({16, 32, 64, 0, -16});
  chunk.sequence = bytes.ConsumeIntegralInRange<int64_t>(-1, 3);
  chunk.head = bytes.ConsumeIntegralInRange<int64_t>(-1, 9);
  chunk.chunk = bytes.ConsumeIntegralInRange<int64_t>(-1, 5);
  const auto rows = static_cast<size_t>(std::max(chunk.chunk_size, 0));
  std::vector<double> L(rows * rows), U(rows * static_cast<size_t>(problem.v.shape[3]));
  chunk.L = L.data();
  chunk.U = U.data();
  const fkda_status status = fkda_inspect_chunk(&problem, &chunk);
  check(status == FKDA_OK || status == FKDA_INVALID_ARGUMENT);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Generator generator(data, size);
  generator.make_valid();
  generator.change_members();
  generator.give_memory();
  const fkda_problem& problem = generator.problem();

  const char* name = nullptr;
  const fkda_status status = fkda_validate(&problem, &name);
  if (status != FKDA_OK) {
    expect_rejection(status, problem);
    return 0;
  }
  check(name != nullptr);
  size_t bytes = 0;
  check(fkda_workspace_size(&problem, &bytes) == FKDA_OK);
  if (generator.has_memory() && is_small(problem)) {
    run(problem, bytes);
    inspect(problem, generator.bytes());
  }
  return 0;
}
