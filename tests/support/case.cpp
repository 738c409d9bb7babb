#include "support/case.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace flashkda::test {
namespace {

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Scales every row (last dimension) to unit norm.
void normalise_rows(Tensor& x) {
  const int64_t width = x.shape().back();
  for (int64_t row = 0; row < x.numel() / width; ++row) {
    double sum = 0.0;
    for (int64_t i = 0; i < width; ++i) sum += x.get(row * width + i) * x.get(row * width + i);
    for (int64_t i = 0; i < width; ++i) x.set(row * width + i, x.get(row * width + i) / std::sqrt(sum));
  }
}

std::vector<std::byte> bytes_of(const Buffer& buffer) { return {buffer.data(), buffer.data() + buffer.size()}; }

}  // namespace

double Random::normal() {
  const uint64_t bits = engine_();
  uint64_t sum = 0;
  for (int i = 0; i < 64; i += 16) sum += bits >> i & 0xffff;
  return (static_cast<double>(sum) / 65536.0 - 2.0 * 65535.0 / 65536.0) * std::sqrt(3.0);
}

Case::Case(const Spec& spec)
    : B(spec.B),
      T(spec.cu.empty() ? spec.T : spec.cu.back()),
      N(spec.cu.empty() ? spec.B : static_cast<int64_t>(spec.cu.size()) - 1),
      H(spec.H),
      HV(spec.HV ? spec.HV : spec.H),
      K(spec.K),
      V(spec.V),
      P(spec.checkpoint_offsets.empty() ? 0 : static_cast<int64_t>(spec.checkpoint_offsets[0].size())),
      cu(spec.cu) {
  const int32_t g_dtype = spec.g_dtype ? spec.g_dtype : spec.dtype;
  const int32_t beta_dtype = spec.beta_dtype ? spec.beta_dtype : spec.dtype;
  Random random(spec.seed);
  const auto normal = [&](double deviation) { return [&random, deviation] { return deviation * random.normal(); }; };

  fkda_problem_init(&options);
  options.gate = spec.gate;
  options.beta_activation = spec.beta;
  options.qk_l2norm = spec.qk_l2norm;
  options.state_layout = spec.state_layout;

  if (spec.cu.empty()) {
    for (int64_t n = 0; n <= B; ++n) cu.push_back(n * T);
  } else {
    cu_seqlens = Tensor::integers(spec.cu_dtype, spec.cu);
  }

  q = Tensor(spec.dtype, {B, T, H, K}, spec.fence);
  k = Tensor(spec.dtype, {B, T, H, K}, spec.fence);
  v = Tensor(spec.dtype, {B, T, HV, V}, spec.fence);
  g = Tensor(g_dtype, {B, T, HV, K}, spec.fence);
  beta = Tensor(beta_dtype, {B, T, HV}, spec.fence);
  q.generate(normal(1.0));
  k.generate(normal(1.0));
  v.generate(normal(1.0));
  if (!spec.qk_l2norm) {
    normalise_rows(q);
    normalise_rows(k);
  }
  if (spec.gate == FKDA_GATE_LOG) {  // decays a token from 0.5 to 0.998
    g.generate([&] { return -std::exp(random.uniform(-6.0, -0.4)); });
  } else {
    g.generate([&] { return -2.0 + 2.0 * random.normal(); });
    if (spec.A_log) {
      A_log = Tensor(FKDA_FLOAT32, {HV}, spec.fence);
      A_log.generate([&] { return random.uniform(-1.0, 0.7); });
    }
    if (spec.dt_bias) {
      dt_bias = Tensor(FKDA_FLOAT32, {HV, K}, spec.fence);
      dt_bias.generate([&] { return random.uniform(-3.0, 0.5); });
    }
  }
  beta.generate([&] {
    const double logit = 1.5 * random.normal();
    return spec.beta == FKDA_BETA_ACTIVATED ? logistic(logit) : logit;
  });

  if (spec.initial_state != kAbsent) {
    initial_state = Tensor(spec.initial_state, state_shape(spec.slots ? spec.slots : N), spec.fence);
    initial_state.generate(normal(0.3));
  }
  if (!spec.indices.empty()) state_indices = Tensor::integers(spec.index_dtype, spec.indices);
  if (P > 0) {
    std::vector<int64_t> offsets;
    for (const auto& row : spec.checkpoint_offsets) offsets.insert(offsets.end(), row.begin(), row.end());
    const Tensor flat = Tensor::integers(spec.checkpoint_offset_dtype, offsets);
    checkpoint_offsets = Tensor(flat.buffer(), spec.checkpoint_offset_dtype, {N, P}, {P, 1}, 0);
  }
}

Tensor Case::rows(const Tensor& tensor, int64_t n) const {
  if (packed()) return tensor.narrow(1, cu[static_cast<size_t>(n)], length(n));
  return tensor.narrow(0, n, 1);
}

std::vector<int64_t> Case::state_shape(int64_t n0) const {
  if (options.state_layout == FKDA_STATE_V_FIRST) return {n0, HV, V, K};
  return {n0, HV, K, V};
}

Case Case::part(int64_t n, int64_t begin, int64_t end, const Tensor& state) const {
  Case result = *this;
  const auto take = [&](const Tensor& tensor) {
    return rows(tensor, n).narrow(1, begin, end - begin).to(tensor.dtype());
  };
  result.B = 1;
  result.T = end - begin;
  result.N = 1;
  result.P = 0;
  result.cu = {0, result.T};
  result.q = take(q);
  result.k = take(k);
  result.v = take(v);
  result.g = take(g);
  result.beta = take(beta);
  result.cu_seqlens = {};
  result.state_indices = {};
  result.checkpoint_offsets = {};
  result.initial_state = state.present() ? state.to(state.dtype()) : Tensor();
  return result;
}

Case Case::sequence(int64_t n) const {
  Tensor state;
  if (initial_state.present()) {
    const int64_t slot = state_indices.present() ? static_cast<int64_t>(state_indices.get(n)) : n;
    if (slot >= 0) state = initial_state.narrow(0, slot, 1);
  }
  return part(n, 0, length(n), state);
}

Outputs Case::make_outputs(const Want& want) const {
  Outputs outputs;
  outputs.in_place = want.in_place;
  outputs.intermediate_every = want.intermediate_every;
  outputs.out = Tensor(want.out, {B, T, HV, V}, want.fence);
  if (want.in_place) {
    outputs.final_state = initial_state.clone();
  } else if (want.final_state != kAbsent) {
    const bool pool = state_indices.present() && initial_state.present();
    outputs.final_state = Tensor(want.final_state, state_shape(pool ? initial_state.shape()[0] : N), want.fence);
  }
  const std::vector<int64_t> state = state_shape(N);
  if (want.checkpoints != kAbsent && P > 0) {
    outputs.checkpoints = Tensor(want.checkpoints, {N, P, state[1], state[2], state[3]}, want.fence);
  }
  if (want.intermediate_states != kAbsent) {
    int64_t count = 0;  // of one row of the batch: all sequences if packed, else one
    for (int64_t n = 0; n < (packed() ? N : 1); ++n) {
      count += (length(n) + want.intermediate_every - 1) / want.intermediate_every;
    }
    outputs.intermediate_states =
        Tensor(want.intermediate_states, {B, count, state[1], state[2], state[3]}, want.fence);
  }
  return outputs;
}

fkda_problem Case::problem(const Outputs& outputs) const {
  fkda_problem problem = options;
  problem.q = q.view();
  problem.k = k.view();
  problem.v = v.view();
  problem.g = g.view();
  problem.beta = beta.view();
  problem.A_log = A_log.view();
  problem.dt_bias = dt_bias.view();
  problem.cu_seqlens = cu_seqlens.view();
  problem.initial_state = outputs.in_place ? outputs.final_state.view() : initial_state.view();
  problem.state_indices = state_indices.view();
  problem.out = outputs.out.view();
  problem.final_state = outputs.final_state.view();
  if (outputs.checkpoints.present()) {
    problem.checkpoints = outputs.checkpoints.view();
    problem.checkpoint_offsets = checkpoint_offsets.view();
  }
  problem.intermediate_states = outputs.intermediate_states.view();
  problem.intermediate_every = static_cast<int32_t>(outputs.intermediate_every);
  return problem;
}

fkda_status forward(const fkda_problem& problem) {
  size_t bytes = 0;
  const fkda_status status = fkda_workspace_size(&problem, &bytes);
  if (status != FKDA_OK) return status;
  Buffer workspace(bytes);
  const fkda_status result = fkda_forward(&problem, workspace.data(), bytes, nullptr);
  EXPECT_TRUE(workspace.guards_intact()) << "memory around the workspace of " << bytes << " bytes was written";
  return result;
}

void forward(const Case& c, Outputs& outputs, const RunOptions& how) {
  std::vector<std::pair<const Buffer*, std::vector<std::byte>>> before;
  for (const Tensor* input : {&c.q, &c.k, &c.v, &c.g, &c.beta, &c.A_log, &c.dt_bias, &c.cu_seqlens, &c.initial_state,
                              &c.state_indices, &c.checkpoint_offsets}) {
    if (input->present()) before.emplace_back(input->buffer().get(), bytes_of(*input->buffer()));
  }

  fkda_problem problem = c.problem(outputs);
  problem.backend = how.backend.c_str();
  problem.num_threads = how.num_threads;
  ASSERT_EQ(forward(problem), FKDA_OK) << how.backend << ": " << fkda_last_error();

  for (const auto& [buffer, bytes] : before) {
    ASSERT_TRUE(buffer->size() == 0 || std::memcmp(buffer->data(), bytes.data(), bytes.size()) == 0)
        << "an input was modified";
    ASSERT_TRUE(buffer->guards_intact()) << "memory around an input was written";
  }
  ASSERT_TRUE(gaps_intact(outputs.out));
  ASSERT_TRUE(gaps_intact(outputs.final_state));
  ASSERT_TRUE(gaps_intact(outputs.checkpoints));
  ASSERT_TRUE(gaps_intact(outputs.intermediate_states));
}

Outputs run(const Case& c, const Want& want, const RunOptions& how) {
  Outputs outputs = c.make_outputs(want);
  forward(c, outputs, how);
  return outputs;
}

Outputs reference(const Case& c, const Want& want) {
  Want wide = want;
  wide.in_place = false;
  wide.out = FKDA_FLOAT64;
  for (int32_t* dtype : {&wide.final_state, &wide.checkpoints, &wide.intermediate_states}) {
    if (*dtype != kAbsent) *dtype = FKDA_FLOAT64;
  }
  return run(c, wide, {.backend = "reference"});
}

Errors errors(const Outputs& actual, const Outputs& expected) {
  Errors result;
  result.out = rms_error(actual.out, expected.out);
  if (actual.final_state.present()) result.final_state = rms_error(actual.final_state, expected.final_state);
  return result;
}

}  // namespace flashkda::test
