// Problems in safetensors files: what is read is what was meant, and what is missing is named.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "check/accuracy.hpp"
#include "check/families.hpp"
#include "check/layer_file.hpp"

namespace flashkda::checks {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;

class LayerFileTest : public testing::Test {
 protected:
  LayerFileTest() : folder_(fs::path(testing::TempDir()) / ("flashkda_layer_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~LayerFileTest() override { fs::remove_all(folder_); }
  std::string path(const std::string& name = "layer.safetensors") const { return (folder_ / name).string(); }

  static io::TensorView view(const char* name, const HostTensor& tensor, Shape shape = {}) {
    return {name, to_file_dtype(tensor.dtype()), shape.empty() ? tensor.shape() : shape, tensor.bytes()};
  }

  // The tensors of a small problem with batch dimensions.
  std::vector<io::TensorView> tensors() const {
    return {view("q", p_.q), view("k", p_.k), view("v", p_.v), view("g", p_.g), view("beta", p_.beta)};
  }

  void write(std::vector<io::TensorView> tensors, const io::Metadata& metadata = {}) const {
    io::write_safetensors(path(), std::move(tensors), metadata);
  }

  std::string error() const {
    try {
      read_layer(path());
    } catch (const io::FileError& failure) {
      return failure.what();
    }
    return "";
  }

  OwnedProblem p_ = make_problem(*find_family("random"), {.B = 1, .T = 3, .H = 2}, {.initial_state = FKDA_FLOAT32});
  fs::path folder_;
};

TEST_F(LayerFileTest, SliceOfTheRepository) {
  const std::string stem = FLASHKDA_SOURCE_DIR "/data/kda_softplus_slice";
  const LayerFile layer = read_layer(stem + ".safetensors");
  EXPECT_FALSE(layer.batched);
  EXPECT_EQ(layer.problem.q.shape(), (Shape{1, 117, 4, 128}));
  EXPECT_EQ(layer.problem.beta.shape(), (Shape{1, 117, 4}));
  EXPECT_EQ(layer.problem.options.gate, FKDA_GATE_SOFTPLUS);
  EXPECT_FLOAT_EQ(layer.problem.options.scale, 0.088388346f);
  EXPECT_EQ(layer.text.substr(0, 11), "ro\n        ");
  EXPECT_EQ(layer.text.size(), 117u);
  EXPECT_EQ(read_result(stem + "_expected.safetensors").final_state.shape(), (Shape{1, 4, 128, 128}));
}

TEST_F(LayerFileTest, WithAndWithoutBatchDimension) {
  write(tensors());
  EXPECT_TRUE(read_layer(path()).batched);
  write({view("q", p_.q, {3, 2, 128}), view("k", p_.k, {3, 2, 128}), view("v", p_.v, {3, 2, 128}),
         view("g", p_.g, {3, 2, 128}), view("beta", p_.beta, {3, 2}),
         view("initial_state", p_.initial_state, {2, 128, 128})});
  const LayerFile layer = read_layer(path());
  EXPECT_FALSE(layer.batched);
  EXPECT_EQ(layer.problem.v.shape(), (Shape{1, 3, 2, 128}));
  EXPECT_EQ(layer.problem.initial_state.shape(), (Shape{1, 2, 128, 128}));
  EXPECT_EQ(layer.problem.q.get(300), p_.q.get(300));
}

TEST_F(LayerFileTest, EveryOptionOfTheMetadata) {
  write(tensors(), {{"gate", "softplus"},
                    {"lower_bound", ""},
                    {"scale", "0.25"},
                    {"beta", "twice-sigmoid"},
                    {"state_layout", "k-first"},
                    {"qk_l2norm", "0"},
                    {"anything", "else"}});
  const fkda_problem o = read_layer(path()).problem.options;
  EXPECT_EQ(o.gate, FKDA_GATE_SOFTPLUS);
  EXPECT_EQ(o.scale, 0.25f);
  EXPECT_EQ(o.beta_activation, FKDA_BETA_TWICE_SIGMOID);
  EXPECT_EQ(o.state_layout, FKDA_STATE_K_FIRST);
  EXPECT_EQ(o.qk_l2norm, 0);
  write(tensors(), {{"gate", "bounded"}, {"lower_bound", "-2.5"}});
  EXPECT_EQ(read_layer(path()).problem.options.lower_bound, -2.5f);
  EXPECT_TRUE(std::isnan(read_layer(path()).problem.options.scale));
}

TEST_F(LayerFileTest, BadMetadataIsNamed) {
  const auto message = [&](const char* key, const char* value) {
    write(tensors(), {{key, value}});
    return error();
  };
  EXPECT_NE(message("gate", "open").find("metadata gate: got 'open', needs one of bounded, softplus, log"),
            std::string::npos);
  for (const char* value : {"x", "1.0x", " 1", "0,5", "1e999"}) {
    EXPECT_NE(message("scale", value).find("metadata scale: got '"), std::string::npos) << value;
  }
  EXPECT_NE(message("lower_bound", "minus five").find("needs a number"), std::string::npos);
  EXPECT_NE(message("qk_l2norm", "yes").find("needs 0 or 1"), std::string::npos);
  EXPECT_NE(message("beta", "tanh").find("metadata beta"), std::string::npos);
  EXPECT_NE(message("state_layout", "kv").find("metadata state_layout"), std::string::npos);
}

TEST_F(LayerFileTest, MissingTensorsAreNamed) {
  for (size_t i = 0; i < 5; ++i) {
    std::vector<io::TensorView> some = tensors();
    const std::string name = some[i].name;
    some.erase(some.begin() + static_cast<std::ptrdiff_t>(i));
    write(some);
    EXPECT_NE(error().find(path() + ": tensor '" + name + "' is missing"), std::string::npos) << error();
  }
}

TEST_F(LayerFileTest, WrongRanksAreNamed) {
  std::vector<io::TensorView> flat = tensors();
  flat[0].shape = {3 * 2, 128};
  write(flat);
  EXPECT_NE(error().find("tensor 'q' has 2 dimensions, needs 4, or 3 without the first"), std::string::npos) << error();
  std::vector<io::TensorView> with_scalar = tensors();
  const HostTensor one(FKDA_FLOAT32, {1});
  with_scalar.push_back({"A_log", io::DType::kF32, {}, one.bytes()});
  write(with_scalar);
  EXPECT_NE(error().find("tensor 'A_log' has 0 dimensions"), std::string::npos) << error();
}

TEST_F(LayerFileTest, BytesAreNoInput) {
  const std::vector<std::byte> bytes(3 * 2);
  std::vector<io::TensorView> some = tensors();
  some[4] = {"beta", io::DType::kU8, {1, 3, 2}, bytes};
  write(some);
  EXPECT_NE(error().find("tensor 'beta': U8 is no dtype of a problem"), std::string::npos) << error();
}

TEST_F(LayerFileTest, EmptyTensorsOfHugeShapesAllocateNothing) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  std::vector<io::TensorView> some = tensors();
  some[0] = {"q", io::DType::kBF16, {kHuge, kHuge, 0, kHuge}, {}};
  write(some);
  EXPECT_EQ(read_layer(path()).problem.q.size(), 0);
}

TEST_F(LayerFileTest, ResultsHaveTheDimensionsOfTheInput) {
  LayerFile layer;
  layer.problem = make_problem(*find_family("random"), {.B = 1, .T = 3, .H = 2});
  layer.problem.options.lower_bound = -2.5f;
  layer.problem.allocate_outputs(FKDA_BFLOAT16, FKDA_FLOAT32);
  layer.problem.out.set(7, 0.5);
  layer.problem.final_state.set(7, 0.25);
  const auto shapes = [&] {
    write_result(path(), layer, {{"made_by", "a test"}});
    const io::SafetensorsReader reader(path());
    return std::pair(reader.find("o")->shape, reader.find("final_state")->shape);
  };
  layer.batched = true;
  EXPECT_EQ(shapes(), std::pair(Shape({1, 3, 2, 128}), Shape({1, 2, 128, 128})));
  layer.batched = false;
  EXPECT_EQ(shapes(), std::pair(Shape({3, 2, 128}), Shape({2, 128, 128})));
  const LayerResult result = read_result(path());
  EXPECT_EQ(result.out.get(7), 0.5);
  EXPECT_EQ(result.final_state.get(7), 0.25);
  const io::Metadata metadata = io::SafetensorsReader(path()).metadata();
  EXPECT_EQ(metadata.at("gate"), "bounded");
  EXPECT_EQ(metadata.at("lower_bound"), "-2.5");
  EXPECT_EQ(metadata.at("state_layout"), "v-first");
  EXPECT_EQ(metadata.at("made_by"), "a test");

  layer.problem = make_problem(*find_family("random"), {.lengths = {3, 2}, .H = 2});
  layer.problem.allocate_outputs(FKDA_BFLOAT16, FKDA_FLOAT32);
  EXPECT_EQ(shapes(), std::pair(Shape({5, 2, 128}), Shape({2, 2, 128, 128})));

  layer.problem.allocate_outputs(FKDA_BFLOAT16, 0);
  write_result(path(), layer, {});
  EXPECT_EQ(io::SafetensorsReader(path()).find("final_state"), nullptr);
}

TEST_F(LayerFileTest, LayersOfAFolder) {
  for (const char* name : {"b.safetensors", "b_expected.safetensors", "a.safetensors", "a_expected.safetensors",
                           "alone.safetensors", "alone_expected.txt"}) {
    io::write_safetensors(path(name), {}, {});
  }
  const std::vector<LayerWithResult> layers = find_layers(folder_.string());
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].name, "a");
  EXPECT_EQ(layers[1].name, "b");
  EXPECT_EQ(layers[1].expected_path, path("b_expected.safetensors"));
  EXPECT_TRUE(find_layers(path("no such folder")).empty());
}

}  // namespace
}  // namespace flashkda::checks
