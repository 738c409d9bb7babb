#include "io/safetensors.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

namespace flashkda::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format
constexpr size_t kMaxDimensions = 16;
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int64_t size;
};
constexpr std::array<DTypeInfo, 7> kDTypes = {{{DType::kF64, "F64", 8},
                                               {DType::kF32, "F32", 4},
                                               {DType::kF16, "F16", 2},
                                               {DType::kBF16, "BF16", 2},
                                               {DType::kI64, "I64", 8},
                                               {DType::kI32, "I32", 4},
                                               {DType::kU8, "U8", 1}}};

const DTypeInfo& info(DType dtype) {
  return *std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeInfo& entry) { return entry.dtype == dtype; });
}

// Text of a foreign file on its way into a message: short, and without control characters.
std::string quote_text(std::string_view text) {
  constexpr size_t kMaxLength = 60;
  std::string result = "'";
  for (const char c : text.substr(0, kMaxLength)) result += (c >= ' ' && c <= '~') ? c : '?';
  return result + (text.size() > kMaxLength ? "...'" : "'");
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d > 0) text += ',';
    text += std::to_string(shape[d]);
  }
  return text + "]";
}

// Bytes of a dense tensor, or nothing if they do not fit int64_t.
std::optional<uint64_t> byte_count(DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = info(dtype).size;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

// Receives the header as a stream of JSON events. A tree of a foreign header could need many times its size in memory
// and would hide duplicate keys; this keeps what the format knows and refuses everything else where it occurs.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderHandler(std::string path, std::vector<TensorInfo>& tensors, Metadata& metadata)
      : path_(std::move(path)), tensors_(tensors), metadata_(metadata) {}

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart: state_ = State::kTop; break;
      case State::kEntry: state_ = name_ == kMetadataKey ? State::kMetadata : State::kTensor; break;
      default: fail_value("an object");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) finish_tensor();
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool key(string_t& text) override {
    switch (state_) {
      case State::kTop:
        if (!names_.insert(text).second) fail("the name " + quote_text(text) + " occurs twice");
        name_ = text;
        if (name_ != kMetadataKey) tensors_.emplace_back().name = name_;
        members_ = {};
        state_ = State::kEntry;
        break;
      case State::kMetadata:
        if (metadata_.contains(text))
          fail(std::string(kMetadataKey) + ": the key " + quote_text(text) + " occurs twice");
        metadata_key_ = text;
        break;
      default: select_member(text);  // kTensor: nothing else sends keys
    }
    return true;
  }

  bool string(string_t& text) override {
    if (state_ == State::kMetadata) {
      metadata_.emplace(metadata_key_, text);
    } else if (state_ == State::kDType) {
      const auto known =
          std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeInfo& entry) { return entry.name == text; });
      if (known == kDTypes.end()) {
        fail_tensor("dtype " + quote_text(text) + " is not one of F64, F32, F16, BF16, I64, I32, U8");
      }
      tensors_.back().dtype = known->dtype;
      state_ = State::kTensor;
    } else {
      fail_value("a string");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    switch (state_) {
      case State::kShape: state_ = State::kShapeItems; break;
      case State::kOffsets: state_ = State::kOffsetItems; break;
      default: fail_value("an array");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsetItems && offset_count_ != 2) fail_tensor("data_offsets needs two numbers");
    state_ = State::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShapeItems) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return number_out_of_range();
      if (tensors_.back().shape.size() == kMaxDimensions) {
        fail_tensor("more than " + std::to_string(kMaxDimensions) + " dimensions");
      }
      tensors_.back().shape.push_back(static_cast<int64_t>(value));
    } else if (state_ == State::kOffsetItems) {
      (offset_count_++ == 0 ? tensors_.back().begin : tensors_.back().end) = value;
    } else {
      fail_value("a number");
    }
    return true;
  }
  // The parser sends negative numbers and numbers beyond 2^64 here.
  bool number_integer(number_integer_t) override { return number_out_of_range(); }
  bool number_float(number_float_t, const string_t&) override { return number_out_of_range(); }

  bool null() override { return fail_value("null"), true; }
  bool boolean(bool) override { return fail_value("a boolean"), true; }
  bool binary(binary_t&) override { return fail_value("binary data"), true; }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    fail("the header is not valid JSON (byte " + std::to_string(position) + " of it)");
  }

  [[noreturn]] void fail(const std::string& what) const { throw FileError(path_ + ": " + what); }

 private:
  // What the next event belongs to.
  enum class State {
    kStart,        // before the outer object
    kTop,          // in the outer object, before a name
    kEntry,        // after a name
    kMetadata,     // in the object of __metadata__
    kTensor,       // in the object of a tensor, before a member
    kDType,        // after "dtype"
    kShape,        // after "shape"
    kShapeItems,   // in its array
    kOffsets,      // after "data_offsets"
    kOffsetItems,  // in its array
    kEnd           // after the outer object
  };
  struct Members {
    bool dtype = false, shape = false, offsets = false;
  };

  [[noreturn]] void fail_tensor(const std::string& what) const { fail("tensor " + quote_text(name_) + ": " + what); }

  [[noreturn]] void fail_value(const char* got) const {
    const auto unexpected = [&](const char* wanted) { return std::string(got) + " where " + wanted + " is needed"; };
    switch (state_) {
      case State::kStart: fail("the header is " + unexpected("an object"));
      case State::kMetadata: fail(std::string(kMetadataKey) + ": " + unexpected("a string"));
      case State::kDType: fail_tensor("dtype: " + unexpected("a string"));
      case State::kShape: fail_tensor("shape: " + unexpected("an array"));
      case State::kOffsets: fail_tensor("data_offsets: " + unexpected("an array"));
      case State::kShapeItems: fail_tensor("shape: " + unexpected("a number"));
      case State::kOffsetItems: fail_tensor("data_offsets: " + unexpected("a number"));
      default: fail_tensor(unexpected("an object"));
    }
  }

  bool number_out_of_range() const {
    if (state_ != State::kShapeItems && state_ != State::kOffsetItems) fail_value("a number");
    fail_tensor(std::string(state_ == State::kShapeItems ? "shape" : "data_offsets") +
                ": numbers must be integers from 0 to 2^63 - 1");
  }

  void select_member(const std::string& text) {
    const auto select = [&](bool& seen, State next) {
      if (std::exchange(seen, true)) fail_tensor(text + " occurs twice");
      state_ = next;
    };
    if (text == "dtype") {
      select(members_.dtype, State::kDType);
    } else if (text == "shape") {
      select(members_.shape, State::kShape);
    } else if (text == "data_offsets") {
      offset_count_ = 0;
      select(members_.offsets, State::kOffsets);
    } else {
      fail_tensor("unknown member " + quote_text(text));
    }
  }

  void finish_tensor() const {
    const TensorInfo& tensor = tensors_.back();
    if (!members_.dtype) fail_tensor("dtype is missing");
    if (!members_.shape) fail_tensor("shape is missing");
    if (!members_.offsets) fail_tensor("data_offsets is missing");
    const std::string offsets =
        "data_offsets [" + std::to_string(tensor.begin) + "," + std::to_string(tensor.end) + "]";
    if (tensor.begin > tensor.end) fail_tensor(offsets + " run backwards");
    const std::optional<uint64_t> needed = byte_count(tensor.dtype, tensor.shape);
    const std::string kind = std::string(dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape);
    if (!needed) fail_tensor(kind + " is too large");
    if (tensor.bytes() != *needed) {
      fail_tensor(offsets + " span " + std::to_string(tensor.bytes()) + " bytes, " + kind + " needs " +
                  std::to_string(*needed));
    }
  }

  std::string path_;
  std::vector<TensorInfo>& tensors_;
  Metadata& metadata_;
  State state_ = State::kStart;
  std::set<std::string> names_;
  std::string name_;          // of the entry at hand
  std::string metadata_key_;  // of the value at hand
  Members members_;           // seen of the tensor at hand
  int offset_count_ = 0;
};

// The data section must be covered exactly: no tensor outside it, no two on the same bytes, no byte without a tensor.
void check_coverage(const HeaderHandler& handler, std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::string name = "tensor " + quote_text(tensor.name) + ": ";
    if (tensor.end > data_bytes) {
      handler.fail(name + "data_offsets [" + std::to_string(tensor.begin) + "," + std::to_string(tensor.end) +
                   "] end beyond the file's " + std::to_string(data_bytes) + " bytes of data (truncated?)");
    }
    if (tensor.begin < covered) handler.fail(name + "overlaps the tensor before it");
    if (tensor.begin > covered) {
      handler.fail(name + "begins at byte " + std::to_string(tensor.begin) + ", the tensor before it ends at " +
                   std::to_string(covered));
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    handler.fail(std::to_string(data_bytes - covered) + " bytes at the end belong to no tensor");
  }
}

std::string header_text(const std::vector<TensorView>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    nlohmann::ordered_json entry;
    entry["dtype"] = dtype_name(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {offset, offset + tensor.data.size()};
    header[tensor.name] = std::move(entry);
    offset += tensor.data.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void check_writable(const std::string& path, const std::vector<TensorView>& tensors) {
  std::set<std::string_view> names = {kMetadataKey};
  for (const TensorView& tensor : tensors) {
    const std::string where = path + ": tensor " + quote_text(tensor.name) + ": ";
    if (!names.insert(tensor.name).second) throw FileError(where + "the name is taken");
    for (const int64_t extent : tensor.shape) {
      if (extent < 0) throw FileError(where + "negative shape " + shape_text(tensor.shape));
    }
    if (byte_count(tensor.dtype, tensor.shape) != tensor.data.size()) {
      throw FileError(where + std::string(dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape) + " given with " +
                      std::to_string(tensor.data.size()) + " bytes");
    }
  }
}

}  // namespace

std::string_view dtype_name(DType dtype) { return info(dtype).name; }
int64_t dtype_size(DType dtype) { return info(dtype).size; }

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  const auto fail = [&](const std::string& what) { throw FileError(path_ + ": " + what); };
  std::error_code code;
  const std::filesystem::file_status status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) fail("no such file");
  if (!std::filesystem::is_regular_file(status)) fail("not a regular file");
  const uint64_t file_bytes = std::filesystem::file_size(path, code);
  if (code) fail(code.message());
  file_.open(path, std::ios::binary);
  if (!file_) fail("cannot be opened for reading");

  uint64_t header_bytes = 0;
  if (file_bytes < sizeof(header_bytes)) fail(std::to_string(file_bytes) + " bytes, too short for a safetensors file");
  file_.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  if (!file_) fail("cannot be read");
  if (header_bytes > kMaxHeaderBytes) {
    fail("header length " + std::to_string(header_bytes) +
         " is over the format's limit of 100 MB (not a safetensors file?)");
  }
  data_start_ = sizeof(header_bytes) + header_bytes;
  if (data_start_ > file_bytes) {
    fail("header length " + std::to_string(header_bytes) + " is beyond the end of the file (truncated?)");
  }
  std::string header(header_bytes, '\0');
  file_.read(header.data(), static_cast<std::streamsize>(header.size()));
  if (!file_) fail("cannot be read");
  if (header.empty() || header.front() != '{') fail("the header does not begin with '{' (not a safetensors file?)");

  HeaderHandler handler(path_, tensors_, metadata_);
  nlohmann::json::sax_parse(header, &handler);
  check_coverage(handler, tensors_, file_bytes - data_start_);
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorInfo& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

void SafetensorsReader::read(const TensorInfo& tensor, std::span<std::byte> destination) {
  if (destination.size() != tensor.bytes()) {
    throw std::logic_error("SafetensorsReader::read: the destination has another size than the tensor");
  }
  file_.clear();
  file_.seekg(static_cast<std::streamoff>(data_start_ + tensor.begin));
  file_.read(reinterpret_cast<char*>(destination.data()), static_cast<std::streamsize>(destination.size()));
  if (!file_) throw FileError(path_ + ": tensor " + quote_text(tensor.name) + ": cannot be read");
  read_.insert(tensor.name);
}

std::vector<std::string> SafetensorsReader::unread() const {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : tensors_) {
    if (!read_.contains(tensor.name)) names.push_back(quote_text(tensor.name));
  }
  return names;
}

void write_safetensors(const std::string& path, std::vector<TensorView> tensors, const Metadata& metadata) {
  namespace fs = std::filesystem;
  check_writable(path, tensors);
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorView& a, const TensorView& b) { return dtype_size(a.dtype) > dtype_size(b.dtype); });
  std::string header;
  try {
    header = header_text(tensors, metadata);
  } catch (const nlohmann::json::exception&) {
    throw FileError(path + ": a tensor name or the metadata is not UTF-8");
  }

  // Through symbolic links the target is replaced, not the link; a device (/dev/null) is written to, never replaced.
  std::error_code code;
  const fs::path target = fs::exists(path, code) ? fs::canonical(path, code) : fs::path(path);
  const bool in_place = fs::exists(target, code) && !fs::is_regular_file(target, code);
  const fs::path written = in_place ? target : fs::path(target.string() + "." + std::to_string(::getpid()) + ".tmp");
  const auto fail = [&](const std::string& what) {
    if (!in_place) fs::remove(written, code);
    throw FileError(path + ": " + what);
  };

  std::ofstream file(written, std::ios::binary | std::ios::trunc);
  if (!file) throw FileError(path + ": cannot be opened for writing");
  const uint64_t header_bytes = header.size();
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const TensorView& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.data.data()), static_cast<std::streamsize>(tensor.data.size()));
  }
  file.close();
  if (!file) fail("cannot be written (disk full?)");
  if (!in_place) {
    fs::rename(written, target, code);
    if (code) {
      const std::string reason = code.message();
      fail("cannot be written: " + reason);
    }
  }
}

}  // namespace flashkda::io
