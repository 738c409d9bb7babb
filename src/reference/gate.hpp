// The gate and the activations in fp64, right and finite wherever the formula has a limit. Equations:
// docs/algorithm.md.
#pragma once

#include <cmath>

#include "flashkda/flashkda.h"

namespace flashkda {

// x * y with 0 * inf = 0: the factor that is exactly zero decides (a gate input of 0 under an overflowing exp(A_log)).
inline double product_or_zero(double x, double y) { return x == 0.0 || y == 0.0 ? 0.0 : x * y; }

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

inline double softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// a = lower_bound * sigmoid(exp(A_log) * x), x = g + dt_bias (eq. 2).
inline double bounded_gate(double x, double A_log, double lower_bound) {
  return lower_bound * sigmoid(product_or_zero(std::exp(A_log), x));
}

// a = -exp(A_log) * softplus(x), x = g + dt_bias (eq. 3). Below -40 softplus(x) is exp(x) to the last bit of a double,
// and one exponential of the sum has no inf * 0: A_log = 100 gives decay 1 at x = -200 and decay 0 at x = -50.
inline double softplus_gate(double x, double A_log) {
  return x < -40.0 ? -std::exp(A_log + x) : -product_or_zero(std::exp(A_log), softplus(x));
}

// The log decay a of one channel (eq. 2-4). An absent A_log or dt_bias is passed as 0.
inline double log_decay(const fkda_problem& p, double g, double A_log, double dt_bias) {
  switch (p.gate) {
    case FKDA_GATE_BOUNDED: return bounded_gate(g + dt_bias, A_log, p.lower_bound);
    case FKDA_GATE_SOFTPLUS: return softplus_gate(g + dt_bias, A_log);
    default: return g;
  }
}

// The write strength b of one token (eq. 5).
inline double activate_beta(const fkda_problem& p, double beta) {
  switch (p.beta_activation) {
    case FKDA_BETA_SIGMOID: return sigmoid(beta);
    case FKDA_BETA_TWICE_SIGMOID: return 2.0 * sigmoid(beta);
    default: return beta;
  }
}

}  // namespace flashkda
