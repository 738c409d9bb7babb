// Shared memory of the fused kernel: a ring of stages, one chunk of 32 tokens each. The copy engine writes raw k, q
// and g, which the column warps transform in place, and v; the roles write the other tiles. docs/kernels/sm90a.md has
// the picture.
//
// Decays are centred and anchored. A token's bits of decay lie in [lower_bound log2(e), 0]; c bits a token, an integer
// near the middle, are set aside as a scalar, and what is left of a channel is summed from the anchor, the moment after
// token 15. With a_i, set_aside() below, near 15 - i:
//   E_i = sum of bits of tokens 16..i for i > 15, minus that of i+1..15 for i <= 15, plus c a_i
//   kd = k 2^E   qd = q 2^E   ki = k 2^-E      of the raw k and q; their norms are scalars of a token as well
// so that k_i k_j decayed from j to i is 2^(c (a_j - a_i)) kd_i ki_j, and one product of [kd; qd] with ki holds all of
// L and Mqk with no number of a valid pair that could overflow. c is an integer so that 2^-E of channels that hardly
// decay is a power of two to the last bit and ki their k: keys that repeat for thousands of tokens must be written in
// the very direction in which they are read. The state is kept in two frames, both near its own size. With H and T the
// bits of decay of a channel's tokens 0..15 and 16..31,
//   read:   R = 2^(H - 16 c) S      kd S as token i sees it = 2^(c (16 - a_i)) kd_i R
//   write:  W = 2^(-T + 16 c) S     W <- 2^(32 c) R + sum over j of ki_j 2^(c (16 + a_j)) U_j
// and from a chunk's W to the next one's R it is 2^(T + H' - 32 c).
//
// beta is a scalar of the written token too: with L_ij = b_j k_i k_j (no b_i) and T = (I + L)^-1, U is b_j times what T
// makes of V - kd S, and b goes into the write scale. T's diagonal is 1, exactly. What is written, U times its scale,
// is also what M is multiplied with: M is Mqk over the write scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/block/tf32.cuh"
#include "cuda/ptx/hopper.cuh"
#include "cuda/sm90/bounds.hpp"

namespace flashkda::cuda::sm90 {

inline constexpr int kChunk = 32;
inline constexpr int kHalf = kChunk / 2;
inline constexpr int D = 128;  // K = V

// How the fused kernel shares out a head. kSlices: slices of 64 value columns of a block, a consumer warpgroup each.
// kSharers: blocks, a cluster, that have the head's slices between them. They prepare chunks in turns, block r its own,
// those with c % kSharers == r, and send them to each other.
template <int kSlices_>
struct Variant {
  static constexpr int kSlices = kSlices_, kSharers = D / 64 / kSlices;

  // Chunks in shared memory, and how many ahead of the one that intra solves are asked for first.
  static constexpr int kStages = kSlices == 2 ? 4 : 5, kCopiedAhead = 3;
  // Chunks from one that is a block's own in a stage to the next such one there.
  static constexpr int kOwnPeriod = kStages * kSharers;
  static_assert(kSharers == 1 || kStages % 2 == 1, "no common divisor");
  static_assert(kSharers == 1 || kCopiedAhead + 1 < kStages, "a stage is asked for after intra has read its tail");

  // Warps of the column role that share a chunk, and groups of them, which take own chunks in turns.
  static constexpr int kAllColumnWarps = 8;
  static constexpr int kColumnWarps = kSlices == 1 ? 8 : 4, kColumnGroups = kAllColumnWarps / kColumnWarps;
  static constexpr int kColumnBatch = kSlices == 1 ? 8 : 4;  // tokens that a lane has under way, as registers allow

  static constexpr int kThreads = 32 * (4 * kSlices + kAllColumnWarps + 4);  // consumers, columns, intra
};

// c for a lower_bound in [kLowestBound, 0].
__device__ __forceinline__ float centre(float lower_bound) {
  return -floorf(-lower_bound * (0.5f * 1.4426950408889634f));
}

// Scalars of a chunk's tokens, of the normalised rows k and scale q.
struct Scales {
  float read_k[kChunk];  // 2^(c (16 - a_i)) / |k_i|
  float read_q[kChunk];  // 2^(c (16 - a_i)) scale / |q_i|
  float write[kChunk];   // 2^(c (16 + a_j)) b_j / |k_j|, and what the cut takes of R
};

// kSlices: value columns of a block / 64, one consumer warpgroup each.
template <int kSlices>
struct Stage {
  // [channel / 64][k -> kd, q -> qd, g -> ki, what ki lacks][token], 64 channels of bf16 a row; 128-byte swizzle
  alignas(1024) char x[2][4][kChunk][128];
  Scales scales;
  float head[D], tail[D];  // bits of decay of tokens 0..15 and 16..31
  float F[D];  // in the order of frame_place: what takes the state from the last chunk's frame to this one's
  alignas(1024) char T[kChunk][128];  // [i][token place of j] tf32: (I + L)^-1; 128-byte swizzle
  alignas(
      1024) char M[kChunk][64];  // [i][j] bf16; before it, at the start of row i, entry (i, i) in fp32; 64-byte swizzle
  alignas(1024) char v[kSlices][kChunk][128];  // bf16; 128-byte swizzle
};

// Diagonal blocks of 8 of L, transposed; padded so that neither rows nor blocks share banks.
inline constexpr int kBlockRow = 12, kBlockFloats = 8 * kBlockRow + 8;

// What the intra role has for itself, of even and odd chunks where a warp can be a chunk ahead of another.
struct Scratch {
  alignas(16) float L[2][4][kBlockFloats];
  alignas(16) uint16_t T8[kChunk][8];  // [column][row of its block] fp16: the inverses of those blocks
  uint32_t below[2][32];               // what warp 0 has below its first block
};

// Powers of two, in bf16, that bring k and q rows of extreme length to a length near 1 before anything is multiplied.
struct Shrink {
  uint16_t k[kChunk], q[kChunk];
};

template <typename V>
struct Shared {
  Stage<V::kSlices> stages[V::kStages];
  Shrink shrink[V::kStages];
  Scratch scratch;
  ptx::Barrier raw[V::kStages];  // raw k, q and g of an own chunk are there, and v
  // Every lane arrives: compute-sanitizer's racecheck sees no order in a lane's arrival for its warp.
  ptx::Barrier columns[V::kStages];  // kd, qd, ki, the scales, head and tail are written
  ptx::Barrier bits[V::kStages];     // head and tail of another block's chunk are there
  ptx::Barrier full[V::kStages];     // what consumers read is there, written or sent
  ptx::Barrier empty[V::kStages];    // the consumers have left, of all blocks
};

// What nobody writes, blocks above the diagonals of T and M, is zero.
template <typename V>
__device__ __forceinline__ void clear_triangles(Shared<V>& shared, int threads) {
  constexpr int kUnits = (sizeof(shared.stages[0].T) + sizeof(shared.stages[0].M)) / sizeof(uint4);
  for (int i = threadIdx.x; i < V::kStages * kUnits; i += threads) {
    reinterpret_cast<uint4*>(shared.stages[i / kUnits].T)[i % kUnits] = make_uint4(0, 0, 0, 0);
  }
}

// The warp's index in its warpgroup, in a form that the compiler knows to be the same for the whole warp.
__device__ __forceinline__ int uniform_warp() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) % 4;
}

// The 16-byte unit of a row of 128 bytes, swizzled.
__device__ __forceinline__ int unit_128(int row, int unit) { return (unit ^ (row & 7)) * 16; }
__device__ __forceinline__ int unit_64(int row, int unit) { return (unit ^ (row >> 1 & 3)) * 16; }

// Where channel c's factor is in F: a lane's four of 16 channels (2t, 2t + 1, 2t + 8, 2t + 9) are neighbours.
__device__ __forceinline__ constexpr int frame_place(int c) {
  return c / 16 * 16 + c % 8 / 2 * 4 + c % 16 / 8 * 2 + c % 2;
}

// a_i, in units of c: the token's distance from the anchor, but the same for eight tokens, which saves the column role
// an addition a token.
__device__ __forceinline__ constexpr int set_aside(int token) {
  const int octet = token / 8;
  return (octet < 2 ? 15 : 8) - 8 * octet;
}

// Where token j is in a row of tf32 values: inner index t of a step of 8 is token 2t, and t + 4 token 2t + 1, as an
// accumulator holds them.
__device__ __forceinline__ constexpr int token_place(int j) { return j / 8 * 8 + j % 2 * 4 + j % 8 / 2; }

}  // namespace flashkda::cuda::sm90
