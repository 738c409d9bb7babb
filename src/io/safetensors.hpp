// Reading and writing of safetensors files (https://huggingface.co/docs/safetensors): an 8-byte little-endian header
// length, a JSON header {name: {dtype, shape, data_offsets}, "__metadata__": {string: string}}, then the tensors, dense
// and row-major, without gaps.
//
// The reader is for files of any origin: whatever the bytes are, it either succeeds or throws FileError, and it
// allocates no more than a small multiple of what the file really holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace flashkda::io {

// The message names the file and, where one is at fault, the tensor.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class DType { kF64, kF32, kF16, kBF16, kI64, kI32, kU8 };

std::string_view dtype_name(DType dtype);  // as in the header: "F64", "BF16", ...
int64_t dtype_size(DType dtype);           // bytes an element

using Metadata = std::map<std::string, std::string>;

// Where a tensor lies in its file.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;  // empty: a scalar
  uint64_t begin = 0;          // bytes from the start of the data section
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

class SafetensorsReader {
 public:
  // Opens the file, reads and checks the whole header.
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of the data
  const Metadata& metadata() const { return metadata_; }
  const TensorInfo* find(std::string_view name) const;  // nullptr if there is none
  // Fills destination, which must be tensor.bytes() long.
  void read(const TensorInfo& tensor, std::span<std::byte> destination);
  // The tensors that read() was not called for: their names, quoted, short and without control characters.
  std::vector<std::string> unread() const;

 private:
  std::string path_;
  std::ifstream file_;
  uint64_t data_start_ = 0;
  std::vector<TensorInfo> tensors_;
  std::set<std::string> read_;
  Metadata metadata_;
};

// A tensor to write. The data stays the caller's.
struct TensorView {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// Writes a temporary file beside path and renames it, so that path never holds half a file. Tensors are stored with the
// larger elements first: each is then aligned to its element, as the format allows no padding between tensors.
void write_safetensors(const std::string& path, std::vector<TensorView> tensors, const Metadata& metadata);

}  // namespace flashkda::io
