#include "check/layer_file.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace flashkda::checks {
namespace {

struct Name {
  std::string_view name;
  int32_t value;
};
constexpr std::array<Name, 3> kGates = {
    {{"bounded", FKDA_GATE_BOUNDED}, {"softplus", FKDA_GATE_SOFTPLUS}, {"log", FKDA_GATE_LOG}}};
constexpr std::array<Name, 3> kBetas = {
    {{"sigmoid", FKDA_BETA_SIGMOID}, {"twice-sigmoid", FKDA_BETA_TWICE_SIGMOID}, {"activated", FKDA_BETA_ACTIVATED}}};
constexpr std::array<Name, 2> kLayouts = {{{"v-first", FKDA_STATE_V_FIRST}, {"k-first", FKDA_STATE_K_FIRST}}};
constexpr std::array<Name, 4> kDTypes = {
    {{"bf16", FKDA_BFLOAT16}, {"fp16", FKDA_FLOAT16}, {"fp32", FKDA_FLOAT32}, {"fp64", FKDA_FLOAT64}}};

std::optional<int32_t> parse(std::span<const Name> table, std::string_view name) {
  for (const Name& entry : table) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

std::string_view name_of(std::span<const Name> table, int32_t value) {
  for (const Name& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "unknown";
}

std::string choices(std::span<const Name> table) {
  std::string text;
  for (const Name& entry : table) text += (text.empty() ? "" : ", ") + std::string(entry.name);
  return text;
}

HostTensor read_tensor(io::SafetensorsReader& reader, const io::TensorInfo& info) {
  const int32_t dtype = to_fkda_dtype(info.dtype);
  if (dtype == 0) {
    throw io::FileError(reader.path() + ": tensor '" + info.name + "': " + std::string(io::dtype_name(info.dtype)) +
                        " is no dtype of a problem");
  }
  HostTensor tensor(dtype, info.shape);
  reader.read(info, tensor.bytes());
  return tensor;
}

// Reads a tensor of one of two ranks; one of the lower rank gets a leading dimension of 1.
HostTensor read_batched(io::SafetensorsReader& reader, const char* name, size_t rank, bool required) {
  const io::TensorInfo* info = reader.find(name);
  if (info == nullptr) {
    if (required) throw io::FileError(reader.path() + ": tensor '" + name + "' is missing");
    return {};
  }
  if (info->shape.size() != rank && info->shape.size() + 1 != rank) {
    throw io::FileError(reader.path() + ": tensor '" + name + "' has " + std::to_string(info->shape.size()) +
                        " dimensions, needs " + std::to_string(rank) + ", or " + std::to_string(rank - 1) +
                        " without the first");
  }
  HostTensor tensor = read_tensor(reader, *info);
  if (info->shape.size() + 1 == rank) {
    std::vector<int64_t> shape = info->shape;
    shape.insert(shape.begin(), 1);
    tensor.reshape(std::move(shape));
  }
  return tensor;
}

HostTensor read_optional(io::SafetensorsReader& reader, const char* name) {
  const io::TensorInfo* info = reader.find(name);
  if (info == nullptr) return {};
  if (info->shape.empty() || info->shape.size() > FKDA_MAX_DIMS) {
    throw io::FileError(reader.path() + ": tensor '" + name + "' has " + std::to_string(info->shape.size()) +
                        " dimensions");
  }
  return read_tensor(reader, *info);
}

class MetadataReader {
 public:
  MetadataReader(const std::string& path, const io::Metadata& metadata) : path_(path), metadata_(metadata) {}

  void choice(const char* key, std::span<const Name> table, int32_t& option) const {
    if (const std::string* text = find(key)) {
      const std::optional<int32_t> value = parse(table, *text);
      if (!value) fail(key, *text, "one of " + choices(table));
      option = *value;
    }
  }

  void number(const char* key, float& option) const {
    if (const std::string* text = find(key)) {
      double value = 0.0;
      const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), value);
      if (code != std::errc() || end != text->data() + text->size()) fail(key, *text, "a number");
      option = static_cast<float>(value);
    }
  }

  void flag(const char* key, int32_t& option) const {
    if (const std::string* text = find(key)) {
      if (*text != "0" && *text != "1") fail(key, *text, "0 or 1");
      option = *text == "1";
    }
  }

 private:
  const std::string* find(const char* key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() || found->second.empty() ? nullptr : &found->second;
  }
  [[noreturn]] void fail(const char* key, const std::string& got, const std::string& needed) const {
    throw io::FileError(path_ + ": metadata " + key + ": got '" + got.substr(0, 40) + "', needs " + needed);
  }

  const std::string& path_;
  const io::Metadata& metadata_;
};

std::string number_text(double value) {
  std::array<char, 32> buffer;
  const auto [end, code] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return code == std::errc() ? std::string(buffer.data(), end) : "";
}

io::TensorView file_view(const char* name, const HostTensor& tensor, std::vector<int64_t> shape) {
  return {name, to_file_dtype(tensor.dtype()), std::move(shape), tensor.bytes()};
}

std::vector<int64_t> without_first(const std::vector<int64_t>& shape) { return {shape.begin() + 1, shape.end()}; }

}  // namespace

int32_t to_fkda_dtype(io::DType dtype) {
  switch (dtype) {
    case io::DType::kF64: return FKDA_FLOAT64;
    case io::DType::kF32: return FKDA_FLOAT32;
    case io::DType::kF16: return FKDA_FLOAT16;
    case io::DType::kBF16: return FKDA_BFLOAT16;
    case io::DType::kI64: return FKDA_INT64;
    case io::DType::kI32: return FKDA_INT32;
    case io::DType::kU8: return 0;
  }
  return 0;
}

io::DType to_file_dtype(int32_t dtype) {
  switch (dtype) {
    case FKDA_FLOAT64: return io::DType::kF64;
    case FKDA_FLOAT32: return io::DType::kF32;
    case FKDA_FLOAT16: return io::DType::kF16;
    case FKDA_BFLOAT16: return io::DType::kBF16;
    case FKDA_INT64: return io::DType::kI64;
    case FKDA_INT32: return io::DType::kI32;
    default: throw std::invalid_argument("to_file_dtype: not a dtype");
  }
}

std::optional<int32_t> parse_gate(std::string_view name) { return parse(kGates, name); }
std::optional<int32_t> parse_beta(std::string_view name) { return parse(kBetas, name); }
std::optional<int32_t> parse_state_layout(std::string_view name) { return parse(kLayouts, name); }
std::optional<int32_t> parse_dtype(std::string_view name) { return parse(kDTypes, name); }
std::string_view gate_name(int32_t gate) { return name_of(kGates, gate); }
std::string_view beta_name(int32_t beta) { return name_of(kBetas, beta); }
std::string_view state_layout_name(int32_t layout) { return name_of(kLayouts, layout); }
std::string_view short_dtype_name(int32_t dtype) { return name_of(kDTypes, dtype); }

LayerFile read_layer(const std::string& path) {
  io::SafetensorsReader reader(path);
  LayerFile layer;
  layer.path = path;
  layer.metadata = reader.metadata();
  OwnedProblem& p = layer.problem;
  const MetadataReader metadata(path, layer.metadata);
  metadata.choice("gate", kGates, p.options.gate);
  metadata.number("lower_bound", p.options.lower_bound);
  metadata.number("scale", p.options.scale);
  metadata.choice("beta", kBetas, p.options.beta_activation);
  metadata.choice("state_layout", kLayouts, p.options.state_layout);
  metadata.flag("qk_l2norm", p.options.qk_l2norm);

  p.q = read_batched(reader, "q", 4, true);
  p.k = read_batched(reader, "k", 4, true);
  p.v = read_batched(reader, "v", 4, true);
  p.g = read_batched(reader, "g", 4, true);
  p.beta = read_batched(reader, "beta", 3, true);
  p.initial_state = read_batched(reader, "initial_state", 4, false);
  p.A_log = read_optional(reader, "A_log");
  p.dt_bias = read_optional(reader, "dt_bias");
  p.cu_seqlens = read_optional(reader, "cu_seqlens");
  p.state_indices = read_optional(reader, "state_indices");
  layer.batched = reader.find("q")->shape.size() == 4;

  const io::TensorInfo* bytes = reader.find("bytes");
  if (bytes != nullptr && bytes->dtype == io::DType::kU8) {
    layer.text.resize(bytes->bytes());
    reader.read(*bytes, std::as_writable_bytes(std::span(layer.text)));
  }
  layer.unread = reader.unread();
  return layer;
}

LayerResult read_result(const std::string& path) {
  io::SafetensorsReader reader(path);
  return {read_batched(reader, "o", 4, true), read_batched(reader, "final_state", 4, false)};
}

std::vector<int64_t> stored_out_shape(const LayerFile& layer) {
  const std::vector<int64_t>& shape = layer.problem.out.shape();
  return layer.batched ? shape : without_first(shape);
}

std::vector<int64_t> stored_state_shape(const LayerFile& layer) {
  const OwnedProblem& p = layer.problem;
  const bool one_sequence = !layer.batched && !p.cu_seqlens.present() && !p.state_indices.present();
  return one_sequence ? without_first(p.final_state.shape()) : p.final_state.shape();
}

void write_result(const std::string& path, const LayerFile& layer, const io::Metadata& more) {
  const OwnedProblem& p = layer.problem;
  io::Metadata metadata = {{"gate", std::string(gate_name(p.options.gate))},
                           {"state_layout", std::string(state_layout_name(p.options.state_layout))}};
  if (p.options.gate == FKDA_GATE_BOUNDED) metadata["lower_bound"] = number_text(p.options.lower_bound);
  metadata.insert(more.begin(), more.end());

  std::vector<io::TensorView> tensors = {file_view("o", p.out, stored_out_shape(layer))};
  if (p.final_state.present()) tensors.push_back(file_view("final_state", p.final_state, stored_state_shape(layer)));
  io::write_safetensors(path, std::move(tensors), metadata);
}

std::vector<LayerWithResult> find_layers(const std::string& folder) {
  namespace fs = std::filesystem;
  const std::string extension = ".safetensors";
  std::vector<LayerWithResult> layers;
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().extension() != extension) continue;
    const std::string stem = entry.path().stem().string();
    const fs::path expected = entry.path().parent_path() / (stem + "_expected" + extension);
    if (fs::is_regular_file(expected, code)) layers.push_back({stem, entry.path().string(), expected.string()});
  }
  std::sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return layers;
}

std::string default_data_folder() {
  if (const char* folder = std::getenv("FLASHKDA_DATA_DIR"); folder != nullptr && *folder != '\0') return folder;
  for (const char* folder : {"../shared/data", "data"}) {
    if (!find_layers(folder).empty()) return folder;
  }
  return "";
}

}  // namespace flashkda::checks
