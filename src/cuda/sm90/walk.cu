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
    launch(&prepare<kFp16, kTame>, blocks, kPrepareThreads, sizeof(PrepareShared), stream, early, 1,
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
  launch(&affine, 2 * runs, kAffineThreads, sizeof(AffineShared), stream, true, 1, "launch of the segment kernel", p,
         v);
}

template <int kSlices>
void launch_recur(const sm80::RecurParams& p, const CUtensorMap& v, int64_t runs, int processors, cudaStream_t stream) {
  const int64_t blocks = runs * (D / 64 / kSlices);
  const auto launch_instance = [&]<int kRing>(std::integral_constant<int, kRing>) {
    constexpr size_t kBytes = sizeof(RecurShared<kSlices, kRing>);
    allow_shared_memory<&recur<kSlices, kRing>>(kBytes);
    launch(&recur<kSlices, kRing>, blocks, kRecurThreads<kSlices>, kBytes, stream, true, 1,
           "launch of the recurrence kernel", p, v);
  };
  // An SM for each block, if there are that many; those that start early would else go two by two to the first SMs that
  // prepare leaves, but no two find so much shared memory on one.
  if constexpr (kSlices == 1) {
    if (blocks > processors) return launch_instance(std::integral_constant<int, kWalkStages / 2>());
  }
  launch_instance(std::integral_constant<int, kWalkStages>());
}
template void launch_recur<1>(const sm80::RecurParams&, const CUtensorMap&, int64_t, int, cudaStream_t);
template void launch_recur<2>(const sm80::RecurParams&, const CUtensorMap&, int64_t, int, cudaStream_t);

size_t image_bytes() { return sizeof(Image); }

}  // namespace flashkda::cuda::sm90
