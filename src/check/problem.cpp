#include "check/problem.hpp"

#include <chrono>

namespace flashkda::checks {

void require_ok(fkda_status status) {
  if (status != FKDA_OK) throw ApiError(status, fkda_last_error());
}

std::vector<int64_t> OwnedProblem::state_shape() const {
  const int64_t K = q.shape()[3], V = v.shape()[3];
  const int64_t slots = state_indices.present() ? initial_state.shape()[0] : sequences();
  if (options.state_layout == FKDA_STATE_V_FIRST) return {slots, value_heads(), V, K};
  return {slots, value_heads(), K, V};
}

void OwnedProblem::allocate_outputs(int32_t out_dtype, int32_t state_dtype) {
  out = HostTensor(out_dtype, v.shape());
  final_state = state_dtype == 0 ? HostTensor() : HostTensor(state_dtype, state_shape());
}

fkda_problem OwnedProblem::problem() const {
  fkda_problem p = options;
  p.q = q.view();
  p.k = k.view();
  p.v = v.view();
  p.g = g.view();
  p.beta = beta.view();
  p.A_log = A_log.view();
  p.dt_bias = dt_bias.view();
  p.cu_seqlens = cu_seqlens.view();
  p.initial_state = initial_state.view();
  p.state_indices = state_indices.view();
  p.out = out.view();
  p.final_state = final_state.view();
  return p;
}

Runner::Runner(const fkda_problem& problem) : problem_(problem) {
  require_ok(fkda_validate(&problem_, &backend_));
  size_t bytes = 0;
  require_ok(fkda_workspace_size(&problem_, &bytes));
  workspace_ = AlignedBuffer(bytes);
}

double Runner::run() {
  const auto start = std::chrono::steady_clock::now();
  require_ok(fkda_forward(&problem_, workspace_.data(), workspace_.size(), nullptr));
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace flashkda::checks
