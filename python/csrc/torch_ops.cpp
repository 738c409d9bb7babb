// torch.ops.flash_kda: the C interface as PyTorch operators. A thin layer: tensors become views, arguments become
// options, a failed status becomes an exception "flash_kda: <status>: <message>"; every check of values is the core's.
//
// Only torch's stable ABI is used, so the object works with every torch >= TORCH_TARGET_VERSION.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "flashkda/flashkda.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

[[noreturn]] void fail(fkda_status status, const std::string& message) {
  throw std::runtime_error(std::string("flash_kda: ") + fkda_status_string(status) + ": " + message);
}

void check(fkda_status status) {
  if (status != FKDA_OK) fail(status, fkda_last_error());
}

// ---------------------------------------------------------------------------------------------- tensors as views

fkda_dtype dtype_of(const char* name, const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return FKDA_FLOAT32;
    case ScalarType::BFloat16: return FKDA_BFLOAT16;
    case ScalarType::Half: return FKDA_FLOAT16;
    case ScalarType::Double: return FKDA_FLOAT64;
    case ScalarType::Int: return FKDA_INT32;
    case ScalarType::Long: return FKDA_INT64;
    default:
      fail(FKDA_INVALID_ARGUMENT, std::string(name) + ": got dtype " +
                                      torch::headeronly::toString(tensor.scalar_type()) +
                                      ", needs a float (64, 32, 16 or bfloat16) or int (64 or 32) type");
  }
}

fkda_device_type device_of(const char* name, const Tensor& tensor) {
  if (tensor.is_cpu()) return FKDA_CPU;
  if (tensor.is_cuda()) return FKDA_CUDA;
  fail(FKDA_INVALID_ARGUMENT, std::string(name) + ": is neither on a CPU nor on a CUDA device");
}

// The tensor's memory as it lies: no copy, any stride.
fkda_tensor view(const char* name, const Tensor& tensor) {
  fkda_tensor t = {};
  t.data = tensor.data_ptr();
  t.dtype = dtype_of(name, tensor);
  t.device_type = device_of(name, tensor);
  t.device_index = t.device_type == FKDA_CUDA ? tensor.get_device_index() : 0;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  if (sizes.size() > FKDA_MAX_DIMS) {
    fail(FKDA_INVALID_ARGUMENT, std::string(name) + ": got " + std::to_string(sizes.size()) +
                                    " dimensions, needs at most " + std::to_string(int{FKDA_MAX_DIMS}));
  }
  if (sizes.size() == 0) {  // ndim 0 means absent in the C interface
    t.ndim = 1;
    t.shape[0] = t.stride[0] = 1;
    return t;
  }
  t.ndim = static_cast<int32_t>(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    t.shape[d] = sizes[d];
    t.stride[d] = strides[d];
  }
  return t;
}

fkda_tensor view(const char* name, const MaybeTensor& tensor) {
  return tensor.has_value() ? view(name, *tensor) : fkda_tensor{};
}

// ------------------------------------------------------------------------------------------------ the operators

// What every operator is told about the problem.
fkda_problem make_problem(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                          const MaybeTensor& A_log, const MaybeTensor& dt_bias, const MaybeTensor& cu_seqlens,
                          const MaybeTensor& initial_state, double scale, int64_t gate, double lower_bound,
                          bool qk_l2norm, int64_t beta_activation, int64_t state_layout) {
  fkda_problem p;
  fkda_problem_init(&p);
  p.q = view("q", q);
  p.k = view("k", k);
  p.v = view("v", v);
  p.g = view("g", g);
  p.beta = view("beta", beta);
  p.A_log = view("A_log", A_log);
  p.dt_bias = view("dt_bias", dt_bias);
  p.cu_seqlens = view("cu_seqlens", cu_seqlens);
  p.initial_state = view("initial_state", initial_state);
  p.scale = static_cast<float>(scale);
  p.gate = static_cast<int32_t>(gate);
  p.lower_bound = static_cast<float>(lower_bound);
  p.qk_l2norm = qk_l2norm;
  p.beta_activation = static_cast<int32_t>(beta_activation);
  p.state_layout = static_cast<int32_t>(state_layout);
  p.num_threads = static_cast<int32_t>(torch::stable::get_num_threads());
  return p;
}

// A workspace of the problem's device, aligned as the core asks: torch aligns to 64 bytes on the CPU.
struct Workspace {
  Tensor memory;
  void* begin;
  size_t bytes;
};

Workspace align(const Tensor& memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data_ptr());
  const uintptr_t skipped = -begin % FKDA_WORKSPACE_ALIGNMENT;
  const size_t bytes = static_cast<size_t>(memory.numel()) * memory.element_size();
  return {memory, reinterpret_cast<void*>(begin + skipped), bytes < skipped ? 0 : bytes - skipped};
}

// Bytes in which an aligned workspace fits, wherever they begin.
int64_t allocation_size(const fkda_problem& p) {
  size_t bytes = 0;
  check(fkda_workspace_size(&p, &bytes));
  return bytes == 0 ? 0 : static_cast<int64_t>(bytes) + FKDA_WORKSPACE_ALIGNMENT - 1;
}

void check_workspace(const Tensor& given, const Tensor& q) {
  if (device_of("workspace", given) != device_of("q", q) || given.get_device_index() != q.get_device_index()) {
    fail(FKDA_INVALID_ARGUMENT, "workspace: is on another device than q");
  }
  if (!given.is_contiguous()) fail(FKDA_INVALID_ARGUMENT, "workspace: has gaps between its elements, needs none");
}

// torch's current stream of a CUDA device, a cudaStream_t. The stable ABI's function for it is in libtorch_cuda, which
// a CPU build of torch lacks: it is looked up among the loaded libraries, so that one binary serves both. Where there
// is a CUDA tensor, that library is loaded.
void* current_stream(int32_t device_index) {
  using GetStream = AOTITorchError (*)(int32_t device_index, void** stream);
  static const auto get_stream = [] {
    void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr ? nullptr
                              : reinterpret_cast<GetStream>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  if (get_stream == nullptr) {
    fail(FKDA_DEVICE_ERROR, "this build of torch offers no current CUDA stream (libtorch_cuda is not loaded)");
  }
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(get_stream(device_index, &stream));
  return stream;
}

// Asynchronous on a GPU: the workspace goes back to torch's allocator when the launches are queued, and memory of the
// current stream is given again only to work behind them. A stream that captures allocates from its graph's pool.
struct Forward {
  static void run(const fkda_problem& p, const Tensor& q, const MaybeTensor& given) {
    if (given.has_value()) check_workspace(*given, q);
    const Workspace workspace = align(
        given.has_value() ? *given
                          : torch::stable::empty({allocation_size(p)}, ScalarType::Byte, std::nullopt, q.device()));
    void* const stream = q.is_cuda() ? current_stream(q.get_device_index()) : nullptr;
    check(fkda_forward(&p, workspace.begin, workspace.bytes, stream));
  }
};

struct WorkspaceSize {
  static int64_t run(const fkda_problem& p, const Tensor&, const MaybeTensor&) { return allocation_size(p); }
};

// The arguments of forward, in the order of kForwardArguments. state_in_place: final_state holds the initial states too
// (one argument for one memory, so that the schema says truly what is read and what is written).
template <typename Action>
auto with_problem(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, MaybeTensor A_log, MaybeTensor dt_bias,
                  MaybeTensor cu_seqlens, MaybeTensor initial_state, MaybeTensor state_indices,
                  MaybeTensor checkpoint_offsets, Tensor out, MaybeTensor final_state, MaybeTensor checkpoints,
                  MaybeTensor intermediate_states, MaybeTensor workspace, bool state_in_place, double scale,
                  int64_t gate, double lower_bound, bool qk_l2norm, int64_t beta_activation, int64_t state_layout,
                  int64_t intermediate_every, bool batch_invariant, int64_t sequence_split) {
  fkda_problem p =
      make_problem(q, k, v, g, beta, A_log, dt_bias, cu_seqlens, state_in_place ? final_state : initial_state, scale,
                   gate, lower_bound, qk_l2norm, beta_activation, state_layout);
  p.state_indices = view("state_indices", state_indices);
  p.checkpoint_offsets = view("checkpoint_offsets", checkpoint_offsets);
  p.out = view("out", out);
  p.final_state = view("final_state", final_state);
  p.checkpoints = view("checkpoints", checkpoints);
  p.intermediate_states = view("intermediate_states", intermediate_states);
  p.intermediate_every = static_cast<int32_t>(intermediate_every);
  p.batch_invariant = batch_invariant;
  p.sequence_split = static_cast<int32_t>(sequence_split);
  return Action::run(p, q, workspace);
}

const char kForwardSchema[] =
    "forward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? A_log, Tensor? dt_bias, "
    "Tensor? cu_seqlens, Tensor? initial_state, Tensor? state_indices, Tensor? checkpoint_offsets, Tensor(a!) out, "
    "Tensor(b!)? final_state, Tensor(c!)? checkpoints, Tensor(d!)? intermediate_states, Tensor(e!)? workspace, "
    "bool state_in_place, float scale, int gate, float lower_bound, bool qk_l2norm, int beta_activation, "
    "int state_layout, int intermediate_every, bool batch_invariant, int sequence_split) -> ()";

const char kWorkspaceSizeSchema[] =
    "workspace_size(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? A_log, Tensor? dt_bias, "
    "Tensor? cu_seqlens, Tensor? initial_state, Tensor? state_indices, Tensor? checkpoint_offsets, Tensor out, "
    "Tensor? final_state, Tensor? checkpoints, Tensor? intermediate_states, Tensor? workspace, "
    "bool state_in_place, float scale, int gate, float lower_bound, bool qk_l2norm, int beta_activation, "
    "int state_layout, int intermediate_every, bool batch_invariant, int sequence_split) -> int";

// --------------------------------------------------------------------------------------------------- see a chunk

enum class Extent { kOne, kRows, kKeys, kValues };

// A symbol of fkda_chunk: its name, its buffer and the shape of that.
struct Symbol {
  const char* name;
  double* fkda_chunk::*buffer;
  Extent height, width;  // width kOne: a vector
};

constexpr std::array kSymbols = {
    Symbol{"q", &fkda_chunk::q, Extent::kRows, Extent::kKeys},
    Symbol{"k", &fkda_chunk::k, Extent::kRows, Extent::kKeys},
    Symbol{"v", &fkda_chunk::v, Extent::kRows, Extent::kValues},
    Symbol{"a", &fkda_chunk::a, Extent::kRows, Extent::kKeys},
    Symbol{"G", &fkda_chunk::G, Extent::kRows, Extent::kKeys},
    Symbol{"b", &fkda_chunk::b, Extent::kRows, Extent::kOne},
    Symbol{"kd", &fkda_chunk::kd, Extent::kRows, Extent::kKeys},
    Symbol{"qd", &fkda_chunk::qd, Extent::kRows, Extent::kKeys},
    Symbol{"ki", &fkda_chunk::ki, Extent::kRows, Extent::kKeys},
    Symbol{"kr", &fkda_chunk::kr, Extent::kRows, Extent::kKeys},
    Symbol{"L", &fkda_chunk::L, Extent::kRows, Extent::kRows},
    Symbol{"Mqk", &fkda_chunk::Mqk, Extent::kRows, Extent::kRows},
    Symbol{"INV", &fkda_chunk::INV, Extent::kRows, Extent::kRows},
    Symbol{"U", &fkda_chunk::U, Extent::kRows, Extent::kValues},
    Symbol{"O", &fkda_chunk::O, Extent::kRows, Extent::kValues},
    Symbol{"S", &fkda_chunk::S, Extent::kKeys, Extent::kValues},
    Symbol{"S_next", &fkda_chunk::S_next, Extent::kKeys, Extent::kValues},
};

constexpr int64_t kLargestChunk = 64;  // the core refuses what is larger, before it writes

int64_t last_size(const Tensor& tensor) { return tensor.dim() == 0 ? 1 : tensor.sizes()[tensor.sizes().size() - 1]; }

// Returns one tensor for each of kSymbols.
auto inspect_chunk(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, MaybeTensor A_log, MaybeTensor dt_bias,
                   MaybeTensor cu_seqlens, MaybeTensor initial_state, double scale, int64_t gate, double lower_bound,
                   bool qk_l2norm, int64_t beta_activation, int64_t state_layout, int64_t sequence, int64_t head,
                   int64_t chunk, int64_t chunk_size) {
  const fkda_problem p = make_problem(q, k, v, g, beta, A_log, dt_bias, cu_seqlens, initial_state, scale, gate,
                                      lower_bound, qk_l2norm, beta_activation, state_layout);
  fkda_chunk c = {};
  c.struct_size = sizeof(c);
  c.chunk_size = static_cast<int32_t>(chunk_size);
  c.sequence = sequence;
  c.head = head;
  c.chunk = chunk;
  c.rows = std::clamp<int64_t>(chunk_size, 0, kLargestChunk);

  const auto size = [&](Extent extent) -> int64_t {
    switch (extent) {
      case Extent::kRows: return c.rows;
      case Extent::kKeys: return last_size(q);
      case Extent::kValues: return last_size(v);
      case Extent::kOne: break;
    }
    return 1;
  };
  std::array<Tensor, kSymbols.size()> tensors;
  for (size_t i = 0; i < kSymbols.size(); ++i) {
    tensors[i] = torch::stable::empty({size(kSymbols[i].height) * size(kSymbols[i].width)}, ScalarType::Double);
    c.*kSymbols[i].buffer = static_cast<double*>(tensors[i].mutable_data_ptr());
  }
  check(fkda_inspect_chunk(&p, &c));
  // c.rows now says how many rows the chunk has: each buffer is filled from its start, without gaps.
  for (size_t i = 0; i < kSymbols.size(); ++i) {
    const int64_t height = size(kSymbols[i].height), width = size(kSymbols[i].width);
    tensors[i] = torch::stable::narrow(tensors[i], 0, 0, height * width);
    if (kSymbols[i].width != Extent::kOne) tensors[i] = torch::stable::view(tensors[i], {height, width});
  }
  return std::apply([](const auto&... tensor) { return std::make_tuple(tensor...); }, tensors);
}

std::string inspect_chunk_schema() {
  std::string returns;
  for (const Symbol& symbol : kSymbols) returns += std::string(returns.empty() ? "" : ", ") + "Tensor " + symbol.name;
  return "inspect_chunk(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? A_log, Tensor? dt_bias, "
         "Tensor? cu_seqlens, Tensor? initial_state, float scale, int gate, float lower_bound, bool qk_l2norm, "
         "int beta_activation, int state_layout, int sequence, int head, int chunk, int chunk_size) -> (" +
         returns + ")";
}

// ------------------------------------------------------------------------------------------------ about the library

int64_t implementation_count() { return fkda_implementation_count(); }

std::tuple<std::string, int64_t, bool, std::string, std::string> implementation_info(int64_t index) {
  fkda_implementation info = {};
  check(fkda_implementation_info(static_cast<int32_t>(index), &info));
  return {info.name, info.device_type, info.available != 0, info.detail, info.features};
}

std::string version() { return fkda_version(); }

// The same for every device: the core reads the device from the views, and says so if it cannot compute there.
void implement(auto& m) {
  m.impl("forward", TORCH_BOX(&with_problem<Forward>));
  m.impl("workspace_size", TORCH_BOX(&with_problem<WorkspaceSize>));
  m.impl("inspect_chunk", TORCH_BOX(&inspect_chunk));
}

}  // namespace

STABLE_TORCH_LIBRARY(flash_kda, m) {
  m.def(kForwardSchema);
  m.def(kWorkspaceSizeSchema);
  m.def(inspect_chunk_schema().c_str());
  m.def("implementation_count() -> int");
  m.def("implementation_info(int index) -> (str name, int device_type, bool available, str detail, str features)");
  m.def("version() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(flash_kda, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(flash_kda, CUDA, m) { implement(m); }

STABLE_TORCH_LIBRARY_IMPL(flash_kda, CompositeExplicitAutograd, m) {
  m.impl("implementation_count", TORCH_BOX(&implementation_count));
  m.impl("implementation_info", TORCH_BOX(&implementation_info));
  m.impl("version", TORCH_BOX(&version));
}
