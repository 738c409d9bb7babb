// The safetensors reader on any bytes: it accepts a file that keeps its promises or throws FileError.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  file.assign(data, size);
  try {
    read_everything(file.path(), size);
  } catch (const FileError& error) {
    const std::string message = error.what();
    check(message.rfind(file.path() + ": ", 0) == 0);
    for (const char c : message) check(c >= ' ' && c <= '~');
  }
  return 0;
}
