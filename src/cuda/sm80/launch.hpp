// The kernels of the portable path, by width. Each instance is compiled in a file of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashkda::cuda::sm80 {

struct PrepareParams;
struct RecurParams;
struct RecurrentParams;
struct AffineParams;
struct CombineParams;

// blocks = chunks x value heads.
template <int K>
void launch_prepare(const PrepareParams& p, int64_t blocks, cudaStream_t stream);

// heads = segments x value heads; kTiles: 1 or 2, see recur.cuh. V is a multiple of recur_columns(kTiles).
template <int K, int kTiles>
void launch_recur(const RecurParams& p, int V, int64_t heads, cudaStream_t stream);

// blocks = segments x value heads; V = K.
template <int K>
void launch_affine(const AffineParams& p, int64_t blocks, cudaStream_t stream);

// heads = sequences x value heads; V = K. early: cuda/launch.hpp.
template <int K>
void launch_combine(const CombineParams& p, int64_t heads, bool early, cudaStream_t stream);

// heads = sequences x value heads; V = K. Sets items.
template <int K>
void launch_recurrent(RecurrentParams p, int64_t heads, int processors, cudaStream_t stream);

}  // namespace flashkda::cuda::sm80
