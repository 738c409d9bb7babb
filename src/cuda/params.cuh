// What the kernels are told: plain structs passed by value. Strides in elements.
#pragma once

#include <cstdint>

namespace flashkda::cuda {

// A [B,T,heads,width] input: element (b, t, h, c) at data + b * batch + t * token + h * head + c.
struct Rows {
  const void* data;
  int64_t batch, token, head;
  int32_t dtype;  // fkda_dtype
};

// One state matrix a slot and value head, [V,K] or [K,V], dense. data null: absent.
struct States {
  void* data;
  int64_t slot, head;  // strides
  int32_t dtype;       // fkda_dtype: float32, bfloat16 or float16
  bool k_first;
};

// An array of int32 or int64.
struct Integers {
  const void* data;
  bool wide;  // int64

  __device__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// How tokens fall into sequences and chunks. Packed batches read tables that plan.cu writes on the device, so that a
// captured graph follows the values then in cu_seqlens; dense batches and steps of decoding need none.
struct Layout {
  int64_t T;                // tokens a batch row
  int32_t N, HV, group;     // sequences; value heads; value heads a q/k head
  int32_t row_chunks;       // dense: chunks a sequence
  const int64_t* begin;     // packed: [N+1] first token of a sequence, clamped to 0..T and ascending
  const int32_t* chunks;    // packed: [N+1] chunks before a sequence
  int64_t left_out;         // packed: sequences of at most so many tokens have no chunks and are not this path's
  int32_t row_segments;     // dense: segments a sequence, 1 where none is split
  const int32_t* segments;  // packed: [N+1] segments before a sequence; null where none is split
};

}  // namespace flashkda::cuda
