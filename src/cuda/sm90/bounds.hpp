// What planning must know of the Hopper kernels: which problems they can centre (stage.cuh) without a look at their
// decays, and what makers and readers (apart.cuh) take.
#pragma once

#include "core/problem.hpp"

namespace flashkda::cuda::sm90 {

// The lowest lower_bound. With -5.28, |c| is 3 and |E| at most 74: L and Mqk of rows up to 128 long are below 2^108,
// reads of the state up to 2^96 times its size, writes down to 2^-93 of U's. What is dropped (F underflows) is the
// state of channels that all but forgot it: less than 2^-6.9 a token over two halves of a chunk.
inline constexpr float kLowestBound = -5.28f;

// Whether no channel can forget too much for centred rows, and no normalised row be too long: what the fused kernel
// asks for, and what prepare needs no look for.
inline bool is_tame(const Problem& p) {
  return p.gate == FKDA_GATE_BOUNDED && p.lower_bound >= kLowestBound && p.lower_bound <= 0.0f && p.qk_l2norm != 0 &&
         p.q.dtype == FKDA_BFLOAT16 && p.g.dtype == FKDA_BFLOAT16;
}

// Bytes that a maker leaves of 32 tokens of a head, and readers of a head; apart.cuh holds them to its kernel.
inline constexpr int64_t kApartImageBytes = 40960;
inline constexpr int kReadersOfAHead = 2;

}  // namespace flashkda::cuda::sm90
