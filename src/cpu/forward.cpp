// Compiled once per instruction set by Highway's foreach_target; run_item picks the best at run time.
#include "cpu/forward.hpp"

#include <algorithm>
#include <new>

// Scalable vectors cannot be array elements, which the register tiles need: such machines run the NEON code. SSE4 and
// AVX3_DL add nothing here to SSSE3 and AVX3.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward.cpp"
// clang-format off
#include "hwy/foreach_target.h"  // before what it compiles again for every target
#include "cpu/chunk-inl.h"
#include "cpu/token-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

StateView state_at(const fkda_tensor& t, int64_t i0, int64_t i1, int64_t i2 = 0) {
  if (!present(t)) return {};
  return {address(t, i0, i1, i2), t.dtype};
}

// Which states along a sequence the caller wants to see: checkpoints and intermediate states.
class Observer {
 public:
  Observer(const Problem& p, int64_t n, int64_t length, int64_t first_intermediate)
      : p_(p), n_(n), length_(length), first_intermediate_(first_intermediate) {}

  // Calls store(view) for every place that wants head hv's state after `offset` tokens.
  template <typename Store>
  HWY_INLINE void emit(int64_t offset, int64_t hv, Store&& store) const {
    if (present(p_.checkpoints)) {
      for (int64_t i = 0; i < p_.P; ++i) {
        if (p_.checkpoint_offset(n_, i) == offset) store(state_at(p_.checkpoints, n_, i, hv));
      }
    }
    // Before every intermediate_every tokens, hence not after the last token.
    if (present(p_.intermediate_states) && offset % p_.intermediate_every == 0 && offset < length_) {
      const int64_t index = first_intermediate_ + offset / p_.intermediate_every;
      store(state_at(p_.intermediate_states, p_.packed() ? 0 : n_, index, hv));
    }
  }

  // The smallest wanted offset in (after, before), or `before`.
  int64_t next(int64_t after, int64_t before) const {
    int64_t best = before;
    if (present(p_.checkpoints)) {
      for (int64_t i = 0; i < p_.P; ++i) {
        const int64_t offset = p_.checkpoint_offset(n_, i);
        if (offset > after && offset < best) best = offset;
      }
    }
    if (present(p_.intermediate_states)) {
      best = std::min(best, (after / p_.intermediate_every + 1) * p_.intermediate_every);
    }
    return best;
  }

 private:
  const Problem& p_;
  int64_t n_, length_, first_intermediate_;
};

// One head of an item. Its state is in `panels` from begin() on, or, where the sequence has no chunk for the panels, in
// the caller's memory until finish().
class HeadRun {
 public:
  HeadRun(const Head& head, const Observer& observer, const Scratch& scratch, Columns columns, int64_t slot,
          float* panels, int64_t chunked)
      : head_(head), observer_(observer), s_(scratch), columns_(columns), panels_(panels), chunked_(chunked) {
    if (slot < 0) return;
    initial_ = state_at(head.p.initial_state, slot, head.hv);
    final_ = state_at(head.p.final_state, slot, head.hv);
  }

  void begin() const {
    if (chunked_ > 0) load_panels(head_.p, initial_, panels_, s_, columns_);
  }

  // Tokens [t0, t0 + rows).
  void chunk(int64_t t0, int64_t rows, const Prefetcher& upcoming) const {
    emit_panels(t0, panels_);
    // A state wanted inside the chunk is computed beside it, with the bits of a sequence that ends there.
    for (int64_t at = observer_.next(t0, t0 + rows); at < t0 + rows; at = observer_.next(at, t0 + rows)) {
      run_chunk(head_, t0, at - t0, s_, columns_, ChunkResult::kStateOnly, panels_, s_.side, Prefetcher());
      emit_panels(at, s_.side);
    }
    run_chunk(head_, t0, rows, s_, columns_, ChunkResult::kOutputAndState, panels_, panels_, upcoming);
  }

  Prefetcher prefetcher(int64_t t0, int64_t rows) const { return Prefetcher(head_, t0, rows, columns_); }

  // The tokens after the chunks, and the final state.
  void finish() const {
    const Problem& p = head_.p;
    const int64_t rest = head_.sequence.length - chunked_;
    if (chunked_ > 0) {
      emit_panels(chunked_, panels_);
    } else {
      observer_.emit(0, head_.hv, [&](StateView to) HWY_ATTR { copy_state(p, initial_, to, columns_); });
    }
    if (rest == 0) {
      if (chunked_ > 0) {
        store_panels(p, panels_, final_, s_, columns_);
      } else {
        copy_state(p, initial_, final_, columns_);
      }
      return;
    }
    // The token path works on fp32 in the caller's order: on the final state itself where that is such, else on the
    // stage.
    const bool direct = final_.data != nullptr && final_.dtype == FKDA_FLOAT32;
    const StateView target = direct ? final_ : StateView{s_.stage, FKDA_FLOAT32};
    StateView from = target;
    if (chunked_ > 0) {
      store_panels(p, panels_, target, s_, columns_);
    } else if (initial_.data != nullptr && initial_.dtype == FKDA_FLOAT32) {
      from = initial_;
    } else {
      copy_state(p, initial_, target, columns_);
    }
    run_tokens(head_, chunked_, rest, s_, columns_, static_cast<const float*>(from.data),
               static_cast<float*>(target.data));
    copy_state(p, target, final_, columns_);
  }

 private:
  void emit_panels(int64_t offset, const float* panels) const {
    observer_.emit(offset, head_.hv, [&](StateView to) HWY_ATTR { store_panels(head_.p, panels, to, s_, columns_); });
  }

  Head head_;
  const Observer& observer_;
  const Scratch& s_;
  Columns columns_;
  float* panels_;
  int64_t chunked_;  // tokens that go through the panels; the rest, at most kTokenRows, are stepped one by one
  StateView initial_, final_;
};

void run_item_simd(const Problem& p, const Item& item, const ScratchLayout& layout, float* memory) {
  const Scratch s(layout, memory);
  const Columns columns{item.column_begin, item.column_end};
  const int64_t length = p.sequence(item.n).length;
  const Observer observer(p, item.n, length, item.first_intermediate);
  const int64_t tail = length % kChunk;
  const int64_t chunked = tail <= kTokenRows ? length - tail : length;

  alignas(HeadRun) char storage[kHeadGroup * sizeof(HeadRun)];
  HeadRun* const runs = reinterpret_cast<HeadRun*>(storage);
  const int64_t heads = item.head_end - item.head_begin;
  for (int64_t i = 0; i < heads; ++i) {
    float* panels = s.state + i * layout.Kp * layout.Vp;
    new (&runs[i]) HeadRun(Head(p, item.n, item.head_begin + i), observer, s, columns, p.slot(item.n), panels, chunked);
    runs[i].begin();
  }
  for (int64_t t0 = 0; t0 < chunked; t0 += kChunk) {
    const int64_t rows = std::min(kChunk, chunked - t0);
    const int64_t next = t0 + rows, upcoming = std::min(kChunk, length - next);
    for (int64_t i = 0; i < heads; ++i) runs[i].chunk(t0, rows, runs[i].prefetcher(next, upcoming));
  }
  for (int64_t i = 0; i < heads; ++i) runs[i].finish();
  hwy::FlushStream();  // streamed states must be visible before the worker says it is done
}

const char* target_name_simd() { return hwy::TargetName(HWY_TARGET); }

}  // namespace flashkda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashkda::cpu {

HWY_EXPORT(run_item_simd);
HWY_EXPORT(target_name_simd);

void run_item(const Problem& p, const Item& item, const ScratchLayout& layout, float* scratch) {
  HWY_DYNAMIC_DISPATCH(run_item_simd)(p, item, layout, scratch);
}

const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_name_simd)(); }

}  // namespace flashkda::cpu
#endif
