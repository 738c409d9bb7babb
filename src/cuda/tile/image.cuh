// The chunk image: what the prepare kernel hands to the recurrence for one chunk of one value head, in the workspace.
//
//   kd [16][K] bf16   k exp(G)                     (eq. 11)
//   qd [16][K] bf16   scale q exp(G)
//   kr [16][K] tf32   k exp(G_last - G), in the order of wide_place
//   T  [16][16] tf32  (I + L)^-1 diag(b), so that U = T (V - kd S), in the order of wide_place
//   M  [16][16] bf16  Mqk
//   F  [K] fp32       exp(G_last), the state's decay over the chunk
//
// Rows past the end of a sequence are zero and decay nothing. What is written to the state goes through kr and T, and
// nothing erases an error there that is orthogonal to later keys: those two have 11 significant bits (tf32) and not 8.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashkda::cuda {

inline constexpr int kChunk = 16;

// Where kr[token][column] and T[column][token] are (an index of fp32 values): a B operand of m16n8k8 whose inner index
// is the token. The four values of a lane (tokens 2t, 2t+1, 2t+8, 2t+9 with t = lane % 4, of column 8 i + lane / 4) are
// one 16-byte unit. Eight lanes that read together fall into different banks, and neighbouring columns of one token are
// neighbours in memory. Inner index t of the instruction is token 2t and t + 4 is token 2t + 1, as an accumulator holds
// them.
__host__ __device__ constexpr int wide_unit(int octet, int lane) {
  return octet * 32 + lane % 4 * 8 + (lane / 4 ^ lane % 4 * 2);
}
__host__ __device__ constexpr int wide_place(int token, int column) {
  return wide_unit(column / 8, column % 8 * 4 + token % 8 / 2) * 4 + token / 8 * 2 + token % 2;
}

template <int K>
struct Image {
  static constexpr int kRowBytes = K * 2;
  static constexpr int kKd = 0;
  static constexpr int kQd = kKd + kChunk * kRowBytes;
  static constexpr int kKr = kQd + kChunk * kRowBytes;
  static constexpr int kT = kKr + kChunk * K * 4;
  static constexpr int kM = kT + kChunk * kChunk * 4;
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
