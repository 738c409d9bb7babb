#include "yardsticks.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

namespace flashkda::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Runs body(thread) on `threads` threads and returns the wall time.
double timed(int threads, const std::function<void(int)>& body) {
  const auto start = Clock::now();
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(body, i);
  body(0);
  for (std::thread& t : pool) t.join();
  return seconds_since(start);
}

// 20 independent vectors: enough to hide the latency of two FMA units, few enough for 32 registers.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kChains = 20;
#else
constexpr int kChains = 10;
#endif

float fma_loop(int64_t rounds) {
  Vector acc[kChains], x, y;
  for (int l = 0; l < kLanes; ++l) {
    x[l] = 0.999f;
    y[l] = 0.001f;
    for (int c = 0; c < kChains; ++c) acc[c][l] = static_cast<float>(c);
  }
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 20
    for (int c = 0; c < kChains; ++c) acc[c] = acc[c] * x + y;  // contracts to one FMA
  }
  float sum = 0;
  for (int c = 0; c < kChains; ++c) sum += acc[c][0];
  return sum;
}

}  // namespace

double peak_fma_per_second(int threads) {
  constexpr int64_t kRounds = 4'000'000;
  std::vector<float> sink(static_cast<size_t>(threads));
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double t = timed(threads, [&](int i) { sink[static_cast<size_t>(i)] = fma_loop(kRounds); });
    best = std::max(best, static_cast<double>(kRounds) * kChains * kLanes * threads / t);
  }
  return sink[0] == 12345.0f ? 0 : best;
}

double copy_bytes_per_second(int threads, int64_t bytes_per_thread) {
  std::vector<std::vector<char>> from(static_cast<size_t>(threads)), to(static_cast<size_t>(threads));
  for (auto* set : {&from, &to}) {
    for (auto& buffer : *set) buffer.assign(static_cast<size_t>(bytes_per_thread), 1);
  }
  double best = 0;
  for (int repeat = 0; repeat < 7; ++repeat) {
    const double t = timed(threads, [&](int i) {
      std::memcpy(to[static_cast<size_t>(i)].data(), from[static_cast<size_t>(i)].data(),
                  static_cast<size_t>(bytes_per_thread));
    });
    best = std::max(best, 2.0 * static_cast<double>(bytes_per_thread) * threads / t);
  }
  return best;
}

void plain_recurrence(const PlainHead& h) {
  const int64_t K = h.K, V = h.V;
  std::vector<float> read(static_cast<size_t>(V)), write(static_cast<size_t>(V));
  float* __restrict r = read.data();
  float* __restrict w = write.data();
  for (int64_t t = 0; t < h.T; ++t) {
    const float *q = h.q + t * K, *k = h.k + t * K, *v = h.v + t * V, *alpha = h.alpha + t * K;
    float* __restrict out = h.out + t * V;
    std::fill(r, r + V, 0.0f);
    for (int64_t i = 0; i < K; ++i) {
      float* __restrict row = h.state + i * V;
      for (int64_t j = 0; j < V; ++j) {
        row[j] *= alpha[i];
        r[j] += k[i] * row[j];
      }
    }
    for (int64_t j = 0; j < V; ++j) w[j] = h.b[t] * (v[j] - r[j]);
    std::fill(out, out + V, 0.0f);
    for (int64_t i = 0; i < K; ++i) {
      float* __restrict row = h.state + i * V;
      for (int64_t j = 0; j < V; ++j) {
        row[j] += k[i] * w[j];
        out[j] += q[i] * row[j];
      }
    }
  }
}

void plain_recurrence(const std::vector<PlainHead>& heads, int threads) {
  timed(threads, [&](int thread) {
    for (size_t h = static_cast<size_t>(thread); h < heads.size(); h += static_cast<size_t>(threads)) {
      plain_recurrence(heads[h]);
    }
  });
}

}  // namespace flashkda::bench
