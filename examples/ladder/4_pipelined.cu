// Step 4: the same products, and the loads of the chunks to come already under way (cp.async, sm_80).
//
// kStages chunks of shared memory go round: while chunk c is computed, c + 1 to c + kStages - 1 arrive. One barrier a
// chunk says both that chunk c has come and that all are done with the stage that is filled next. This is the shape of
// the library's src/cuda/sm80/recur.cuh.
#include "cuda/ptx/cp_async.cuh"
#include "tensor_core_recur.cuh"

namespace ladder {
namespace {

constexpr int kStages = 4;

__global__ void __launch_bounds__(kWarps * 32) recur(Problem p) {
  extern __shared__ __align__(128) char memory[];
  auto* const stages = reinterpret_cast<Stage*>(memory);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int h = blockIdx.x / (kD / kColumns), v0 = blockIdx.x % (kD / kColumns) * kColumns;
  const size_t stride = static_cast<size_t>(p.H) * kD;
  const int chunks = p.T / kChunk;
  float S[kD / 8][4] = {};

  const auto place = [&](int chunk) { return chunk * kChunk * stride + static_cast<size_t>(h) * kD + v0; };
  const auto fetch = [&](int chunk) {
    if (chunk < chunks) {
      load_chunk(stages[chunk % kStages], image_of(p, chunk, h), p.v + place(chunk), stride, thread,
                 [](void* to, const void* from) { ptx::cp_async_16(ptx::shared_address(to), from); });
    }
    ptx::cp_async_commit();  // an empty group keeps the count
  };
  for (int chunk = 0; chunk < kStages - 1; ++chunk) fetch(chunk);

  for (int chunk = 0; chunk < chunks; ++chunk) {
    ptx::cp_async_wait<kStages - 2>();  // this thread's part of the chunk has come
    __syncthreads();                    // everybody's has, and the stage that is filled next is free
    fetch(chunk + kStages - 1);
    float o[2][4] = {};
    chunk_step(stages[chunk % kStages], S, o, warp, lane);
    store_output(p.out + place(chunk) + warp * 16, stride, o, lane);
  }
  store_state(p.state + (static_cast<size_t>(h) * kD + v0 + warp * 16) * kD, S, lane);
}

}  // namespace

const double kOutputBar = 5.5e-3, kStateBar = 5e-3;
size_t workspace_bytes(int T, int H) { return static_cast<size_t>(T / kChunk) * H * sizeof(Image); }
void forward(const Problem& p, cudaStream_t stream) {
  constexpr int kBytes = kStages * sizeof(Stage);
  cudaFuncSetAttribute(recur, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  prepare<<<p.T / kChunk * p.H, kPairs, 0, stream>>>(p);
  recur<<<p.H*(kD / kColumns), kWarps * 32, kBytes, stream>>>(p);
}

}  // namespace ladder
