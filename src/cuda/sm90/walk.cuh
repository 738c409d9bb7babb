// Walking chunk images with wgmma: the ring of stages and the step of one chunk, which a warpgroup takes with 64
// columns of the state. The formulas are those of sm80/step.cuh, tokens 32 at a time.
#pragma once

#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm80/step.cuh"
#include "cuda/sm90/image.cuh"

namespace flashkda::cuda::sm90 {

inline constexpr int kWalkStages = 4;  // chunks in the shared memory of a block that has an SM to itself

// kSlices: 64 value columns each.
template <int kSlices>
struct WalkStage {
  Image image;
  alignas(1024) char v[kSlices][kChunk][128];  // [slice][token], 64 columns of 16 bits a row; 128-byte swizzle
};

template <int kSlices, int kRing>
struct WalkRing {
  WalkStage<kSlices> stages[kRing];
  ptx::Barrier full[kRing], empty[kRing];

  // By one thread; kReaders threads empty a stage.
  __device__ void init(int readers) {
    for (int s = 0; s < kRing; ++s) {
      ptx::barrier_init(full[s], 1);
      ptx::barrier_init(empty[s], readers);
    }
    ptx::barrier_init_fence();
  }

  // Fills the stage of the walk's step-th chunk, by one thread, with what advance<kOut> will read; valued: values as
  // well. batch, token, hv, column: of the chunk's first value row.
  template <bool kOut>
  __device__ __forceinline__ void fill(int step, const Image* image, const CUtensorMap& v, bool valued, int32_t batch,
                                       int32_t token, int hv, int column) {
    const int s = step % kRing;
    if (step >= kRing) ptx::barrier_wait(empty[s], (step / kRing - 1) & 1);
    WalkStage<kSlices>& stage = stages[s];
    constexpr uint32_t kUpdate = sizeof(image->w) + sizeof(image->T);
    constexpr uint32_t kBytes = kOut ? sizeof(Image) : sizeof(image->kd) + kUpdate + sizeof(image->F);
    ptx::barrier_expect(full[s], kBytes + (valued ? sizeof(stage.v) : 0));
    if constexpr (kOut) {
      ptx::load_bytes(&stage.image, image, sizeof(Image), full[s]);
    } else {  // all but qd and Mqk
      ptx::load_bytes(stage.image.kd, image->kd, sizeof(image->kd), full[s]);
      ptx::load_bytes(stage.image.w, image->w, kUpdate, full[s]);
      ptx::load_bytes(stage.image.F, image->F, sizeof(image->F), full[s]);
    }
    if (!valued) return;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) ptx::load_box(stage.v[i], v, column + 64 * i, hv, token, batch, full[s]);
  }
};

// One chunk of a warpgroup's columns. slice: its columns' half of the stage's values; valued: without, the values are
// zero. emit(o): what to do with O^T while the state is updated. kRoomy: with 40 registers more, F and V are there and
// converted before the first product is.
template <bool kOut, bool kRoomy, int kSlices, typename Emit>
__device__ __forceinline__ void advance(sm80::StateFragment<D>& S, const WalkStage<kSlices>& stage, int slice,
                                        bool valued, bool fp16, Emit&& emit) {
  const int warp = uniform_warp(), lane = ptx::opaque(threadIdx.x % 32), t = lane % 4;
  const Image& image = stage.image;
  float(&state)[64] = reinterpret_cast<float(&)[64]>(S.x);
  float acc[16], o[16];
  // V^T in accumulator layout, tokens 0-15 and 16-31.
  uint32_t values[2][4];
  const auto load_values = [&] {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = h * 16 + lane / 16 * 8 + lane % 8;
      ptx::ldmatrix_x4_trans(values[h],
                             ptx::shared_address(&stage.v[slice][row][unit_128(row, warp * 2 + lane / 8 % 2)]));
    }
  };
  float v[16];
  const auto unpack_values = [&] {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 pair = unpack(valued ? values[i / 4][i % 4] : 0u, fp16);
      v[2 * i] = pair.x;
      v[2 * i + 1] = pair.y;
    }
  };
  float F[D / 16][4];
  const auto load_F = [&](int i) {
    const float4 f = *reinterpret_cast<const float4*>(&image.F[16 * i + 4 * t]);
    F[i][0] = f.x, F[i][1] = f.y, F[i][2] = f.z, F[i][3] = f.w;
  };
  if constexpr (kRoomy) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      load_F(i);
      ptx::hold(F[i]);
    }
    load_values();
  }
  {
    uint32_t a[D / 16][4];
#pragma unroll
    for (int i = 0; i < D / 16; ++i) S.pack(i, a[i]);
    const uint64_t kd = ptx::rows_of_128(ptx::shared_address(image.kd));
    const uint64_t qd = ptx::rows_of_128(ptx::shared_address(image.qd));
    ptx::wgmma_begin();
    static_for<D / 16>([&](auto i) {
      ptx::wgmma_n32_bf16<(i > 0)>(acc, a[i], ptx::advance(kd, i / 4 * sizeof(image.kd[0]) + i % 4 * 32));
    });
    ptx::wgmma_commit();
    if constexpr (kOut) {
      static_for<D / 16>([&](auto i) {
        ptx::wgmma_n32_bf16<(i > 0)>(o, a[i], ptx::advance(qd, i / 4 * sizeof(image.qd[0]) + i % 4 * 32));
      });
      ptx::wgmma_commit();
    }
  }
  // No branch from here on: groups of products that are begun and waited for in different basic blocks are serialised.
  // The state decays while the products are under way.
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    if constexpr (!kRoomy) load_F(i);
    S.decay(i, make_float4(F[i][0], F[i][1], F[i][2], F[i][3]));
  }
  if constexpr (kRoomy) {
    unpack_values();
    ptx::hold(v);
  } else {
    load_values();
  }
  if constexpr (kOut && kRoomy) {
    ptx::wgmma_wait<1>(acc);
  } else if constexpr (kOut) {
    ptx::wgmma_wait<0>(acc, o);
  } else {
    ptx::wgmma_wait<0>(acc);
  }
  if constexpr (!kRoomy) unpack_values();
  float(&u)[16] = acc;
  {
    uint32_t r[4][4];  // V^T - A^T, a step of 8 tokens each; T gives back what the cut takes
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
      const float *const e = acc + 4 * octet, *const x = v + 4 * octet;
      r[octet][0] = __float_as_uint(x[0] - e[0]);
      r[octet][1] = __float_as_uint(x[2] - e[2]);
      r[octet][2] = __float_as_uint(x[1] - e[1]);
      r[octet][3] = __float_as_uint(x[3] - e[3]);
    }
    const uint64_t T = ptx::rows_of_128(ptx::shared_address(image.T));
    for (auto& step : r) ptx::hold(step);  // else the subtractions may move in between the products
    ptx::wgmma_begin();
    static_for<4>([&](auto i) { ptx::wgmma_n32_tf32<(i > 0)>(u, r[i], ptx::advance(T, i * 32)); });
    ptx::wgmma_commit();
    if constexpr (kOut && kRoomy) {
      ptx::wgmma_wait<0>(u, o);
    } else {
      ptx::wgmma_wait<0>(u);
    }
  }
  {
    uint32_t narrow[2][4], wide[4][4];
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
      const float* const e = u + 4 * octet;
      narrow[octet / 2][octet % 2 * 2] = pack_bf16(e[0], e[1]);
      narrow[octet / 2][octet % 2 * 2 + 1] = pack_bf16(e[2], e[3]);
      wide[octet][0] = uncut(e[0]);
      wide[octet][1] = uncut(e[2]);
      wide[octet][2] = uncut(e[1]);
      wide[octet][3] = uncut(e[3]);
    }
    const uint64_t M = ptx::rows_of_64(ptx::shared_address(image.M));
    const uint64_t w = ptx::rows_of_128(ptx::shared_address(image.w));
    if constexpr (kOut) {
      ptx::wgmma_begin(o, state);
      static_for<2>([&](auto i) { ptx::wgmma_n32_bf16<true>(o, narrow[i], ptx::advance(M, i * 32)); });
      ptx::wgmma_commit();
    } else {
      ptx::wgmma_begin(state);
    }
    static_for<4>([&](auto i) { ptx::wgmma_n128_tf32<true>(state, wide[i], ptx::advance(w, i * 32)); });
    ptx::wgmma_commit();
  }
  if constexpr (kOut) {
    ptx::wgmma_wait<1>(o);
    emit(o);
  }
  ptx::wgmma_wait<0>(state);
}

}  // namespace flashkda::cuda::sm90
