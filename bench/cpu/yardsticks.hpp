// What the CPU backend is measured against, in the same run on the same threads.
#pragma once

#include <cstdint>
#include <vector>

namespace flashkda::bench {

// Fused multiply-adds a second in fp32, from registers, all threads together.
double peak_fma_per_second(int threads);

// Bytes a second of memcpy between two buffers far larger than the caches, read and written bytes both counted.
double copy_bytes_per_second(int threads, int64_t bytes_per_thread);

// Inputs of the plain recurrence for one head: everything already activated and normalised, fp32.
struct PlainHead {
  int64_t T, K, V;
  const float *q, *k, *v, *alpha, *b;  // [T,K], [T,K], [T,V], [T,K], [T]
  float* state;                        // [K,V]
  float* out;                          // [T,V]
};

// The recurrence (docs/algorithm.md, section 1) row by row, as a compiler vectorises it: the baseline of the speed
// table.
void plain_recurrence(const PlainHead& head);
void plain_recurrence(const std::vector<PlainHead>& heads, int threads);

}  // namespace flashkda::bench
