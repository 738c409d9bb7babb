// Steps 3 and 4, second kernel: one chunk of the recurrence on tensor cores. The loops around it are the steps.
//
// A warp keeps 16 value columns of the state transposed, S^T [16 v, 128 k], as fp32 accumulators. Rounded to bf16 that
// very layout is the left operand of the next product, so the state never leaves the registers and no warp needs
// another's part of it.
#pragma once

#include "tensor_core_prepare.cuh"

namespace ladder {

inline constexpr int kWarps = 4, kColumns = 16 * kWarps;  // a block: 64 value columns of one head
inline constexpr int kValuePitch = kColumns * 2 + 16;

struct Stage {  // one chunk in shared memory
  alignas(16) char kd[kChunk][kPitch], qd[kChunk][kPitch], kr[kChunk][kPitch];
  alignas(16) char T[kChunk][kChunk * 2], M[kChunk][kChunk * 2];
  alignas(16) float F[kD];
  alignas(16) char v[kChunk][kValuePitch];
};

// copy(to, from): 16 bytes from global to shared memory.
template <typename Copy>
__device__ inline void load_chunk(Stage& stage, const Image& image, const bf16* v, size_t v_stride, int thread,
                                  Copy copy) {
  for (int i = thread; i < 3 * kChunk * kD / 8; i += kWarps * 32) {  // kd, qd and kr lie one after the other in both
    copy(&stage.kd[0][0] + i / 16 * kPitch + i % 16 * 16, reinterpret_cast<const char*>(&image) + i * 16);
  }
  constexpr int kSmall = (2 * kChunk * kChunk * 2 + kD * 4) / 16;  // T, M, F
  if (thread < kSmall) copy(&stage.T[0][0] + thread * 16, reinterpret_cast<const char*>(&image.T) + thread * 16);
  copy(&stage.v[thread / 8][thread % 8 * 16], v + thread / 8 * v_stride + thread % 8 * 8);
}

// One chunk for one warp: the state S^T moves on, o becomes O^T, two accumulators of eight tokens.
__device__ inline void chunk_step(const Stage& stage, float (&S)[kD / 8][4], float (&o)[2][4], int warp, int lane) {
  const int row = lane / 16 * 8 + lane % 8, unit = lane / 8 % 2 * 16;  // ldmatrix: the address that this lane gives
  float answer[2][4] = {};
#pragma unroll
  for (int i = 0; i < kD / 16; ++i) {  // A^T = S^T kd^T, O^T = S^T qd^T
    const uint32_t state[4] = {pack(S[2 * i][0], S[2 * i][1]), pack(S[2 * i][2], S[2 * i][3]),
                               pack(S[2 * i + 1][0], S[2 * i + 1][1]), pack(S[2 * i + 1][2], S[2 * i + 1][3])};
    uint32_t kd[4], qd[4];
    ptx::ldmatrix_x4(kd, ptx::shared_address(&stage.kd[row][i * 32 + unit]));
    ptx::ldmatrix_x4(qd, ptx::shared_address(&stage.qd[row][i * 32 + unit]));
    ptx::mma_m16n8k16_bf16(answer[0], state, kd[0], kd[1]);
    ptx::mma_m16n8k16_bf16(answer[1], state, kd[2], kd[3]);
    ptx::mma_m16n8k16_bf16(o[0], state, qd[0], qd[1]);
    ptx::mma_m16n8k16_bf16(o[1], state, qd[2], qd[3]);
  }
  uint32_t values[4], r[4], T[4], M[4];  // R^T = V^T - A^T
  ptx::ldmatrix_x4_trans(values, ptx::shared_address(&stage.v[row][warp * 32 + unit]));
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&values[m]));
    r[m] = pack(x.x - answer[m / 2][m % 2 * 2], x.y - answer[m / 2][m % 2 * 2 + 1]);
  }
  float u[2][4] = {};  // U^T = R^T T^T, then O^T += U^T Mqk^T
  ptx::ldmatrix_x4(T, ptx::shared_address(&stage.T[row][unit]));
  ptx::ldmatrix_x4(M, ptx::shared_address(&stage.M[row][unit]));
  ptx::mma_m16n8k16_bf16(u[0], r, T[0], T[1]);
  ptx::mma_m16n8k16_bf16(u[1], r, T[2], T[3]);
  const uint32_t U[4] = {pack(u[0][0], u[0][1]), pack(u[0][2], u[0][3]), pack(u[1][0], u[1][1]),
                         pack(u[1][2], u[1][3])};
  ptx::mma_m16n8k16_bf16(o[0], U, M[0], M[1]);
  ptx::mma_m16n8k16_bf16(o[1], U, M[2], M[3]);
#pragma unroll
  for (int i = 0; i < kD / 16; ++i) {  // S^T = S^T diag(F) + U^T kr
    uint32_t kr[4];
    ptx::ldmatrix_x4_trans(kr, ptx::shared_address(&stage.kr[lane / 8 % 2 * 8 + lane % 8][i * 32 + lane / 16 * 16]));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 f = *reinterpret_cast<const float2*>(&stage.F[16 * i + 8 * half + 2 * (lane % 4)]);
      float(&x)[4] = S[2 * i + half];
      x[0] *= f.x, x[1] *= f.y, x[2] *= f.x, x[3] *= f.y;
      ptx::mma_m16n8k16_bf16(x, U, kr[2 * half], kr[2 * half + 1]);
    }
  }
}

// O^T as token rows: each 8 x 8 tile turned, so that a lane has two neighbouring columns of one token.
__device__ inline void store_output(bf16* out, size_t stride, const float (&o)[2][4], int lane) {
  for (int tile = 0; tile < 4; ++tile) {
    const uint32_t turned = ptx::movmatrix_trans(pack(o[tile / 2][tile % 2 * 2], o[tile / 2][tile % 2 * 2 + 1]));
    *reinterpret_cast<uint32_t*>(out + (tile / 2 * 8 + lane / 4) * stride + tile % 2 * 8 + 2 * (lane % 4)) = turned;
  }
}

__device__ inline void store_state(float* state, const float (&S)[kD / 8][4], int lane) {
#pragma unroll
  for (int i = 0; i < kD / 8; ++i) {
    *reinterpret_cast<float2*>(state + lane / 4 * kD + 8 * i + 2 * (lane % 4)) = make_float2(S[i][0], S[i][1]);
    *reinterpret_cast<float2*>(state + (lane / 4 + 8) * kD + 8 * i + 2 * (lane % 4)) = make_float2(S[i][2], S[i][3]);
  }
}

}  // namespace ladder
