// Step 1: the recurrence as it is written (docs/algorithm.md, eq. 6 to 8), token by token.
//
// A block is a head and a thread is a value column: it keeps its column of S, 128 numbers, in registers, and needs no
// other thread's. Every token is a round trip to memory, two barriers and 4 x 128 multiply-adds one after the other:
// the machine waits, and its tensor cores have nothing to do, because a vector is all that there is to multiply by.
#include "ladder.hpp"

namespace ladder {
namespace {

__global__ void __launch_bounds__(kD) recurrence(Problem p) {
  __shared__ float k[kD], q[kD], alpha[kD];
  const int h = blockIdx.x, v = threadIdx.x;
  float S[kD] = {};

  for (int t = 0; t < p.T; ++t) {
    const size_t row = static_cast<size_t>(t) * p.H + h;
    __syncthreads();  // all are done with the last token
    k[v] = float(p.k[row * kD + v]);
    q[v] = kScale * float(p.q[row * kD + v]);
    alpha[v] = __expf(p.a[row * kD + v]);
    __syncthreads();

    float answer = 0.0f;  // what the decayed state answers to this token's key
#pragma unroll
    for (int c = 0; c < kD; ++c) {
      S[c] *= alpha[c];
      answer += S[c] * k[c];
    }
    const float u = p.b[row] * (float(p.v[row * kD + v]) - answer);
    float o = 0.0f;
#pragma unroll
    for (int c = 0; c < kD; ++c) {
      S[c] += k[c] * u;
      o += S[c] * q[c];
    }
    p.out[row * kD + v] = bf16(o);
  }
#pragma unroll
  for (int c = 0; c < kD; ++c) p.state[(static_cast<size_t>(h) * kD + v) * kD + c] = S[c];
}

}  // namespace

// fp32 throughout: what is left of the error of o is its rounding to bf16.
const double kOutputBar = 2e-3, kStateBar = 2e-5;
size_t workspace_bytes(int, int) { return 0; }
void forward(const Problem& p, cudaStream_t stream) { recurrence<<<p.H, kD, 0, stream>>>(p); }

}  // namespace ladder
