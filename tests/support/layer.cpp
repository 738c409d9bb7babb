#include "support/layer.hpp"

#include <cstdlib>
#include <filesystem>
#include <span>
#include <stdexcept>

#include "io/safetensors.hpp"

namespace flashkda::test {
namespace {

int32_t fkda_dtype_of(io::DType dtype) {
  switch (dtype) {
    case io::DType::kBF16: return FKDA_BFLOAT16;
    case io::DType::kF32: return FKDA_FLOAT32;
    default: throw std::runtime_error("unexpected dtype " + std::string(io::dtype_name(dtype)));
  }
}

const io::TensorInfo& info(const io::SafetensorsReader& file, const char* name) {
  const io::TensorInfo* found = file.find(name);
  if (found == nullptr) throw std::runtime_error(file.path() + ": no tensor " + name);
  return *found;
}

// The tensor; `batch` puts a dimension of 1 in front of its shape.
Tensor read(io::SafetensorsReader& file, const char* name, bool batch) {
  const io::TensorInfo& tensor_info = info(file, name);
  std::vector<int64_t> shape = tensor_info.shape;
  if (batch) shape.insert(shape.begin(), 1);
  const Tensor tensor(fkda_dtype_of(tensor_info.dtype), shape);
  file.read(tensor_info, {static_cast<std::byte*>(tensor.data()), tensor_info.bytes()});
  return tensor;
}

Layer load(const std::string& inputs_path, const std::string& expected_path) {
  io::SafetensorsReader inputs(inputs_path), expected(expected_path);
  const std::vector<int64_t> shape = info(inputs, "q").shape;
  Spec spec;
  spec.T = 0;  // the case's own tensors are replaced
  spec.H = shape[1];
  Case c(spec);
  c.T = shape[0];
  c.cu = {0, c.T};
  c.q = read(inputs, "q", true);
  c.k = read(inputs, "k", true);
  c.v = read(inputs, "v", true);
  c.g = read(inputs, "g", true);
  c.beta = read(inputs, "beta", true);
  c.A_log = read(inputs, "A_log", false);
  c.dt_bias = read(inputs, "dt_bias", false);
  const io::Metadata& metadata = inputs.metadata();
  c.options.gate = metadata.at("gate") == "bounded" ? FKDA_GATE_BOUNDED : FKDA_GATE_SOFTPLUS;
  if (c.options.gate == FKDA_GATE_BOUNDED) c.options.lower_bound = std::stof(metadata.at("lower_bound"));
  c.options.scale = std::stof(metadata.at("scale"));

  std::vector<uint8_t> text(static_cast<size_t>(c.T));
  inputs.read(info(inputs, "bytes"), std::as_writable_bytes(std::span(text)));
  return {c, read(expected, "o", true), read(expected, "final_state", true), text};
}

}  // namespace

Layer load_slice(const std::string& name) {
  const std::string stem = FLASHKDA_SOURCE_DIR "/data/kda_" + name + "_slice";
  return load(stem + ".safetensors", stem + "_expected.safetensors");
}

std::optional<Layer> load_full_layer(const std::string& name) {
  const std::string stem = full_layer_directory() + "/kda_" + name + "_layer2";
  if (!std::filesystem::exists(stem + ".safetensors")) return {};
  return load(stem + ".safetensors", stem + "_expected.safetensors");
}

std::string full_layer_directory() {
  const char* directory = std::getenv("FLASHKDA_DATA_DIR");
  return directory != nullptr ? directory : FLASHKDA_SOURCE_DIR "/../shared/data";
}

}  // namespace flashkda::test
