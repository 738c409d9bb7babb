// The chunk image of the kernels that walk with wgmma: 32 tokens of one value head, in the workspace, as it lies in
// shared memory. What the symbols mean is in tile/image.cuh; rows past the end of a sequence are zero and decay
// nothing.
#pragma once

#include <cstddef>

#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

struct Image {
  alignas(1024) char kd[2][kChunk][128];  // [channel / 64][token], 64 channels of bf16 a row; 128-byte swizzle
  alignas(1024) char qd[2][kChunk][128];
  alignas(1024) char w[D][128];       // [channel][token place] tf32: kr; 128-byte swizzle
  alignas(1024) char T[kChunk][128];  // [i][token place of j] tf32: (I + L)^-1 diag(b), uncut; 128-byte swizzle
  alignas(1024) char M[kChunk][64];   // [i][j] bf16: Mqk; 64-byte swizzle
  float F[D];                         // in the order of frame_place
};

// What is copied in one piece.
static_assert(offsetof(Image, qd) == offsetof(Image, kd) + sizeof(Image::kd));
static_assert(offsetof(Image, T) == offsetof(Image, w) + sizeof(Image::w));
static_assert(offsetof(Image, F) == offsetof(Image, M) + sizeof(Image::M));

}  // namespace flashkda::cuda::sm90
