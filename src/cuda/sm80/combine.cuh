// The chain over a sequence's segments: S_i = M_i S_(i-1) + B_i, in place over the B_i that affine.cuh left, by one
// block for 16 value columns of a head. M's diagonal, which is all there is of channels that only fade, is multiplied
// in fp32; the rest is a product with both operands as sums of two bf16, good to 16 bits. A segment that forgets has
// its state already.
#pragma once

#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/hopper.cuh"
#include "cuda/sm80/affine.cuh"

namespace flashkda::cuda::sm80 {

struct CombineParams {
  Layout layout;
  float* ends;              // [segments][HV][V][K], see AffineParams
  const char* transitions;  // [segments][HV] of Transition<K>
  const int32_t* forgets;   // [segments][HV]
};

__host__ __device__ constexpr int combine_threads(int K) { return K / 16 * 32; }  // a warp for 16 channels
inline constexpr int kCombineColumns = 16;                                        // value columns a block

// Transitions on their way to shared memory, as they are; the copy engine brings them where there is one, since copies
// by threads keep these from their products.
template <int K, int kBuffers>
struct TransitionCopies {
  using Tr = Transition<K>;
  alignas(128) char buffers[kBuffers][Tr::kBytes];
#if __CUDA_ARCH__ >= 900
  ptx::Barrier arrived[kBuffers];
#else
  uint64_t unused[kBuffers];
#endif

  // Before anything else, by all threads; a barrier of the block must follow.
  __device__ __forceinline__ void init() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (ptx::Barrier& b : arrived) ptx::barrier_init(b, 1);
      ptx::barrier_init_fence();
    }
#endif
  }

  // Asks for one, or for nothing: by all threads, when nobody reads the buffer any more.
  __device__ __forceinline__ void fetch(int buffer, const char* transition, bool wanted) {
#if __CUDA_ARCH__ >= 900
    if (!wanted || threadIdx.x != 0) return;
    ptx::barrier_expect(arrived[buffer], Tr::kBytes);
    ptx::load_bytes(buffers[buffer], transition, Tr::kBytes, arrived[buffer]);
#else
    constexpr int kStep = combine_threads(K) * 16;
    const uint32_t to = ptx::shared_address(buffers[buffer]) + threadIdx.x * 16;
    if (wanted) {
#pragma unroll
      for (int at = 0; at < Tr::kBytes; at += kStep) {
        if (at + kStep <= Tr::kBytes || at + static_cast<int>(threadIdx.x) * 16 < Tr::kBytes) {
          ptx::cp_async_16(to + at, transition + at + threadIdx.x * 16);
        }
      }
    }
    ptx::cp_async_commit();
#endif
  }

  // Waits for the buffer, the oldest of kBuffers that were asked for; odd: for its second, fourth, .. time. A barrier
  // must follow.
  __device__ __forceinline__ void wait([[maybe_unused]] int buffer, [[maybe_unused]] bool odd) {
#if __CUDA_ARCH__ >= 900
    ptx::barrier_wait(arrived[buffer], odd);
#else
    ptx::cp_async_wait<kBuffers - 1>();
#endif
  }
};

// kBuffers: transitions in shared memory at a time. Three hide the copies; devices with less than 227 KB have fewer.
template <int K, int kBuffers>
struct CombineShared {
  static constexpr int kPitch = K * 2 + 16;  // bytes; turns the rows that ldmatrix reads through the banks
  TransitionCopies<K, kBuffers> transitions;
  alignas(16) char state[2][kCombineColumns][kPitch];  // high and low, [v][j]
};

template <int K, int kBuffers>
__global__ void __launch_bounds__(combine_threads(K), 1) combine(const __grid_constant__ CombineParams p) {
  extern __shared__ __align__(128) char shared_memory[];
  auto& shared = *reinterpret_cast<CombineShared<K, kBuffers>*>(shared_memory);
  ptx::let_next_start();
  shared.transitions.init();
  __syncthreads();
  ptx::wait_for_previous();

  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int g = lane / 4, t = lane % 4;
  constexpr int kSlices = K / kCombineColumns;
  const int v0 = blockIdx.x % kSlices * kCombineColumns;
  const int64_t head = blockIdx.x / kSlices, n = head / p.layout.HV, hv = head % p.layout.HV;
  int64_t first = n * p.layout.row_segments;
  int count = p.layout.row_segments;
  if (p.layout.segments != nullptr) {
    first = p.layout.segments[n];
    count = p.layout.segments[n + 1] - static_cast<int>(first);
  }
  using Tr = Transition<K>;
  constexpr int64_t kMatrix = int64_t{K} * K;
  const int64_t end_stride = p.layout.HV * kMatrix, transition_stride = int64_t{p.layout.HV} * Tr::kBytes;

  // The first segment from i on that forgets or does not; count - 1 if there is none.
  const auto find = [&](int i, bool forgets) {
    for (; i < count - 1; i += 32) {
      const bool found = i + lane < count - 1 && (p.forgets[(first + i + lane) * p.layout.HV + hv] != 0) == forgets;
      const uint32_t mask = __ballot_sync(0xffffffffu, found);
      if (mask != 0) return i + __ffs(static_cast<int>(mask)) - 1;
    }
    return count - 1;
  };
  // A lane's part of a state: rows v0 + g and v0 + g + 8, channels 16 warp + 8 o + 2 t and the next.
  const auto load_state = [&](const float* ends, float2(&x)[2][2]) {
#pragma unroll
    for (int o = 0; o < 2; ++o) {
      x[o][0] = *reinterpret_cast<const float2*>(ends + 8 * o);
      x[o][1] = *reinterpret_cast<const float2*>(ends + 8 * K + 8 * o);
    }
  };
  auto& copies = shared.transitions;
  uint32_t waited = 0;  // a bit a buffer: odd
  const int row = lane % 16;
  const uint32_t a_at = ptx::shared_address(&shared.state[0][row][lane / 16 * 16]);

  // Runs of segments that do not forget.
  for (int run = find(1, false); run < count - 1;) {
    const int run_end = find(run + 1, true);
    const int64_t place = (first + run) * p.layout.HV + hv;
    const char* transitions = p.transitions + place * Tr::kBytes;               // of the segment that is fetched next
    float* ends = p.ends + place * kMatrix + (v0 + g) * K + 16 * warp + 2 * t;  // of segment i
    const auto fetch = [&](int i, int buffer) {
      copies.fetch(buffer, transitions, i < run_end);
      transitions += transition_stride;
    };
    for (int ahead = 0; ahead < kBuffers - 1; ++ahead) fetch(run + ahead, ahead);
    float2 state[2][2], coming[2][2];
    load_state(ends - end_stride, state);
    load_state(ends, coming);
    int buffer = 0;
    for (int i = run; i < run_end; ++i) {
      __syncthreads();  // everybody has left the last state's parts, and the buffer that is filled next
      float2 own[2][2];
#pragma unroll
      for (int o = 0; o < 2; ++o) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t high, low;
          split_bf16(state[o][h].x, state[o][h].y, high, low);
          const int column = 2 * (16 * warp + 8 * o + 2 * t);
          *reinterpret_cast<uint32_t*>(&shared.state[0][g + 8 * h][column]) = high;
          *reinterpret_cast<uint32_t*>(&shared.state[1][g + 8 * h][column]) = low;
          own[o][h] = coming[o][h];
        }
      }
      fetch(i + kBuffers - 1, buffer == 0 ? kBuffers - 1 : buffer - 1);
      if (i + 1 < run_end) load_state(ends + end_stride, coming);
      copies.wait(buffer, waited >> buffer & 1);
      waited ^= 1u << buffer;
      __syncthreads();
      const char* const transition = copies.buffers[buffer];
      const uint32_t b_at = ptx::shared_address(transition) + Tr::at(row, 2 * warp + lane / 16);
      float acc[2][3][4] = {};
#pragma unroll
      for (int j = 0; j < K; j += 16) {
        uint32_t a[2][4], b[2][4];  // high, low
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          ptx::ldmatrix_x4(a[part], a_at + part * static_cast<int>(sizeof(shared.state[0])) + j * 2);
          ptx::ldmatrix_x4_trans(b[part], b_at + part * Tr::kPart + j * K * 2);
        }
#pragma unroll
        for (int o = 0; o < 2; ++o) {
          ptx::mma_m16n8k16_bf16(acc[o][0], a[0], b[0][2 * o], b[0][2 * o + 1]);
          ptx::mma_m16n8k16_bf16(acc[o][1], a[0], b[1][2 * o], b[1][2 * o + 1]);
          ptx::mma_m16n8k16_bf16(acc[o][2], a[1], b[0][2 * o], b[0][2 * o + 1]);
        }
      }
#pragma unroll
      for (int o = 0; o < 2; ++o) {
        const float2 d = *reinterpret_cast<const float2*>(transition + Tr::kDiagonal + 4 * (16 * warp + 8 * o + 2 * t));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const auto off = [&](int e) { return acc[o][0][2 * h + e] + (acc[o][1][2 * h + e] + acc[o][2][2 * h + e]); };
          state[o][h].x = own[o][h].x + d.x * state[o][h].x + off(0);
          state[o][h].y = own[o][h].y + d.y * state[o][h].y + off(1);
          *reinterpret_cast<float2*>(ends + 8 * h * K + 8 * o) = state[o][h];
        }
      }
      ends += end_stride;
      buffer = buffer + 1 == kBuffers ? 0 : buffer + 1;
    }
    __syncthreads();
    run = find(run_end, false);
  }
}

}  // namespace flashkda::cuda::sm80
