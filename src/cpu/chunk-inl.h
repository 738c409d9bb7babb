// A chunk's four steps, panel by panel of value columns: U, O, and the state. Compiled once per instruction set.
#if defined(FLASHKDA_CPU_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHKDA_CPU_CHUNK_INL_H_
#undef FLASHKDA_CPU_CHUNK_INL_H_
#else
#define FLASHKDA_CPU_CHUNK_INL_H_
#endif

#include "cpu/state-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

// Fetches the rows of the chunk to come, tokens [t0, t0 + rows) of a head, while another computes. A head's rows lie
// H rows apart, which hardware prefetchers do not follow; a few cache lines are asked for between tiles.
class Prefetcher {
 public:
  Prefetcher() = default;  // nothing to come
  Prefetcher(const Head& head, int64_t t0, int64_t rows, Columns columns) {
    const Problem& p = head.p;
    const int64_t width = columns.end - columns.begin;
    add(head, p.q, t0, head.h, 0, p.K);
    add(head, p.k, t0, head.h, 0, p.K);
    add(head, p.g, t0, head.hv, 0, p.K);
    add(head, p.v, t0, head.hv, columns.begin, width);
    add(head, p.beta, t0, head.hv, 0, 1);
    add(head, p.out, t0, head.hv, columns.begin, width);
    rows_ = rows;
  }

  // Asks for the next few lines.
  HWY_INLINE void step() {
    constexpr int kLinesAStep = 10;
    for (int i = 0; i < kLinesAStep && row_ < rows_; ++i) {
      const Stream& x = streams_[stream_];
      hwy::Prefetch(x.first + row_ * x.pitch + line_);
      line_ += kLine;
      if (line_ < x.bytes) continue;
      line_ = 0;
      if (++stream_ < kStreams) continue;
      stream_ = 0;
      ++row_;
    }
  }

 private:
  static constexpr int kStreams = 6;
  static constexpr int64_t kLine = 64;
  struct Stream {
    const char* first;
    int64_t pitch, bytes;
  };

  void add(const Head& head, const fkda_tensor& x, int64_t t0, int64_t h, int64_t column, int64_t width) {
    const int64_t size = dtype_size(x.dtype);
    streams_[stream_] = {head.row(x, t0, h) + column * size, x.stride[1] * size, width * size};
    stream_ = (stream_ + 1) % kStreams;
  }

  Stream streams_[kStreams] = {};
  int stream_ = 0;
  int64_t rows_ = 0, row_ = 0, line_ = 0;
};

// U of rows [i0, i0 + kRows) in one column tile:
//   U_i = b_i (v_i - kd_i S) - sum_{j<i} L_ij U_j                                            (eq. 21)
// which solves (I + L) U = b o (V - kd S) by forward substitution, rows before i0 as a product, the rest in registers.
// u holds v on entry and U on return.
template <int kWidth>
HWY_INLINE void solve_rows(int64_t i0, const Scratch& s, const float* HWY_RESTRICT state, float* HWY_RESTRICT u) {
  const int64_t Kp = kWidth > 0 ? kWidth : s.Kp;
  Tile t;
  t.clear();
  t.accumulate(s.x + i0 * Kp, Kp, 1, state, Kp);
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    const VF b = hn::Set(kD, s.b[i0 + i]);
    t.lo[i] = hn::Mul(b, hn::Sub(hn::Load(kD, u + (i0 + i) * kPanel), t.lo[i]));
    t.hi[i] = hn::Mul(b, hn::Sub(hn::Load(kD, u + (i0 + i) * kPanel + kN), t.hi[i]));
  }
  t.accumulate<-1>(s.L + i0 * kChunk, kChunk, 1, u, i0);
  HWY_UNROLL(8)
  for (int j = 0; j < kRows - 1; ++j) {
    HWY_UNROLL(8)
    for (int i = j + 1; i < kRows; ++i) {
      const VF l = hn::Set(kD, s.L[(i0 + i) * kChunk + i0 + j]);
      t.lo[i] = hn::NegMulAdd(l, t.lo[j], t.lo[i]);
      t.hi[i] = hn::NegMulAdd(l, t.hi[j], t.hi[i]);
    }
  }
  t.store(u + i0 * kPanel, kPanel);
}

// O_i = qd_i S + sum_{j<=i} Mqk_ij U_j of rows [i0, i0 + kRows) (eq. 19).
template <int kWidth>
HWY_INLINE void output_rows(int64_t i0, const Scratch& s, const float* HWY_RESTRICT state, const float* HWY_RESTRICT u,
                            float* HWY_RESTRICT o) {
  const int64_t Kp = kWidth > 0 ? kWidth : s.Kp;
  Tile t;
  t.clear();
  t.accumulate(s.x + (kChunk + i0) * Kp, Kp, 1, state, Kp);
  t.accumulate(s.M + i0 * kChunk, kChunk, 1, u, i0);
  // These rows' own block only up to its diagonal: 0 * U_j of a later token would let its NaN into earlier outputs.
  HWY_UNROLL(8)
  for (int j = 0; j < kRows; ++j) {
    const VF u_lo = hn::Load(kD, u + (i0 + j) * kPanel), u_hi = hn::Load(kD, u + (i0 + j) * kPanel + kN);
    HWY_UNROLL(8)
    for (int i = j; i < kRows; ++i) {
      const VF m = hn::Set(kD, s.M[(i0 + i) * kChunk + i0 + j]);
      t.lo[i] = hn::MulAdd(m, u_lo, t.lo[i]);
      t.hi[i] = hn::MulAdd(m, u_hi, t.hi[i]);
    }
  }
  t.store(o + i0 * kPanel, kPanel);
}

// S <- diag(exp(G)) S + kr^T U of key rows [k0, k0 + kRows) (eq. 20), the decay as hi + lo (eq. 26).
template <int kWidth>
HWY_INLINE void update_rows(int64_t k0, int64_t rows, const Scratch& s, const float* HWY_RESTRICT u, const float* from,
                            float* to) {
  const int64_t Kp = kWidth > 0 ? kWidth : s.Kp;
  Tile t;
  t.load(from + k0 * kPanel, kPanel);
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    const VF hi = hn::Set(kD, s.hi[k0 + i]), lo = hn::Set(kD, s.lo[k0 + i]);
    t.lo[i] = hn::MulAdd(t.lo[i], hi, hn::Mul(t.lo[i], lo));
    t.hi[i] = hn::MulAdd(t.hi[i], hi, hn::Mul(t.hi[i], lo));
  }
  t.accumulate(s.kr + k0, 1, Kp, u, rows);
  t.store(to + k0 * kPanel, kPanel);
}

// What a chunk leaves behind: the outputs and the next state, or only the state in a buffer of its own.
enum class ChunkResult { kOutputAndState, kStateOnly };

template <int kWidth>
HWY_INLINE void run_panels(int64_t rows, const Scratch& s, Columns columns, ChunkResult result, const float* panels,
                           float* next, Prefetcher& prefetcher) {
  const int64_t padded = round_up(rows, kRows);
  for (int64_t v0 = columns.begin; v0 < columns.end; v0 += kPanel) {
    for (int64_t c = 0; c < kPanel; c += kTileColumns) {
      const float* state = panels + v0 * s.Kp + c;
      float* u = s.u + v0 * kChunk + c;
      float* o = s.o + v0 * kChunk + c;
      for (int64_t i0 = 0; i0 < padded; i0 += kRows) {
        prefetcher.step();
        solve_rows<kWidth>(i0, s, state, u);
        if (result == ChunkResult::kOutputAndState) output_rows<kWidth>(i0, s, state, u, o);
      }
      for (int64_t k0 = 0; k0 < s.Kp; k0 += kRows) {
        prefetcher.step();
        update_rows<kWidth>(k0, rows, s, u, state, next + v0 * s.Kp + c);
      }
    }
  }
}

// Tokens [t0, t0 + rows) of the head. Reads the state's panels; writes the next state to `next` (which may be the same
// panels unless the result is kStateOnly) and, if asked, the output rows.
inline void run_chunk(const Head& head, int64_t t0, int64_t rows, const Scratch& s, Columns columns, ChunkResult result,
                      const float* panels, float* next, Prefetcher prefetcher) {
  const Problem& p = head.p;
  load_tokens(head, t0, rows, s);
  score_chunk(rows, s);
  const int64_t padded = round_up(rows, kRows);
  decay_from(0, rows, padded, s.x, s.x + kChunk * s.Kp, s);
  decay_to_end(rows, s);
  for (int64_t i = rows; i < padded; ++i) s.b[i] = 0.0f;

  for (int64_t v0 = columns.begin; v0 < columns.end; v0 += kPanel) {
    const int64_t width = columns.end - v0 < kPanel ? columns.end - v0 : kPanel;
    float* v_rows = s.u + v0 * kChunk;
    if (width < kPanel || rows < padded) std::memset(v_rows, 0, static_cast<size_t>(padded * kPanel) * sizeof(float));
    for (int64_t i = 0; i < rows; ++i) {
      load_row(head.row(p.v, t0 + i, head.hv) + v0 * dtype_size(p.v.dtype), p.v.dtype, width, v_rows + i * kPanel);
    }
  }
  if (s.Kp == 128) {
    run_panels<128>(rows, s, columns, result, panels, next, prefetcher);
  } else {
    run_panels<0>(rows, s, columns, result, panels, next, prefetcher);
  }
  if (result == ChunkResult::kStateOnly) return;
  for (int64_t v0 = columns.begin; v0 < columns.end; v0 += kPanel) {
    const int64_t width = columns.end - v0 < kPanel ? columns.end - v0 : kPanel;
    for (int64_t i = 0; i < rows; ++i) {
      char* out = address(p.out, head.sequence.batch, head.sequence.begin + t0 + i, head.hv);
      store_row(s.o + v0 * kChunk + i * kPanel, width, out + v0 * dtype_size(p.out.dtype), p.out.dtype);
    }
  }
}

}  // namespace flashkda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FLASHKDA_CPU_CHUNK_INL_H_
