// The wrappers of sm_90a instructions against what the host computes. Compiled for sm_90a alone.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.hpp"
#include "cuda/device.hpp"
#include "cuda/ptx/hopper.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace flashkda::test {
namespace {

using namespace flashkda::cuda;

class CudaPtxSm90 : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    int major = 0;
    EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "no CUDA device of compute capability 9.0";
  }
};

// Small integers are exact in every format and sum, so that no wrong coordinate hides in a tolerance.
std::vector<float> integers(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.integer(-8, 8));
  return values;
}

enum class Kind { kBf16FromRegisters, kBf16FromShared, kBf16N64, kFp16N64, kTf32N32, kTf32N128 };
__host__ __device__ constexpr int columns_of(Kind kind) {
  return kind == Kind::kTf32N128 ? 128 : kind == Kind::kBf16N64 || kind == Kind::kFp16N64 ? 64 : 32;
}
__host__ __device__ constexpr int inner_of(Kind kind) {
  return kind == Kind::kTf32N32 || kind == Kind::kTf32N128 ? 8 : 16;
}

// D [64 x N] = C + A B^T with A [64 x k] and B [N x k] in the 128-byte swizzle, k from byte 32 of a row on.
template <Kind kKind>
__global__ void run_wgmma(float* D, const float* A, const float* B) {
  constexpr int N = columns_of(kKind), k = inner_of(kKind), kBytes = k == 8 ? 4 : 2;
  __shared__ alignas(1024) char a_tile[64][128];
  __shared__ alignas(1024) char b_tile[N][128];
  const int thread = threadIdx.x, warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  const auto put = [&](char* row, int r, int j, float x) {
    char* const at = row + (((2 + j * kBytes / 16) ^ (r & 7)) * 16 + j * kBytes % 16);
    if constexpr (kBytes == 4) {
      *reinterpret_cast<float*>(at) = x;
    } else if constexpr (kKind == Kind::kFp16N64) {
      *reinterpret_cast<__half*>(at) = __float2half_rn(x);
    } else {
      *reinterpret_cast<__nv_bfloat16*>(at) = __float2bfloat16_rn(x);
    }
  };
  for (int i = thread; i < 64 * k; i += 128) put(a_tile[i / k], i / k, i % k, A[i]);
  for (int i = thread; i < N * k; i += 128) put(b_tile[i / k], i / k, i % k, B[i]);
  ptx::async_proxy_fence();
  __syncthreads();
  float d[N / 2];
  const auto place = [&](int e) { return (warp * 16 + g + e % 4 / 2 * 8) * N + e / 4 * 8 + 2 * t + e % 2; };
  for (int e = 0; e < N / 2; ++e) d[e] = D[place(e)];
  const uint64_t b = ptx::advance(ptx::rows_of_128(ptx::shared_address(b_tile)), 32);
  const auto at = [&](int row, int j) { return A[(warp * 16 + row) * k + j]; };
  const auto pair = [&](int row, int j) {
    const __nv_bfloat162 x = __floats2bfloat162_rn(at(row, j), at(row, j + 1));
    return *reinterpret_cast<const uint32_t*>(&x);
  };
  ptx::wgmma_begin(d);
  const uint64_t a_rows = ptx::advance(ptx::rows_of_128(ptx::shared_address(a_tile)), 32);
  if constexpr (kKind == Kind::kBf16FromShared) {
    ptx::wgmma_n32_bf16<true>(d, a_rows, b);
  } else if constexpr (kKind == Kind::kBf16N64) {
    ptx::wgmma_n64<false, true>(d, a_rows, b);
  } else if constexpr (kKind == Kind::kFp16N64) {
    ptx::wgmma_n64<true, true>(d, a_rows, b);
  } else if constexpr (kKind == Kind::kBf16FromRegisters) {
    const uint32_t a[4] = {pair(g, 2 * t), pair(g + 8, 2 * t), pair(g, 2 * t + 8), pair(g + 8, 2 * t + 8)};
    ptx::wgmma_n32_bf16<true>(d, a, b);
  } else {
    const uint32_t a[4] = {__float_as_uint(at(g, t)), __float_as_uint(at(g + 8, t)), __float_as_uint(at(g, t + 4)),
                           __float_as_uint(at(g + 8, t + 4))};
    if constexpr (kKind == Kind::kTf32N32) {
      ptx::wgmma_n32_tf32<true>(d, a, b);
    } else {
      ptx::wgmma_n128_tf32<true>(d, a, b);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
  for (int e = 0; e < N / 2; ++e) D[place(e)] = d[e];
}

template <Kind kKind>
void expect_product() {
  constexpr size_t N = columns_of(kKind), k = inner_of(kKind);
  const std::vector<float> A = integers(64 * k, 1), B = integers(N * k, 2), C = integers(64 * N, 3);
  std::vector<float> D = C;
  DeviceBuffer a(A.size() * 4), b(B.size() * 4), d(D.size() * 4);
  a.upload(A.data());
  b.upload(B.data());
  d.upload(D.data());
  run_wgmma<kKind><<<1, 128>>>(reinterpret_cast<float*>(d.data()), reinterpret_cast<float*>(a.data()),
                               reinterpret_cast<float*>(b.data()));
  EXPECT_CUDA(cudaDeviceSynchronize());
  d.download(D.data());
  for (size_t i = 0; i < 64; ++i) {
    for (size_t n = 0; n < N; ++n) {
      float expected = C[i * N + n];
      for (size_t j = 0; j < k; ++j) expected += A[i * k + j] * B[n * k + j];
      ASSERT_EQ(D[i * N + n], expected) << "row " << i << ", column " << n;
    }
  }
}

TEST_F(CudaPtxSm90, WgmmaOfBf16FromRegisters) { expect_product<Kind::kBf16FromRegisters>(); }
TEST_F(CudaPtxSm90, WgmmaOfBf16FromShared) { expect_product<Kind::kBf16FromShared>(); }
TEST_F(CudaPtxSm90, WideWgmmaOfBf16FromShared) { expect_product<Kind::kBf16N64>(); }
TEST_F(CudaPtxSm90, WideWgmmaOfFp16FromShared) { expect_product<Kind::kFp16N64>(); }
TEST_F(CudaPtxSm90, WgmmaOfTf32) { expect_product<Kind::kTf32N32>(); }
TEST_F(CudaPtxSm90, WideWgmmaOfTf32) { expect_product<Kind::kTf32N128>(); }

// D [64 x 128] = C + A B with A [64 x 16] in registers and B [16 x 128] in two blocks of 64 columns, apart.
__global__ void run_wgmma_columns(float* D, const float* A, const float* B) {
  __shared__ alignas(1024) char tile[2][3][16][128];  // [block][the second is B][row]
  const int thread = threadIdx.x, warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  for (int i = thread; i < 16 * 128; i += 128) {
    const int j = i / 128, column = i % 128;
    char* const row = tile[column / 64][1][j];
    const int at = ((column % 64 / 8) ^ (j & 7)) * 16 + column % 8 * 2;
    *reinterpret_cast<__nv_bfloat16*>(row + at) = __float2bfloat16_rn(B[i]);
  }
  ptx::async_proxy_fence();
  __syncthreads();
  float d[64];
  const auto place = [&](int e) { return (warp * 16 + g + e % 4 / 2 * 8) * 128 + e / 4 * 8 + 2 * t + e % 2; };
  for (int e = 0; e < 64; ++e) d[e] = D[place(e)];
  const auto pair = [&](int row, int j) {
    const float* const x = &A[(warp * 16 + row) * 16 + j];
    const __nv_bfloat162 y = __floats2bfloat162_rn(x[0], x[1]);
    return *reinterpret_cast<const uint32_t*>(&y);
  };
  const uint32_t a[4] = {pair(g, 2 * t), pair(g + 8, 2 * t), pair(g, 2 * t + 8), pair(g + 8, 2 * t + 8)};
  ptx::wgmma_begin(d);
  ptx::wgmma_n128_bf16_columns<true>(d, a, ptx::columns_of_128(ptx::shared_address(tile[0][1]), sizeof(tile[0])));
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
  for (int e = 0; e < 64; ++e) D[place(e)] = d[e];
}

TEST_F(CudaPtxSm90, WideWgmmaOfBf16DownTheColumns) {
  const std::vector<float> A = integers(64 * 16, 1), B = integers(16 * 128, 2), C = integers(64 * 128, 3);
  std::vector<float> D = C;
  DeviceBuffer a(A.size() * 4), b(B.size() * 4), d(D.size() * 4);
  a.upload(A.data());
  b.upload(B.data());
  d.upload(D.data());
  run_wgmma_columns<<<1, 128>>>(reinterpret_cast<float*>(d.data()), reinterpret_cast<float*>(a.data()),
                                reinterpret_cast<float*>(b.data()));
  EXPECT_CUDA(cudaDeviceSynchronize());
  d.download(D.data());
  for (size_t i = 0; i < 64; ++i) {
    for (size_t n = 0; n < 128; ++n) {
      float expected = C[i * 128 + n];
      for (size_t j = 0; j < 16; ++j) expected += A[i * 16 + j] * B[j * 128 + n];
      ASSERT_EQ(D[i * 128 + n], expected) << "row " << i << ", column " << n;
    }
  }
}

// fp32 operands count as their upper 19 bits: what kUncut of block/tf32.cuh makes up for.
__global__ void run_cut(float* x) {
  __shared__ alignas(1024) char tile[32][128];
  for (int i = threadIdx.x; i < 1024; i += 128) reinterpret_cast<float*>(tile)[i] = 0.0f;
  __syncthreads();
  if (threadIdx.x < 8)
    *reinterpret_cast<float*>(tile[threadIdx.x] + (threadIdx.x / 4 ^ threadIdx.x) * 16 + threadIdx.x % 4 * 4) = 1.0f;
  ptx::async_proxy_fence();
  __syncthreads();
  const int t = threadIdx.x % 4, row = threadIdx.x / 4 % 8 + threadIdx.x / 32 * 16;
  const uint32_t a[4] = {__float_as_uint(x[row * 8 + t]), __float_as_uint(x[(row + 8) * 8 + t]),
                         __float_as_uint(x[row * 8 + t + 4]), __float_as_uint(x[(row + 8) * 8 + t + 4])};
  float d[16];
  ptx::wgmma_begin(d);
  ptx::wgmma_n32_tf32<false>(d, a, ptx::rows_of_128(ptx::shared_address(tile)));
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
  for (int e = 0; e < 4; ++e) x[(row + e / 2 * 8) * 8 + 2 * t + e % 2] = d[e];
}

TEST_F(CudaPtxSm90, Tf32OperandsAreCut) {
  Random random(4);
  std::vector<float> x(64 * 8);
  for (float& value : x) value = static_cast<float>(random.normal());
  std::vector<float> cut = x;
  for (float& value : cut) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits &= ~0x1fffu;
    std::memcpy(&value, &bits, 4);
  }
  DeviceBuffer memory(x.size() * 4);
  memory.upload(x.data());
  run_cut<<<1, 128>>>(reinterpret_cast<float*>(memory.data()));
  EXPECT_CUDA(cudaDeviceSynchronize());
  memory.download(x.data());
  EXPECT_EQ(x, cut);
}

__global__ void run_stmatrix(uint32_t* out, const uint32_t* in) {
  __shared__ alignas(16) uint16_t tile[4][8][8];
  const uint32_t r[4] = {in[threadIdx.x * 4], in[threadIdx.x * 4 + 1], in[threadIdx.x * 4 + 2],
                         in[threadIdx.x * 4 + 3]};
  const uint32_t address = ptx::shared_address(&tile[threadIdx.x / 8][threadIdx.x % 8][0]);
  ptx::stmatrix_x4(address, r);
  __syncwarp();
  uint32_t back[4];
  ptx::ldmatrix_x4(back, address);
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = back[i];
}

TEST_F(CudaPtxSm90, StmatrixIsWhatLdmatrixReads) {
  std::vector<uint32_t> in(128), out(128);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32_t>(7919 * i + 13);
  DeviceBuffer from(512), to(512);
  from.upload(in.data());
  run_stmatrix<<<1, 32>>>(reinterpret_cast<uint32_t*>(to.data()), reinterpret_cast<const uint32_t*>(from.data()));
  EXPECT_CUDA(cudaDeviceSynchronize());
  to.download(out.data());
  EXPECT_EQ(out, in);
}

// Warpgroup 0 asks about one of its threads and then about none, warpgroup 1 the other way round.
__global__ void run_any(int32_t* out) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  for (int round = 0; round < 2; ++round) {
    const bool condition = threadIdx.x % 128 == 77 && round == group;
    out[round * 256 + threadIdx.x] = ptx::named_barrier_any<128>(3 + group, condition);
  }
}

TEST_F(CudaPtxSm90, AnyOfANamedBarriersThreads) {
  std::vector<int32_t> out(512), expected(512);
  for (size_t i = 0; i < out.size(); ++i) expected[i] = i / 256 == i % 256 / 128;
  DeviceBuffer memory(out.size() * 4);
  run_any<<<1, 256>>>(reinterpret_cast<int32_t*>(memory.data()));
  EXPECT_CUDA(cudaDeviceSynchronize());
  memory.download(out.data());
  EXPECT_EQ(out, expected);
}

// Whether a barrier's phase is over, sooner or later: a test must not hang where an instruction is wrong.
constexpr int kPatience = 1 << 22;
__device__ bool comes(ptx::Barrier& b, uint32_t parity) {
  for (int i = 0; i < kPatience; ++i) {
    if (::cuda::ptx::mbarrier_test_wait_parity(&b, parity)) return true;
  }
  return false;
}

constexpr int kSent = 4096;

// Each block of a pair sends its half of `in` to the other, which puts it out, in its own place.
__global__ void __cluster_dims__(2) run_send(char* out, const char* in) {
  __shared__ alignas(16) char own[kSent];
  __shared__ alignas(16) char received[kSent];
  __shared__ ptx::Barrier arrived;
  const int rank = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  if (lane == 0) {
    ptx::barrier_init(arrived, 1);
    ptx::barrier_init_fence();
    ptx::barrier_expect(arrived, kSent);
  }
  for (int i = lane; i < kSent; i += 32) own[i] = in[rank * kSent + i];
  ptx::async_proxy_fence();
  ptx::cluster_barrier();
  if (lane == 0) {
    const uint32_t to = ptx::address_in_block(ptx::shared_address(received), rank ^ 1);
    ptx::send_bytes(to, ptx::shared_address(own), kSent,
                    ptx::address_in_block(ptx::shared_address(&arrived), rank ^ 1));
  }
  if (comes(arrived, 0)) {
    for (int i = lane; i < kSent; i += 32) out[rank * kSent + i] = received[i];
  }
  ptx::cluster_barrier_relaxed();  // nobody leaves to whom bytes are on their way
}

TEST_F(CudaPtxSm90, BlocksOfAClusterSendEachOtherBytes) {
  std::vector<char> in(2 * kSent), out(2 * kSent);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<char>(i * 31 >> 4);
  DeviceBuffer from(in.size()), to(out.size());
  from.upload(in.data());
  run_send<<<2, 32>>>(reinterpret_cast<char*>(to.data()), reinterpret_cast<const char*>(from.data()));
  EXPECT_CUDA(cudaDeviceSynchronize());
  to.download(out.data());
  std::rotate(in.begin(), in.begin() + kSent, in.end());
  EXPECT_EQ(out, in);
}

// A block's phase is over when every lane of the other has arrived, twice; out: whether it was before, and after.
__global__ void __cluster_dims__(2) run_arrive_there(int32_t* out) {
  __shared__ ptx::Barrier arrived;
  const auto rank = static_cast<uint32_t>(blockIdx.x);
  const auto is_over = [&] { return ::cuda::ptx::mbarrier_test_wait_parity(&arrived, 0) ? 1 : 0; };
  if (threadIdx.x == 0) {
    ptx::barrier_init(arrived, 64);
    ptx::barrier_init_fence();
  }
  ptx::cluster_barrier();
  const uint32_t there = ptx::address_in_block(ptx::shared_address(&arrived), rank ^ 1);
  ptx::barrier_arrive_there(there);
  ptx::cluster_barrier();
  if (threadIdx.x == 0) out[2 * rank] = is_over();
  ptx::cluster_barrier();
  ptx::barrier_arrive_there(there);
  if (threadIdx.x == 0) out[2 * rank + 1] = comes(arrived, 0) ? 1 : 0;
  ptx::cluster_barrier_relaxed();
}

TEST_F(CudaPtxSm90, LanesArriveAtAnotherBlocksBarrier) {
  std::vector<int32_t> out(4);
  DeviceBuffer memory(16);
  run_arrive_there<<<2, 32>>>(reinterpret_cast<int32_t*>(memory.data()));
  EXPECT_CUDA(cudaDeviceSynchronize());
  memory.download(out.data());
  EXPECT_EQ(out, (std::vector<int32_t>{0, 1, 0, 1}));
}

// Block 0 leaves rounds of `in` in `between` by the copy engine and sets a flag for each; block 1 waits for the flag
// and has them brought in by the copy engine. What it read before they were there would be the poison of `between`.
constexpr int kRounds = 64, kImage = 32768;
__global__ void run_flags(char* out, char* between, ptx::Flag* flags, const char* in) {
  __shared__ alignas(16) char tile[kImage];
  __shared__ ptx::Barrier arrived;
  const int lane = static_cast<int>(threadIdx.x);
  if (lane == 0) {
    ptx::barrier_init(arrived, 1);
    ptx::barrier_init_fence();
  }
  __syncwarp();
  for (int round = 0; round < kRounds; ++round) {
    char* const here = between + round * kImage;
    if (blockIdx.x == 0) {
      for (int i = lane; i < kImage; i += 32) tile[i] = static_cast<char>(in[i] + round);
      ptx::async_proxy_fence();
      __syncwarp();
      if (lane == 0) {
        ptx::store_bytes(here, tile, kImage);
        ptx::stores_have_read();  // the tile may be written again
        ptx::stores_have_arrived();
        ptx::set_flag(flags[round]);
      }
    } else {
      if (lane == 0) {
        for (int i = 0; i < kPatience && !ptx::flag_is_set(flags[round]); ++i) {
        }
        ptx::async_proxy_fence_global();
        ptx::barrier_expect(arrived, kImage);
        ptx::load_bytes(tile, here, kImage, arrived);
      }
      if (!comes(arrived, round & 1)) return;
      for (int i = lane; i < kImage; i += 32) out[round * kImage + i] = tile[i];
    }
    __syncwarp();
  }
}

TEST_F(CudaPtxSm90, WhoSeesAFlagSeesWhatWasStoredBeforeIt) {
  std::vector<char> in(kImage), out(kRounds * kImage), expected(kRounds * kImage);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<char>(i * 13 >> 2);
  for (size_t i = 0; i < out.size(); ++i)
    expected[i] = static_cast<char>(in[i % kImage] + static_cast<int>(i / kImage));
  DeviceBuffer from(in.size()), to(out.size()), between(out.size()), flags(kRounds * sizeof(ptx::Flag));
  from.upload(in.data());
  EXPECT_CUDA(cudaMemset(flags.data(), 0, flags.size()));
  run_flags<<<2, 32>>>(reinterpret_cast<char*>(to.data()), reinterpret_cast<char*>(between.data()),
                       reinterpret_cast<ptx::Flag*>(flags.data()), reinterpret_cast<const char*>(from.data()));
  EXPECT_CUDA(cudaDeviceSynchronize());
  to.download(out.data());
  EXPECT_EQ(out, expected);
}

}  // namespace
}  // namespace flashkda::test
