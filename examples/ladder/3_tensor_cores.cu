// Step 3: the chunked form with its products on tensor cores (tensor_core_prepare.cuh, tensor_core_recur.cuh).
//
// The products now cost so little that the loop below spends its time between them: a chunk is loaded, everyone waits
// for memory, computes for a moment, and waits again.
#include "tensor_core_recur.cuh"

namespace ladder {
namespace {

__global__ void __launch_bounds__(kWarps * 32) recur(Problem p) {
  __shared__ Stage stage;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int h = blockIdx.x / (kD / kColumns), v0 = blockIdx.x % (kD / kColumns) * kColumns;
  const size_t stride = static_cast<size_t>(p.H) * kD;
  float S[kD / 8][4] = {};

  for (int chunk = 0; chunk < p.T / kChunk; ++chunk) {
    const size_t at = chunk * kChunk * stride + static_cast<size_t>(h) * kD + v0;
    __syncthreads();  // all are done with the last chunk
    load_chunk(stage, image_of(p, chunk, h), p.v + at, stride, thread,
               [](void* to, const void* from) { *static_cast<uint4*>(to) = *static_cast<const uint4*>(from); });
    __syncthreads();
    float o[2][4] = {};
    chunk_step(stage, S, o, warp, lane);
    store_output(p.out + at + warp * 16, stride, o, lane);
  }
  store_state(p.state + (static_cast<size_t>(h) * kD + v0 + warp * 16) * kD, S, lane);
}

}  // namespace

// Operands of every product are rounded to bf16.
const double kOutputBar = 5.5e-3, kStateBar = 5e-3;
size_t workspace_bytes(int T, int H) { return static_cast<size_t>(T / kChunk) * H * sizeof(Image); }
void forward(const Problem& p, cudaStream_t stream) {
  prepare<<<p.T / kChunk * p.H, kPairs, 0, stream>>>(p);
  recur<<<p.H*(kD / kColumns), kWarps * 32, 0, stream>>>(p);
}

}  // namespace ladder
