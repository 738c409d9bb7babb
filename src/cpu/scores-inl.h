// Everything of a chunk that does not depend on the state: normalised q and k, decays, kd, qd, kr, and the two small
// matrices L and Mqk. Compiled once per instruction set.
#if defined(FLASHKDA_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHKDA_CPU_SCORES_INL_H_
#undef FLASHKDA_CPU_SCORES_INL_H_
#else
#define FLASHKDA_CPU_SCORES_INL_H_
#endif

#include <cstring>

#include "cpu/gate-inl.h"
#include "cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

// A worker's scratch, as pointers (ScratchLayout says what each is).
struct Scratch {
  int64_t Kp, Vp;
  float *k, *q, *alpha, *x, *kr, *left, *right, *L, *M, *b;
  float *G, *hi, *lo, *bias;  // the rows of ScratchLayout::decay
  float *u, *o, *state, *side, *stage;

  Scratch(const ScratchLayout& s, float* base)
      : Kp(s.Kp),
        Vp(s.Vp),
        k(base + s.k),
        q(base + s.q),
        alpha(base + s.alpha),
        x(base + s.x),
        kr(base + s.kr),
        left(base + s.left),
        right(base + s.right),
        L(base + s.L),
        M(base + s.M),
        b(base + s.b),
        G(base + s.decay),
        hi(G + Kp),
        lo(hi + Kp),
        bias(lo + Kp),
        u(base + s.u),
        o(base + s.o),
        state(base + s.state),
        side(base + s.side),
        stage(base + s.stage) {}
};

// One value head of one sequence.
struct Head {
  const Problem& p;
  Sequence sequence;
  int64_t hv, h;
  Gate gate;

  Head(const Problem& problem, int64_t n, int64_t value_head)
      : p(problem), sequence(problem.sequence(n)), hv(value_head), h(value_head / problem.group()), gate(problem, hv) {}

  // Token t of the sequence.
  const char* row(const fkda_tensor& x, int64_t t, int64_t head) const {
    return address(x, sequence.batch, sequence.begin + t, head);
  }
};

// k and q of token t as fp32 rows of Kp, padding zero: k normalised, q normalised and scaled.
HWY_INLINE void load_qk(const Head& head, int64_t t, float* HWY_RESTRICT k, float* HWY_RESTRICT q, int64_t Kp) {
  const Problem& p = head.p;
  for (float* row : {k, q}) std::memset(row + p.K, 0, static_cast<size_t>(Kp - p.K) * sizeof(float));
  load_row(head.row(p.k, t, head.h), p.k.dtype, p.K, k);
  load_row(head.row(p.q, t, head.h), p.q.dtype, p.K, q);
  normalise(k, Kp, p.qk_l2norm != 0, 1.0f);
  normalise(q, Kp, p.qk_l2norm != 0, p.scale);
}

// Calls body(channel, a) with the log decay of token t, vector by vector; of padding channels with anything finite.
// row is scratch of Kp; bias is dt_bias padded with zeros.
template <int kKind, typename Body>
HWY_INLINE void for_each_log_decay(const Head& head, int64_t t, float* HWY_RESTRICT row, const float* HWY_RESTRICT bias,
                                   int64_t Kp, Body&& body) {
  const Problem& p = head.p;
  std::memset(row + p.K, 0, static_cast<size_t>(Kp - p.K) * sizeof(float));
  load_row(head.row(p.g, t, head.hv), p.g.dtype, p.K, row);
  for (int64_t c = 0; c < Kp; c += kN) {
    const VF g = hn::Load(kD, row + c);
    if constexpr (kKind == FKDA_GATE_LOG) {
      body(c, g);
    } else {
      body(c, head.gate.template log_decay<kKind>(hn::Add(g, hn::Load(kD, bias + c))));
    }
  }
}

// s.bias = dt_bias of the head, padded.
inline void load_bias(const Head& head, const Scratch& s) {
  const int64_t K = head.p.K;
  std::memset(s.bias, 0, static_cast<size_t>(s.Kp) * sizeof(float));
  if (head.gate.dt_bias != nullptr) std::memcpy(s.bias, head.gate.dt_bias, static_cast<size_t>(K) * sizeof(float));
}

// b[0..rows) = activated beta of tokens [t, t + rows); b holds whole vectors. The tokens' values lie a stride apart:
// they are gathered as bits and converted together.
HWY_INLINE void load_beta(const Head& head, int64_t t, int64_t rows, float* HWY_RESTRICT b) {
  const Problem& p = head.p;
  const char* first = head.row(p.beta, t, head.hv);
  const int64_t size = dtype_size(p.beta.dtype), pitch = p.beta.stride[1] * size, padded = round_up(rows, kN);
  HWY_ALIGN char bits[kChunk * sizeof(float)] = {};
  if (size == 2) {
    for (int64_t i = 0; i < rows; ++i) std::memcpy(bits + 2 * i, first + i * pitch, 2);
  } else {
    for (int64_t i = 0; i < rows; ++i) std::memcpy(bits + 4 * i, first + i * pitch, 4);
  }
  load_row(bits, p.beta.dtype, padded, b);
  activate_beta(b, padded, p.beta_activation);
}

// alpha of rows [0, rows), and the log decay G of the whole chunk.
template <int kKind>
inline void load_decays(const Head& head, int64_t t0, int64_t rows, const Scratch& s) {
  std::memset(s.G, 0, static_cast<size_t>(s.Kp) * sizeof(float));
  load_bias(head, s);
  for (int64_t i = 0; i < rows; ++i) {
    float* HWY_RESTRICT alpha = s.alpha + i * s.Kp;
    for_each_log_decay<kKind>(head, t0 + i, alpha, s.bias, s.Kp, [&](int64_t c, VF a) HWY_ATTR {
      hn::Store(hn::Add(hn::Load(kD, s.G + c), a), kD, s.G + c);
      hn::Store(exp(a), kD, alpha + c);
    });
  }
  for (int64_t c = 0; c < s.Kp; c += kN) {
    VF hi, lo;
    split_exp(hn::Load(kD, s.G + c), hi, lo);
    hn::Store(hi, kD, s.hi + c);
    hn::Store(lo, kD, s.lo + c);
  }
}

// Fills k, q, alpha, b of rows [0, rows) and the decay of the whole chunk.
inline void load_tokens(const Head& head, int64_t t0, int64_t rows, const Scratch& s) {
  for (int64_t i = 0; i < rows; ++i) load_qk(head, t0 + i, s.k + i * s.Kp, s.q + i * s.Kp, s.Kp);
  load_beta(head, t0, rows, s.b);
  switch (head.gate.kind) {
    case FKDA_GATE_BOUNDED: return load_decays<FKDA_GATE_BOUNDED>(head, t0, rows, s);
    case FKDA_GATE_SOFTPLUS: return load_decays<FKDA_GATE_SOFTPLUS>(head, t0, rows, s);
    default: return load_decays<FKDA_GATE_LOG>(head, t0, rows, s);
  }
}

// kr_j = k_j * alpha_{j+1} .. alpha_{rows-1}.
inline void decay_to_end(int64_t rows, const Scratch& s) {
  for (int64_t c = 0; c < s.Kp; c += kN) {
    VF suffix = hn::Set(kD, 1.0f);
    for (int64_t j = rows - 1; j >= 0; --j) {
      hn::Store(hn::Mul(hn::Load(kD, s.k + j * s.Kp + c), suffix), kD, s.kr + j * s.Kp + c);
      suffix = hn::Mul(suffix, hn::Load(kD, s.alpha + j * s.Kp + c));
    }
  }
}

// k_rows[i] = k_{begin+i} * alpha_begin .. alpha_{begin+i}, q_rows likewise; rows [end - begin, padded) become zero.
inline void decay_from(int64_t begin, int64_t end, int64_t padded, float* HWY_RESTRICT k_rows,
                       float* HWY_RESTRICT q_rows, const Scratch& s) {
  const int64_t rows = end - begin;
  for (int64_t c = 0; c < s.Kp; c += kN) {
    VF prefix = hn::Set(kD, 1.0f);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = (begin + i) * s.Kp + c;
      prefix = hn::Mul(prefix, hn::Load(kD, s.alpha + at));
      hn::Store(hn::Mul(hn::Load(kD, s.k + at), prefix), kD, k_rows + i * s.Kp + c);
      hn::Store(hn::Mul(hn::Load(kD, s.q + at), prefix), kD, q_rows + i * s.Kp + c);
    }
  }
  const size_t zeros = static_cast<size_t>((padded - rows) * s.Kp) * sizeof(float);
  std::memset(k_rows + rows * s.Kp, 0, zeros);
  std::memset(q_rows + rows * s.Kp, 0, zeros);
}

// Pairs i > j inside the block [begin, end), one by one: k_j travels forward through the decays and meets k_i and q_i.
inline void score_leaf(int64_t begin, int64_t end, const Scratch& s) {
  for (int64_t j = begin; j < end; ++j) {
    float* HWY_RESTRICT travelling = s.left;
    VF diagonal = hn::Zero(kD);
    for (int64_t c = 0; c < s.Kp; c += kN) {
      const VF k_j = hn::Load(kD, s.k + j * s.Kp + c);
      hn::Store(k_j, kD, travelling + c);
      diagonal = hn::MulAdd(hn::Load(kD, s.q + j * s.Kp + c), k_j, diagonal);
    }
    s.M[j * kChunk + j] = hn::GetLane(hn::SumOfLanes(kD, diagonal));
    for (int64_t i = j + 1; i < end; ++i) {
      VF kk = hn::Zero(kD), qk = hn::Zero(kD);
      for (int64_t c = 0; c < s.Kp; c += kN) {
        const VF moved = hn::Mul(hn::Load(kD, travelling + c), hn::Load(kD, s.alpha + i * s.Kp + c));
        hn::Store(moved, kD, travelling + c);
        kk = hn::MulAdd(hn::Load(kD, s.k + i * s.Kp + c), moved, kk);
        qk = hn::MulAdd(hn::Load(kD, s.q + i * s.Kp + c), moved, qk);
      }
      s.L[i * kChunk + j] = s.b[i] * hn::GetLane(hn::SumOfLanes(kD, kk));
      s.M[i * kChunk + j] = hn::GetLane(hn::SumOfLanes(kD, qk));
    }
  }
}

// Pairs i >= boundary > j with i - boundary, boundary - 1 - j < half: both sides are decayed to the boundary, so every
// factor is at most 1 and nothing overflows whatever the gate (eq. 25).
inline void score_across(int64_t boundary, int64_t half, int64_t end, const Scratch& s) {
  const int64_t rows = end - boundary, padded = round_up(rows, 4);
  float* HWY_RESTRICT k_rows = s.right;
  float* HWY_RESTRICT q_rows = s.right + kChunk * s.Kp;
  decay_from(boundary, end, padded, k_rows, q_rows, s);
  const int64_t first = boundary - half;
  for (int64_t c = 0; c < s.Kp; c += kN) {
    VF suffix = hn::Set(kD, 1.0f);
    for (int64_t j = half - 1; j >= 0; --j) {
      const int64_t at = (first + j) * s.Kp + c;
      hn::Store(hn::Mul(hn::Load(kD, s.k + at), suffix), kD, s.left + j * s.Kp + c);
      suffix = hn::Mul(suffix, hn::Load(kD, s.alpha + at));
    }
  }
  for (int64_t j = 0; j < half; j += 4) {
    for (int64_t i = 0; i < padded; i += kDotRows) {
      const int64_t at = (boundary + i) * kChunk + first + j;
      dot_block(k_rows + i * s.Kp, s.left + j * s.Kp, s.Kp, s.L + at, kChunk);
      dot_block(q_rows + i * s.Kp, s.left + j * s.Kp, s.Kp, s.M + at, kChunk);
    }
  }
  for (int64_t i = boundary; i < end; ++i) {
    for (int64_t j = first; j < boundary; ++j) s.L[i * kChunk + j] *= s.b[i];
  }
}

// L (eq. 14: strictly lower, row i times b_i) and Mqk (eq. 15: lower with diagonal) of rows [0, rows); all else zero.
inline void score_chunk(int64_t rows, const Scratch& s) {
  std::memset(s.L, 0, sizeof(float) * kChunk * kChunk);
  std::memset(s.M, 0, sizeof(float) * kChunk * kChunk);
  for (int64_t half = kChunk / 2; half >= kLeaf; half /= 2) {
    for (int64_t boundary = half; boundary < rows; boundary += 2 * half) {
      score_across(boundary, half, boundary + half < rows ? boundary + half : rows, s);
    }
  }
  for (int64_t begin = 0; begin < rows; begin += kLeaf) {
    score_leaf(begin, begin + kLeaf < rows ? begin + kLeaf : rows, s);
  }
}

}  // namespace flashkda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FLASHKDA_CPU_SCORES_INL_H_
