// The safetensors reader on any bytes: it accepts a file that keeps its promises or throws FileError. Every input is
// read twice: as a file, and as a recipe for a file whose header is well-formed and whose numbers may not fit each
// other.
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "io/safetensors.hpp"

namespace {

using namespace flashkda::io;

// A file in memory, reused by every run.
class MemoryFile {
 public:
  MemoryFile() : file_(memfd_create("input", 0)), path_("/proc/self/fd/" + std::to_string(file_)) {}
  void assign(const uint8_t* data, size_t size) const {
    if (ftruncate(file_, 0) != 0 || pwrite(file_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  }
  const std::string& path() const { return path_; }

 private:
  int file_;
  std::string path_;
};

void check(bool holds) {
  if (!holds) std::abort();
}

void read_everything(const std::string& path, size_t file_size) {
  SafetensorsReader reader(path);
  uint64_t covered = 0;
  for (const TensorInfo& tensor : reader.tensors()) {
    check(reader.find(tensor.name) == &tensor);
    check(tensor.begin == covered);
    covered = tensor.end;
    uint64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= static_cast<uint64_t>(extent);
    check(tensor.bytes() == elements * static_cast<uint64_t>(dtype_size(tensor.dtype)));
    std::vector<std::byte> bytes(tensor.bytes());
    reader.read(tensor, bytes);
  }
  check(covered < file_size);
}

void read_any(const MemoryFile& file, const uint8_t* data, size_t size) {
  file.assign(data, size);
  try {
    read_everything(file.path(), size);
  } catch (const FileError& error) {
    const std::string message = error.what();
    check(message.rfind(file.path() + ": ", 0) == 0);
    for (const char c : message) check(c >= ' ' && c <= '~');
  }
}

std::string compose(const uint8_t* data, size_t size) {
  FuzzedDataProvider recipe(data, size);
  // Mostly the value, else one near it or any other.
  const auto altered = [&](uint64_t value) {
    switch (recipe.ConsumeIntegralInRange(0, 15)) {
      case 0: return value + recipe.ConsumeIntegralInRange<uint64_t>(0, 4) - 2;
      case 1: return recipe.ConsumeIntegral<uint64_t>();
      default: return value;
    }
  };
  std::string header = "{";
  uint64_t offset = 0;
  for (int left = recipe.ConsumeIntegralInRange(0, 4); left > 0; --left) {
    const DType dtype = recipe.PickValueInArray(
        {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kU8});
    std::string shape;
    auto bytes = static_cast<uint64_t>(dtype_size(dtype));
    for (int d = recipe.ConsumeIntegralInRange(0, 3); d > 0; --d) {
      const uint64_t extent = altered(recipe.ConsumeIntegralInRange<uint64_t>(0, 5));
      shape += (shape.empty() ? "" : ",") + std::to_string(extent);
      bytes *= extent;
    }
    const uint64_t begin = altered(offset), end = altered(offset + bytes);
    header += std::string(header.size() > 1 ? "," : "") + "\"" + recipe.ConsumeIntegralInRange('a', 'f') + "\":{";
    header += "\"dtype\":\"" + std::string(dtype_name(dtype)) + "\",\"shape\":[" + shape + "],";
    header += "\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  header += "}";
  const uint64_t header_bytes = header.size();
  std::string file(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  return file + header + std::string(std::min<uint64_t>(altered(offset), 4096), 'x');
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Mostly lets the length of the header agree with where the header ends, so that changes inside it are seen.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  uint64_t header_bytes = 0;
  if (size <= sizeof(header_bytes) || seed % 8 == 0) return size;
  const uint8_t* begin = data + sizeof(header_bytes);
  const uint8_t* end = data + size;
  while (end > begin && end[-1] != '}') --end;
  header_bytes = static_cast<uint64_t>(end - begin);
  std::memcpy(data, &header_bytes, sizeof(header_bytes));
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  read_any(file, data, size);
  const std::string composed = compose(data, size);
  read_any(file, reinterpret_cast<const uint8_t*>(composed.data()), composed.size());
  return 0;
}
