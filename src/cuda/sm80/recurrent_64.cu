#include "cuda/sm80/recurrent_launch.cuh"

namespace flashkda::cuda::sm80 {
template void launch_recurrent<64>(RecurrentParams, int64_t, int, cudaStream_t);
}
