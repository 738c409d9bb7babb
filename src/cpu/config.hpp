// The sizes the CPU backend is built around, and the layout of a worker's scratch memory. No SIMD in here: the same
// numbers serve the workspace query and every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"

namespace flashkda::cpu {

// Tokens a chunk. A sequence is cut at multiples of this from its start, and spec 7 promises the same bits when a
// sequence is resumed at a multiple of 64, so this must divide 64.
inline constexpr int64_t kChunk = 32;
static_assert(64 % kChunk == 0);

// Pairs of tokens inside blocks of this size are scored one by one, pairs across blocks by halving (docs/algorithm.md).
inline constexpr int64_t kLeaf = 4;

// A chunk of at most this many tokens (a decode step, a short tail) runs the token recurrence on the state where it
// lies, which saves the change of layout.
inline constexpr int64_t kTokenRows = 8;

// Value columns a panel: the state is kept as panels [K][kPanel], each worked on alone. A multiple of twice the widest
// vector, so that every instruction set walks a panel in whole tiles.
inline constexpr int64_t kPanel = 32;

// Vectors of keys are padded with zeros to a multiple of this (the widest vector).
inline constexpr int64_t kLane = 16;

// Neighbouring value heads of one sequence that a worker walks together, chunk by chunk. Their rows share memory pages
// and cache-line neighbours, so a page is visited once for all of them instead of once for each.
inline constexpr int64_t kHeadGroup = 4;

inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// Scratch of one worker. Sizes in floats, every array 64-byte aligned.
struct ScratchLayout {
  int64_t Kp, Vp;     // K and V padded
  int64_t total = 0;  // bytes

  int64_t k, q, alpha;  // [kChunk][Kp] normalised k, normalised and scaled q, decay per token
  int64_t x;            // [2*kChunk][Kp] kd rows, then qd rows
  int64_t kr;           // [kChunk][Kp]
  int64_t left, right;  // [kChunk][Kp] and [2*kChunk][Kp]: the two factors of a halving step
  int64_t L, M;         // [kChunk][kChunk]
  int64_t b;            // [kChunk]
  int64_t decay;        // [4][Kp]: log decay of the chunk, its exponential as hi and lo; dt_bias padded
  int64_t u, o;         // panels [Vp/kPanel][kChunk][kPanel]: v, then U; the output
  int64_t state;        // [heads] panels [Vp/kPanel][Kp][kPanel]
  int64_t side;         // panels of one head: the state inside a chunk, for checkpoints
  int64_t stage;        // [V][K] or [K][V] fp32: the state in the caller's layout

  // heads: value heads an item walks together.
  ScratchLayout(const Problem& p, int64_t heads) : Kp(round_up(p.K, kLane)), Vp(round_up(p.V, kPanel)) {
    const bool observed = present(p.checkpoints) || present(p.intermediate_states);
    k = take(kChunk * Kp);
    q = take(kChunk * Kp);
    alpha = take(kChunk * Kp);
    x = take(2 * kChunk * Kp);
    kr = take(kChunk * Kp);
    left = take(kChunk * Kp);
    right = take(2 * kChunk * Kp);
    L = take(kChunk * kChunk);
    M = take(kChunk * kChunk);
    b = take(kChunk);
    decay = take(4 * Kp);
    u = take(kChunk * Vp);
    o = take(kChunk * Vp);
    state = take(heads * Kp * Vp);
    side = take(observed ? Kp * Vp : 0);
    stage = take(p.K * p.V);
    total = round_up(total, FKDA_WORKSPACE_ALIGNMENT);
  }

 private:
  int64_t take(int64_t floats) {
    const int64_t offset = total / static_cast<int64_t>(sizeof(float));
    total += round_up(floats * static_cast<int64_t>(sizeof(float)), 64);
    return offset;
  }
};

}  // namespace flashkda::cpu
