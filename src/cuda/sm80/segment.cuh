// Runs of chunks. A sequence that is split falls into segments of whole chunks, as equal as they can be, which blocks
// carry through side by side (docs/kernels/split.md); one that is not split is one segment.
#pragma once

#include <cstdint>

#include "cuda/params.cuh"

namespace flashkda::cuda::sm80 {

struct Segment {
  int64_t n, batch, begin, length;  // the sequence: tokens begin .. begin + length - 1 of a batch row
  int64_t first_chunk;              // the sequence's first, among all chunks of a head
  int index, count;                 // of the sequence's segments
  int from, to;                     // the segment's chunks, in the sequence
};

// The last n in 0..N-1 with first[n] <= i, of an ascending table.
__device__ inline int owner(const int32_t* first, int N, int64_t i) {
  int low = 0, high = N;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= i) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Segment i of the batch, in chunks of kTokens. False: there is none, or its sequence is not this path's.
template <int kTokens>
__device__ inline bool locate_segment(const Layout& layout, int64_t i, Segment& s) {
  s.index = 0;
  s.count = 1;
  if (layout.begin == nullptr) {
    s.n = s.batch = i / layout.row_segments;
    s.index = static_cast<int>(i % layout.row_segments);
    s.count = layout.row_segments;
    s.begin = 0;
    s.length = layout.T;
    s.first_chunk = s.n * layout.row_chunks;
  } else {
    s.n = i;
    if (layout.segments != nullptr) {
      if (i >= layout.segments[layout.N]) return false;
      s.n = owner(layout.segments, layout.N, i);
      s.index = static_cast<int>(i - layout.segments[s.n]);
      s.count = layout.segments[s.n + 1] - layout.segments[s.n];
    }
    s.batch = 0;
    s.begin = layout.begin[s.n];
    s.length = layout.begin[s.n + 1] - s.begin;
    if (s.length <= layout.left_out) return false;
    s.first_chunk = layout.chunks[s.n];
  }
  const int64_t chunks = (s.length + kTokens - 1) / kTokens;
  s.from = static_cast<int>(chunks * s.index / s.count);
  s.to = static_cast<int>(chunks * (s.index + 1) / s.count);
  return true;
}

}  // namespace flashkda::cuda::sm80
