// Speed of the CPU backend beside its yardsticks. Counters, per second of wall time:
//   FMA        fused multiply-adds, 3 K V + 64 K a token and head (57,344 at 128), peak for the yardstick
//   tokens     tokens of all heads together
//   bytes      state bytes read and written (decode), copied bytes read and written (copy)
// Names end in the number of threads. docs/cpu/verified.json is made from this program's --benchmark_format=json.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "flashkda/flashkda.h"
#include "yardsticks.hpp"

namespace {

using namespace flashkda::bench;

// Buffers begin on cache lines, as tensors do.
template <typename T>
struct Aligned {
  using value_type = T;
  Aligned() = default;
  template <typename U>
  Aligned(const Aligned<U>&) {}  // NOLINT(google-explicit-constructor): allocators convert
  T* allocate(size_t n) { return static_cast<T*>(std::aligned_alloc(64, (n * sizeof(T) + 63) / 64 * 64)); }
  void deallocate(T* p, size_t) { std::free(p); }
  bool operator==(const Aligned&) const { return true; }
};
template <typename T>
using Buffer = std::vector<T, Aligned<T>>;

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

class Random {
 public:
  float normal() { return normal_(engine_); }
  float uniform() { return uniform_(engine_); }
  Buffer<uint16_t> normal_bf16(int64_t count, float factor = 1.0f) {
    Buffer<uint16_t> x(static_cast<size_t>(count));
    for (uint16_t& e : x) e = to_bf16(factor * normal());
    return x;
  }

 private:
  std::minstd_rand engine_{7};
  std::normal_distribution<float> normal_;
  std::uniform_real_distribution<float> uniform_{0.0f, 1.0f};
};

enum class Gates { kRandom, kLong };

// bf16 inputs with the bounded gate, lower bound -5. random: g ~ N(0,1), A_log and dt_bias ~ U(0,1). long: A_log 0,
// dt_bias the inverse softplus of dt log-uniform in 0.001..0.1, g = 0.1 N(0,1).
struct Workload {
  int64_t B, T, H, D = 128;
  Buffer<uint16_t> q, k, v, g, beta, out;
  Buffer<float> A_log, dt_bias, initial, final;
  fkda_problem problem;

  Workload(int64_t batch, int64_t tokens, int64_t heads, Gates gates, int threads) : B(batch), T(tokens), H(heads) {
    Random random;
    const int64_t rows = B * T * H;
    q = random.normal_bf16(rows * D);
    k = random.normal_bf16(rows * D);
    v = random.normal_bf16(rows * D);
    g = random.normal_bf16(rows * D, gates == Gates::kRandom ? 1.0f : 0.1f);
    beta = random.normal_bf16(rows);
    out.resize(static_cast<size_t>(rows * D));
    A_log.resize(static_cast<size_t>(H));
    dt_bias.resize(static_cast<size_t>(H * D));
    for (float& a : A_log) a = gates == Gates::kRandom ? random.uniform() : 0.0f;
    for (float& bias : dt_bias) {
      const float dt = 0.001f * std::pow(100.0f, random.uniform());
      bias = gates == Gates::kRandom ? random.uniform() : std::log(std::expm1(dt));
    }
    initial.resize(static_cast<size_t>(B * H * D * D));
    for (float& s : initial) s = 0.1f * random.normal();
    final.resize(initial.size());

    fkda_problem_init(&problem);
    const int64_t qkv[] = {B, T, H, D}, scalar[] = {B, T, H}, state[] = {B, H, D, D}, head[] = {H}, bias[] = {H, D};
    problem.q = fkda_dense(q.data(), FKDA_BFLOAT16, 4, qkv);
    problem.k = fkda_dense(k.data(), FKDA_BFLOAT16, 4, qkv);
    problem.v = fkda_dense(v.data(), FKDA_BFLOAT16, 4, qkv);
    problem.g = fkda_dense(g.data(), FKDA_BFLOAT16, 4, qkv);
    problem.beta = fkda_dense(beta.data(), FKDA_BFLOAT16, 3, scalar);
    problem.out = fkda_dense(out.data(), FKDA_BFLOAT16, 4, qkv);
    problem.A_log = fkda_dense(A_log.data(), FKDA_FLOAT32, 1, head);
    problem.dt_bias = fkda_dense(dt_bias.data(), FKDA_FLOAT32, 2, bias);
    problem.initial_state = fkda_dense(initial.data(), FKDA_FLOAT32, 4, state);
    problem.final_state = fkda_dense(final.data(), FKDA_FLOAT32, 4, state);
    problem.num_threads = threads;
    size_t bytes = 0;
    check(fkda_workspace_size(&problem, &bytes));
    workspace_.reset(std::aligned_alloc(FKDA_WORKSPACE_ALIGNMENT, bytes));
    workspace_bytes = bytes;
  }

  void run() { check(fkda_forward(&problem, workspace_.get(), workspace_bytes, nullptr)); }

  double fma() const { return static_cast<double>(B * T * H) * static_cast<double>(3 * D * D + 64 * D); }
  double state_bytes() const { return 2.0 * static_cast<double>(initial.size() * sizeof(float)); }

  size_t workspace_bytes = 0;

 private:
  static void check(fkda_status status) {
    if (status != FKDA_OK) throw std::runtime_error(fkda_last_error());
  }
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> workspace_;
};

benchmark::Counter rate(double per_iteration) { return {per_iteration, benchmark::Counter::kIsIterationInvariantRate}; }

void prefill(benchmark::State& state, int64_t B, int64_t T, int64_t H, Gates gates, int layout, int threads) {
  Workload w(B, T, H, gates, threads);
  w.problem.state_layout = layout;
  for (auto _ : state) w.run();
  state.counters["FMA"] = rate(w.fma());
  state.counters["tokens"] = rate(static_cast<double>(B * T));
  state.counters["workspace_bytes"] = static_cast<double>(w.workspace_bytes);
}

void decode(benchmark::State& state, int64_t B, int64_t H, int layout, bool in_place, int threads) {
  Workload w(B, 1, H, Gates::kLong, threads);
  w.problem.state_layout = layout;
  if (in_place) w.problem.final_state = w.problem.initial_state;
  for (auto _ : state) w.run();
  state.counters["bytes"] = rate(w.state_bytes());
  state.counters["tokens"] = rate(static_cast<double>(B));
}

void plain(benchmark::State& state, int64_t T, int64_t H, int threads) {
  constexpr int64_t D = 128;
  Random random;
  const auto fill = [&](int64_t count, float factor) {
    Buffer<float> x(static_cast<size_t>(count));
    for (float& e : x) e = factor * random.normal();
    return x;
  };
  Buffer<float> q = fill(H * T * D, 0.09f), k = fill(H * T * D, 0.09f), v = fill(H * T * D, 1.0f);
  Buffer<float> alpha(q.size()), b(static_cast<size_t>(H * T), 0.5f), s(static_cast<size_t>(H * D * D)), o(q.size());
  for (float& a : alpha) a = std::exp(-0.05f * random.uniform());
  std::vector<PlainHead> heads;
  for (int64_t h = 0; h < H; ++h) {
    const int64_t at = h * T * D;
    heads.push_back({T, D, D, q.data() + at, k.data() + at, v.data() + at, alpha.data() + at, b.data() + h * T,
                     s.data() + h * D * D, o.data() + at});
  }
  for (auto _ : state) {
    plain_recurrence(heads, threads);
    benchmark::DoNotOptimize(o.data());
  }
  state.counters["FMA"] = rate(static_cast<double>(T * H) * static_cast<double>(3 * D * D + 64 * D));
  state.counters["tokens"] = rate(static_cast<double>(T));
}

void peak(benchmark::State& state, int threads) {
  double best = 0;
  for (auto _ : state) best = std::max(best, peak_fma_per_second(threads));
  state.counters["FMA"] = best;
}

void copy(benchmark::State& state, int threads) {
  double best = 0;
  for (auto _ : state) best = std::max(best, copy_bytes_per_second(threads, int64_t{512} << 20));
  state.counters["bytes"] = best;
}

template <typename F>
void add(const std::string& name, int threads, F body) {
  benchmark::RegisterBenchmark((name + "/threads:" + std::to_string(threads)).c_str(), body)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  const int all = static_cast<int>(std::thread::hardware_concurrency());
  for (const int threads : all > 1 ? std::vector<int>{1, all} : std::vector<int>{1}) {
    using benchmark::State;
    add("peak", threads, [=](State& s) { peak(s, threads); });
    add("copy", threads, [=](State& s) { copy(s, threads); });
    add("prefill/H8 T8192/random", threads,
        [=](State& s) { prefill(s, 1, 8192, 8, Gates::kRandom, FKDA_STATE_V_FIRST, threads); });
    add("prefill/H8 T8192/long", threads,
        [=](State& s) { prefill(s, 1, 8192, 8, Gates::kLong, FKDA_STATE_V_FIRST, threads); });
    add("prefill/H8 256x32/random", threads,
        [=](State& s) { prefill(s, 256, 32, 8, Gates::kRandom, FKDA_STATE_V_FIRST, threads); });
    add("prefill/H8 1024x8/random", threads,
        [=](State& s) { prefill(s, 1024, 8, 8, Gates::kRandom, FKDA_STATE_V_FIRST, threads); });
    add("plain/H8 T8192", threads, [=](State& s) { plain(s, 8192, 8, threads); });
    add("decode/B64 H32/v-first", threads, [=](State& s) { decode(s, 64, 32, FKDA_STATE_V_FIRST, false, threads); });
    add("decode/B64 H32/v-first in place", threads,
        [=](State& s) { decode(s, 64, 32, FKDA_STATE_V_FIRST, true, threads); });
    add("decode/B64 H32/k-first", threads, [=](State& s) { decode(s, 64, 32, FKDA_STATE_K_FIRST, false, threads); });
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
