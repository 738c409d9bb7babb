// A dense tensor in host memory that owns its elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "flashkda/flashkda.h"

namespace flashkda::checks {

// Memory with the alignment of a workspace. Contents are indeterminate.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);
  std::byte* data() const { return data_.get(); }
  size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

class HostTensor {
 public:
  HostTensor() = default;                                 // absent
  HostTensor(int32_t dtype, std::vector<int64_t> shape);  // all bits zero
  // A vector of int32 or int64.
  static HostTensor integers(int32_t dtype, const std::vector<int64_t>& values);

  bool present() const { return dtype_ != 0; }
  int32_t dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const { return size_; }  // elements; 0 if absent
  std::span<std::byte> bytes() { return {buffer_.data(), buffer_.size()}; }
  std::span<const std::byte> bytes() const { return {buffer_.data(), buffer_.size()}; }

  double get(int64_t element) const;
  void set(int64_t element, double value);             // rounds to nearest even; floating-point dtypes only
  void generate(const std::function<double()>& next);  // every element, in order
  void reshape(std::vector<int64_t> shape);            // same number of elements

  // Also of a const tensor, as fkda_problem has one kind of view for inputs and outputs.
  fkda_tensor view() const;

 private:
  int32_t dtype_ = 0;
  std::vector<int64_t> shape_;
  int64_t size_ = 0;
  AlignedBuffer buffer_;
};

}  // namespace flashkda::checks
