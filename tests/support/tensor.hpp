// Tensors that own their memory and notice when somebody writes where he should not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "flashkda/flashkda.h"

namespace flashkda::test {

// What lies around a buffer.
enum class Fence {
  kNaN,     // 4096 bytes of 0xff on both sides: NaN in every float dtype, -1 in every integer
  kBehind,  // its last byte is the last one before an inaccessible page: a read too far ends the process
  kBefore,  // its first byte follows an inaccessible page
};

// Bytes of memory, all 0xff at first, between guard zones. Aligned to a page unless fenced behind.
class Buffer {
 public:
  explicit Buffer(size_t bytes, Fence fence = Fence::kNaN);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  Fence fence() const { return fence_; }
  // True while nobody wrote to the guard zones.
  bool guards_intact() const;

 private:
  std::byte* map_ = nullptr;     // the whole mapping, inaccessible first and last page included
  std::byte* usable_ = nullptr;  // its accessible part: data and guard zones
  std::byte* data_ = nullptr;
  size_t map_bytes_ = 0, usable_bytes_ = 0, bytes_ = 0;
  Fence fence_;
};

// A strided tensor in a Buffer. Copies share the memory, as views do; clone() does not. Elements are numbered in
// row-major order of the shape, whatever the strides.
class Tensor {
 public:
  Tensor() = default;                                                            // absent
  Tensor(int32_t dtype, std::vector<int64_t> shape, Fence fence = Fence::kNaN);  // dense
  // A view into a buffer; offset and strides in elements.
  Tensor(std::shared_ptr<Buffer> buffer, int32_t dtype, std::vector<int64_t> shape, std::vector<int64_t> stride,
         int64_t offset);
  // Strides in elements, in memory of exactly the size that they span.
  static Tensor strided(int32_t dtype, std::vector<int64_t> shape, std::vector<int64_t> stride,
                        Fence fence = Fence::kNaN);
  // 1-D integer tensor.
  static Tensor integers(int32_t dtype, const std::vector<int64_t>& values);

  bool present() const { return buffer_ != nullptr; }
  bool dense() const { return dense_; }
  int32_t dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<int64_t>& stride() const { return stride_; }
  int64_t numel() const;
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  void* data() const;
  fkda_tensor view() const;

  double get(int64_t element) const;
  void set(int64_t element, double value);
  double at(std::initializer_list<int64_t> index) const;
  void set_at(std::initializer_list<int64_t> index, double value);
  std::vector<double> values() const;

  void fill(double value);
  void generate(const std::function<double()>& next);
  void copy_from(const Tensor& other);  // same shape, any dtype and strides
  void poison();                        // every element becomes all ones: NaN, or -1

  Tensor narrow(int dim, int64_t begin, int64_t length) const;  // shares memory
  Tensor clone() const;                                         // own buffer, same strides, gaps included
  Tensor to(int32_t dtype, Fence fence = Fence::kNaN) const;    // own buffer, dense
  Tensor with_stride(std::vector<int64_t> stride, Fence fence = Fence::kNaN) const;  // own buffer, same values

  // Offset in elements from data() of an element.
  int64_t offset_of(int64_t element) const;

 private:
  int32_t dtype_ = 0;
  std::vector<int64_t> shape_, stride_;
  std::shared_ptr<Buffer> buffer_;
  int64_t offset_ = 0;
  bool dense_ = false;
};

// Same dtype, shape and bits of every element; NaNs of equal bits are equal. The message shows the first difference.
testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected);

// Nothing was written outside the elements of a view of a buffer that was all 0xff when it was made.
testing::AssertionResult gaps_intact(const Tensor& tensor);

// No NaN and no infinity.
testing::AssertionResult all_finite(const Tensor& tensor);

// Every element is +0 or -0.
testing::AssertionResult all_zero(const Tensor& tensor);

// Every element still has the bits that poison() gave it.
testing::AssertionResult untouched(const Tensor& tensor);

// rms(actual - expected) / rms(expected) in fp64; rms(actual) if expected is all zero. NaN or infinity in actual gives
// infinity. Shapes must agree.
double rms_error(const Tensor& actual, const Tensor& expected);

}  // namespace flashkda::test
