// A problem in a safetensors file: q k v g beta [A_log] [dt_bias] [initial_state] [cu_seqlens] [state_indices], with
// the options in the metadata.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "check/problem.hpp"
#include "io/safetensors.hpp"

namespace flashkda::checks {

int32_t to_fkda_dtype(io::DType dtype);  // 0 for U8, which the library has no use for
io::DType to_file_dtype(int32_t dtype);

// Names of the options as they stand in metadata and on the command line.
std::optional<int32_t> parse_gate(std::string_view name);          // bounded, softplus, log
std::optional<int32_t> parse_beta(std::string_view name);          // sigmoid, twice-sigmoid, activated
std::optional<int32_t> parse_state_layout(std::string_view name);  // v-first, k-first
std::optional<int32_t> parse_dtype(std::string_view name);         // bf16, fp16, fp32, fp64
std::string_view gate_name(int32_t gate);
std::string_view beta_name(int32_t beta);
std::string_view state_layout_name(int32_t layout);
std::string_view short_dtype_name(int32_t dtype);

struct LayerFile {
  std::string path;
  OwnedProblem problem;  // no outputs
  bool batched = true;   // false: the tensors in the file have no batch dimension ([T,H,K])
  std::string text;      // the tensor "bytes" [T] if there is one: what each token stands for
  io::Metadata metadata;
  std::vector<std::string> unread;  // the file's other tensors, as SafetensorsReader names them
};

// Metadata that is read: gate, lower_bound, scale, beta, state_layout, qk_l2norm ("0" or "1"); an empty value counts as
// absent, others are ignored. Throws io::FileError if a tensor is missing or has a rank or dtype that no problem has,
// or an option has no such value; whether the shapes fit each other is for fkda_validate to say.
LayerFile read_layer(const std::string& path);

// What a run made of it. final_state is absent if the file has none.
struct LayerResult {
  HostTensor out, final_state;
};

// The tensors "o" and "final_state" of a result file. Throws io::FileError.
LayerResult read_result(const std::string& path);

// Shapes in a result file: without a batch dimension in the input there is none in o, and none of sequences in
// final_state unless the input is packed or has state_indices.
std::vector<int64_t> stored_out_shape(const LayerFile& layer);
std::vector<int64_t> stored_state_shape(const LayerFile& layer);

// Writes out and final_state of the layer's problem as "o" and "final_state", with its options and more as metadata.
void write_result(const std::string& path, const LayerFile& layer, const io::Metadata& more);

// Layers of a folder: files X.safetensors beside an X_expected.safetensors, sorted by name.
struct LayerWithResult {
  std::string name;  // X
  std::string path, expected_path;
};
std::vector<LayerWithResult> find_layers(const std::string& folder);

// The folder of the layer files: $FLASHKDA_DATA_DIR, else ../shared/data, else data, of the current directory. Empty if
// none of them holds a layer.
std::string default_data_folder();

}  // namespace flashkda::checks
