// Runs the step it is linked with: against the library's fp64 reference, then against the clock.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "flashkda/flashkda.h"
#include "ladder.hpp"

namespace {

using ladder::bf16;
constexpr int kSkipped = 77;  // the exit status that ctest takes as "skipped"

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T* upload(const std::vector<T>& x) {
  T* device = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&device), x.size() * sizeof(T)));
  check(cudaMemcpy(device, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

struct Inputs {
  int T, H;
  std::vector<bf16> q, k, v, out;
  std::vector<float> a, b, state;

  Inputs(int tokens, int heads) : T(tokens), H(heads) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    std::vector<float> pool(1 << 20);
    for (float& x : pool) x = normal(engine);
    size_t next = 0;
    const auto draw = [&] { return pool[next++ % (pool.size() - 1)]; };
    const size_t rows = static_cast<size_t>(T) * static_cast<size_t>(H);
    const auto unit_rows = [&](std::vector<bf16>& x) {
      x.resize(rows * ladder::kD);
      for (size_t r = 0; r < rows; ++r) {
        for (int c = 0; c < ladder::kD; ++c)
          x[r * ladder::kD + static_cast<size_t>(c)] = bf16(draw() / std::sqrt(128.0f));
      }
    };
    unit_rows(q);
    unit_rows(k);
    v.resize(rows * ladder::kD);
    for (bf16& x : v) x = bf16(draw());
    a.resize(rows * ladder::kD);  // channels from long memories to forgetting within a token, to -5
    for (size_t i = 0; i < a.size(); ++i)
      a[i] = -5.0f / (1.0f + std::exp(6.0f - 8.0f * static_cast<float>(i % 128) / 128 - draw()));
    b.resize(rows);
    for (float& x : b) x = 1.0f / (1.0f + std::exp(-draw()));
    out.resize(v.size());
    state.resize(static_cast<size_t>(H) * ladder::kD * ladder::kD);
  }

  ladder::Problem device() const {
    char* workspace = nullptr;
    check(cudaMalloc(reinterpret_cast<void**>(&workspace), std::max<size_t>(ladder::workspace_bytes(T, H), 1)));
    return {T, H, upload(q), upload(k), upload(v), upload(a), upload(b), upload(out), upload(state), workspace};
  }
};

void release(const ladder::Problem& p) {
  for (const void* x : std::initializer_list<const void*>{p.q, p.k, p.v, p.a, p.b, p.out, p.state, p.workspace}) {
    check(cudaFree(const_cast<void*>(x)));
  }
}

template <typename T>
double error(const T* x, const std::vector<double>& truth) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double d = static_cast<double>(static_cast<float>(x[i])) - truth[i];
    difference += d * d;
    norm += truth[i] * truth[i];
  }
  return std::sqrt(difference / norm);
}

bool right() {
  Inputs in(512, 3);
  std::vector<double> out(in.out.size()), state(in.state.size());
  fkda_problem p;
  fkda_problem_init(&p);
  const int64_t rows[] = {1, in.T, in.H, 128}, scalars[] = {1, in.T, in.H}, states[] = {1, in.H, 128, 128};
  p.q = fkda_dense(in.q.data(), FKDA_BFLOAT16, 4, rows);
  p.k = fkda_dense(in.k.data(), FKDA_BFLOAT16, 4, rows);
  p.v = fkda_dense(in.v.data(), FKDA_BFLOAT16, 4, rows);
  p.g = fkda_dense(in.a.data(), FKDA_FLOAT32, 4, rows);
  p.beta = fkda_dense(in.b.data(), FKDA_FLOAT32, 3, scalars);
  p.out = fkda_dense(out.data(), FKDA_FLOAT64, 4, rows);
  p.final_state = fkda_dense(state.data(), FKDA_FLOAT64, 4, states);
  p.gate = FKDA_GATE_LOG;
  p.beta_activation = FKDA_BETA_ACTIVATED;
  p.qk_l2norm = 0;
  p.backend = "reference";
  size_t bytes = 0;
  std::vector<char> memory;
  if (fkda_workspace_size(&p, &bytes) == FKDA_OK) memory.resize(bytes + FKDA_WORKSPACE_ALIGNMENT);
  void* workspace = memory.data();
  size_t space = memory.size();
  std::align(FKDA_WORKSPACE_ALIGNMENT, bytes, workspace, space);
  if (fkda_forward(&p, workspace, bytes, nullptr) != FKDA_OK) {
    std::fprintf(stderr, "reference: %s\n", fkda_last_error());
    return false;
  }

  const ladder::Problem d = in.device();
  check(cudaMemset(d.out, 0xff, in.out.size() * sizeof(bf16)));  // NaN
  ladder::forward(d, nullptr);
  check(cudaGetLastError());
  check(cudaMemcpy(in.out.data(), d.out, in.out.size() * sizeof(bf16), cudaMemcpyDeviceToHost));
  check(cudaMemcpy(in.state.data(), d.state, in.state.size() * sizeof(float), cudaMemcpyDeviceToHost));
  release(d);
  const double o = error(in.out.data(), out), s = error(in.state.data(), state);
  std::printf("error against fp64: o %.1e, state %.1e\n", o, s);
  return o <= ladder::kOutputBar && s <= ladder::kStateBar;  // false for NaN
}

void time(int T, int H) {
  const Inputs in(T, H);
  const ladder::Problem d = in.device();
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start));
  check(cudaEventCreate(&stop));
  std::vector<float> times(10);
  ladder::forward(d, nullptr);
  for (float& ms : times) {
    check(cudaEventRecord(start));
    ladder::forward(d, nullptr);
    check(cudaEventRecord(stop));
    check(cudaEventSynchronize(stop));
    check(cudaEventElapsedTime(&ms, start, stop));
  }
  std::sort(times.begin(), times.end());
  std::printf("H %d, T %d: %.3f ms\n", H, T, static_cast<double>(times[times.size() / 2]));
  release(d);
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device");
    return kSkipped;
  }
  if (!right()) {
    std::puts("WRONG");
    return 1;
  }
  if (argc > 2) time(std::atoi(argv[1]) / ladder::kChunk * ladder::kChunk, std::atoi(argv[2]));
  return 0;
}
