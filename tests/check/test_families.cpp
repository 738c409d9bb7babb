// Families of inputs are what they say, and benchmark cases are the shapes that their names stand for.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "check/bench_case.hpp"
#include "check/families.hpp"

namespace flashkda::checks {
namespace {

constexpr int64_t kTokens = 256, kHeads = 2;

OwnedProblem problem_of(const char* family) { return make_problem(*find_family(family), {.T = kTokens, .H = kHeads}); }

// The log decays a of every token, head and channel, as the library understands the gate.
std::vector<double> log_decays(const OwnedProblem& p) {
  constexpr int32_t kChunk = 64;
  const int64_t K = p.q.shape()[3];
  std::vector<double> all;
  for (int64_t head = 0; head < p.value_heads(); ++head) {
    for (int64_t index = 0; index * kChunk < kTokens; ++index) {
      std::vector<double> a(static_cast<size_t>(kChunk * K));
      fkda_chunk chunk = {};
      chunk.struct_size = sizeof(chunk);
      chunk.chunk_size = kChunk;
      chunk.head = head;
      chunk.chunk = index;
      chunk.a = a.data();
      const fkda_problem raw = p.problem();
      require_ok(fkda_inspect_chunk(&raw, &chunk));
      all.insert(all.end(), a.begin(), a.end());
    }
  }
  return all;
}

struct Range {
  double low, high, mean;
};

Range decay_range(const char* family) {
  const std::vector<double> a = log_decays(problem_of(family));
  double sum = 0.0;
  for (const double x : a) sum += x;
  return {*std::min_element(a.begin(), a.end()), *std::max_element(a.begin(), a.end()),
          sum / static_cast<double>(a.size())};
}

TEST(Families, Random) {
  const Range a = decay_range("random");
  EXPECT_LT(a.low, -4.9);
  EXPECT_GT(a.high, -0.5);
  EXPECT_NEAR(a.mean, -3.2, 0.3);
}

TEST(Families, MildRemembersFiftyTokens) {
  const Range a = decay_range("mild");
  EXPECT_GT(a.low, -1.5);
  EXPECT_NEAR(a.mean, -0.02, 0.01);
}

TEST(Families, LongStartsAsTrainedModelsDo) {
  const Range a = decay_range("long");  // dt = softplus(dt_bias) in 0.001 .. 0.1; g moves it by a tenth or so
  EXPECT_GT(a.low, -0.8);
  EXPECT_LT(a.high, -0.003);
}

TEST(Families, MixedHasBothKindsOfChannel) {
  const Range a = decay_range("mixed");
  EXPECT_LT(a.low, -4.8);
  EXPECT_GT(a.high, -0.005);
}

TEST(Families, SaturatedIsTheLowerBound) {
  const Range a = decay_range("saturated");
  EXPECT_NEAR(a.low, -5.0, 1e-4);
  EXPECT_NEAR(a.high, -5.0, 1e-4);
}

TEST(Families, AlternatingJumpsEverySixteenTokens) {
  const OwnedProblem p = problem_of("alternating");
  const std::vector<double> a = log_decays(p);  // head 0 first, 128 channels a token
  EXPECT_NEAR(a[0], -5.0, 1e-4);
  EXPECT_NEAR(a[1], 0.0, 1e-4);
  EXPECT_NEAR(a[15 * 128], -5.0, 1e-4);
  EXPECT_NEAR(a[16 * 128], 0.0, 1e-4);
  EXPECT_NEAR(a[16 * 128 + 1], -5.0, 1e-4);
}

TEST(Families, NoDecayForgetsNothing) {
  const Range a = decay_range("no-decay");
  EXPECT_GT(a.low, -2e-8);
  EXPECT_LT(a.high, 0.0);
}

TEST(Families, IdenticalKeysMakeTheInverseHard) {
  const OwnedProblem p = problem_of("identical-keys");
  std::vector<double> L(16 * 16), b(16);
  fkda_chunk chunk = {};
  chunk.struct_size = sizeof(chunk);
  chunk.chunk_size = 16;
  chunk.chunk = 3;
  chunk.L = L.data();
  chunk.b = b.data();
  const fkda_problem raw = p.problem();
  require_ok(fkda_inspect_chunk(&raw, &chunk));
  for (int i = 0; i < 16; ++i) {
    EXPECT_GT(b[static_cast<size_t>(i)], 0.9995);
    for (int j = 0; j < i; ++j) EXPECT_GT(L[static_cast<size_t>(i * 16 + j)], 0.999);
  }
}

TEST(Families, SoftplusPassesMinus35) {
  const Range a = decay_range("softplus");
  EXPECT_LT(a.low, -35.0);
  EXPECT_GT(a.high, -1.0);
}

TEST(Families, ExtremesAreZeroAndMinus1000) {
  const std::vector<double> a = log_decays(problem_of("extremes"));
  const auto forgetting = std::count(a.begin(), a.end(), -1000.0), remembering = std::count(a.begin(), a.end(), 0.0);
  EXPECT_EQ(forgetting + remembering, static_cast<std::ptrdiff_t>(a.size()));
  EXPECT_GT(forgetting, 0);
  EXPECT_GT(remembering, 10 * forgetting);
  for (int channel = 0; channel < 128; ++channel) EXPECT_EQ(a[static_cast<size_t>(60 * 128 + channel)], -1000.0);
}

TEST(GateFamilies, AreSixteenWithNamesOfTheirOwn) {
  ASSERT_EQ(gate_families().size(), 16U);
  for (const Family& family : gate_families()) EXPECT_EQ(find_family(family.name), &family) << family.name;
}

TEST(GateFamilies, KeysArePositiveAndInterfere) {
  const OwnedProblem p = problem_of("g=0");
  double dot = 0.0, first = 0.0, second = 0.0;
  for (int64_t i = 0; i < 128; ++i) {
    const double x = p.k.get(i), y = p.k.get(kHeads * 128 + i);  // tokens 0 and 1 of head 0
    EXPECT_GE(x, 0.0);
    dot += x * y;
    first += x * x;
    second += y * y;
  }
  EXPECT_NEAR(dot / std::sqrt(first * second), 0.75, 0.1);
}

TEST(GateFamilies, DecayAsTheirNamesSay) {
  const Range forgetting = decay_range("g=8"), half = decay_range("g=0"), lasting = decay_range("g=-8");
  EXPECT_NEAR(forgetting.mean, -5.0 / (1.0 + std::exp(-8.0)), 1e-3);
  EXPECT_NEAR(half.mean, -2.5, 1e-6);
  EXPECT_NEAR(lasting.mean, -5.0 / (1.0 + std::exp(8.0)), 1e-5);
  const Range channels = decay_range("g=0 bias={-8,8}");
  EXPECT_NEAR(channels.low, forgetting.low, 1e-3);
  EXPECT_NEAR(channels.high, lasting.high, 1e-5);
  const Range both = decay_range("g=N(0,8) bias=N(0,8)");
  EXPECT_LT(both.low, -4.99999);
  EXPECT_GT(both.high, -1e-5);
}

TEST(Families, SameSeedSameBits) {
  const Family& family = *find_family("random");
  const auto bytes = [&](uint64_t seed) {
    const OwnedProblem p = make_problem(family, {.lengths = {7, 0, 5}, .H = 2, .HV = 4}, {}, seed);
    std::vector<std::byte> all;
    for (const HostTensor* x : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.A_log, &p.dt_bias, &p.initial_state}) {
      all.insert(all.end(), x->bytes().begin(), x->bytes().end());
    }
    return all;
  };
  EXPECT_EQ(bytes(1), bytes(1));
  EXPECT_NE(bytes(1), bytes(2));
}

TEST(Families, ShapesAndDTypesAreThoseAskedFor) {
  const OwnedProblem p =
      make_problem(*find_family("softplus"), {.lengths = {7, 0, 5}, .H = 2, .HV = 6, .K = 64, .V = 32},
                   {.qkv = FKDA_FLOAT16, .g = FKDA_FLOAT32, .beta = FKDA_BFLOAT16, .initial_state = FKDA_BFLOAT16});
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(p.q.shape(), (Shape{1, 12, 2, 64}));
  EXPECT_EQ(p.k.shape(), (Shape{1, 12, 2, 64}));
  EXPECT_EQ(p.v.shape(), (Shape{1, 12, 6, 32}));
  EXPECT_EQ(p.g.shape(), (Shape{1, 12, 6, 64}));
  EXPECT_EQ(p.beta.shape(), (Shape{1, 12, 6}));
  EXPECT_EQ(p.initial_state.shape(), (Shape{3, 6, 32, 64}));
  EXPECT_EQ(p.q.dtype(), FKDA_FLOAT16);
  EXPECT_EQ(p.g.dtype(), FKDA_FLOAT32);
  EXPECT_EQ(p.beta.dtype(), FKDA_BFLOAT16);
  EXPECT_EQ(p.initial_state.dtype(), FKDA_BFLOAT16);
  EXPECT_EQ(p.options.gate, FKDA_GATE_SOFTPLUS);
  ASSERT_EQ(p.cu_seqlens.shape(), (Shape{4}));
  EXPECT_EQ(p.cu_seqlens.get(2), 7.0);
  EXPECT_EQ(p.cu_seqlens.get(3), 12.0);
  EXPECT_EQ(p.sequences(), 3);
  EXPECT_EQ(p.tokens(), 12);
}

TEST(TileLayer, RepeatsTokensAndHeads) {
  const OwnedProblem layer = make_problem(*find_family("random"), {.T = 5, .H = 2}, {.initial_state = 0});
  const OwnedProblem p = tile_layer(layer, {.lengths = {4, 8}, .H = 3}, FKDA_FLOAT32);
  ASSERT_EQ(p.q.shape(), (std::vector<int64_t>{1, 12, 3, 128}));
  for (const int64_t t : {0, 4, 5, 11}) {
    for (const int64_t h : {0, 1, 2}) {
      EXPECT_EQ(p.q.get((t * 3 + h) * 128 + 9), layer.q.get((t % 5 * 2 + h % 2) * 128 + 9));
      EXPECT_EQ(p.v.get((t * 3 + h) * 128 + 9), layer.v.get((t % 5 * 2 + h % 2) * 128 + 9));
      EXPECT_EQ(p.beta.get(t * 3 + h), layer.beta.get(t % 5 * 2 + h % 2));
    }
  }
  EXPECT_EQ(p.A_log.get(2), layer.A_log.get(0));
  EXPECT_EQ(p.dt_bias.get(2 * 128 + 7), layer.dt_bias.get(7));
  EXPECT_EQ(p.initial_state.shape(), (std::vector<int64_t>{2, 3, 128, 128}));
}

TEST(BenchCase, NamesStandForShapes) {
  const auto one = parse_bench_case("H8 T8192");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->shape.H, 8);
  EXPECT_EQ(one->shape.T, 8192);
  EXPECT_FALSE(one->decode);
  EXPECT_TRUE(one->shape.lengths.empty());

  const auto mixed = parse_bench_case("H96 mixed6");
  ASSERT_TRUE(mixed);
  EXPECT_EQ(mixed->shape.H, 96);
  EXPECT_EQ(mixed->shape.lengths, (std::vector<int64_t>{1300, 547, 2048, 963, 271, 3063}));

  const auto many = parse_bench_case("H32 256x32");
  ASSERT_TRUE(many);
  EXPECT_EQ(many->shape.lengths, std::vector<int64_t>(256, 32));

  const auto decode = parse_bench_case("B64 H32");
  ASSERT_TRUE(decode);
  EXPECT_TRUE(decode->decode);
  EXPECT_EQ(decode->shape.B, 64);
  EXPECT_EQ(decode->shape.T, 1);
  EXPECT_EQ(decode->shape.H, 32);
}

TEST(BenchCase, OtherNamesAreNone) {
  for (const char* name : {"",      " ",     "H8",     "H8 ",   "H8 T",      "H8 T0",           "H8 T-1",
                           "H0 T8", "Hx T8", "H8 8x",  "H8 x8", "H8 8y8",    "H8 mixed7",       "H8  T8",
                           "T8 H8", "B64",   "B64 T1", "B64 H", "H8 T8192 ", "H8 T99999999999", "H8 99999999x9",
                           "h8 t8"}) {
    EXPECT_FALSE(parse_bench_case(name)) << '"' << name << '"';
  }
}

TEST(BenchCase, DecodeUpdatesTheStateInPlace) {
  const BenchCase decode = *parse_bench_case("B3 H2");
  OwnedProblem p = make_bench_problem(decode, *find_family("random"), FKDA_FLOAT32);
  const fkda_problem views = bench_views(decode, p);
  EXPECT_EQ(views.final_state.data, p.initial_state.bytes().data());
  const double before = p.initial_state.get(100);
  Runner(views).run();
  EXPECT_NE(p.initial_state.get(100), before);
}

TEST(BenchCase, PrefillKeepsItsInitialState) {
  const BenchCase prefill = *parse_bench_case("H2 3x20");
  OwnedProblem p = make_bench_problem(prefill, *find_family("random"), FKDA_BFLOAT16);
  const fkda_problem views = bench_views(prefill, p);
  EXPECT_NE(views.final_state.data, views.initial_state.data);
  EXPECT_EQ(p.final_state.dtype(), FKDA_BFLOAT16);
  const double before = p.initial_state.get(100);
  Runner(views).run();
  EXPECT_EQ(p.initial_state.get(100), before);
  EXPECT_NE(p.final_state.get(100), 0.0);
}

}  // namespace
}  // namespace flashkda::checks
