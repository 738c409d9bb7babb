#include "support/tensor.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "core/dtype.hpp"

namespace flashkda::test {
namespace {

constexpr size_t kGuardBytes = 4096;
constexpr std::byte kPattern{0xff};

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool all_pattern(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == kPattern; });
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> stride(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) stride[d - 1] = stride[d] * shape[d];
  return stride;
}

// Elements from the first to one past the last that a view addresses.
int64_t span(const std::vector<int64_t>& shape, const std::vector<int64_t>& stride) {
  int64_t last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return 0;
    last += (shape[d] - 1) * stride[d];
  }
  return last + 1;
}

std::string index_text(const Tensor& tensor, int64_t element) {
  std::vector<int64_t> index(tensor.shape().size());
  for (size_t d = index.size(); d-- > 0;) {
    index[d] = element % tensor.shape()[d];
    element /= tensor.shape()[d];
  }
  std::ostringstream text;
  for (const int64_t i : index) text << '[' << i << ']';
  return text.str();
}

std::string shape_text(const Tensor& tensor) {
  std::ostringstream text;
  text << dtype_name(tensor.dtype()) << " [";
  for (size_t d = 0; d < tensor.shape().size(); ++d) text << (d ? "," : "") << tensor.shape()[d];
  text << ']';
  return text.str();
}

const std::byte* element_bytes(const Tensor& tensor, int64_t element) {
  return static_cast<const std::byte*>(tensor.data()) + tensor.offset_of(element) * dtype_size(tensor.dtype());
}

// The first element for which the predicate fails is shown with its value.
template <typename Predicate>
testing::AssertionResult every_element(const Tensor& tensor, const char* what, Predicate predicate) {
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (predicate(i)) continue;
    return testing::AssertionFailure() << "element " << index_text(tensor, i) << " of " << shape_text(tensor) << " is "
                                       << tensor.get(i) << ", " << what;
  }
  return testing::AssertionSuccess();
}

}  // namespace

Buffer::Buffer(size_t bytes, Fence fence) : bytes_(bytes), fence_(fence) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t guards = fence == Fence::kNaN ? 2 * kGuardBytes : 0;
  usable_bytes_ = round_up(bytes + guards, page);
  map_bytes_ = usable_bytes_ + 2 * page;
  void* map = mmap(nullptr, map_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<std::byte*>(map);
  usable_ = map_ + page;
  if (usable_bytes_ > 0) {
    if (mprotect(usable_, usable_bytes_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::memset(usable_, static_cast<int>(kPattern), usable_bytes_);
  }
  switch (fence) {
    case Fence::kNaN: data_ = usable_ + round_up(kGuardBytes, page); break;
    case Fence::kBehind: data_ = usable_ + usable_bytes_ - bytes; break;
    case Fence::kBefore: data_ = usable_; break;
  }
}

Buffer::~Buffer() { munmap(map_, map_bytes_); }

bool Buffer::guards_intact() const {
  return all_pattern(usable_, data_) && all_pattern(data_ + bytes_, usable_ + usable_bytes_);
}

Tensor::Tensor(int32_t dtype, std::vector<int64_t> shape, Fence fence)
    : Tensor(strided(dtype, shape, dense_strides(shape), fence)) {}

Tensor::Tensor(std::shared_ptr<Buffer> buffer, int32_t dtype, std::vector<int64_t> shape, std::vector<int64_t> stride,
               int64_t offset)
    : dtype_(dtype),
      shape_(std::move(shape)),
      stride_(std::move(stride)),
      buffer_(std::move(buffer)),
      offset_(offset),
      dense_(stride_ == dense_strides(shape_)) {
  const auto end = static_cast<size_t>((offset_ + span(shape_, stride_)) * dtype_size(dtype_));
  if (shape_.size() != stride_.size() || end > buffer_->size()) throw std::logic_error("view outside its buffer");
}

Tensor Tensor::strided(int32_t dtype, std::vector<int64_t> shape, std::vector<int64_t> stride, Fence fence) {
  const auto bytes = static_cast<size_t>(span(shape, stride) * dtype_size(dtype));
  return {std::make_shared<Buffer>(bytes, fence), dtype, std::move(shape), std::move(stride), 0};
}

Tensor Tensor::integers(int32_t dtype, const std::vector<int64_t>& values) {
  Tensor result(dtype, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == FKDA_INT32) {
      static_cast<int32_t*>(result.data())[i] = static_cast<int32_t>(values[i]);
    } else {
      static_cast<int64_t*>(result.data())[i] = values[i];
    }
  }
  return result;
}

int64_t Tensor::numel() const {
  if (!present()) return 0;
  int64_t count = 1;
  for (const int64_t extent : shape_) count *= extent;
  return count;
}

void* Tensor::data() const { return present() ? buffer_->data() + offset_ * dtype_size(dtype_) : nullptr; }

fkda_tensor Tensor::view() const {
  fkda_tensor view = {};
  if (!present()) return view;
  view.data = data();
  view.dtype = dtype_;
  view.device_type = FKDA_CPU;
  view.ndim = static_cast<int32_t>(shape_.size());
  std::copy(shape_.begin(), shape_.end(), view.shape);
  std::copy(stride_.begin(), stride_.end(), view.stride);
  return view;
}

int64_t Tensor::offset_of(int64_t element) const {
  if (dense_) return element;
  int64_t offset = 0;
  for (size_t d = shape_.size(); d-- > 0;) {
    offset += element % shape_[d] * stride_[d];
    element /= shape_[d];
  }
  return offset;
}

double Tensor::get(int64_t element) const { return load_scalar(data(), dtype_, offset_of(element)); }

void Tensor::set(int64_t element, double value) { store_scalar(data(), dtype_, offset_of(element), value); }

double Tensor::at(std::initializer_list<int64_t> index) const {
  int64_t offset = 0;
  size_t d = 0;
  for (const int64_t i : index) offset += i * stride_[d++];
  return load_scalar(data(), dtype_, offset);
}

void Tensor::set_at(std::initializer_list<int64_t> index, double value) {
  int64_t offset = 0;
  size_t d = 0;
  for (const int64_t i : index) offset += i * stride_[d++];
  store_scalar(data(), dtype_, offset, value);
}

std::vector<double> Tensor::values() const {
  std::vector<double> result(static_cast<size_t>(numel()));
  for (int64_t i = 0; i < numel(); ++i) result[static_cast<size_t>(i)] = get(i);
  return result;
}

void Tensor::fill(double value) {
  for (int64_t i = 0; i < numel(); ++i) set(i, value);
}

void Tensor::generate(const std::function<double()>& next) {
  for (int64_t i = 0; i < numel(); ++i) set(i, next());
}

void Tensor::copy_from(const Tensor& other) {
  if (shape_ != other.shape_) throw std::logic_error("copy_from: " + shape_text(other) + " to " + shape_text(*this));
  if (dtype_ == other.dtype_) {  // bits, NaN payloads included
    const auto size = static_cast<size_t>(dtype_size(dtype_));
    for (int64_t i = 0; i < numel(); ++i) {
      std::memcpy(static_cast<std::byte*>(data()) + offset_of(i) * dtype_size(dtype_), element_bytes(other, i), size);
    }
    return;
  }
  for (int64_t i = 0; i < numel(); ++i) set(i, other.get(i));
}

void Tensor::poison() {
  for (int64_t i = 0; i < numel(); ++i) {
    std::memset(static_cast<std::byte*>(data()) + offset_of(i) * dtype_size(dtype_), static_cast<int>(kPattern),
                static_cast<size_t>(dtype_size(dtype_)));
  }
}

Tensor Tensor::narrow(int dim, int64_t begin, int64_t length) const {
  std::vector<int64_t> shape = shape_;
  shape[static_cast<size_t>(dim)] = length;
  return {buffer_, dtype_, std::move(shape), stride_, offset_ + begin * stride_[static_cast<size_t>(dim)]};
}

Tensor Tensor::clone() const {
  if (!present()) return {};
  auto copy = std::make_shared<Buffer>(buffer_->size(), buffer_->fence());
  if (buffer_->size() > 0) std::memcpy(copy->data(), buffer_->data(), buffer_->size());
  return {std::move(copy), dtype_, shape_, stride_, offset_};
}

Tensor Tensor::to(int32_t dtype, Fence fence) const {
  if (!present()) return {};
  Tensor result(dtype, shape_, fence);
  result.copy_from(*this);
  return result;
}

Tensor Tensor::with_stride(std::vector<int64_t> stride, Fence fence) const {
  Tensor result = strided(dtype_, shape_, std::move(stride), fence);
  result.copy_from(*this);
  return result;
}

testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected) {
  if (actual.dtype() != expected.dtype() || actual.shape() != expected.shape()) {
    return testing::AssertionFailure() << shape_text(actual) << " against " << shape_text(expected);
  }
  const auto size = static_cast<size_t>(dtype_size(actual.dtype()));
  if (actual.dense() && expected.dense() && actual.numel() > 0 &&
      std::memcmp(actual.data(), expected.data(), size * static_cast<size_t>(actual.numel())) == 0) {
    return testing::AssertionSuccess();
  }
  int64_t different = 0, first = -1;
  for (int64_t i = 0; i < actual.numel(); ++i) {
    if (std::memcmp(element_bytes(actual, i), element_bytes(expected, i), size) == 0) continue;
    if (different++ == 0) first = i;
  }
  if (different == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << different << " of " << actual.numel() << " elements of " << shape_text(actual)
                                     << " differ in bits, the first at " << index_text(actual, first) << ": "
                                     << testing::PrintToString(actual.get(first)) << " against "
                                     << testing::PrintToString(expected.get(first));
}

testing::AssertionResult gaps_intact(const Tensor& tensor) {
  if (!tensor.present()) return testing::AssertionSuccess();
  const Buffer& buffer = *tensor.buffer();
  if (!buffer.guards_intact()) {
    return testing::AssertionFailure() << "the guard zone around " << shape_text(tensor) << " was written";
  }
  if (buffer.size() == static_cast<size_t>(tensor.numel() * dtype_size(tensor.dtype()))) {
    return testing::AssertionSuccess();  // dense: no gaps
  }
  const Tensor copy = tensor.clone();
  Tensor(copy).poison();
  const std::byte* begin = copy.buffer()->data();
  if (all_pattern(begin, begin + copy.buffer()->size())) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "memory between the rows of " << shape_text(tensor) << " was written";
}

testing::AssertionResult all_finite(const Tensor& tensor) {
  return every_element(tensor, "which is not finite", [&](int64_t i) { return std::isfinite(tensor.get(i)); });
}

testing::AssertionResult all_zero(const Tensor& tensor) {
  return every_element(tensor, "not 0", [&](int64_t i) { return tensor.get(i) == 0.0; });
}

testing::AssertionResult untouched(const Tensor& tensor) {
  const auto size = static_cast<size_t>(dtype_size(tensor.dtype()));
  return every_element(tensor, "written although it must not be", [&](int64_t i) {
    const std::byte* bytes = element_bytes(tensor, i);
    return all_pattern(bytes, bytes + size);
  });
}

double rms_error(const Tensor& actual, const Tensor& expected) {
  if (actual.shape() != expected.shape()) {
    throw std::logic_error("rms_error: " + shape_text(actual) + " against " + shape_text(expected));
  }
  double error = 0.0, norm = 0.0, magnitude = 0.0;
  for (int64_t i = 0; i < actual.numel(); ++i) {
    const double x = actual.get(i), y = expected.get(i);
    if (!std::isfinite(x)) return std::numeric_limits<double>::infinity();
    error += (x - y) * (x - y);
    norm += y * y;
    magnitude += x * x;
  }
  if (actual.numel() == 0) return 0.0;
  if (norm == 0.0) return std::sqrt(magnitude / static_cast<double>(actual.numel()));
  return std::sqrt(error / norm);
}

}  // namespace flashkda::test
