#include "cuda/sm90/fused_launch.cuh"

namespace flashkda::cuda::sm90 {
template void launch_fused<2>(const FusedParams&, int64_t, bool, cudaStream_t);
}
