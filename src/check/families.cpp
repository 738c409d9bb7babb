#include "check/families.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "core/dtype.hpp"

namespace flashkda::checks {
namespace {

double zero(Random&) { return 0.0; }
double unit(Random& random) { return random.uniform(); }
double normal(Random& random) { return random.normal(); }
double near_one(Random&) { return 8.0; }  // sigmoid(8) = 0.99966

double normal_gate(Random& random, int64_t, int64_t) { return random.normal(); }

// x with softplus(x) = y, y log-uniform in 0.001 .. 0.1: how trained models start their gates.
double small_step(Random& random) {
  return std::log(std::expm1(std::exp(random.uniform(std::log(1e-3), std::log(0.1)))));
}

// With the bounded gate: a = -5 sigmoid(exp(A_log) (g + dt_bias)).
constexpr std::array<Family, 10> kFamilies = {{
    {.name = "random",
     .description = "g ~ N(0,1), A_log and dt_bias ~ U(0,1): forgets within a few tokens",
     .gate = FKDA_GATE_BOUNDED,
     .g = normal_gate,
     .A_log = unit,
     .dt_bias = unit,
     .beta = normal,
     .one_key = false},
    {.name = "mild",
     .description = "g ~ N(-6,1): remembers for about fifty tokens",
     .gate = FKDA_GATE_BOUNDED,
     .g = [](Random& random, int64_t, int64_t) { return random.normal() - 6.0; },
     .A_log = zero,
     .dt_bias = zero,
     .beta = normal,
     .one_key = false},
    {.name = "long",
     .description = "g ~ 0.1 N(0,1), dt_bias as trained models start: decays of 0.6 to 0.995 a token",
     .gate = FKDA_GATE_BOUNDED,
     .g = [](Random& random, int64_t, int64_t) { return 0.1 * random.normal(); },
     .A_log = zero,
     .dt_bias = small_step,
     .beta = normal,
     .one_key = false},
    {.name = "mixed",
     .description = "dt_bias ~ U(-9,4): channels that forget at once beside channels that never do",
     .gate = FKDA_GATE_BOUNDED,
     .g = normal_gate,
     .A_log = zero,
     .dt_bias = [](Random& random) { return random.uniform(-9.0, 4.0); },
     .beta = normal,
     .one_key = false},
    {.name = "saturated",
     .description = "g = 12: a = lower_bound everywhere",
     .gate = FKDA_GATE_BOUNDED,
     .g = [](Random&, int64_t, int64_t) { return 12.0; },
     .A_log = zero,
     .dt_bias = zero,
     .beta = normal,
     .one_key = false},
    {.name = "alternating",
     .description = "g = +-12 in blocks of 16 tokens, odd channels opposite: a jumps between 0 and lower_bound",
     .gate = FKDA_GATE_BOUNDED,
     .g = [](Random&, int64_t token, int64_t channel) { return (token / 16 + channel) % 2 == 0 ? 12.0 : -12.0; },
     .A_log = zero,
     .dt_bias = zero,
     .beta = normal,
     .one_key = false},
    {.name = "no-decay",
     .description = "g = -20: a = -1e-8, nothing is forgotten",
     .gate = FKDA_GATE_BOUNDED,
     .g = [](Random&, int64_t, int64_t) { return -20.0; },
     .A_log = zero,
     .dt_bias = zero,
     .beta = normal,
     .one_key = false},
    {.name = "identical-keys",
     .description = "one key at every token, b = 0.9997, g = -12: the inverse at its worst",
     .gate = FKDA_GATE_BOUNDED,
     .g = [](Random&, int64_t, int64_t) { return -12.0; },
     .A_log = zero,
     .dt_bias = zero,
     .beta = near_one,
     .one_key = true},
    {.name = "softplus",
     .description = "a = -8 softplus(g + dt_bias), g ~ N(0,1), dt_bias ~ U(0,1): to -35 and below in one token",
     .gate = FKDA_GATE_SOFTPLUS,
     .g = normal_gate,
     .A_log = [](Random&) { return std::log(8.0); },
     .dt_bias = unit,
     .beta = normal,
     .one_key = false},
    {.name = "extremes",
     .description = "a = 0 or -1000: single channels forget everything, every 61st token all of them",
     .gate = FKDA_GATE_LOG,
     .g = [](Random& random, int64_t token,
             int64_t) { return token % 61 == 60 || random.uniform() < 1.0 / 32.0 ? -1000.0 : 0.0; },
     .A_log = nullptr,
     .dt_bias = nullptr,
     .beta = normal,
     .one_key = false},
}};

// Rules of the gate families.
template <int kValue>
double constant_gate(Random&, int64_t, int64_t) {
  return kValue;
}
double uniform_gate(Random& random, int64_t, int64_t) { return random.uniform(-8.0, 8.0); }
double wide_gate(Random& random, int64_t, int64_t) { return 8.0 * random.normal(); }

template <int kValue>
double either(Random& random) {
  return random.uniform() < 0.5 ? -kValue : kValue;
}
double uniform_bias(Random& random) { return random.uniform(-8.0, 8.0); }
double wide_bias(Random& random) { return 8.0 * random.normal(); }

constexpr Family gate_family(std::string_view name, decltype(Family::g) g, decltype(Family::dt_bias) dt_bias) {
  return {.name = name,
          .description = "positive q, k, v; g and dt_bias as the name says, A_log = 0",
          .gate = FKDA_GATE_BOUNDED,
          .g = g,
          .A_log = zero,
          .dt_bias = dt_bias,
          .beta = normal,
          .one_key = false,
          .positive = true};
}

constexpr std::array<Family, 16> kGateFamilies = {
    gate_family("g=-8", constant_gate<-8>, zero),
    gate_family("g=-4", constant_gate<-4>, zero),
    gate_family("g=0", constant_gate<0>, zero),
    gate_family("g=8", constant_gate<8>, zero),
    gate_family("g=U(-8,8)", uniform_gate, zero),
    gate_family("g=N(0,8)", wide_gate, zero),
    gate_family("g=0 bias={-4,4}", constant_gate<0>, either<4>),
    gate_family("g=0 bias={-8,8}", constant_gate<0>, either<8>),
    gate_family("g=0 bias=U(-8,8)", constant_gate<0>, uniform_bias),
    gate_family("g=0 bias=N(0,8)", constant_gate<0>, wide_bias),
    gate_family("g=N(0,1)", normal_gate, zero),
    gate_family("g=N(0,1) bias=U(0,1)", normal_gate, unit),
    gate_family("g=N(0,1) bias={-8,8}", normal_gate, either<8>),
    gate_family("g=N(0,1) bias=U(-8,8)", normal_gate, uniform_bias),
    gate_family("g=U(-8,8) bias={-4,4}", uniform_gate, either<4>),
    gate_family("g=N(0,8) bias=N(0,8)", wide_gate, wide_bias),
};

// B, T and, of a packed batch, cu_seqlens.
struct Batch {
  int64_t B, T;
  HostTensor cu_seqlens;
};

Batch make_batch(const ProblemShape& shape) {
  if (shape.lengths.empty()) return {shape.B, shape.T, {}};
  std::vector<int64_t> cu = {0};
  for (const int64_t length : shape.lengths) cu.push_back(cu.back() + length);
  return {1, cu.back(), HostTensor::integers(FKDA_INT64, cu)};
}

void add_initial_state(OwnedProblem& problem, int32_t dtype, Random& random) {
  if (dtype == 0) return;
  problem.initial_state = HostTensor(dtype, problem.state_shape());
  problem.initial_state.generate([&] { return 0.5 * random.normal(); });
}

void repeat_first_token(HostTensor& x) {
  const auto row = static_cast<size_t>(x.shape()[2] * x.shape()[3] * dtype_size(x.dtype()));
  const std::span<std::byte> bytes = x.bytes();
  for (size_t offset = row; offset < bytes.size(); offset += row) std::memcpy(&bytes[offset], bytes.data(), row);
}

// Copies rows of a source [1,T,H,..] to a destination [B,T',H',..], repeating tokens and heads.
void tile(const HostTensor& source, HostTensor& destination) {
  const int64_t T = source.shape()[1], H = source.shape()[2];
  const int64_t tokens = destination.shape()[0] * destination.shape()[1], heads = destination.shape()[2];
  if (tokens == 0) return;
  const auto row = destination.bytes().size() / static_cast<size_t>(tokens * heads);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      std::memcpy(destination.bytes().data() + static_cast<size_t>(t * heads + h) * row,
                  source.bytes().data() + static_cast<size_t>(t % T * H + h % H) * row, row);
    }
  }
}

HostTensor tile_heads(const HostTensor& source, std::vector<int64_t> shape) {
  if (!source.present()) return {};
  HostTensor result(source.dtype(), std::move(shape));
  for (int64_t i = 0; i < result.size(); ++i) result.set(i, source.get(i % source.size()));
  return result;
}

}  // namespace

std::span<const Family> families() { return kFamilies; }

std::span<const Family> gate_families() { return kGateFamilies; }

const Family* find_family(std::string_view name) {
  for (const std::span<const Family> list : {families(), gate_families()}) {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const Family& family) { return family.name == name; });
    if (found != list.end()) return &*found;
  }
  return nullptr;
}

OwnedProblem make_problem(const Family& family, const ProblemShape& shape, const ProblemDTypes& dtypes, uint64_t seed) {
  Random random(seed);
  OwnedProblem problem;
  problem.options.gate = family.gate;
  const int64_t HV = shape.HV ? shape.HV : shape.H;
  Batch batch = make_batch(shape);
  const int64_t B = batch.B, T = batch.T;
  problem.cu_seqlens = std::move(batch.cu_seqlens);

  problem.q = HostTensor(dtypes.qkv, {B, T, shape.H, shape.K});
  problem.k = HostTensor(dtypes.qkv, {B, T, shape.H, shape.K});
  problem.v = HostTensor(dtypes.qkv, {B, T, HV, shape.V});
  for (HostTensor* x : {&problem.q, &problem.k, &problem.v}) {
    x->generate([&] { return family.positive ? random.uniform() : random.normal(); });
  }
  if (family.one_key && T > 0) repeat_first_token(problem.k);

  problem.g = HostTensor(dtypes.g, {B, T, HV, shape.K});
  int64_t element = 0;
  problem.g.generate([&] {
    const int64_t channel = element % shape.K, token = element / (HV * shape.K) % T;
    ++element;
    return family.g(random, token, channel);
  });
  problem.beta = HostTensor(dtypes.beta, {B, T, HV});
  problem.beta.generate([&] { return family.beta(random); });
  if (family.A_log) {
    problem.A_log = HostTensor(FKDA_FLOAT32, {HV});
    problem.A_log.generate([&] { return family.A_log(random); });
  }
  if (family.dt_bias) {
    problem.dt_bias = HostTensor(FKDA_FLOAT32, {HV, shape.K});
    problem.dt_bias.generate([&] { return family.dt_bias(random); });
  }
  add_initial_state(problem, dtypes.initial_state, random);
  return problem;
}

OwnedProblem tile_layer(const OwnedProblem& layer, const ProblemShape& shape, int32_t initial_state_dtype,
                        uint64_t seed) {
  const int64_t HV = shape.HV ? shape.HV : shape.H;
  const int64_t K = layer.q.shape()[3], V = layer.v.shape()[3];
  if (K != shape.K || V != shape.V) throw std::invalid_argument("tile_layer: K and V must be those of the layer");
  Random random(seed);
  OwnedProblem problem;
  problem.options = layer.options;
  Batch batch = make_batch(shape);
  const int64_t B = batch.B, T = batch.T;
  problem.cu_seqlens = std::move(batch.cu_seqlens);
  problem.q = HostTensor(layer.q.dtype(), {B, T, shape.H, K});
  problem.k = HostTensor(layer.k.dtype(), {B, T, shape.H, K});
  problem.v = HostTensor(layer.v.dtype(), {B, T, HV, V});
  problem.g = HostTensor(layer.g.dtype(), {B, T, HV, K});
  problem.beta = HostTensor(layer.beta.dtype(), {B, T, HV});
  tile(layer.q, problem.q);
  tile(layer.k, problem.k);
  tile(layer.v, problem.v);
  tile(layer.g, problem.g);
  tile(layer.beta, problem.beta);
  problem.A_log = tile_heads(layer.A_log, {HV});
  problem.dt_bias = tile_heads(layer.dt_bias, {HV, K});
  add_initial_state(problem, initial_state_dtype, random);
  return problem;
}

}  // namespace flashkda::checks
