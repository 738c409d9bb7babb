#include "core/validate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace flashkda {
namespace {

// ---------------------------------------------------------------------------------------------------- messages

[[noreturn]] void reject(const std::string& message) { throw_error(FKDA_INVALID_ARGUMENT, "%s", message.c_str()); }

std::string shape_text(const fkda_tensor& t) {
  std::string text = "[";
  for (int d = 0; d < t.ndim; ++d) {
    if (d > 0) text += ',';
    text += std::to_string(t.shape[d]);
  }
  return text + "]";
}

std::string device_text(const fkda_tensor& t) {
  if (t.device_type == FKDA_CPU) return "cpu";
  return "cuda:" + std::to_string(t.device_index);
}

std::string dtype_list(std::initializer_list<int32_t> dtypes) {
  std::string text;
  size_t i = 0;
  for (const int32_t d : dtypes) {
    if (i) text += i + 1 == dtypes.size() ? " or " : ", ";
    text += dtype_name(d);
    ++i;
  }
  return text;
}

// A dimension of a required shape: its letter in the documentation and its value here.
struct Dim {
  const char* letter;
  int64_t size;
};

std::string dims_text(std::initializer_list<Dim> dims) {
  std::string letters = "[", sizes = "[";
  for (const Dim& d : dims) {
    if (&d != dims.begin()) {
      letters += ',';
      sizes += ',';
    }
    letters += d.letter;
    sizes += std::to_string(d.size);
  }
  return letters + "] = " + sizes + "]";
}

// ------------------------------------------------------------------------------------------- checks of one view

int64_t element_count(const fkda_tensor& t) {
  int64_t count = 1;
  for (int d = 0; d < t.ndim; ++d) count *= t.shape[d];
  return count;
}

// Rank and sizes are sane, and no element's offset overflows. Everything after may do plain arithmetic.
void check_sane(const char* name, const fkda_tensor& t) {
  if (t.ndim < 0 || t.ndim > FKDA_MAX_DIMS) {
    reject(std::string(name) + ": got " + std::to_string(t.ndim) + " dimensions, needs at most " +
           std::to_string(FKDA_MAX_DIMS));
  }
  if (t.device_type != FKDA_CPU && t.device_type != FKDA_CUDA) {
    reject(std::string(name) + ": got unknown device type " + std::to_string(t.device_type));
  }
  int64_t count = 1, last = 1;  // elements, not counting empty dimensions; elements from the first to the last
  bool fits = true, empty = false;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] < 0 || t.stride[d] < 0) {
      reject(std::string(name) + ": got size " + std::to_string(t.shape[d]) + " and stride " +
             std::to_string(t.stride[d]) + " in dimension " + std::to_string(d) + ", needs both >= 0");
    }
    empty = empty || t.shape[d] == 0;
    fits = fits && !__builtin_mul_overflow(count, std::max<int64_t>(t.shape[d], 1), &count);
  }
  for (int d = 0; d < t.ndim && !empty; ++d) {
    int64_t span = 0;
    fits = fits && !__builtin_mul_overflow(t.shape[d] - 1, t.stride[d], &span) &&
           !__builtin_add_overflow(last, span, &last);
  }
  int64_t bytes = 0;
  fits = fits && !__builtin_mul_overflow(std::max(count, last), int64_t{8}, &bytes);
  if (!fits) reject(std::string(name) + ": got shape " + shape_text(t) + ", whose extent overflows 64 bits");
}

void check_dtype(const char* name, const fkda_tensor& t, std::initializer_list<int32_t> allowed) {
  if (std::find(allowed.begin(), allowed.end(), t.dtype) == allowed.end()) {
    reject(std::string(name) + ": got " + dtype_name(t.dtype) + ", needs " + dtype_list(allowed));
  }
}

void check_shape(const char* name, const fkda_tensor& t, std::initializer_list<Dim> dims) {
  bool equal = t.ndim == static_cast<int32_t>(dims.size());
  int d = 0;
  for (const Dim& dim : dims) equal = equal && t.shape[d++] == dim.size;
  if (!equal) reject(std::string(name) + ": got shape " + shape_text(t) + ", needs " + dims_text(dims));
}

// The last `dense` dimensions lie without gaps.
void check_dense(const char* name, const fkda_tensor& t, int dense) {
  if (element_count(t) == 0) return;
  int64_t expected = 1;
  for (int d = t.ndim - 1; d >= std::max(0, t.ndim - dense); --d) {
    if (t.shape[d] != 1 && t.stride[d] != expected) {
      reject(std::string(name) + ": got stride " + std::to_string(t.stride[d]) + " in dimension " + std::to_string(d) +
             " of shape " + shape_text(t) + ", needs " + std::to_string(expected) +
             (dense == 1 ? " (the last dimension must be dense)" : " (these dimensions must be dense)"));
    }
    expected *= t.shape[d];
  }
}

void check_memory(const char* name, const fkda_tensor& t, const fkda_tensor& q) {
  if (t.device_type != q.device_type || (t.device_type == FKDA_CUDA && t.device_index != q.device_index)) {
    reject(std::string(name) + ": is on " + device_text(t) + ", needs " + device_text(q) + ", the device of q");
  }
  if (element_count(t) == 0) return;
  if (t.data == nullptr) reject(std::string(name) + ": got a null pointer, needs shape " + shape_text(t));
  const auto misaligned = reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_size(t.dtype));
  if (misaligned != 0) {
    reject(std::string(name) + ": its address is " + std::to_string(misaligned) + " bytes past a multiple of " +
           std::to_string(dtype_size(t.dtype)) + ", needs the alignment of " + dtype_name(t.dtype));
  }
}

// The first of the leading `dims` dimensions, by ascending stride, whose stride does not step over all that the smaller
// ones reach: then blocks of `width` bytes at the indices of these dimensions may overlap. -1 if all are disjoint.
struct Clash {
  int dim = -1;
  int64_t needed = 0;  // bytes that its stride would have to be
};

Clash find_clash(const fkda_tensor& t, int dims, int64_t width) {
  int order[FKDA_MAX_DIMS] = {0, 1, 2, 3, 4};
  for (int i = 1; i < dims; ++i) {
    for (int j = i; j > 0 && t.stride[order[j]] < t.stride[order[j - 1]]; --j) std::swap(order[j], order[j - 1]);
  }
  int64_t covered = width;
  for (int i = 0; i < dims; ++i) {
    const int d = order[i];
    if (t.shape[d] == 1) continue;
    const int64_t stride = t.stride[d] * dtype_size(t.dtype);
    if (stride < covered) return {d, covered};
    covered += stride * (t.shape[d] - 1);
  }
  return {};
}

// No element of an output may stand for two.
void check_no_self_overlap(const char* name, const fkda_tensor& t) {
  if (element_count(t) <= 1) return;
  const int64_t size = dtype_size(t.dtype);
  const Clash clash = find_clash(t, t.ndim, size);
  if (clash.dim < 0) return;
  reject(std::string(name) + ": got stride " + std::to_string(t.stride[clash.dim]) + " in dimension " +
         std::to_string(clash.dim) + " of shape " + shape_text(t) + ", needs at least " +
         std::to_string(clash.needed / size) + ": it is written, so its elements must not overlap");
}

bool same_view(const fkda_tensor& a, const fkda_tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.ndim != b.ndim) return false;
  for (int d = 0; d < a.ndim; ++d) {
    if (a.shape[d] != b.shape[d] || (a.shape[d] > 1 && a.stride[d] != b.stride[d])) return false;
  }
  return true;
}

struct Range {
  uintptr_t begin, end;
};

Range footprint(const fkda_tensor& t, int first_dim) {
  int64_t last = 0;
  for (int d = first_dim; d < t.ndim; ++d) last += (t.shape[d] - 1) * t.stride[d];
  const auto begin = reinterpret_cast<uintptr_t>(t.data);
  return {begin, begin + static_cast<uintptr_t>((last + 1) * dtype_size(t.dtype))};
}

// True unless the two views surely share no byte: their ranges are apart, or they are interleaved. Interleaved are
// views whose first `rows` dimensions walk the same places, when what the others reach from there (a block of each) is
// apart and both blocks end before the next place: columns of one row-major buffer, slices of one pool.
bool may_overlap(const fkda_tensor& a, const fkda_tensor& b) {
  if (!present(a) || !present(b) || element_count(a) == 0 || element_count(b) == 0) return false;
  const auto apart = [](Range x, Range y) { return x.end <= y.begin || y.end <= x.begin; };
  if (apart(footprint(a, 0), footprint(b, 0))) return false;
  for (int rows = 1; rows <= std::min(a.ndim, b.ndim); ++rows) {
    const int d = rows - 1;
    const bool same_places = a.shape[d] == b.shape[d] && (a.shape[d] == 1 || a.stride[d] * dtype_size(a.dtype) ==
                                                                                 b.stride[d] * dtype_size(b.dtype));
    if (!same_places) break;
    const Range block_a = footprint(a, rows), block_b = footprint(b, rows);
    const uintptr_t width = std::max(block_a.end, block_b.end) - std::min(block_a.begin, block_b.begin);
    if (apart(block_a, block_b) && find_clash(a, rows, static_cast<int64_t>(width)).dim < 0) return false;
  }
  return true;
}

// ------------------------------------------------------------------------------------------ checks of the values

void check_cu_seqlens_values(const Problem& p) {
  const auto at = [&](int64_t n) { return load_integer(p.cu_seqlens.data, p.cu_seqlens.dtype, n); };
  if (at(0) != 0) reject("cu_seqlens: starts at " + std::to_string(at(0)) + ", needs 0");
  for (int64_t n = 0; n < p.N; ++n) {
    if (at(n + 1) < at(n)) {
      reject("cu_seqlens: falls from " + std::to_string(at(n)) + " to " + std::to_string(at(n + 1)) + " at index " +
             std::to_string(n + 1) + ", needs ascending values");
    }
  }
  if (at(p.N) != p.T) {
    reject("cu_seqlens: ends at " + std::to_string(at(p.N)) + ", needs T = " + std::to_string(p.T));
  }
}

void check_state_indices_values(const Problem& p) {
  std::vector<int64_t> slots;
  for (int64_t n = 0; n < p.N; ++n) {
    const int64_t slot = p.slot(n);
    if (slot < 0) continue;
    for (const fkda_tensor* pool : {&p.initial_state, &p.final_state}) {
      if (present(*pool) && slot >= pool->shape[0]) {
        reject("state_indices: got slot " + std::to_string(slot) + " at index " + std::to_string(n) +
               ", needs less than the pool's " + std::to_string(pool->shape[0]) + " slots");
      }
    }
    slots.push_back(slot);
  }
  if (!present(p.final_state)) return;  // only read: sequences may share a start
  std::sort(slots.begin(), slots.end());
  const auto twin = std::adjacent_find(slots.begin(), slots.end());
  if (twin != slots.end()) {
    reject("state_indices: got slot " + std::to_string(*twin) + " more than once, needs different slots");
  }
}

void check_checkpoint_offsets_values(const Problem& p) {
  for (int64_t n = 0; n < p.N; ++n) {
    const int64_t length = p.sequence(n).length;
    for (int64_t i = 0; i < p.P; ++i) {
      const int64_t offset = p.checkpoint_offset(n, i);
      if (offset >= 0 && (offset % 16 != 0 || offset > length)) {
        reject("checkpoint_offsets: got " + std::to_string(offset) + " at [" + std::to_string(n) + "," +
               std::to_string(i) + "], needs a multiple of 16 in 0.." + std::to_string(length) +
               ", the sequence's length, or a negative value");
      }
    }
  }
}

int64_t intermediate_count(const Problem& p) {
  const auto ceil_div = [&](int64_t length) { return (length + p.intermediate_every - 1) / p.intermediate_every; };
  if (!p.packed()) return ceil_div(p.T);
  int64_t count = 0;
  for (int64_t n = 0; n < p.N; ++n) count += ceil_div(p.sequence(n).length);
  return count;
}

void check_intermediate_count(const Problem& p) {
  if (!present(p.intermediate_states)) return;
  const Dim rows{p.state_layout == FKDA_STATE_V_FIRST ? "V" : "K", p.intermediate_states.shape[3]};
  const Dim columns{p.state_layout == FKDA_STATE_V_FIRST ? "K" : "V", p.intermediate_states.shape[4]};
  check_shape("intermediate_states", p.intermediate_states,
              {{"B", p.B}, {"NT", intermediate_count(p)}, {"HV", p.HV}, rows, columns});
}

// ------------------------------------------------------------------------------------------ checks of the options

void check_choice(const char* name, int32_t value, int32_t last) {
  if (value < 0 || value > last) {
    reject(std::string(name) + ": got " + std::to_string(value) + ", needs 0.." + std::to_string(last));
  }
}

void check_options(const Problem& p) {
  check_choice("gate", p.gate, FKDA_GATE_LOG);
  check_choice("beta_activation", p.beta_activation, FKDA_BETA_ACTIVATED);
  check_choice("state_layout", p.state_layout, FKDA_STATE_K_FIRST);
  check_choice("qk_l2norm", p.qk_l2norm, 1);
  check_choice("batch_invariant", p.batch_invariant, 1);
  check_choice("sequence_split", p.sequence_split, FKDA_SPLIT_NEVER);
  if (p.gate == FKDA_GATE_BOUNDED && !(p.lower_bound >= -5.0f && p.lower_bound < 0.0f)) {
    reject("lower_bound: got " + std::to_string(p.lower_bound) + ", needs a value in [-5, 0) for the bounded gate");
  }
  if (std::isinf(p.scale)) reject("scale: got " + std::to_string(p.scale) + ", needs a finite value");
  if (p.num_threads < 0) reject("num_threads: got " + std::to_string(p.num_threads) + ", needs >= 0");
}

}  // namespace

void check_values(const Problem& p) {
  if (p.packed()) check_cu_seqlens_values(p);
  if (present(p.state_indices)) check_state_indices_values(p);
  if (present(p.checkpoints)) check_checkpoint_offsets_values(p);
  check_intermediate_count(p);
}

Problem validate(const fkda_problem& raw, Purpose purpose) {
  if (raw.struct_size != sizeof(fkda_problem)) {
    reject("problem: struct_size is " + std::to_string(raw.struct_size) + ", needs " +
           std::to_string(sizeof(fkda_problem)) + " (call fkda_problem_init first)");
  }
  Problem p{raw};
  if (purpose == Purpose::kInspect)
    p.out = p.final_state = p.checkpoints = p.checkpoint_offsets = p.intermediate_states = {};
  check_options(p);

  struct Named {
    const char* name;
    fkda_tensor* view;
    bool required;
  };
  const Named inputs[] = {
      {"q", &p.q, true},
      {"k", &p.k, true},
      {"v", &p.v, true},
      {"g", &p.g, true},
      {"beta", &p.beta, true},
      {"A_log", &p.A_log, false},
      {"dt_bias", &p.dt_bias, false},
      {"cu_seqlens", &p.cu_seqlens, false},
      {"initial_state", &p.initial_state, false},
      {"state_indices", &p.state_indices, false},
      {"checkpoint_offsets", &p.checkpoint_offsets, false},
  };
  const Named outputs[] = {
      {"out", &p.out, purpose == Purpose::kForward},
      {"final_state", &p.final_state, false},
      {"checkpoints", &p.checkpoints, false},
      {"intermediate_states", &p.intermediate_states, false},
  };
  for (const std::span<const Named> group : {std::span<const Named>(inputs), std::span<const Named>(outputs)}) {
    for (const Named& n : group) {
      if (n.required && !present(*n.view)) reject(std::string(n.name) + ": is absent, needs a tensor");
      check_sane(n.name, *n.view);
    }
  }

  // Shapes. q gives B, T, H and K; v gives HV and V; cu_seqlens gives N.
  if (p.q.ndim != 4) reject("q: got shape " + shape_text(p.q) + ", needs 4 dimensions [B,T,H,K]");
  if (p.v.ndim != 4) reject("v: got shape " + shape_text(p.v) + ", needs 4 dimensions [B,T,HV,V]");
  p.B = p.q.shape[0];
  p.T = p.q.shape[1];
  p.H = p.q.shape[2];
  p.K = p.q.shape[3];
  p.HV = p.v.shape[2];
  p.V = p.v.shape[3];
  const Dim B{"B", p.B}, T{"T", p.T}, H{"H", p.H}, HV{"HV", p.HV}, K{"K", p.K}, V{"V", p.V};
  check_shape("k", p.k, {B, T, H, K});
  check_shape("v", p.v, {B, T, HV, V});
  check_shape("g", p.g, {B, T, HV, K});
  check_shape("beta", p.beta, {B, T, HV});
  if (p.H < 1 || p.K < 1) reject("q: got shape " + shape_text(p.q) + ", needs at least one head and one channel");
  if (p.V < 1) reject("v: got shape " + shape_text(p.v) + ", needs at least one channel");
  if (p.HV < 1 || p.HV % p.H != 0) {
    reject("v: got HV = " + std::to_string(p.HV) +
           " value heads, needs a positive multiple of H = " + std::to_string(p.H) + ", the heads of q");
  }
  p.N = p.B;
  if (p.packed()) {
    if (p.cu_seqlens.ndim != 1 || p.cu_seqlens.shape[0] < 1) {
      reject("cu_seqlens: got shape " + shape_text(p.cu_seqlens) + ", needs [N+1] with N >= 0");
    }
    if (p.B != 1) reject("q: got B = " + std::to_string(p.B) + " with cu_seqlens, needs B = 1 (a packed batch)");
    p.N = p.cu_seqlens.shape[0] - 1;
  }
  const Dim N{"N", p.N};
  const bool v_first = p.state_layout == FKDA_STATE_V_FIRST;
  const Dim row = v_first ? V : K, column = v_first ? K : V;

  if (present(p.A_log) && element_count(p.A_log) != p.HV) {
    reject("A_log: got shape " + shape_text(p.A_log) + ", needs HV = " + std::to_string(p.HV) + " elements");
  }
  if (present(p.dt_bias)) {
    if (p.dt_bias.ndim == 1) {
      check_shape("dt_bias", p.dt_bias, {{"HV*K", p.HV * p.K}});
    } else {
      check_shape("dt_bias", p.dt_bias, {HV, K});
    }
  }
  if (p.gate == FKDA_GATE_LOG) {
    if (present(p.A_log)) reject("A_log: is given, needs to be absent: with the log gate g is the log decay itself");
    if (present(p.dt_bias))
      reject("dt_bias: is given, needs to be absent: with the log gate g is the log decay itself");
  }

  const bool pool = present(p.state_indices);
  for (const auto& [name, state] : {std::pair{"initial_state", &p.initial_state}, {"final_state", &p.final_state}}) {
    if (!present(*state)) continue;
    const int64_t slots = pool && state->ndim == 4 ? state->shape[0] : p.N;
    check_shape(name, *state, {{pool ? "slots" : "N", slots}, HV, row, column});
  }
  if (pool) check_shape("state_indices", p.state_indices, {N});
  if (present(p.checkpoints) != present(p.checkpoint_offsets)) {
    reject(present(p.checkpoints) ? "checkpoint_offsets: is absent, needs [N,P] with checkpoints"
                                  : "checkpoints: is absent, needs [N,P,HV,V,K] with checkpoint_offsets");
  }
  if (present(p.checkpoints)) {
    if (p.checkpoints.ndim != 5) {
      reject("checkpoints: got shape " + shape_text(p.checkpoints) + ", needs 5 dimensions [N,P,HV," + row.letter +
             "," + column.letter + "]");
    }
    p.P = p.checkpoints.shape[1];
    check_shape("checkpoints", p.checkpoints, {N, {"P", p.P}, HV, row, column});
    check_shape("checkpoint_offsets", p.checkpoint_offsets, {N, {"P", p.P}});
  }
  if (present(p.intermediate_states)) {  // NT needs the values of cu_seqlens: see below
    if (p.intermediate_states.ndim != 5) {
      reject("intermediate_states: got shape " + shape_text(p.intermediate_states) + ", needs 5 dimensions [B,NT,HV," +
             row.letter + "," + column.letter + "]");
    }
    check_shape("intermediate_states", p.intermediate_states,
                {B, {"NT", p.intermediate_states.shape[1]}, HV, row, column});
  }
  if (purpose == Purpose::kForward) check_shape("out", p.out, {B, T, HV, V});

  // Element types.
  check_dtype("q", p.q, {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32});
  check_dtype("k", p.k, {p.q.dtype});
  check_dtype("v", p.v, {p.q.dtype});
  check_dtype("g", p.g, {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32});
  check_dtype("beta", p.beta, {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32});
  for (const auto& [name, t] : {std::pair{"A_log", &p.A_log}, {"dt_bias", &p.dt_bias}}) {
    if (present(*t)) check_dtype(name, *t, {FKDA_FLOAT32});
  }
  for (const auto& [name, t] : {std::pair{"cu_seqlens", &p.cu_seqlens},
                                {"state_indices", &p.state_indices},
                                {"checkpoint_offsets", &p.checkpoint_offsets}}) {
    if (present(*t)) check_dtype(name, *t, {FKDA_INT32, FKDA_INT64});
  }
  for (const auto& [name, t] : {std::pair{"initial_state", &p.initial_state},
                                {"final_state", &p.final_state},
                                {"checkpoints", &p.checkpoints}}) {
    if (present(*t)) check_dtype(name, *t, {FKDA_FLOAT32, FKDA_BFLOAT16, FKDA_FLOAT64});
  }
  for (const auto& [name, t] : {std::pair{"out", &p.out}, {"intermediate_states", &p.intermediate_states}}) {
    if (present(*t)) check_dtype(name, *t, {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32, FKDA_FLOAT64});
  }

  // Memory: density, device, alignment.
  for (const auto& [name, t] : {std::pair{"q", &p.q},
                                {"k", &p.k},
                                {"v", &p.v},
                                {"g", &p.g},
                                {"beta", &p.beta},
                                {"checkpoint_offsets", &p.checkpoint_offsets},
                                {"out", &p.out}}) {
    if (present(*t)) check_dense(name, *t, 1);
  }
  for (const auto& [name, t] : {std::pair{"A_log", &p.A_log},
                                {"dt_bias", &p.dt_bias},
                                {"cu_seqlens", &p.cu_seqlens},
                                {"state_indices", &p.state_indices}}) {
    if (present(*t)) check_dense(name, *t, t->ndim);
  }
  for (const auto& [name, t] : {std::pair{"initial_state", &p.initial_state},
                                {"final_state", &p.final_state},
                                {"checkpoints", &p.checkpoints},
                                {"intermediate_states", &p.intermediate_states}}) {
    if (present(*t)) check_dense(name, *t, 2);
  }
  for (const std::span<const Named> group : {std::span<const Named>(inputs), std::span<const Named>(outputs)}) {
    for (const Named& n : group) {
      if (present(*n.view)) check_memory(n.name, *n.view, p.q);
    }
  }

  // Values, where the host can read them.
  if (present(p.intermediate_states) && (p.intermediate_every < 16 || p.intermediate_every % 16 != 0)) {
    reject("intermediate_every: got " + std::to_string(p.intermediate_every) + ", needs a positive multiple of 16");
  }
  if (p.q.device_type == FKDA_CPU) {
    check_values(p);
  } else if (!p.packed()) {
    check_intermediate_count(p);
  }

  // Aliasing: what is written overlaps nothing, but for a state updated in place.
  for (const Named& o : outputs) {
    check_no_self_overlap(o.name, *o.view);
    for (const Named& i : inputs) {
      const bool in_place = o.view == &p.final_state && i.view == &p.initial_state && same_view(*o.view, *i.view);
      if (!in_place && may_overlap(*o.view, *i.view)) {
        reject(std::string(o.name) + ": overlaps " + i.name + ", needs memory of its own" +
               (o.view == &p.final_state && i.view == &p.initial_state ? " (or to be the very same view)" : ""));
      }
    }
    for (const Named& other : outputs) {
      if (other.view != o.view && may_overlap(*o.view, *other.view)) {
        reject(std::string(o.name) + ": overlaps " + other.name + ", needs memory of its own");
      }
    }
  }

  if (std::isnan(p.scale)) p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.K)));
  return p;
}

}  // namespace flashkda
