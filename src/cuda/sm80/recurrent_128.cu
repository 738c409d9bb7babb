#include "cuda/sm80/recurrent_launch.cuh"

namespace flashkda::cuda::sm80 {
template void launch_recurrent<128>(const RecurrentParams&, int64_t, cudaStream_t);
}
