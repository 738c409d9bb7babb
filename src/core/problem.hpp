// A validated problem: the caller's struct plus the sizes that validation derived from it. Backends read this and
// nothing else; they may assume everything validate.cpp checked.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "flashkda/flashkda.h"

namespace flashkda {

inline bool present(const fkda_tensor& t) { return t.ndim != 0; }

// A token range of the batch. Token t of the sequence is row [batch, begin + t] of q, k, v, g, beta, out.
struct Sequence {
  int64_t batch = 0;
  int64_t begin = 0;
  int64_t length = 0;
};

struct Problem : fkda_problem {
  int64_t B = 0, T = 0;   // batch rows, tokens a row
  int64_t N = 0;          // sequences
  int64_t H = 0, HV = 0;  // q/k heads, value heads
  int64_t K = 0, V = 0;   // key and value width
  int64_t P = 0;          // checkpoints a sequence
  // fkda_problem::scale is resolved (never NaN).

  bool packed() const { return present(cu_seqlens); }
  int64_t group() const { return HV / H; }  // value heads a q/k head: hv reads q/k head hv / group()

  // Reads cu_seqlens, hence for host tensors only.
  Sequence sequence(int64_t n) const {
    if (!packed()) return {n, 0, T};
    const int64_t begin = load_integer(cu_seqlens.data, cu_seqlens.dtype, n);
    return {0, begin, load_integer(cu_seqlens.data, cu_seqlens.dtype, n + 1) - begin};
  }
  // Slot of sequence n in initial_state and final_state; < 0: starts from zero, stores nothing. Host tensors only.
  int64_t slot(int64_t n) const {
    return present(state_indices) ? load_integer(state_indices.data, state_indices.dtype, n) : n;
  }
  int64_t checkpoint_offset(int64_t n, int64_t p) const {
    return load_integer(checkpoint_offsets.data, checkpoint_offsets.dtype, n * checkpoint_offsets.stride[0] + p);
  }
};

// Address of element [i0, i1, i2, ..] of a view (missing trailing indices are 0).
inline char* address(const fkda_tensor& t, int64_t i0 = 0, int64_t i1 = 0, int64_t i2 = 0, int64_t i3 = 0) {
  const int64_t index[4] = {i0, i1, i2, i3};
  int64_t offset = 0;
  for (int d = 0; d < t.ndim && d < 4; ++d) offset += index[d] * t.stride[d];
  return static_cast<char*>(t.data) + offset * dtype_size(t.dtype);
}

// Offset of the state element [k, v] inside one [V,K] or [K,V] matrix.
inline int64_t state_offset(const Problem& p, int64_t k, int64_t v) {
  return p.state_layout == FKDA_STATE_V_FIRST ? v * p.K + k : k * p.V + v;
}

}  // namespace flashkda
