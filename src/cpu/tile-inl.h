// The two inner products everything is made of: a register tile of rows x two vectors of columns, and a block of
// dot products. Compiled once per instruction set.
#if defined(FLASHKDA_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHKDA_CPU_TILE_INL_H_
#undef FLASHKDA_CPU_TILE_INL_H_
#else
#define FLASHKDA_CPU_TILE_INL_H_
#endif

#include "cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

// Rows a tile: 16 accumulators where there are 32 vector registers, 8 where there are 16.
#if HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64 || HWY_ARCH_PPC
inline constexpr int kRows = 8;
#else
inline constexpr int kRows = 4;
#endif
static_assert(kChunk % kRows == 0 && kPanel % (2 * kN) == 0 && kLane % kN == 0);

inline constexpr int64_t kTileColumns = 2 * kN;

struct Tile {
  VF lo[kRows], hi[kRows];

  HWY_INLINE void load(const float* HWY_RESTRICT p, int64_t stride) {
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      lo[i] = hn::Load(kD, p + i * stride);
      hi[i] = hn::Load(kD, p + i * stride + kN);
    }
  }

  HWY_INLINE void store(float* HWY_RESTRICT p, int64_t stride) const {
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      hn::Store(lo[i], kD, p + i * stride);
      hn::Store(hi[i], kD, p + i * stride + kN);
    }
  }

  HWY_INLINE void clear() {
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) lo[i] = hi[i] = hn::Zero(kD);
  }

  // this += A B (or -= with kSign = -1): A's element of row i and depth k is a[i * a_row + k * a_depth], B's row k is
  // b[k * kPanel ..]. Always summed in the order of k.
  template <int kSign = 1>
  HWY_INLINE void accumulate(const float* HWY_RESTRICT a, int64_t a_row, int64_t a_depth, const float* HWY_RESTRICT b,
                             int64_t depth) {
    for (int64_t k = 0; k < depth; ++k) {
      const VF b_lo = hn::Load(kD, b + k * kPanel);
      const VF b_hi = hn::Load(kD, b + k * kPanel + kN);
      const float* HWY_RESTRICT a_k = a + k * a_depth;
      HWY_UNROLL(8)
      for (int i = 0; i < kRows; ++i) {
        const VF a_ik = hn::Set(kD, a_k[i * a_row]);
        lo[i] = kSign > 0 ? hn::MulAdd(a_ik, b_lo, lo[i]) : hn::NegMulAdd(a_ik, b_lo, lo[i]);
        hi[i] = kSign > 0 ? hn::MulAdd(a_ik, b_hi, hi[i]) : hn::NegMulAdd(a_ik, b_hi, hi[i]);
      }
    }
  }
};

// The sums over the lanes of four vectors, side by side: two interleaving steps bring the four sums of each 128-bit
// block together, then the blocks are added.
using D4 = hn::CappedTag<float, 4>;
using V4 = hn::Vec<D4>;

HWY_INLINE V4 sum_lanes(VF a, VF b, VF c, VF d) {
  const D4 d4;
  const hn::Repartition<uint64_t, DF> d64;
  const auto ab = hn::BitCast(d64, hn::Add(hn::InterleaveLower(kD, a, b), hn::InterleaveUpper(kD, a, b)));
  const auto cd = hn::BitCast(d64, hn::Add(hn::InterleaveLower(kD, c, d), hn::InterleaveUpper(kD, c, d)));
  const VF sums =
      hn::Add(hn::BitCast(kD, hn::InterleaveLower(d64, ab, cd)), hn::BitCast(kD, hn::InterleaveUpper(d64, ab, cd)));
  HWY_ALIGN float blocks[kLane];
  hn::Store(sums, kD, blocks);
  V4 total = hn::Load(d4, blocks);
  for (int64_t l = 4; l < kN; l += 4) total = hn::Add(total, hn::Load(d4, blocks + l));
  return total;
}

// Rows of a dot block: 4 x 4 accumulators, or 2 x 4 where registers are few.
inline constexpr int kDotRows = kRows / 2;

// out[i * out_stride + j] = sum_k a[i * Kp + k] * b[j * Kp + k] for i < kDotRows, j < 4.
HWY_INLINE void dot_block(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t Kp, float* HWY_RESTRICT out,
                          int64_t out_stride) {
  VF acc[kDotRows][4];
  HWY_UNROLL(4)
  for (int i = 0; i < kDotRows; ++i) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = hn::Zero(kD);
  for (int64_t k = 0; k < Kp; k += kN) {
    const VF b0 = hn::Load(kD, b + k), b1 = hn::Load(kD, b + Kp + k);
    const VF b2 = hn::Load(kD, b + 2 * Kp + k), b3 = hn::Load(kD, b + 3 * Kp + k);
    HWY_UNROLL(4)
    for (int i = 0; i < kDotRows; ++i) {
      const VF a_i = hn::Load(kD, a + i * Kp + k);
      acc[i][0] = hn::MulAdd(a_i, b0, acc[i][0]);
      acc[i][1] = hn::MulAdd(a_i, b1, acc[i][1]);
      acc[i][2] = hn::MulAdd(a_i, b2, acc[i][2]);
      acc[i][3] = hn::MulAdd(a_i, b3, acc[i][3]);
    }
  }
  HWY_UNROLL(4)
  for (int i = 0; i < kDotRows; ++i) {
    hn::StoreU(sum_lanes(acc[i][0], acc[i][1], acc[i][2], acc[i][3]), D4(), out + i * out_stride);
  }
}

}  // namespace flashkda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FLASHKDA_CPU_TILE_INL_H_
