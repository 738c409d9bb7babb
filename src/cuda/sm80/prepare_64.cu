#include "cuda/sm80/prepare_launch.cuh"

namespace flashkda::cuda::sm80 {
template void launch_prepare<64>(const PrepareParams&, int64_t, cudaStream_t);
}
