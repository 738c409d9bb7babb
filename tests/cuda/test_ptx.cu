// Each wrapper of one instruction against what the host computes, and the swizzle.
#include <cuda_bf16.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.hpp"
#include "cuda/device.hpp"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/tile/image.cuh"

namespace flashkda::test {
namespace {

using namespace flashkda::cuda;

// ------------------------------------------------------------------------------------------------------ the swizzle

template <int kUnits>
constexpr bool swizzle_is_a_permutation_without_bank_conflicts() {
  bool taken[16 * kUnits] = {};
  for (int row = 0; row < 16; ++row) {
    for (int unit = 0; unit < kUnits; ++unit) {
      const int at = swizzled<kUnits>(row, unit);
      if (at % 16 != 0 || at < row * kUnits * 16 || at >= (row + 1) * kUnits * 16 || taken[at / 16]) return false;
      taken[at / 16] = true;
    }
  }
  // Eight rows of one unit, as ldmatrix reads them: 16-byte slots of the 128 bytes of banks, each once.
  for (int first = 0; first < 16; first += 8) {
    for (int unit = 0; unit < kUnits; ++unit) {
      int slots = 0;
      for (int row = first; row < first + 8; ++row) slots |= 1 << (swizzled<kUnits>(row, unit) / 16 % 8);
      if (slots != 0xff) return false;
    }
  }
  return true;
}
static_assert(swizzle_is_a_permutation_without_bank_conflicts<8>());
static_assert(swizzle_is_a_permutation_without_bank_conflicts<16>());

template <int kUnits>
constexpr bool swizzle_repeats_every_eight_rows() {  // what load_stage relies on
  for (int row = 0; row < 8; ++row) {
    for (int unit = 0; unit < kUnits; ++unit) {
      if (swizzled<kUnits>(row + 8, unit) != swizzled<kUnits>(row, unit) + 8 * kUnits * 16) return false;
    }
  }
  return true;
}
static_assert(swizzle_repeats_every_eight_rows<8>() && swizzle_repeats_every_eight_rows<16>());

template <int K>
constexpr bool image_parts_follow_each_other() {
  using Im = Image<K>;
  return Im::kKd == 0 && Im::kQd == 16 * K * 2 && Im::kKr == 2 * Im::kQd && Im::kT == 4 * Im::kQd &&
         Im::kM == Im::kT + 1024 && Im::kF == Im::kM + 512 && Im::kBytes == Im::kF + 4 * K;
}
static_assert(image_parts_follow_each_other<64>() && image_parts_follow_each_other<128>());

constexpr bool wide_units_are_a_permutation_without_bank_conflicts() {
  bool taken[64] = {};
  for (int octet = 0; octet < 2; ++octet) {
    for (int first = 0; first < 32; first += 8) {  // the eight lanes of a quarter of a 16-byte load
      int slots = 0;
      for (int lane = first; lane < first + 8; ++lane) {
        const int unit = wide_unit(octet, lane);
        if (unit / 32 != octet || taken[unit]) return false;
        taken[unit] = true;
        slots |= 1 << unit % 8;
      }
      if (slots != 0xff) return false;
    }
  }
  return true;
}
static_assert(wide_units_are_a_permutation_without_bank_conflicts());

constexpr bool wide_places_are_what_a_lane_reads() {
  for (int lane = 0; lane < 32; ++lane) {
    const int column = 8 + lane / 4, token = 2 * (lane % 4), at = wide_unit(1, lane) * 4;
    if (wide_place(token, column) != at || wide_place(token + 1, column) != at + 1 ||
        wide_place(token + 8, column) != at + 2 || wide_place(token + 9, column) != at + 3) {
      return false;
    }
  }
  return true;
}
static_assert(wide_places_are_what_a_lane_reads());

// ------------------------------------------------------------------------------------------------- running a kernel

template <typename T>
class Array {  // managed by hand: device memory and its copy on the host
 public:
  explicit Array(size_t count) : host(count), device_(count * sizeof(T)) {}
  T* device() {
    device_.upload(host.data());
    return reinterpret_cast<T*>(device_.data());
  }
  void fetch() {
    EXPECT_CUDA(cudaDeviceSynchronize());
    device_.download(host.data());
    EXPECT_TRUE(device_.guards_intact());
  }
  std::vector<T> host;

 private:
  DeviceBuffer device_;
};

class CudaPtx : public OnGpu {};

// ------------------------------------------------------------------------------------------------ matrix fragments

// Fragment coordinates, written out from the PTX ISA and not from mma_sync.cuh.
struct Place {
  int row, column;
};
Place a_place(int lane, int reg, int half) {  // 16 x 16, two values a register
  return {lane / 4 + reg % 2 * 8, lane % 4 * 2 + half + reg / 2 * 8};
}
Place b_place(int lane, int reg, int half) { return {lane % 4 * 2 + half + reg * 8, lane / 4}; }  // 16 x 8
Place c_place(int lane, int reg) { return {lane / 4 + reg / 2 * 8, lane % 4 * 2 + reg % 2}; }     // 16 x 8

__global__ void run_mma(float* c, const uint32_t* a, const uint32_t* b) {
  float acc[4];
  uint32_t operand[4];
  for (int i = 0; i < 4; ++i) acc[i] = c[threadIdx.x * 4 + i];
  for (int i = 0; i < 4; ++i) operand[i] = a[threadIdx.x * 4 + i];
  ptx::mma_m16n8k16_bf16(acc, operand, b[threadIdx.x * 2], b[threadIdx.x * 2 + 1]);
  for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = acc[i];
}

TEST_F(CudaPtx, MmaIsTheMatrixProduct) {
  Random random(1);
  // Small integers: every product and sum is exact, so a wrong coordinate cannot hide in a tolerance.
  double A[16][16], B[16][8], C[16][8];
  for (auto& row : A)
    for (double& x : row) x = static_cast<double>(random.integer(-8, 8));
  for (auto& row : B)
    for (double& x : row) x = static_cast<double>(random.integer(-8, 8));
  for (auto& row : C)
    for (double& x : row) x = static_cast<double>(random.integer(-8, 8));
  Array<uint32_t> a(128), b(64);
  Array<float> c(128);
  const auto pair = [](double lo, double hi) {
    return uint32_t{float_to_bf16(static_cast<float>(lo))} | uint32_t{float_to_bf16(static_cast<float>(hi))} << 16;
  };
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const Place lo = a_place(lane, r, 0), hi = a_place(lane, r, 1), acc = c_place(lane, r);
      a.host[lane * 4 + r] = pair(A[lo.row][lo.column], A[hi.row][hi.column]);
      c.host[lane * 4 + r] = static_cast<float>(C[acc.row][acc.column]);
    }
    for (int r = 0; r < 2; ++r) {
      const Place lo = b_place(lane, r, 0), hi = b_place(lane, r, 1);
      b.host[lane * 2 + r] = pair(B[lo.row][lo.column], B[hi.row][hi.column]);
    }
  }
  run_mma<<<1, 32>>>(c.device(), a.device(), b.device());
  c.fetch();
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const Place at = c_place(lane, r);
      double expected = C[at.row][at.column];
      for (int k = 0; k < 16; ++k) expected += A[at.row][k] * B[k][at.column];
      EXPECT_EQ(c.host[lane * 4 + r], expected) << "row " << at.row << ", column " << at.column;
    }
  }
}

__global__ void run_mma_tf32(float* c, const uint32_t* a, const uint32_t* b) {
  float acc[4];
  uint32_t operand[4];
  for (int i = 0; i < 4; ++i) acc[i] = c[threadIdx.x * 4 + i];
  for (int i = 0; i < 4; ++i) operand[i] = a[threadIdx.x * 4 + i];
  ptx::mma_m16n8k8_tf32(acc, operand, b[threadIdx.x * 2], b[threadIdx.x * 2 + 1]);
  for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = acc[i];
}

TEST_F(CudaPtx, MmaOfTf32IsTheMatrixProduct) {
  Random random(2);
  // 11-bit integers: in tf32 and in the sum exact.
  double A[16][8], B[8][8];
  for (auto& row : A)
    for (double& x : row) x = static_cast<double>(random.integer(1024, 2047));
  for (auto& row : B)
    for (double& x : row) x = static_cast<double>(random.integer(-255, 255));
  Array<uint32_t> a(128), b(64);
  Array<float> c(128);
  const auto bits = [](double x) {
    const auto single = static_cast<float>(x);
    uint32_t u;
    std::memcpy(&u, &single, 4);
    return u;
  };
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) a.host[lane * 4 + r] = bits(A[lane / 4 + r % 2 * 8][lane % 4 + r / 2 * 4]);
    for (int r = 0; r < 2; ++r) b.host[lane * 2 + r] = bits(B[lane % 4 + r * 4][lane / 4]);
    for (int r = 0; r < 4; ++r) c.host[lane * 4 + r] = 1.0f;
  }
  run_mma_tf32<<<1, 32>>>(c.device(), a.device(), b.device());
  c.fetch();
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const Place at = c_place(lane, r);
      double expected = 1.0;
      for (int k = 0; k < 8; ++k) expected += A[at.row][k] * B[k][at.column];
      EXPECT_EQ(c.host[lane * 4 + r], expected) << "row " << at.row << ", column " << at.column;
    }
  }
}

// fp32 operands count as their upper 19 bits: what tf32.cuh makes up for.
TEST_F(CudaPtx, MmaTf32CutsItsOperands) {
  Random random(3);
  Array<float> c(32 * 4);
  Array<uint32_t> a(32 * 4), b(32 * 2);
  constexpr uint32_t kOne = 0x3f800000u, kKept = 0xffffe000u;
  for (const bool of_a : {true, false}) {
    Array<uint32_t>&cut = of_a ? a : b, &plain = of_a ? b : a;
    for (uint32_t& u : plain.host) u = 0;  // an identity would need a layout; one inner index alone does not
    for (uint32_t& u : cut.host) u = static_cast<uint32_t>(random.integer(0x3f800000, 0x407fffff));
    for (int lane = 0; lane < 32; lane += 4) {  // inner index 0 is in the lanes of t = 0, in registers 0 and 1 of A
      plain.host[lane * (of_a ? 2 : 4)] = kOne;
      if (!of_a) plain.host[lane * 4 + 1] = kOne;
    }
    for (float& x : c.host) x = 0.0f;
    run_mma_tf32<<<1, 32>>>(c.device(), a.device(), b.device());
    c.fetch();
    for (int lane = 0; lane < 32; ++lane) {
      for (int r = 0; r < 4; ++r) {
        const Place at = c_place(lane, r);
        const uint32_t u = of_a ? a.host[at.row % 8 * 16 + at.row / 8] : b.host[at.column * 8];
        const uint32_t kept = u & kKept;
        float expected;
        std::memcpy(&expected, &kept, sizeof(expected));
        EXPECT_EQ(c.host[lane * 4 + r], expected)
            << (of_a ? "A" : "B") << ", row " << at.row << ", column " << at.column;
      }
    }
  }
}

template <bool kTrans>
__global__ void run_ldmatrix(uint32_t* out, const uint16_t* in) {
  __shared__ alignas(16) uint16_t tile[4][8][8];
  for (int i = threadIdx.x; i < 256; i += 32) (&tile[0][0][0])[i] = in[i];
  __syncwarp();
  uint32_t r[4];
  const uint32_t address = ptx::shared_address(&tile[threadIdx.x / 8][threadIdx.x % 8][0]);
  if constexpr (kTrans) {
    ptx::ldmatrix_x4_trans(r, address);
  } else {
    ptx::ldmatrix_x4(r, address);
  }
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = r[i];
}

void expect_ldmatrix(bool trans) {
  Array<uint16_t> in(256);
  Array<uint32_t> out(128);
  for (int i = 0; i < 256; ++i) in.host[i] = static_cast<uint16_t>(1000 + i);  // matrix * 64 + row * 8 + column
  if (trans) {
    run_ldmatrix<true><<<1, 32>>>(out.device(), in.device());
  } else {
    run_ldmatrix<false><<<1, 32>>>(out.device(), in.device());
  }
  out.fetch();
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int half = 0; half < 2; ++half) {
        int row = lane / 4, column = lane % 4 * 2 + half;
        if (trans) std::swap(row, column);
        EXPECT_EQ(out.host[lane * 4 + matrix] >> (16 * half) & 0xffff, in.host[matrix * 64 + row * 8 + column])
            << "lane " << lane << ", matrix " << matrix;
      }
    }
  }
}

TEST_F(CudaPtx, LdmatrixReadsRows) { expect_ldmatrix(false); }
TEST_F(CudaPtx, LdmatrixTransReadsColumns) { expect_ldmatrix(true); }

__global__ void run_movmatrix(uint32_t* data) { data[threadIdx.x] = ptx::movmatrix_trans(data[threadIdx.x]); }

TEST_F(CudaPtx, MovmatrixTransposes) {
  Array<uint32_t> data(32);
  const auto value = [](int row, int column) { return static_cast<uint32_t>(100 + row * 8 + column); };
  for (int lane = 0; lane < 32; ++lane) {
    data.host[lane] = value(lane / 4, lane % 4 * 2) | value(lane / 4, lane % 4 * 2 + 1) << 16;
  }
  run_movmatrix<<<1, 32>>>(data.device());
  data.fetch();
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(data.host[lane], value(lane % 4 * 2, lane / 4) | value(lane % 4 * 2 + 1, lane / 4) << 16) << lane;
  }
}

// ----------------------------------------------------------------------------------------------- asynchronous copies

__global__ void run_cp_async(uint4* out, const uint4* in, const char* valid, bool read_null) {
  __shared__ uint4 tile[64];
  tile[threadIdx.x] = make_uint4(7, 7, 7, 7);
  tile[threadIdx.x + 32] = make_uint4(7, 7, 7, 7);
  __syncthreads();
  const bool keep = valid[threadIdx.x];
  ptx::cp_async_16(ptx::shared_address(&tile[threadIdx.x]), keep || !read_null ? in + threadIdx.x : nullptr, keep);
  ptx::cp_async_commit();
  ptx::cp_async_16(ptx::shared_address(&tile[threadIdx.x + 32]), in + threadIdx.x + 32);
  ptx::cp_async_commit();
  ptx::cp_async_wait<1>();  // the first group has arrived
  out[threadIdx.x] = tile[threadIdx.x];
  ptx::cp_async_wait<0>();
  out[threadIdx.x + 32] = tile[threadIdx.x + 32];
}

TEST_F(CudaPtx, CpAsyncCopiesAndFillsWithZeros) {
  for (const bool read_null : {false, true}) {  // what is not valid is not read
    Array<uint4> in(64), out(64);
    Array<char> valid(32);
    for (unsigned i = 0; i < 64; ++i) in.host[i] = make_uint4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3);
    for (int i = 0; i < 32; ++i) valid.host[i] = i % 3 != 0;
    run_cp_async<<<1, 32>>>(out.device(), in.device(), valid.device(), read_null);
    out.fetch();
    for (int i = 0; i < 64; ++i) {
      const uint4 expected = i < 32 && !valid.host[i] ? make_uint4(0, 0, 0, 0) : in.host[i];
      EXPECT_EQ(std::memcmp(&out.host[i], &expected, 16), 0) << i;
    }
  }
}

template <int kBytes>
__global__ void run_narrow_cp_async(char* out, const char* in) {
  __shared__ alignas(16) char tile[32 * kBytes];
  const int at = static_cast<int>(threadIdx.x) * kBytes;
  ptx::cp_async<kBytes>(ptx::shared_address(&tile[at]), in + at);
  ptx::cp_async_wait_all();
  for (int i = 0; i < kBytes; ++i) out[at + i] = tile[at + i];
}

template <int kBytes>
void expect_narrow_cp_async() {
  Array<char> in(32 * kBytes), out(32 * kBytes);
  for (size_t i = 0; i < in.host.size(); ++i) in.host[i] = static_cast<char>(3 * i + 1);
  run_narrow_cp_async<kBytes><<<1, 32>>>(out.device(), in.device());
  out.fetch();
  EXPECT_EQ(out.host, in.host) << kBytes << " bytes";
}

TEST_F(CudaPtx, CpAsyncOfAnyWidth) {
  expect_narrow_cp_async<4>();
  expect_narrow_cp_async<8>();
  expect_narrow_cp_async<16>();
}

// ------------------------------------------------------------------------------------------------- special functions

enum class Function { kExp2, kLog2, kReciprocal };

__global__ void run_special(float* data, int count, Function f) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float x = data[i];
  data[i] = f == Function::kExp2   ? ptx::exp2_approx(x)
            : f == Function::kLog2 ? ptx::log2_approx(x)
                                   : ptx::reciprocal_approx(x);
}

std::vector<float> special(std::vector<float> x, Function f) {
  Array<float> data(x.size());
  data.host = std::move(x);
  const int count = static_cast<int>(data.host.size());
  run_special<<<(count + 255) / 256, 256>>>(data.device(), count, f);
  data.fetch();
  return data.host;
}

std::vector<float> sweep(double low, double high, int count) {
  std::vector<float> x;
  for (int i = 0; i <= count; ++i) x.push_back(static_cast<float>(low + (high - low) * i / count));
  return x;
}

TEST_F(CudaPtx, Exp2IsWithinItsRelativeError) {
  const std::vector<float> x = sweep(-125.9, 127.9, 1 << 20), y = special(x, Function::kExp2);
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(y[i] / std::exp2(double{x[i]}) - 1.0));
  EXPECT_LE(worst, std::exp2(-22.0));
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> ends = special({-kInf, -1e30f, -127.5f, 0.0f, -0.0f, 129.0f, kInf}, Function::kExp2);
  EXPECT_EQ(ends, (std::vector<float>{0.0f, 0.0f, 0.0f, 1.0f, 1.0f, kInf, kInf}));
}

TEST_F(CudaPtx, Log2IsWithinItsError) {
  std::vector<float> x = sweep(0.5, 2.0, 1 << 18);
  const size_t middle = x.size();
  for (const float e : sweep(-120.0, 120.0, 1 << 18)) x.push_back(std::exp2(e));
  const std::vector<float> y = special(x, Function::kLog2);
  double absolute = 0.0, relative = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::log2(double{x[i]}), error = std::fabs(y[i] - exact);
    if (i < middle || (x[i] >= 0.5f && x[i] <= 2.0f)) {
      absolute = std::max(absolute, error);
    } else {
      relative = std::max(relative, error / std::fabs(exact));
    }
  }
  EXPECT_LE(absolute, std::exp2(-22.0));
  EXPECT_LE(relative, std::exp2(-22.0));
}

TEST_F(CudaPtx, ReciprocalIsWithinOneUlp) {
  std::vector<float> x = sweep(1.0, 2.0, 1 << 18);
  for (const float e : sweep(-120.0, 120.0, 1 << 18)) x.push_back(std::exp2(e));
  const std::vector<float> y = special(x, Function::kReciprocal);
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(y[i] * double{x[i]} - 1.0));
  EXPECT_LE(worst, std::exp2(-23.0) * 1.01);
  EXPECT_EQ(special({std::numeric_limits<float>::infinity()}, Function::kReciprocal)[0], 0.0f);
}

__global__ void run_max(float* out, const float* x, const float* y) {
  out[threadIdx.x] = ptx::max_or_nan(x[threadIdx.x], y[threadIdx.x]);
}

TEST_F(CudaPtx, MaxKeepsNaN) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  Array<float> x(6), y(6), out(6);
  x.host = {1.0f, -2.0f, kNaN, 3.0f, kNaN, -kInf};
  y.host = {2.0f, -3.0f, 1.0f, kNaN, kInf, kInf};
  run_max<<<1, 6>>>(out.device(), x.device(), y.device());
  out.fetch();
  EXPECT_EQ(out.host[0], 2.0f);
  EXPECT_EQ(out.host[1], -2.0f);
  for (const size_t i : {2, 3, 4}) EXPECT_TRUE(std::isnan(out.host[i])) << i;
  EXPECT_EQ(out.host[5], kInf);
}

}  // namespace
}  // namespace flashkda::test
