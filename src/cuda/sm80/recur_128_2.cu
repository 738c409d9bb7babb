#include "cuda/sm80/recur_launch.cuh"

namespace flashkda::cuda::sm80 {
template void launch_recur<128, 2>(const RecurParams&, int, int64_t, cudaStream_t);
}
