// FlashKDA: Kimi Delta Attention. The C++20 interface, a header-only facade over flashkda.h.
//
//   std::vector<float> out(q.size()), state(H * D * D);
//   flashkda::forward(flashkda::Problem()
//                         .q(flashkda::view(q, {1, T, H, D})).k(flashkda::view(k, {1, T, H, D}))
//                         .v(flashkda::view(v, {1, T, H, D})).g(flashkda::view(g, {1, T, H, D}))
//                         .beta(flashkda::view(beta, {1, T, H}))
//                         .bounded_gate(-5.0f)
//                         .out(flashkda::view(out, {1, T, H, D}))
//                         .final_state(flashkda::view(state, {1, H, D, D})));
//
// Shapes, dtypes, defaults and every rule of the operation are those of flashkda.h, which this header does not repeat.
// A failure is thrown as flashkda::Error and has written nothing.
#ifndef FLASHKDA_FLASHKDA_HPP_
#define FLASHKDA_FLASHKDA_HPP_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <ranges>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "flashkda/flashkda.h"

namespace flashkda {
// Keeps these names apart from the library's own when it is linked statically. Write flashkda::forward.
inline namespace v1 {

// ------------------------------------------------------------------------------------------------------------ errors

class Error : public std::runtime_error {
 public:
  Error(fkda_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  fkda_status status() const noexcept { return status_; }

 private:
  fkda_status status_;
};

// Throws what the last call of this thread had to say, unless it succeeded.
inline void check(fkda_status status) {
  if (status != FKDA_OK) throw Error(status, fkda_last_error());
}

// ------------------------------------------------------------------------------------------------------------- views

struct float16 {
  std::uint16_t bits;
};

struct bfloat16 {
  std::uint16_t bits;

  bfloat16() = default;
  explicit bfloat16(float value) {  // round to nearest even
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(is_nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

// The fkda_dtype of an element type. Specialise it for a bf16 or fp16 type of your own.
template <typename T>
inline constexpr fkda_dtype dtype_of{};
// clang-format off
template <> inline constexpr fkda_dtype dtype_of<float> = FKDA_FLOAT32;
template <> inline constexpr fkda_dtype dtype_of<double> = FKDA_FLOAT64;
template <> inline constexpr fkda_dtype dtype_of<bfloat16> = FKDA_BFLOAT16;
template <> inline constexpr fkda_dtype dtype_of<float16> = FKDA_FLOAT16;
template <> inline constexpr fkda_dtype dtype_of<std::int32_t> = FKDA_INT32;
template <> inline constexpr fkda_dtype dtype_of<std::int64_t> = FKDA_INT64;
// clang-format on

// A view of memory the caller owns and keeps alive: read-only, and writable.
struct ConstTensor {
  fkda_tensor raw{};
};
struct Tensor : ConstTensor {};

using Dims = std::initializer_list<std::int64_t>;

// A view of a contiguous range (vector, array, span, ...) with a shape and, unless it is dense and row-major, strides,
// both in elements. Throws if the range is shorter than that. Over const elements it is a ConstTensor.
template <std::ranges::contiguous_range Range>
requires std::ranges::borrowed_range<Range>
auto view(Range&& range, Dims shape, Dims stride = {}) {
  using Element = std::remove_reference_t<std::ranges::range_reference_t<Range>>;
  const auto fail = [](const std::string& what) { throw Error(FKDA_INVALID_ARGUMENT, "view: " + what); };
  if (shape.size() == 0 || shape.size() > FKDA_MAX_DIMS)
    fail("got " + std::to_string(shape.size()) + " dimensions, needs 1 to " + std::to_string(int{FKDA_MAX_DIMS}));
  if (stride.size() != 0 && stride.size() != shape.size())
    fail("got " + std::to_string(stride.size()) + " strides for " + std::to_string(shape.size()) + " dimensions");
  const auto negative = [](std::int64_t x) { return x < 0; };
  if (std::ranges::any_of(shape, negative) || std::ranges::any_of(stride, negative))
    fail("got a negative size or stride");

  std::conditional_t<std::is_const_v<Element>, ConstTensor, Tensor> tensor;
  void* data = const_cast<void*>(static_cast<const void*>(std::ranges::data(range)));
  constexpr fkda_dtype dtype = dtype_of<std::remove_cv_t<Element>>;
  static_assert(dtype != fkda_dtype{}, "no fkda_dtype for this element type");
  tensor.raw = fkda_dense(data, dtype, static_cast<std::int32_t>(shape.size()), std::data(shape));
  std::ranges::copy(stride, tensor.raw.stride);

  std::int64_t left = static_cast<std::int64_t>(std::ranges::size(range)) - 1;  // elements behind the one reached
  bool fits = left >= 0;
  for (int d = 0; d < tensor.raw.ndim && fits; ++d) {
    const std::int64_t steps = tensor.raw.shape[d] - 1, step = tensor.raw.stride[d];
    fits = step == 0 || steps <= left / step;
    if (fits) left -= steps * step;
  }
  if (!fits && std::ranges::find(shape, 0) == shape.end())
    fail("got a range of " + std::to_string(std::ranges::size(range)) +
         " elements, shorter than shape and strides need");
  return tensor;
}

// The whole range as a vector.
template <std::ranges::contiguous_range Range>
requires std::ranges::borrowed_range<Range>
auto view(Range&& range) { return view(range, {static_cast<std::int64_t>(std::ranges::size(range))}); }

// ----------------------------------------------------------------------------------------------------------- problem

// Builder of an fkda_problem. Starts from the defaults of fkda_problem_init; every setter returns the problem.
class Problem {
 public:
  Problem() { fkda_problem_init(&raw_); }

  // Inputs.
  Problem& q(ConstTensor t) { return tensor(raw_.q, t); }
  Problem& k(ConstTensor t) { return tensor(raw_.k, t); }
  Problem& v(ConstTensor t) { return tensor(raw_.v, t); }
  Problem& g(ConstTensor t) { return tensor(raw_.g, t); }
  Problem& beta(ConstTensor t) { return tensor(raw_.beta, t); }
  Problem& A_log(ConstTensor t) { return tensor(raw_.A_log, t); }
  Problem& dt_bias(ConstTensor t) { return tensor(raw_.dt_bias, t); }
  Problem& cu_seqlens(ConstTensor t) { return tensor(raw_.cu_seqlens, t); }
  Problem& initial_state(ConstTensor t) { return tensor(raw_.initial_state, t); }
  Problem& state_indices(ConstTensor t) { return tensor(raw_.state_indices, t); }

  // Outputs. final_state may be the view given as initial_state.
  Problem& out(Tensor t) { return tensor(raw_.out, t); }
  Problem& final_state(Tensor t) { return tensor(raw_.final_state, t); }
  Problem& checkpoints(Tensor states, ConstTensor offsets) {
    return tensor(raw_.checkpoints, states).tensor(raw_.checkpoint_offsets, offsets);
  }
  Problem& intermediate_states(Tensor states, std::int32_t every) {
    return tensor(raw_.intermediate_states, states).option(raw_.intermediate_every, every);
  }

  // Options.
  Problem& bounded_gate(float lower_bound) {
    return option(raw_.gate, FKDA_GATE_BOUNDED).option(raw_.lower_bound, lower_bound);
  }
  Problem& softplus_gate() { return option(raw_.gate, FKDA_GATE_SOFTPLUS); }
  Problem& log_gate() { return option(raw_.gate, FKDA_GATE_LOG); }
  Problem& beta_activation(fkda_beta kind) { return option(raw_.beta_activation, kind); }
  Problem& scale(float value) { return option(raw_.scale, value); }
  Problem& qk_l2norm(bool on) { return option(raw_.qk_l2norm, on); }
  Problem& state_layout(fkda_state_layout layout) { return option(raw_.state_layout, layout); }
  Problem& batch_invariant(bool on) { return option(raw_.batch_invariant, on); }
  Problem& sequence_split(fkda_split kind) { return option(raw_.sequence_split, kind); }
  Problem& num_threads(std::int32_t count) { return option(raw_.num_threads, count); }
  Problem& backend(std::string name) { return option(backend_, std::move(name)); }
  // Called on the calling thread as progress(done, total). Must not throw.
  Problem& progress(std::function<void(std::int64_t, std::int64_t)> f) { return option(progress_, std::move(f)); }

  // The C problem. Valid as long as this object lives unchanged.
  fkda_problem raw() const {
    fkda_problem p = raw_;
    p.backend = backend_.empty() ? nullptr : backend_.c_str();
    if (progress_) {
      p.progress_user = const_cast<void*>(static_cast<const void*>(&progress_));
      p.progress = [](void* user, std::int64_t done, std::int64_t total) noexcept {
        (*static_cast<const std::function<void(std::int64_t, std::int64_t)>*>(user))(done, total);
      };
    }
    return p;
  }

 private:
  Problem& tensor(fkda_tensor& member, const ConstTensor& t) {
    member = t.raw;
    return *this;
  }
  template <typename Member, typename Value>
  Problem& option(Member& member, Value&& value) {
    member = static_cast<Member>(std::forward<Value>(value));
    return *this;
  }

  fkda_problem raw_;
  std::string backend_;
  std::function<void(std::int64_t, std::int64_t)> progress_;
};

// --------------------------------------------------------------------------------------------------------------- run

// CPU memory with the alignment that a workspace needs. Contents are indeterminate.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes)
      : blocks_(std::make_unique_for_overwrite<Block[]>(bytes / sizeof(Block) + 1)), bytes_(bytes) {}
  std::span<std::byte> span() const { return {blocks_[0].data, bytes_}; }

 private:
  struct Block {
    alignas(FKDA_WORKSPACE_ALIGNMENT) std::byte data[FKDA_WORKSPACE_ALIGNMENT];
  };
  std::unique_ptr<Block[]> blocks_;
  std::size_t bytes_;
};

// Checks the problem; returns the name of the implementation that would run it.
inline std::string validate(const Problem& problem) {
  const fkda_problem raw = problem.raw();
  const char* name = "";
  check(fkda_validate(&raw, &name));
  return name;
}

// Bytes of workspace that forward needs, exactly.
inline std::size_t workspace_size(const Problem& problem) {
  const fkda_problem raw = problem.raw();
  std::size_t bytes = 0;
  check(fkda_workspace_size(&raw, &bytes));
  return bytes;
}

// Computes the problem in memory of the caller: at least workspace_size(problem) bytes on the problem's device, aligned
// to FKDA_WORKSPACE_ALIGNMENT. stream: a cudaStream_t for CUDA tensors.
inline void forward(const Problem& problem, std::span<std::byte> workspace, void* stream = nullptr) {
  const fkda_problem raw = problem.raw();
  check(fkda_forward(&raw, workspace.data(), workspace.size(), stream));
}

// Computes a problem of CPU tensors in a workspace of its own.
inline void forward(const Problem& problem) { forward(problem, Workspace(workspace_size(problem)).span()); }

// ------------------------------------------------------------------------------------------------- implementations

struct Implementation {
  std::string name;
  fkda_device_type device_type;
  bool available;
  std::string detail;
  std::vector<std::string> features;
};

// In the order in which the automatic choice tries them.
inline std::vector<Implementation> implementations() {
  std::vector<Implementation> list;
  for (std::int32_t i = 0; i < fkda_implementation_count(); ++i) {
    fkda_implementation info;
    check(fkda_implementation_info(i, &info));
    std::istringstream features(info.features);
    list.push_back({info.name,
                    static_cast<fkda_device_type>(info.device_type),
                    info.available != 0,
                    info.detail,
                    {std::istream_iterator<std::string>(features), {}}});
  }
  return list;
}

// ------------------------------------------------------------------------------------------------------- see a chunk

// The symbols of fkda_chunk, in fp64, row-major: [rows,rows], [rows,K] or [rows,V]; S and S_next [K,V]; b [rows].
struct Chunk {
  std::int64_t rows = 0, first_token = 0;
  std::vector<double> q, k, v, a, G, b, kd, qd, ki, kr, L, Mqk, INV, U, O, S, S_next;
};

// Every symbol of one chunk. chunk_size: 16, 32 or 64; head: a value head. CPU tensors only; outputs may be absent.
inline Chunk inspect(const Problem& problem, std::int64_t sequence, std::int64_t head, std::int64_t chunk,
                     std::int32_t chunk_size = 16) {
  const fkda_problem raw = problem.raw();
  fkda_chunk c{};
  c.struct_size = sizeof(c);
  c.chunk_size = chunk_size;
  c.sequence = sequence, c.head = head, c.chunk = chunk;
  check(fkda_inspect_chunk(&raw, &c));  // no buffers yet: checks the arguments and counts the rows

  Chunk result;
  const auto K = static_cast<std::size_t>(raw.q.shape[3]), V = static_cast<std::size_t>(raw.v.shape[3]);
  const auto resize = [&](std::size_t rows) {
    const auto bind = [](std::vector<double>& values, double*& pointer, std::size_t size) {
      values.resize(size);
      pointer = values.data();
    };
    bind(result.q, c.q, rows * K), bind(result.k, c.k, rows * K), bind(result.v, c.v, rows * V);
    bind(result.a, c.a, rows * K), bind(result.G, c.G, rows * K), bind(result.b, c.b, rows);
    bind(result.kd, c.kd, rows * K), bind(result.qd, c.qd, rows * K);
    bind(result.ki, c.ki, rows * K), bind(result.kr, c.kr, rows * K);
    bind(result.L, c.L, rows * rows), bind(result.Mqk, c.Mqk, rows * rows), bind(result.INV, c.INV, rows * rows);
    bind(result.U, c.U, rows * V), bind(result.O, c.O, rows * V);
    bind(result.S, c.S, K * V), bind(result.S_next, c.S_next, K * V);
  };
  resize(static_cast<std::size_t>(chunk_size));  // what fkda_chunk asks for; a short last chunk fills less
  check(fkda_inspect_chunk(&raw, &c));
  resize(static_cast<std::size_t>(c.rows));
  result.rows = c.rows;
  result.first_token = c.first_token;
  return result;
}

}  // namespace v1
}  // namespace flashkda

#endif  // FLASHKDA_FLASHKDA_HPP_
