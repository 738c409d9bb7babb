// Step 2: the chunked form (docs/algorithm.md, section 3), still in plain fp32.
//
// What no state is needed for - the decayed rows, L, Mqk and the inverse - is done for all chunks at once by `prepare`.
// `recur` is left with four products a chunk (eq. 18 to 20) instead of sixteen dependent tokens: two barriers per
// sixteen tokens, and a thread's multiply-adds no longer wait for each other.
#include "ladder.hpp"

namespace ladder {
namespace {

// What prepare hands to recur for one chunk of one head.
struct Image {
  float kd[kChunk][kD], qd[kChunk][kD], kr[kChunk][kD];  // eq. 11
  float T[kChunk][kChunk];                               // (I + L)^-1 diag(b): U = T (V - kd S)
  float M[kChunk][kChunk];                               // Mqk
  float F[kD];                                           // exp(G_last)
};

__device__ Image& image_of(const Problem& p, int chunk, int head) {
  return reinterpret_cast<Image*>(p.workspace)[static_cast<size_t>(chunk) * p.H + head];
}

// A block is one chunk of one head, a thread one channel, then one or two pairs of tokens.
__global__ void __launch_bounds__(kD) prepare(Problem p) {
  constexpr int kPitch = kD + 1;  // rows begin in different banks
  __shared__ float k[kChunk][kPitch], q[kChunk][kPitch], G[kChunk][kPitch];
  __shared__ float L[kChunk][kChunk], b[kChunk];
  const int chunk = blockIdx.x / p.H, h = blockIdx.x % p.H, thread = threadIdx.x;
  Image& image = image_of(p, chunk, h);
  const auto row = [&](int i) { return static_cast<size_t>(chunk * kChunk + i) * p.H + h; };

  float sum = 0.0f;
  for (int i = 0; i < kChunk; ++i) {
    k[i][thread] = float(p.k[row(i) * kD + thread]);
    q[i][thread] = kScale * float(p.q[row(i) * kD + thread]);
    G[i][thread] = sum += p.a[row(i) * kD + thread];  // eq. 10
  }
  if (thread < kChunk) b[thread] = p.b[row(thread)];
  for (int i = 0; i < kChunk; ++i) {
    const float decay = __expf(G[i][thread]);
    image.kd[i][thread] = k[i][thread] * decay;
    image.qd[i][thread] = q[i][thread] * decay;
    image.kr[i][thread] = k[i][thread] * __expf(sum - G[i][thread]);
  }
  image.F[thread] = __expf(sum);
  __syncthreads();

  // L and Mqk pair by pair: exp(G_i - G_j) is at most 1, while exp(-G_j) alone could overflow.
  for (int pair = thread; pair < kChunk * kChunk; pair += kD) {
    const int i = pair / kChunk, j = pair % kChunk;
    float kk = 0.0f, qk = 0.0f;
    if (i >= j) {
      for (int c = 0; c < kD; ++c) {
        const float carried = k[j][c] * __expf(G[i][c] - G[j][c]);
        kk += k[i][c] * carried;
        qk += q[i][c] * carried;
      }
    }
    L[i][j] = i > j ? b[i] * kk : 0.0f;  // eq. 14
    image.M[i][j] = qk;                  // eq. 15
  }
  __syncthreads();

  // The inverse, a column a thread, by forward substitution (eq. 21).
  if (thread < kChunk) {
    float x[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      x[i] = i == thread ? 1.0f : 0.0f;
#pragma unroll
      for (int j = 0; j < i; ++j) x[i] -= L[i][j] * x[j];
      image.T[i][thread] = x[i] * b[thread];
    }
  }
}

// A block is a head, a thread a value column, as in step 1.
__global__ void __launch_bounds__(kD) recur(Problem p) {
  __shared__ Image image;
  const int h = blockIdx.x, v = threadIdx.x;
  float S[kD] = {};

  for (int chunk = 0; chunk < p.T / kChunk; ++chunk) {
    __syncthreads();  // all are done with the last chunk
    const auto* from = reinterpret_cast<const float4*>(&image_of(p, chunk, h));
    for (int i = v; i < static_cast<int>(sizeof(Image) / 16); i += kD) reinterpret_cast<float4*>(&image)[i] = from[i];
    __syncthreads();

    const auto row = [&](int i) { return (static_cast<size_t>(chunk * kChunk + i) * p.H + h) * kD + v; };
    float r[kChunk], o[kChunk], u[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      float answer = 0.0f;
      o[i] = 0.0f;
#pragma unroll
      for (int c = 0; c < kD; ++c) {
        answer += image.kd[i][c] * S[c];
        o[i] += image.qd[i][c] * S[c];
      }
      r[i] = float(p.v[row(i)]) - answer;
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      u[i] = 0.0f;
#pragma unroll
      for (int j = 0; j <= i; ++j) u[i] += image.T[i][j] * r[j];  // eq. 18
#pragma unroll
      for (int j = 0; j <= i; ++j) o[i] += image.M[i][j] * u[j];  // eq. 19
      p.out[row(i)] = bf16(o[i]);
    }
#pragma unroll
    for (int c = 0; c < kD; ++c) {
      S[c] *= image.F[c];
#pragma unroll
      for (int j = 0; j < kChunk; ++j) S[c] += image.kr[j][c] * u[j];  // eq. 20
    }
  }
#pragma unroll
  for (int c = 0; c < kD; ++c) p.state[(static_cast<size_t>(h) * kD + v) * kD + c] = S[c];
}

}  // namespace

const double kOutputBar = 2e-3, kStateBar = 2e-5;
size_t workspace_bytes(int T, int H) { return static_cast<size_t>(T / kChunk) * H * sizeof(Image); }
void forward(const Problem& p, cudaStream_t stream) {
  prepare<<<p.T / kChunk * p.H, kD, 0, stream>>>(p);
  recur<<<p.H, kD, 0, stream>>>(p);
}

}  // namespace ladder
