#include "reference/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference/gate.hpp"

namespace flashkda {
namespace {

constexpr double kNormEpsilon = 1e-6;
constexpr int64_t kProgressInterval = 1024;  // tokens of one head between two calls of the progress callback

// x <- x * rsqrt(sum(x^2) + epsilon) (eq. 1).
void l2_normalise(double* x, int64_t n) {
  double sum = kNormEpsilon;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const double factor = 1.0 / std::sqrt(sum);
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// Stores S as one matrix of a state tensor of any dtype.
void store_state(const Problem& p, const double* S, void* matrix, int32_t dtype) {
  for (int64_t k = 0; k < p.K; ++k)
    for (int64_t v = 0; v < p.V; ++v) store_scalar(matrix, dtype, state_offset(p, k, v), S[k * p.V + v]);
}

void store_final_state(const Problem& p, int64_t n, int64_t hv, int64_t length, const double* S) {
  const int64_t slot = p.slot(n);
  if (!present(p.final_state) || slot < 0) return;
  char* matrix = address(p.final_state, slot, hv);
  if (length == 0 && present(p.initial_state) && p.initial_state.dtype == p.final_state.dtype) {
    // Bit for bit, signalling NaNs included. The two may be one buffer.
    std::memmove(matrix, address(p.initial_state, slot, hv),
                 static_cast<size_t>(p.K * p.V * dtype_size(p.final_state.dtype)));
  } else {
    store_state(p, S, matrix, p.final_state.dtype);
  }
}

// The states that are wanted along the way: S is the state after t tokens of the sequence.
void store_states_on_the_way(const Problem& p, int64_t n, int64_t hv, int64_t t, const Sequence& sequence,
                             int64_t first_intermediate, const double* S) {
  if (present(p.checkpoints)) {
    for (int64_t c = 0; c < p.P; ++c)
      if (p.checkpoint_offset(n, c) == t) store_state(p, S, address(p.checkpoints, n, c, hv), p.checkpoints.dtype);
  }
  if (present(p.intermediate_states) && t < sequence.length && t % p.intermediate_every == 0) {
    const int64_t index = first_intermediate + t / p.intermediate_every;
    store_state(p, S, address(p.intermediate_states, sequence.batch, index, hv), p.intermediate_states.dtype);
  }
}

// Counts tokens of single heads for the progress callback.
class Progress {
 public:
  explicit Progress(const Problem& p) : p_(p) {
    for (int64_t n = 0; n < p.N; ++n) total_ += p.sequence(n).length * p.HV;
  }
  // One more token; `last` of its sequence and head.
  void advance(bool last) {
    ++done_;
    if (p_.progress && (last || done_ % kProgressInterval == 0)) p_.progress(p_.progress_user, done_, total_);
  }

 private:
  const Problem& p_;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

void load_token(const Problem& p, const Sequence& sequence, int64_t t, int64_t hv, Token& token) {
  const int64_t batch = sequence.batch, row = sequence.begin + t, h = hv / p.group();  // eq. 24
  const auto load = [&](const fkda_tensor& tensor, int64_t head, int64_t width, double* to) {
    const char* from = address(tensor, batch, row, head);
    for (int64_t i = 0; i < width; ++i) to[i] = load_scalar(from, tensor.dtype, i);
  };
  load(p.q, h, p.K, token.q);
  load(p.k, h, p.K, token.k);
  load(p.v, hv, p.V, token.v);
  load(p.g, hv, p.K, token.a);
  if (p.qk_l2norm) {
    l2_normalise(token.q, p.K);
    l2_normalise(token.k, p.K);
  }
  const double A_log = present(p.A_log) ? load_scalar(p.A_log.data, p.A_log.dtype, hv) : 0.0;
  for (int64_t i = 0; i < p.K; ++i) {
    const double dt_bias = present(p.dt_bias) ? load_scalar(p.dt_bias.data, p.dt_bias.dtype, hv * p.K + i) : 0.0;
    token.a[i] = log_decay(p, token.a[i], A_log, dt_bias);
  }
  token.b = activate_beta(p, load_scalar(address(p.beta, batch, row, hv), p.beta.dtype, 0));
}

void load_initial_state(const Problem& p, int64_t n, int64_t hv, double* S) {
  const int64_t slot = p.slot(n);
  if (!present(p.initial_state) || slot < 0) {
    std::fill(S, S + p.K * p.V, 0.0);
    return;
  }
  const char* matrix = address(p.initial_state, slot, hv);
  for (int64_t k = 0; k < p.K; ++k)
    for (int64_t v = 0; v < p.V; ++v)
      S[k * p.V + v] = load_scalar(matrix, p.initial_state.dtype, state_offset(p, k, v));
}

void step(const Problem& p, const Token& token, double* S, double* u, double* o) {
  const int64_t K = p.K, V = p.V;
  // S <- diag(exp(a)) S (eq. 6)
  for (int64_t k = 0; k < K; ++k) {
    const double decay = std::exp(token.a[k]);
    for (int64_t v = 0; v < V; ++v) S[k * V + v] *= decay;
  }
  // u = b (v - S^T k), S <- S + k u^T (eq. 7)
  std::copy(token.v, token.v + V, u);
  for (int64_t k = 0; k < K; ++k)
    for (int64_t v = 0; v < V; ++v) u[v] -= S[k * V + v] * token.k[k];
  for (int64_t v = 0; v < V; ++v) u[v] *= token.b;
  for (int64_t k = 0; k < K; ++k)
    for (int64_t v = 0; v < V; ++v) S[k * V + v] += token.k[k] * u[v];
  // o = scale S^T q (eq. 8)
  std::fill(o, o + V, 0.0);
  for (int64_t k = 0; k < K; ++k)
    for (int64_t v = 0; v < V; ++v) o[v] += S[k * V + v] * (p.scale * token.q[k]);
}

// S [K,V]; q, k, a [K]; v, u, o [V].
size_t reference_workspace_size(const Problem& p) {
  return static_cast<size_t>(p.K * p.V + 3 * p.K + 3 * p.V) * sizeof(double);
}

void forward_reference(const Problem& p, void* workspace, void* /*stream*/) {
  double* const S = static_cast<double*>(workspace);
  double* const q = S + p.K * p.V;
  Token token{.q = q, .k = q + p.K, .a = q + 2 * p.K, .v = q + 3 * p.K, .b = 0.0};
  double* const u = token.v + p.V;
  double* const o = u + p.V;

  Progress progress(p);
  int64_t first_intermediate = 0;  // index of the sequence's first intermediate state in its batch row
  for (int64_t n = 0; n < p.N; ++n) {
    const Sequence sequence = p.sequence(n);
    for (int64_t hv = 0; hv < p.HV; ++hv) {
      load_initial_state(p, n, hv, S);
      for (int64_t t = 0; t < sequence.length; ++t) {
        store_states_on_the_way(p, n, hv, t, sequence, first_intermediate, S);
        load_token(p, sequence, t, hv, token);
        step(p, token, S, u, o);
        char* out = address(p.out, sequence.batch, sequence.begin + t, hv);
        for (int64_t v = 0; v < p.V; ++v) store_scalar(out, p.out.dtype, v, o[v]);
        progress.advance(t + 1 == sequence.length);
      }
      store_states_on_the_way(p, n, hv, sequence.length, sequence, first_intermediate, S);
      store_final_state(p, n, hv, sequence.length, S);
    }
    if (p.packed() && present(p.intermediate_states))
      first_intermediate += (sequence.length + p.intermediate_every - 1) / p.intermediate_every;
  }
}

}  // namespace flashkda
