#include <type_traits>

#include "cuda/launch.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/sm90/affine.cuh"
#include "cuda/sm90/launch.hpp"
#include "cuda/sm90/prepare.cuh"
#include "cuda/sm90/recur.cuh"

namespace flashkda::cuda::sm90 {

void launch_prepare(const sm80::PrepareParams& p, int64_t blocks, bool early, cudaStream_t stream) {
  const auto launch_instance = [&]<bool kFp16, bool kTame>(std::bool_constant<kFp16>, std::bool_constant<kTame>) {
    allow_shared_memory<&prepare<kFp16, kTame>>(sizeof(PrepareShared));
    launch(&prepare<kFp16, kTame>, blocks, kPrepareThreads, sizeof(PrepareShared), stream, early,
           "launch of the prepare kernel", p);
  };
  if (p.q.dtype == FKDA_FLOAT16) {
    launch_instance(std::true_type(), std::false_type());
  } else if (p.tame) {
    launch_instance(std::false_type(), std::true_type());
  } else {
    launch_instance(std::false_type(), std::false_type());
  }
}

void launch_affine(const sm80::AffineParams& p, const CUtensorMap& v, int64_t runs, cudaStream_t stream) {
  allow_shared_memory<affine>(sizeof(AffineShared));
  launch(&affine, 2 * runs, kAffineThreads, sizeof(AffineShared), stream, true, "launch of the segment kernel", p, v);
}

void launch_recur(const sm80::RecurParams& p, const CUtensorMap& v, int64_t runs, cudaStream_t stream) {
  allow_shared_memory<recur>(sizeof(RecurShared));
  launch(&recur, runs, kRecurThreads, sizeof(RecurShared), stream, true, "launch of the recurrence kernel", p, v);
}

size_t image_bytes() { return sizeof(Image); }

}  // namespace flashkda::cuda::sm90
