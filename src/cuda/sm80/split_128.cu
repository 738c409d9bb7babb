#include "cuda/sm80/split_launch.cuh"

namespace flashkda::cuda::sm80 {
template void launch_affine<128>(const AffineParams&, int64_t, cudaStream_t);
template void launch_combine<128>(const CombineParams&, int64_t, bool, cudaStream_t);
}  // namespace flashkda::cuda::sm80
