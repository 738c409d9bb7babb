#include "cuda/error.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm90/affine.cuh"
#include "cuda/sm90/launch.hpp"
#include "cuda/sm90/prepare.cuh"
#include "cuda/sm90/recur.cuh"

namespace flashkda::cuda::sm90 {

void launch_prepare(const sm80::PrepareParams& p, int64_t blocks, cudaStream_t stream) {
  allow_shared_memory<prepare>(sizeof(PrepareShared));
  prepare<<<static_cast<unsigned>(blocks), kPrepareThreads, sizeof(PrepareShared), stream>>>(p);
  check(cudaGetLastError(), "launch of the prepare kernel");
}

void launch_affine(const sm80::AffineParams& p, const CUtensorMap& v, int64_t runs, cudaStream_t stream) {
  allow_shared_memory<affine>(sizeof(AffineShared));
  affine<<<static_cast<unsigned>(2 * runs), kAffineThreads, sizeof(AffineShared), stream>>>(p, v);
  check(cudaGetLastError(), "launch of the segment kernel");
}

void launch_recur(const sm80::RecurParams& p, const CUtensorMap& v, int64_t runs, cudaStream_t stream) {
  allow_shared_memory<recur>(sizeof(RecurShared));
  recur<<<static_cast<unsigned>(runs), kRecurThreads, sizeof(RecurShared), stream>>>(p, v);
  check(cudaGetLastError(), "launch of the recurrence kernel");
}

size_t image_bytes() { return sizeof(Image); }

}  // namespace flashkda::cuda::sm90
