// The state's forms: the caller's ([V,K] or [K,V], fp32 or bf16), the stage (the caller's order in fp32), and the
// panels [K][kPanel] that the chunk works on. Compiled once per instruction set.
#if defined(FLASHKDA_CPU_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHKDA_CPU_STATE_INL_H_
#undef FLASHKDA_CPU_STATE_INL_H_
#else
#define FLASHKDA_CPU_STATE_INL_H_
#endif

#include "cpu/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

// The value columns [begin, end) an item owns; begin is a multiple of kPanel, and so is end unless it is V.
struct Columns {
  int64_t begin, end;
};

// One state matrix in the caller's order. data may be null (no such state).
struct StateView {
  void* data = nullptr;
  int32_t dtype = FKDA_FLOAT32;
};

// Runs body(offset, count) over the contiguous runs of the matrix that lie in the columns.
template <typename Body>
HWY_INLINE void for_each_run(const Problem& p, Columns columns, Body&& body) {
  if (p.state_layout == FKDA_STATE_V_FIRST) {
    body(columns.begin * p.K, (columns.end - columns.begin) * p.K);
  } else {
    for (int64_t k = 0; k < p.K; ++k) body(k * p.V + columns.begin, columns.end - columns.begin);
  }
}

inline char* element(StateView view, int64_t offset) {
  return static_cast<char*>(view.data) + offset * dtype_size(view.dtype);
}

// dst <- src (or zero if src is absent), converting; bit for bit if the dtypes agree. src and dst may be the same.
inline void copy_state(const Problem& p, StateView src, StateView dst, Columns columns) {
  if (dst.data == nullptr || dst.data == src.data) return;
  for_each_run(p, columns, [&](int64_t offset, int64_t count) HWY_ATTR {
    char* to = element(dst, offset);
    const size_t bytes = static_cast<size_t>(count * dtype_size(dst.dtype));
    if (src.data == nullptr) {
      std::memset(to, 0, bytes);
    } else if (src.dtype == dst.dtype) {
      std::memcpy(to, element(src, offset), bytes);
    } else if (dst.dtype == FKDA_FLOAT32) {
      load_row(element(src, offset), src.dtype, count, reinterpret_cast<float*>(to));
    } else if (src.dtype == FKDA_FLOAT32) {
      store_row(reinterpret_cast<const float*>(element(src, offset)), count, to, dst.dtype);
    } else {  // two 16-bit types
      for (int64_t i = 0; i < count; ++i)
        store_scalar(to, dst.dtype, i, load_scalar(element(src, offset), src.dtype, i));
    }
  });
}

// A 4 x 4 block: dst[j * dst_stride + i] = src[i * src_stride + j].
HWY_INLINE void transpose_4x4(const float* HWY_RESTRICT src, int64_t src_stride, float* HWY_RESTRICT dst,
                              int64_t dst_stride) {
  const hn::CappedTag<float, 4> d4;
  const hn::CappedTag<uint64_t, 2> d2;
  const auto r0 = hn::LoadU(d4, src), r1 = hn::LoadU(d4, src + src_stride);
  const auto r2 = hn::LoadU(d4, src + 2 * src_stride), r3 = hn::LoadU(d4, src + 3 * src_stride);
  const auto a = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1)), b = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
  const auto c = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1)), d = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
  hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, a, b)), d4, dst);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, a, b)), d4, dst + dst_stride);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, c, d)), d4, dst + 2 * dst_stride);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, c, d)), d4, dst + 3 * dst_stride);
}

// Panels <- stage (fp32, caller's order). Padding rows and columns become zero.
inline void stage_to_panels(const Problem& p, const float* HWY_RESTRICT stage, float* HWY_RESTRICT panels, int64_t Kp,
                            Columns columns) {
  for (int64_t v0 = columns.begin; v0 < columns.end; v0 += kPanel) {
    float* HWY_RESTRICT panel = panels + v0 * Kp;
    const int64_t width = columns.end - v0 < kPanel ? columns.end - v0 : kPanel;
    if (width < kPanel || p.K < Kp) std::memset(panel, 0, static_cast<size_t>(Kp * kPanel) * sizeof(float));
    if (p.state_layout == FKDA_STATE_V_FIRST) {
      for (int64_t v = 0; v < width; v += 4) {
        for (int64_t k = 0; k < p.K; k += 4)
          transpose_4x4(stage + (v0 + v) * p.K + k, p.K, panel + k * kPanel + v, kPanel);
      }
    } else {
      for (int64_t k = 0; k < p.K; ++k) {
        std::memcpy(panel + k * kPanel, stage + k * p.V + v0, static_cast<size_t>(width) * sizeof(float));
      }
    }
  }
}

// Stage <- panels.
inline void panels_to_stage(const Problem& p, const float* HWY_RESTRICT panels, float* HWY_RESTRICT stage, int64_t Kp,
                            Columns columns) {
  for (int64_t v0 = columns.begin; v0 < columns.end; v0 += kPanel) {
    const float* HWY_RESTRICT panel = panels + v0 * Kp;
    const int64_t width = columns.end - v0 < kPanel ? columns.end - v0 : kPanel;
    if (p.state_layout == FKDA_STATE_V_FIRST) {
      for (int64_t v = 0; v < width; v += 4) {
        for (int64_t k = 0; k < p.K; k += 4)
          transpose_4x4(panel + k * kPanel + v, kPanel, stage + (v0 + v) * p.K + k, p.K);
      }
    } else {
      for (int64_t k = 0; k < p.K; ++k) {
        std::memcpy(stage + k * p.V + v0, panel + k * kPanel, static_cast<size_t>(width) * sizeof(float));
      }
    }
  }
}

// Where fp32 in the caller's order already lies, it is used directly; else the stage carries it.
inline void load_panels(const Problem& p, StateView src, float* panels, const Scratch& s, Columns columns) {
  const float* from = static_cast<const float*>(src.data);
  if (src.data == nullptr || src.dtype != FKDA_FLOAT32) {
    copy_state(p, src, {s.stage, FKDA_FLOAT32}, columns);
    from = s.stage;
  }
  stage_to_panels(p, from, panels, s.Kp, columns);
}

inline void store_panels(const Problem& p, const float* panels, StateView dst, const Scratch& s, Columns columns) {
  if (dst.data == nullptr) return;
  if (dst.dtype == FKDA_FLOAT32) {
    panels_to_stage(p, panels, static_cast<float*>(dst.data), s.Kp, columns);
  } else {
    panels_to_stage(p, panels, s.stage, s.Kp, columns);
    copy_state(p, {s.stage, FKDA_FLOAT32}, dst, columns);
  }
}

}  // namespace flashkda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FLASHKDA_CPU_STATE_INL_H_
