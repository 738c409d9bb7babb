// What the portable path's first two kernels leave in the workspace: every symbol of the chunk image against fp64, and
// the tables of a packed batch.
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "check/families.hpp"
#include "check/layer_file.hpp"
#include "core/dtype.hpp"
#include "cuda/device.hpp"
#include "cuda/tile/image.cuh"

namespace flashkda::test {
namespace {

using cuda::Image;

int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// The workspace of a packed batch starts with the tables of plan.cuh, that of a dense one with the images.
struct Tables {
  std::vector<int64_t> begin;
  std::vector<int32_t> chunks;
};

std::vector<std::byte> workspace_of(const DeviceCase& device) {
  std::vector<std::byte> bytes(device.workspace().size());
  device.workspace().download(bytes.data());
  return bytes;
}

Tables tables_of(const std::vector<std::byte>& workspace, int64_t N) {
  Tables t{std::vector<int64_t>(static_cast<size_t>(N) + 1), std::vector<int32_t>(static_cast<size_t>(N) + 1)};
  std::memcpy(t.begin.data(), workspace.data(), t.begin.size() * 8);
  std::memcpy(t.chunks.data(), workspace.data() + round_up((N + 1) * 8, FKDA_WORKSPACE_ALIGNMENT), t.chunks.size() * 4);
  return t;
}

int64_t images_offset(const Case& c) {
  if (!c.packed()) return 0;
  return round_up((c.N + 1) * 8, FKDA_WORKSPACE_ALIGNMENT) + round_up((c.N + 1) * 4, FKDA_WORKSPACE_ALIGNMENT);
}

// The image of a chunk in fp64, rows past its end zero.
struct ExactImage {
  std::vector<double> kd, qd, kr, T, M, F;
  ExactImage(int64_t size, int64_t K)
      : kd(static_cast<size_t>(size * K)),
        qd(kd),
        kr(kd),
        T(static_cast<size_t>(size * size)),
        M(T),
        F(static_cast<size_t>(K)) {}
};

// chunk_size: 16 or 32 tokens.
ExactImage inspect(const Case& c, const Outputs& outputs, int64_t sequence, int64_t head, int64_t chunk,
                   int32_t chunk_size) {
  const auto width = static_cast<size_t>(c.K), size = static_cast<size_t>(chunk_size);
  ExactImage exact(chunk_size, c.K);
  std::vector<double> G(size * width), INV(size * size), M(size * size), b(size);
  fkda_chunk symbols = {};
  symbols.struct_size = sizeof(fkda_chunk);
  symbols.chunk_size = chunk_size;
  symbols.sequence = sequence;
  symbols.head = head;
  symbols.chunk = chunk;
  symbols.kd = exact.kd.data();
  symbols.qd = exact.qd.data();
  symbols.kr = exact.kr.data();
  symbols.G = G.data();
  symbols.b = b.data();
  symbols.INV = INV.data();
  symbols.Mqk = M.data();
  const fkda_problem problem = c.problem(outputs);
  EXPECT_EQ(fkda_inspect_chunk(&problem, &symbols), FKDA_OK) << fkda_last_error();
  const auto n = static_cast<size_t>(symbols.rows);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      exact.T[i * size + j] = INV[i * n + j] * b[j];
      exact.M[i * size + j] = M[i * n + j];
    }
  }
  for (size_t i = n; i < size; ++i) exact.T[i * size + i] = 0.0;  // b of a row that is not there is 0
  for (size_t k = 0; k < width; ++k) exact.F[k] = std::exp(G[(n - 1) * width + k]);
  return exact;
}

// Every element within a relative and an absolute distance. place(i): where element i is, row by row if not given.
void expect_near(
    const std::byte* actual, int32_t dtype, const std::vector<double>& expected, double relative, double absolute,
    const char* symbol, int64_t columns, const std::function<int64_t(int64_t)>& place = [](int64_t i) { return i; }) {
  int reported = 0;
  for (size_t i = 0; i < expected.size() && reported < 3; ++i) {
    const double x = load_scalar(actual, dtype, place(static_cast<int64_t>(i)));
    if (std::fabs(x - expected[i]) <= relative * std::fabs(expected[i]) + absolute) continue;
    const auto at = static_cast<int64_t>(i);
    ADD_FAILURE() << symbol << '[' << at / columns << "][" << at % columns << "] is " << x << ", exact " << expected[i];
    ++reported;
  }
}

constexpr double kBf16 = 0x1p-8;  // half a unit in the last place, relative
constexpr double kTf32 = 0x1p-11;
constexpr double kTiny = 1e-36;  // where fp32 and bf16 go subnormal

// Every chunk of every sequence and head.
void expect_right_images(const Case& c, double absolute_T) {
  Case portable = c;
  portable.options.backend = "cuda_portable";
  portable.options.batch_invariant = 1;  // short sequences by chunks as well
  DeviceCase device(portable, Want{});
  ASSERT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
  const Outputs& outputs = device.fetch();
  const std::vector<std::byte> workspace = workspace_of(device);
  const int64_t bytes = c.K == 128 ? Image<128>::kBytes : Image<64>::kBytes;
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.K));
  int64_t first = 0;  // chunks before the sequence
  for (int64_t n = 0; n < c.N; ++n) {
    const int64_t chunks = (c.length(n) + 15) / 16;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t head = 0; head < c.HV; ++head) {
        SCOPED_TRACE(testing::Message() << "sequence " << n << ", chunk " << chunk << ", head " << head);
        const ExactImage exact = inspect(c, outputs, n, head, chunk, 16);
        const std::byte* image = workspace.data() + images_offset(c) + ((first + chunk) * c.HV + head) * bytes;
        const int64_t wide = 16 * c.K * 2;
        expect_near(image, FKDA_BFLOAT16, exact.kd, 1.01 * kBf16, kTiny, "kd", c.K);
        expect_near(image + wide, FKDA_BFLOAT16, exact.qd, 1.01 * kBf16, kTiny, "qd", c.K);
        const auto kr_place = [&](int64_t i) {
          return cuda::wide_place(static_cast<int>(i / c.K), static_cast<int>(i % c.K));
        };
        const auto T_place = [](int64_t i) {
          return cuda::wide_place(static_cast<int>(i % 16), static_cast<int>(i / 16));
        };
        // Decays are products of up to 15 approximate exponentials.
        expect_near(image + 2 * wide, FKDA_FLOAT32, exact.kr, 1.02 * kTf32, kTiny, "kr", c.K, kr_place);
        // Products of bf16 rows: |k| = 1 and |q| = scale bound the sum of the rounding errors by 2 * kBf16 * scale.
        expect_near(image + 4 * wide, FKDA_FLOAT32, exact.T, kTf32, absolute_T, "T", 16, T_place);
        expect_near(image + 4 * wide + 1024, FKDA_BFLOAT16, exact.M, kBf16, kBf16 * scale, "Mqk", 16);
        expect_near(image + 4 * wide + 1536, FKDA_FLOAT32, exact.F, 2e-5, kTiny, "F", c.K);
      }
    }
    first += chunks;
  }
}

// The images of the wgmma path, of a dense batch: layout of sm90/image.cuh, written out. Where it does not fit (no
// sm_90) there are none to look at. lengths: what |q| |k| of tokens are, at most.
bool expect_right_wgmma_images(const Case& c, double absolute_T, double lengths = 1.0) {
  int device_index = 0, major = 0;
  EXPECT_CUDA(cudaGetDevice(&device_index));
  EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_index));
  if (major != 9) return false;
  Case wgmma = c;
  wgmma.options.backend = "cuda_wgmma";
  DeviceCase device(wgmma, Want{});
  EXPECT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
  const Outputs& outputs = device.fetch();
  const std::vector<std::byte> workspace = workspace_of(device);
  constexpr int64_t kD = 128, kBytes = 39936, kQd = 8192, kKr = 16384, kT = 32768, kM = 36864, kF = 38912;
  const double scale = 1.0 / std::sqrt(static_cast<double>(kD));
  // Element places of row-major elements: 16-byte units of a row of 128 or 64 bytes are swizzled.
  const auto row_place = [](int64_t i) {  // [token][channel] bf16, 64 channels a row
    const int64_t token = i / kD, channel = i % kD, half = channel / 64, in = channel % 64;
    return half * 32 * 64 + token * 64 + ((in / 8) ^ (token % 8)) * 8 + in % 8;
  };
  const auto token_place = [](int64_t j) { return j / 8 * 8 + j % 2 * 4 + j % 8 / 2; };
  const auto wide_place = [&](int64_t row, int64_t token) {  // [row][token place] fp32
    const int64_t place = token_place(token);
    return row * 32 + ((place / 4) ^ (row % 8)) * 4 + place % 4;
  };
  const auto kr_place = [&](int64_t i) { return wide_place(i % kD, i / kD); };
  const auto T_place = [&](int64_t i) { return wide_place(i / 32, i % 32); };
  const auto M_place = [](int64_t i) {
    const int64_t row = i / 32, column = i % 32;
    return row * 32 + ((column / 8) ^ (row / 2 % 4)) * 8 + column % 8;
  };
  const auto F_place = [](int64_t k) { return k / 16 * 16 + k % 8 / 2 * 4 + k % 16 / 8 * 2 + k % 2; };
  constexpr double kUncut = 1.0 + 3.5222e-4;  // T makes up for what the tensor cores cut off its operand
  const int64_t chunks = (c.T + 31) / 32;
  for (int64_t n = 0; n < c.N; ++n) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t head = 0; head < c.HV; ++head) {
        SCOPED_TRACE(testing::Message() << "sequence " << n << ", chunk " << chunk << " of 32, head " << head);
        ExactImage exact = inspect(c, outputs, n, head, chunk, 32);
        for (double& x : exact.T) x *= kUncut;
        const std::byte* image = workspace.data() + ((n * chunks + chunk) * c.HV + head) * kBytes;
        expect_near(image, FKDA_BFLOAT16, exact.kd, 1.01 * kBf16, kTiny, "kd", kD, row_place);
        expect_near(image + kQd, FKDA_BFLOAT16, exact.qd, 1.01 * kBf16, kTiny, "qd", kD, row_place);
        // Centred: two powers of up to 60 bits, each good to 2^-18 bits.
        expect_near(image + kKr, FKDA_FLOAT32, exact.kr, 1.05 * kTf32, kTiny, "kr", kD, kr_place);
        expect_near(image + kT, FKDA_FLOAT32, exact.T, kTf32, absolute_T, "T", 32, T_place);
        expect_near(image + kM, FKDA_BFLOAT16, exact.M, kBf16, kBf16 * scale * lengths, "Mqk", 32, M_place);
        expect_near(image + kF, FKDA_FLOAT32, exact.F, 4e-5, kTiny, "F", kD, F_place);
      }
    }
  }
  return true;
}

class CudaImage : public OnGpu {};
class CudaImageOfFamily : public OnGpu, public testing::WithParamInterface<std::string> {};

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const checks::Family& family : checks::families()) names.emplace_back(family.name);
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Each, CudaImageOfFamily, testing::ValuesIn(family_names()), test_name);

TEST_P(CudaImageOfFamily, EverySymbol) {
  const Case c = to_case(checks::make_problem(*checks::find_family(GetParam()), {.B = 2, .T = 75, .H = 1, .HV = 2}));
  expect_right_images(c, GetParam() == "identical-keys" ? 2e-2 : 8e-3);
}

TEST_P(CudaImageOfFamily, EverySymbolOfTheWgmmaPath) {
  const Case c = to_case(checks::make_problem(*checks::find_family(GetParam()), {.B = 2, .T = 75, .H = 1, .HV = 2}));
  if (!expect_right_wgmma_images(c, GetParam() == "identical-keys" ? 3e-2 : 1e-2)) GTEST_SKIP() << "no sm_90";
}

TEST_P(CudaImageOfFamily, EverySymbolOfAPackedBatch) {
  const Case c = to_case(checks::make_problem(*checks::find_family(GetParam()), {.lengths = {1, 0, 33, 16, 47}}));
  expect_right_images(c, GetParam() == "identical-keys" ? 2e-2 : 8e-3);
}

TEST_F(CudaImage, EverySymbolOfWidth64) {
  for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
    expect_right_images(Case({.T = 61, .H = 2, .K = 64, .V = 64, .gate = gate, .seed = 11}), 8e-3);
  }
}

TEST_F(CudaImage, EverySymbolOfEveryInputDtype) {
  for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
    for (const int32_t small : {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32}) {
      expect_right_images(Case({.T = 40, .H = 2, .dtype = dtype, .g_dtype = small, .beta_dtype = small, .seed = 12}),
                          8e-3);
    }
  }
}

TEST_F(CudaImage, EverySymbolOfEveryBetaAndNorm) {
  for (const int32_t beta : {FKDA_BETA_SIGMOID, FKDA_BETA_TWICE_SIGMOID, FKDA_BETA_ACTIVATED}) {
    for (const int32_t norm : {0, 1}) {
      expect_right_images(Case({.T = 40, .H = 1, .HV = 3, .beta = beta, .qk_l2norm = norm, .seed = 13}), 1e-2);
    }
  }
}

TEST_F(CudaImage, OneTokenForgetsInsideAChunk) {
  for (const double a : {0.0, -5.0, -5.5, -5.6, -6.0, -20.0, -88.0, -1000.0}) {
    for (const int64_t token : {0, 7, 8, 15}) {
      Case c({.T = 16, .g_dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .seed = 14});
      c.g.narrow(1, token, 1).fill(a);
      SCOPED_TRACE(testing::Message() << a << " at token " << token);
      expect_right_images(c, 8e-3);
    }
  }
}

TEST_F(CudaImage, EverySymbolOfEveryInputDtypeGateAndNormOfTheWgmmaPath) {
  for (const int32_t dtype : {FKDA_BFLOAT16, FKDA_FLOAT16}) {
    for (const int32_t small : {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT32}) {
      for (const int32_t gate : {FKDA_GATE_BOUNDED, FKDA_GATE_SOFTPLUS, FKDA_GATE_LOG}) {
        for (const int32_t norm : {0, 1}) {
          const Case c({.T = 45,
                        .H = 1,
                        .HV = 2,
                        .dtype = dtype,
                        .g_dtype = small,
                        .beta_dtype = small,
                        .gate = gate,
                        .qk_l2norm = norm,
                        .seed = 15});
          SCOPED_TRACE(testing::Message()
                       << "dtypes " << dtype << ' ' << small << ", gate " << gate << ", norm " << norm);
          if (!expect_right_wgmma_images(c, 1e-2)) GTEST_SKIP() << "no sm_90";
        }
      }
    }
  }
}

// Too much for one anchor: pairs of such channels are multiplied one by one (add_wild of sm90/prepare.cuh), here of
// some channels in rounds that are full and not, and of all.
TEST_F(CudaImage, SomeChannelsForgetInsideAChunkOfTheWgmmaPath) {
  for (const double a : {-80.0, -90.0, -120.0, -1000.0}) {
    for (const int64_t token : {0, 3, 12, 15, 16, 20, 31, 33, 41}) {
      for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 128}, {5, 1}, {60, 8}, {113, 15}}) {
        Case c({.T = 43,
                .HV = 2,
                .dtype = token % 2 == 0 ? FKDA_BFLOAT16 : FKDA_FLOAT16,
                .g_dtype = token % 4 == 0 ? FKDA_BFLOAT16 : FKDA_FLOAT32,
                .gate = FKDA_GATE_LOG,
                .seed = 16});
        c.g.fill(-0.0078125);
        c.g.narrow(1, token, 1).narrow(3, first, count).fill(a);
        c.g.narrow(1, 43 - 1 - token, 1).narrow(3, first, count / 2).fill(a);  // some in both halves
        SCOPED_TRACE(testing::Message() << a << " at token " << token << " in " << count << " channels from " << first);
        if (!expect_right_wgmma_images(c, 1e-2)) GTEST_SKIP() << "no sm_90";
      }
    }
  }
}

TEST_F(CudaImage, LongRawRowsOfTheWgmmaPath) {
  for (const double length : {0x1p4, 0x1p8, 0x1p40}) {  // squares of 2^15: centred; 2^23 and more: not
    Case c({.T = 43, .g_dtype = FKDA_FLOAT32, .gate = FKDA_GATE_LOG, .qk_l2norm = 0, .seed = 17});
    Random random(18);
    c.q.generate([&] { return length * random.normal(); });
    SCOPED_TRACE(length);
    if (!expect_right_wgmma_images(c, 1e-2, 128.0 * length)) GTEST_SKIP() << "no sm_90";
  }
}

// ---------------------------------------------------------------------------------------- the tables of a packed batch

class CudaPlan : public OnGpu {};

// What plan.cuh promises, whatever cu_seqlens holds.
void expect_tables(const std::vector<int64_t>& cu, int64_t T, int32_t dtype) {
  const auto N = static_cast<int64_t>(cu.size()) - 1;
  Case c({.cu = {0, T}, .cu_dtype = dtype, .seed = 21});
  c.cu_seqlens = Tensor::integers(dtype, cu);
  c.N = N;
  c.options.batch_invariant = 1;  // short sequences by chunks as well
  Outputs outputs;
  outputs.out = Tensor(FKDA_BFLOAT16, {1, T, 1, 128});
  outputs.final_state = Tensor(FKDA_FLOAT32, {N, 1, 128, 128});
  DeviceCase device(outputs, c);
  ASSERT_EQ(device.launch(), FKDA_OK) << fkda_last_error();
  device.fetch();
  const Tables t = tables_of(workspace_of(device), N);
  int64_t highest = 0, chunks = 0;
  for (int64_t n = 0; n <= N; ++n) {
    const auto i = static_cast<size_t>(n);
    highest = std::max(highest, std::min(std::max(cu[i], int64_t{0}), T));
    ASSERT_EQ(t.begin[i], highest) << "sequence " << n << " of " << N;
    if (n > 0) chunks += (t.begin[i] - t.begin[i - 1] + 15) / 16;
    ASSERT_EQ(t.chunks[i], chunks) << "sequence " << n << " of " << N;
  }
  ASSERT_LE(chunks, T / 16 + N);
}

TEST_F(CudaPlan, TablesOfEveryLength) {
  for (const int32_t dtype : {FKDA_INT32, FKDA_INT64}) {
    expect_tables({0, 100}, 100, dtype);
    expect_tables({0, 0, 1, 17, 17, 49, 100}, 100, dtype);
    Random random(22);
    for (const int64_t N : {1, 510, 511, 512, 513, 1023, 1024, 1025, 3000}) {  // around the block that scans
      std::vector<int64_t> lengths;
      for (int64_t n = 0; n < N; ++n) lengths.push_back(random.integer(0, 3));
      const std::vector<int64_t> cu = cumulative(lengths);
      expect_tables(cu, cu.back(), dtype);
    }
  }
}

TEST_F(CudaPlan, Row19_GarbageStaysWithinTheTensors) {  // guard zones are watched
  for (const int32_t dtype : {FKDA_INT32, FKDA_INT64}) {
    expect_tables({0, 40, 20, 100}, 100, dtype);  // descending
    expect_tables({7, 50, 100}, 100, dtype);      // does not start at 0
    expect_tables({0, 50, 60}, 100, dtype);       // ends early
    expect_tables({0, 50, 400}, 100, dtype);      // ends late
    expect_tables({-5, -1, 1 << 30, 3}, 100, dtype);
    expect_tables({100, 100, 100}, 100, dtype);
    expect_tables({2000000000, -2000000000, 50}, 100, dtype);
    Random random(23);
    std::vector<int64_t> noise;
    for (int i = 0; i < 1500; ++i) noise.push_back(random.integer(-2147483647, 2147483647));
    expect_tables(noise, 300, dtype);
  }
  expect_tables({INT64_MIN, INT64_MAX, INT64_MIN, 0}, 100, FKDA_INT64);
}

}  // namespace
}  // namespace flashkda::test
