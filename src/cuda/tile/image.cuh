// The chunk image: what the prepare kernel hands to the recurrence for one chunk of one value head, in the workspace.
//
//   kd [16][K] bf16   k exp(G)                     (eq. 11)
//   qd [16][K] bf16   scale q exp(G)
//   kr [16][K] bf16   k exp(G_last - G)
//   T  [16][16] bf16  (I + L)^-1 diag(b), so that U = T (V - kd S)
//   M  [16][16] bf16  Mqk
//   F  [K] fp32       exp(G_last), the state's decay over the chunk
//
// Rows past the end of a sequence are zero and decay nothing.
#pragma once

#include <cstdint>

namespace flashkda::cuda {

inline constexpr int kChunk = 16;

template <int K>
struct Image {
  static constexpr int kRowBytes = K * 2;
  static constexpr int kKd = 0;
  static constexpr int kQd = kKd + kChunk * kRowBytes;
  static constexpr int kKr = kQd + kChunk * kRowBytes;
  static constexpr int kT = kKr + kChunk * kRowBytes;
  static constexpr int kM = kT + kChunk * kChunk * 2;
  static constexpr int kF = kM + kChunk * kChunk * 2;
  static constexpr int kBytes = kF + K * 4;
  static_assert(kBytes % 16 == 0);
};

// Shared-memory tiles of 16-byte units, eight rows of which ldmatrix reads at once: the unit's index is XORed with its
// row so that the eight fall into different banks. kUnits: units a row, at least 8.
template <int kUnits>
__host__ __device__ constexpr int swizzled(int row, int unit) {
  return (row * kUnits + (unit ^ (row & 7))) * 16;
}

}  // namespace flashkda::cuda
