// The oracle: Kimi Delta Attention as the plain token recurrence in fp64 (docs/algorithm.md, eq. 1-8). Every backend is
// measured against it; nothing here is fast.
#pragma once

#include <cstddef>

#include "core/problem.hpp"

namespace flashkda {

// The implementation "reference" (host tensors, every option).
size_t reference_workspace_size(const Problem& p);
void forward_reference(const Problem& p, void* workspace, void* stream);

// The parts of the oracle, shared with inspect.cpp. A state S is [K,V] row-major in fp64, whatever the problem's
// layout.

// What one token gives one head after normalisation and activation (eq. 1-5).
struct Token {
  double* q;  // [K], not scaled
  double* k;  // [K]
  double* a;  // [K] log decay
  double* v;  // [V]
  double b;
};

// Reads token t of the sequence for value head hv.
void load_token(const Problem& p, const Sequence& sequence, int64_t t, int64_t hv, Token& token);

// S <- the initial state of sequence n and value head hv, or zero.
void load_initial_state(const Problem& p, int64_t n, int64_t hv, double* S);

// Moves S on by one token (eq. 6, 7) and computes its output o [V] (eq. 8). u [V] is scratch.
void step(const Problem& p, const Token& token, double* S, double* u, double* o);

}  // namespace flashkda
