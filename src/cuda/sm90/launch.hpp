// The fused kernel, compiled for sm_90a only.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashkda::cuda::sm80 {
struct PrepareParams;
struct AffineParams;
struct RecurParams;
}  // namespace flashkda::cuda::sm80

namespace flashkda::cuda::sm90 {

struct FusedParams;
struct ApartParams;

// heads = sequences x value heads. kSlices: 64 value columns each; a block has 1 or 2 of a head. early: behind another
// kernel of this library (cuda/launch.hpp).
template <int kSlices>
void launch_fused(const FusedParams& p, int64_t heads, bool early, cudaStream_t stream);

// The same with makers and readers apart, early behind the kernel that cleared the flags.
void launch_apart(const ApartParams& p, cudaStream_t stream);

// The walk over chunk images (sm90/image.cuh) of 32 tokens. v: the map of the values. Each starts early
// (cuda/launch.hpp) behind the one before it, prepare if there is another kernel of this library in front.
size_t image_bytes();
void launch_prepare(const sm80::PrepareParams& p, int64_t blocks, bool early, cudaStream_t stream);  // chunks x heads
void launch_affine(const sm80::AffineParams& p, const CUtensorMap& v, int64_t runs, cudaStream_t stream);
template <int kSlices>  // value columns of a block / 64
void launch_recur(const sm80::RecurParams& p, const CUtensorMap& v, int64_t runs, int processors, cudaStream_t stream);

}  // namespace flashkda::cuda::sm90
