#include "check/host_tensor.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "core/dtype.hpp"

namespace flashkda::checks {
namespace {

int64_t element_count(const std::vector<int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) throw std::bad_alloc();
  }
  return count;
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : bytes_(bytes) {
  constexpr size_t kAlignment = FKDA_WORKSPACE_ALIGNMENT;
  const size_t rounded = (bytes / kAlignment + 1) * kAlignment;  // never 0; aligned_alloc wants a multiple
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
}

HostTensor::HostTensor(int32_t dtype, std::vector<int64_t> shape)
    : dtype_(dtype),
      shape_(std::move(shape)),
      size_(element_count(shape_)),
      buffer_(static_cast<size_t>(size_ * dtype_size(dtype))) {
  std::memset(buffer_.data(), 0, buffer_.size());
}

HostTensor HostTensor::integers(int32_t dtype, const std::vector<int64_t>& values) {
  HostTensor result(dtype, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == FKDA_INT32) {
      reinterpret_cast<int32_t*>(result.buffer_.data())[i] = static_cast<int32_t>(values[i]);
    } else {
      reinterpret_cast<int64_t*>(result.buffer_.data())[i] = values[i];
    }
  }
  return result;
}

double HostTensor::get(int64_t element) const { return load_scalar(buffer_.data(), dtype_, element); }

void HostTensor::set(int64_t element, double value) { store_scalar(buffer_.data(), dtype_, element, value); }

void HostTensor::generate(const std::function<double()>& next) {
  for (int64_t i = 0; i < size_; ++i) set(i, next());
}

void HostTensor::reshape(std::vector<int64_t> shape) {
  if (element_count(shape) != size_) throw std::logic_error("HostTensor::reshape: another number of elements");
  shape_ = std::move(shape);
}

fkda_tensor HostTensor::view() const {
  if (!present()) return {};
  return fkda_dense(buffer_.data(), static_cast<fkda_dtype>(dtype_), static_cast<int32_t>(shape_.size()),
                    shape_.data());
}

}  // namespace flashkda::checks
