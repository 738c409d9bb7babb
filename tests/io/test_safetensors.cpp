// Safetensors files: what is written reads back the same, foreign bytes give one clear error.
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include <gtest/gtest.h>

#include "io/safetensors.hpp"

namespace flashkda::io {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() : folder_(fs::path(testing::TempDir()) / ("flashkda_io_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~SafetensorsTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name = "file.safetensors") const { return (folder_ / name).string(); }

  // A file of exactly these bytes.
  std::string write_raw(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }
  static std::string length_prefix(uint64_t length) { return {reinterpret_cast<const char*>(&length), sizeof(length)}; }
  // A file with this header and data_bytes zero bytes of data.
  std::string write_file(const std::string& header, size_t data_bytes) const {
    return write_raw(length_prefix(header.size()) + header + std::string(data_bytes, '\0'));
  }

  // The message of the error, or "" if the file was accepted.
  static std::string error_of(const std::string& path) {
    try {
      SafetensorsReader reader(path);
    } catch (const FileError& error) {
      return error.what();
    }
    return "";
  }

  static std::vector<std::byte> read_all(SafetensorsReader& reader, std::string_view name) {
    const TensorInfo* tensor = reader.find(name);
    if (tensor == nullptr) return {};
    std::vector<std::byte> bytes(tensor->bytes());
    reader.read(*tensor, bytes);
    return bytes;
  }

  static std::vector<std::byte> counting_bytes(size_t size, int first) {
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i));
    return bytes;
  }

  fs::path folder_;
};

// ---------------------------------------------------------------------------------------------------- good files

TEST_F(SafetensorsTest, EveryDTypeReadsBackTheSame) {
  constexpr DType kAll[] = {DType::kU8, DType::kF16, DType::kF64, DType::kI32, DType::kBF16, DType::kI64, DType::kF32};
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorView> tensors;
  for (const DType dtype : kAll) {
    data.push_back(counting_bytes(static_cast<size_t>(15 * dtype_size(dtype)), static_cast<int>(data.size())));
    tensors.push_back({std::string(dtype_name(dtype)), dtype, {3, 5}, data.back()});
  }
  write_safetensors(path(), tensors, {{"gate", "bounded"}, {"quoted \"key\"", "line\nbreak"}});

  SafetensorsReader reader(path());
  ASSERT_EQ(reader.tensors().size(), std::size(kAll));
  for (size_t i = 0; i < std::size(kAll); ++i) {
    const TensorInfo* tensor = reader.find(dtype_name(kAll[i]));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->dtype, kAll[i]);
    EXPECT_EQ(tensor->shape, (std::vector<int64_t>{3, 5}));
    EXPECT_EQ(read_all(reader, tensor->name), data[i]) << tensor->name;
  }
  EXPECT_EQ(reader.metadata(), (Metadata{{"gate", "bounded"}, {"quoted \"key\"", "line\nbreak"}}));
  EXPECT_EQ(reader.find("nothing"), nullptr);
}

TEST_F(SafetensorsTest, WriterAlignsEveryTensorToItsElement) {
  const std::vector<std::byte> bytes = counting_bytes(24, 0);
  const std::span<const std::byte> all(bytes);
  write_safetensors(path(),
                    {{"u", DType::kU8, {3}, all.first(3)},
                     {"h", DType::kBF16, {1}, all.first(2)},
                     {"d", DType::kF64, {3}, all},
                     {"f", DType::kF32, {1}, all.first(4)}},
                    {});
  SafetensorsReader reader(path());
  std::ifstream file(path(), std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  EXPECT_EQ(header_bytes % 8, 0u);
  for (const TensorInfo& tensor : reader.tensors()) {
    EXPECT_EQ(tensor.begin % static_cast<uint64_t>(dtype_size(tensor.dtype)), 0u) << tensor.name;
  }
}

TEST_F(SafetensorsTest, ScalarsEmptyTensorsAndEmptyFiles) {
  const std::vector<std::byte> four = counting_bytes(4, 7);
  write_safetensors(path(), {{"scalar", DType::kF32, {}, four}, {"empty", DType::kF32, {4, 0, 2}, {}}}, {});
  SafetensorsReader reader(path());
  EXPECT_EQ(read_all(reader, "scalar"), four);
  EXPECT_EQ(reader.find("scalar")->shape.size(), 0u);
  EXPECT_EQ(reader.find("empty")->bytes(), 0u);
  EXPECT_EQ(reader.find("empty")->shape, (std::vector<int64_t>{4, 0, 2}));

  write_safetensors(path(), {}, {});
  EXPECT_TRUE(SafetensorsReader(path()).tensors().empty());
}

TEST_F(SafetensorsTest, UnalignedHeaderAndUnorderedEntriesAreLegal) {
  const std::string header = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                             R"("a":{"data_offsets":[0,2],"shape":[1],"dtype":"F16"}})";
  write_raw(length_prefix(header.size()) + header + "xyz");
  SafetensorsReader reader(path());
  ASSERT_EQ(reader.tensors().size(), 2u);
  EXPECT_EQ(reader.tensors()[0].name, "a");
  EXPECT_EQ(read_all(reader, "b"), std::vector<std::byte>{std::byte{'z'}});
}

TEST_F(SafetensorsTest, ReplacesAFileAndLeavesNoTemporary) {
  write_raw("old contents");
  write_safetensors(path(), {}, {{"a", "b"}});
  EXPECT_EQ(SafetensorsReader(path()).metadata().at("a"), "b");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(SafetensorsTest, WritesThroughASymbolicLink) {
  write_raw("old contents");
  fs::create_symlink(path(), path("link"));
  write_safetensors(path("link"), {}, {{"a", "b"}});
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(SafetensorsReader(path()).metadata().at("a"), "b");
}

TEST_F(SafetensorsTest, WritesIntoAPipeOrDeviceAndNeverReplacesIt) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::fstream keeps_it_open(path("pipe"), std::ios::in | std::ios::out | std::ios::binary);
  write_safetensors(path("pipe"), {}, {{"a", "b"}});
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  std::string start(9, '\0');
  keeps_it_open.read(start.data(), 9);
  EXPECT_EQ(start.back(), '{');
}

// ------------------------------------------------------------------------------------------------- malformed files

struct MalformedHeader {
  const char* name;
  const char* header;
  size_t data_bytes;
  const char* message;  // what the error must say
};

class MalformedHeaderTest : public SafetensorsTest, public testing::WithParamInterface<MalformedHeader> {};

TEST_P(MalformedHeaderTest, IsRefusedWithOneClearLine) {
  const std::string message = error_of(write_file(GetParam().header, GetParam().data_bytes));
  EXPECT_NE(message.find(path() + ": "), std::string::npos) << message;
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

constexpr MalformedHeader kMalformedHeaders[] = {
    {"Empty", "", 0, "does not begin with '{'"},
    {"LeadingSpace", " {}", 0, "does not begin with '{'"},
    {"Array", "[]", 0, "does not begin with '{'"},
    {"CutJson", R"({"a":{"dtype":"F32")", 0, "not valid JSON"},
    {"TrailingText", "{} x", 0, "not valid JSON"},
    {"TwoObjects", "{}{}", 0, "not valid JSON"},
    {"BadUtf8", "{\"\xff\xfe\":{}}", 0, "not valid JSON"},
    {"ControlCharacter", "{\"a\x01\":{}}", 0, "not valid JSON"},
    {"EntryIsNumber", R"({"a":1})", 0, "tensor 'a': a number where an object is needed"},
    {"EntryIsNull", R"({"a":null})", 0, "tensor 'a': null where an object is needed"},
    {"EntryIsArray", R"({"a":[]})", 0, "tensor 'a': an array where an object is needed"},
    {"NoDType", R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "tensor 'a': dtype is missing"},
    {"NoShape", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "tensor 'a': shape is missing"},
    {"NoOffsets", R"({"a":{"dtype":"F32","shape":[1]}})", 4, "tensor 'a': data_offsets is missing"},
    {"UnknownDType", R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", 4, "dtype 'F8_E4M3' is not one"},
    {"DTypeIsNumber", R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype: a number where a string"},
    {"DTypeIsObject", R"({"a":{"dtype":{},"shape":[1],"data_offsets":[0,4]}})", 4, "dtype: an object where a string"},
    {"ShapeIsNumber", R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "shape: a number where an array"},
    {"ShapeOfText", R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4, "shape: a string where a number"},
    {"ShapeOfArrays", R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4,
     "shape: an array where a number"},
    {"ShapeNegative", R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
     "shape: numbers must be integers"},
    {"ShapeFraction", R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4,
     "shape: numbers must be integers"},
    {"ShapeOver63Bits", R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4,
     "shape: numbers must be integers"},
    {"ShapeOver64Bits", R"({"a":{"dtype":"U8","shape":[99999999999999999999999],"data_offsets":[0,4]}})", 4,
     "shape: numbers must be integers"},
    {"ProductOverflows", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
     "F32 [4294967296,4294967296] is too large"},
    {"BytesOverflow", R"({"a":{"dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8]}})", 8, "is too large"},
    {"ManyDimensions", R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
     "more than 16 dimensions"},
    {"OneOffset", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "data_offsets needs two numbers"},
    {"ThreeOffsets", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4,
     "data_offsets needs two numbers"},
    {"OffsetNegative", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4,
     "data_offsets: numbers must be integers"},
    {"OffsetsBackwards", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "[4,0] run backwards"},
    {"SizeTooSmall", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "span 4 bytes, F32 [2] needs 8"},
    {"SizeTooLarge", R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,4]}})", 4, "span 4 bytes, BF16 [1] needs 2"},
    {"BeyondTheEnd", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7,
     "tensor 'a': data_offsets [0,8] end beyond the file's 7 bytes of data"},
    {"HugeButConsistent",
     R"({"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}})", 4,
     "end beyond the file's 4 bytes"},
    {"OffsetsOver63Bits",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551611,18446744073709551615]}})", 4,
     "end beyond the file's 4 bytes"},
    {"Overlap",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7,
     "tensor 'b': overlaps"},
    {"SameBytesTwice",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4,
     "overlaps"},
    {"HoleInTheMiddle",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9,
     "tensor 'b': begins at byte 5, the tensor before it ends at 4"},
    {"HoleAtTheStart", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5, "begins at byte 1"},
    {"HoleAtTheEnd", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 6, "2 bytes at the end belong to no"},
    {"DuplicateTensor",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8,
     "the name 'a' occurs twice"},
    {"DuplicateMember", R"({"a":{"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
     "tensor 'a': dtype occurs twice"},
    {"UnknownMember", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}})", 1,
     "unknown member 'strides'"},
    {"MetadataIsText", R"({"__metadata__":"x"})", 0, "'__metadata__': a string where an object is needed"},
    {"MetadataValueIsNumber", R"({"__metadata__":{"scale":0.5}})", 0, "__metadata__: a number where a string"},
    {"MetadataValueIsObject", R"({"__metadata__":{"scale":{}}})", 0, "__metadata__: an object where a string"},
    {"DuplicateMetadataKey", R"({"__metadata__":{"k":"1","k":"2"}})", 0, "the key 'k' occurs twice"},
    {"DuplicateMetadata", R"({"__metadata__":{},"__metadata__":{}})", 0, "the name '__metadata__' occurs twice"},
};

INSTANTIATE_TEST_SUITE_P(All, MalformedHeaderTest, testing::ValuesIn(kMalformedHeaders),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST_F(SafetensorsTest, HeaderLengthIsCheckedBeforeAnythingIsAllocated) {
  EXPECT_NE(error_of(write_raw("")).find("too short"), std::string::npos);
  EXPECT_NE(error_of(write_raw("1234567")).find("7 bytes, too short"), std::string::npos);
  EXPECT_NE(error_of(write_raw(length_prefix(3) + "{}")).find("beyond the end of the file"), std::string::npos);
  EXPECT_NE(error_of(write_raw(length_prefix(99'999'999) + "{}")).find("beyond the end"), std::string::npos);
  EXPECT_NE(error_of(write_raw(length_prefix(100'000'001) + "{}")).find("limit of 100 MB"), std::string::npos);
  EXPECT_NE(error_of(write_raw(length_prefix(UINT64_MAX) + "{}")).find("limit of 100 MB"), std::string::npos);
  EXPECT_NE(error_of(write_raw(length_prefix(UINT64_MAX - 7) + "{}")).find("limit of 100 MB"), std::string::npos);
}

TEST_F(SafetensorsTest, DeepNestingIsRefusedAtItsFirstLevels) {
  const std::string deep(1'000'000, '[');
  EXPECT_NE(error_of(write_file("{\"a\":" + deep, 0)).find("an array where an object"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(error_of(write_file(objects, 0)).find("unknown member 'a'"), std::string::npos);
}

TEST_F(SafetensorsTest, EveryTruncationOfAGoodFileIsRefused) {
  const std::vector<std::byte> bytes = counting_bytes(12, 0);
  write_safetensors(path(), {{"a", DType::kF32, {3}, bytes}, {"b", DType::kU8, {12}, bytes}}, {{"gate", "log"}});
  std::ifstream file(path(), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_EQ(error_of(path()), "");
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(error_of(write_raw(whole.substr(0, length))), "") << "cut to " << length << " bytes";
  }
}

TEST_F(SafetensorsTest, NamesReachMessagesShortAndPrintable) {
  const std::string name(1000, 'n');
  const std::string message = error_of(write_file("{\"\x1b[31m" + name + "\":1}", 0));
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  const std::string escaped = error_of(write_file("{\"\\u001b[31m" + name + "\":1}", 0));
  EXPECT_EQ(escaped.find('\x1b'), std::string::npos);
  EXPECT_NE(escaped.find("tensor '?[31mnnn"), std::string::npos) << escaped;
  EXPECT_LT(escaped.size(), path().size() + 200);
}

TEST_F(SafetensorsTest, WhatWasNotReadIsNamedPrintably) {
  const std::byte one[4] = {};
  write_safetensors(path(), {{"a", DType::kF32, {1}, one}, {"\x1b[31mb", DType::kF32, {1}, one}}, {});
  SafetensorsReader reader(path());
  EXPECT_EQ(reader.unread(), (std::vector<std::string>{"'a'", "'?[31mb'"}));
  read_all(reader, "a");
  EXPECT_EQ(reader.unread(), std::vector<std::string>{"'?[31mb'"});
}

TEST_F(SafetensorsTest, PathsThatAreNoFiles) {
  EXPECT_NE(error_of(path("missing")).find("missing: no such file"), std::string::npos);
  EXPECT_NE(error_of(folder_.string()).find("not a regular file"), std::string::npos);
  EXPECT_NE(error_of("/dev/zero").find("not a regular file"), std::string::npos);
}

TEST_F(SafetensorsTest, AFileCutAfterOpeningIsAnError) {
  const std::vector<std::byte> bytes = counting_bytes(12, 0);
  write_safetensors(path(), {{"a", DType::kF32, {3}, bytes}}, {});
  SafetensorsReader reader(path());
  fs::resize_file(path(), fs::file_size(path()) - 4);
  EXPECT_THROW(read_all(reader, "a"), FileError);
}

// ------------------------------------------------------------------------------------------------------ bad writes

TEST_F(SafetensorsTest, WriterRefusesWhatItsReaderWould) {
  const std::vector<std::byte> bytes = counting_bytes(8, 0);
  const auto error = [&](const std::vector<TensorView>& tensors, const Metadata& metadata = {}) -> std::string {
    try {
      write_safetensors(path(), tensors, metadata);
    } catch (const FileError& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_NE(error({{"a", DType::kF32, {3}, bytes}}).find("F32 [3] given with 8 bytes"), std::string::npos);
  EXPECT_NE(error({{"a", DType::kF32, {-2}, bytes}}).find("negative shape"), std::string::npos);
  EXPECT_NE(error({{"a", DType::kF32, {2}, bytes}, {"a", DType::kF32, {2}, bytes}}).find("taken"), std::string::npos);
  EXPECT_NE(error({{"__metadata__", DType::kF32, {2}, bytes}}).find("taken"), std::string::npos);
  EXPECT_NE(error({{"\xff", DType::kF32, {2}, bytes}}).find("not UTF-8"), std::string::npos);
  EXPECT_NE(error({}, {{"k", "\xff"}}).find("not UTF-8"), std::string::npos);
  EXPECT_FALSE(fs::exists(path()));
}

TEST_F(SafetensorsTest, WriterNamesAPathThatCannotBeWritten) {
  try {
    write_safetensors(path("no/such/folder/file"), {}, {});
    FAIL() << "written";
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find("no/such/folder/file: cannot be opened for writing"), std::string::npos);
  }
}

}  // namespace
}  // namespace flashkda::io
