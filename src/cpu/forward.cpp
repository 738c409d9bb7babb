// Compiled once per instruction set by Highway's foreach_target; run_item picks the best at run time.
#include "cpu/forward.hpp"

// Scalable vectors cannot be array elements, which the register tiles need: such machines run the NEON code. SSE4 and
// AVX3_DL add nothing here to SSSE3 and AVX3.
#define HWY_DISABLED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward.cpp"
#include "hwy/foreach_target.h"

#include "cpu/chunk-inl.h"
#include "cpu/token-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {

StateView state_at(const fkda_tensor& t, int64_t i0, int64_t i1, int64_t i2 = 0) {
  if (!present(t)) return {};
  return {address(t, i0, i1, i2), t.dtype};
}

// Stores the state at the offsets of the sequence that the caller wants to see: checkpoints and intermediate states.
class Observer {
 public:
  Observer(const Problem& p, const Item& item) : p_(p), item_(item) {}

  // Calls store(view) for every place that wants the state after `offset` tokens.
  template <typename Store>
  void emit(int64_t offset, Store&& store) const {
    if (present(p_.checkpoints)) {
      for (int64_t i = 0; i < p_.P; ++i) {
        if (p_.checkpoint_offset(item_.n, i) == offset) store(state_at(p_.checkpoints, item_.n, i, item_.hv));
      }
    }
    // Before every intermediate_every tokens: not at the end of the sequence, unless it is empty of further tokens.
    if (present(p_.intermediate_states) && offset % p_.intermediate_every == 0 && offset < length()) {
      const int64_t batch = p_.packed() ? 0 : item_.n;
      const int64_t index = item_.first_intermediate + offset / p_.intermediate_every;
      store(state_at(p_.intermediate_states, batch, index, item_.hv));
    }
  }

  // The smallest wanted offset in (after, before), or `before`.
  int64_t next(int64_t after, int64_t before) const {
    int64_t best = before;
    if (present(p_.checkpoints)) {
      for (int64_t i = 0; i < p_.P; ++i) {
        const int64_t offset = p_.checkpoint_offset(item_.n, i);
        if (offset > after && offset < best) best = offset;
      }
    }
    if (present(p_.intermediate_states)) {
      const int64_t offset = (after / p_.intermediate_every + 1) * p_.intermediate_every;
      if (offset < best) best = offset;
    }
    return best;
  }

 private:
  int64_t length() const { return p_.sequence(item_.n).length; }

  const Problem& p_;
  const Item& item_;
};

void run_item_simd(const Problem& p, const Item& item, float* memory) {
  const Head head(p, item.n, item.hv);
  const Scratch s(ScratchLayout(p), memory);
  const Columns columns{item.column_begin, item.column_end};
  const Observer observer(p, item);
  const int64_t length = head.sequence.length;
  const int64_t slot = p.slot(item.n);
  const StateView initial = slot < 0 ? StateView{} : state_at(p.initial_state, slot, item.hv);
  const StateView final = slot < 0 ? StateView{} : state_at(p.final_state, slot, item.hv);
  const StateView stage{s.stage, FKDA_FLOAT32};

  const auto store_copy_of = [&](StateView from) HWY_ATTR {
    return [&p, from, columns](StateView to) HWY_ATTR { copy_state(p, from, to, columns); };
  };
  const auto store_panels_of = [&](const float* panels) HWY_ATTR {
    return [&p, &s, panels, columns](StateView to) HWY_ATTR { store_panels(p, panels, to, s, columns); };
  };

  const int64_t tail = length % kChunk;
  const int64_t token_rows = tail <= kTokenRows ? tail : 0;  // tokens at the end that take the token path
  const int64_t chunked = length - token_rows;

  StateView current = initial;  // where the state is, while it is not in the panels
  if (chunked > 0) {
    load_panels(p, initial, s, columns);
    for (int64_t t0 = 0; t0 < chunked; t0 += kChunk) {
      const int64_t rows = chunked - t0 < kChunk ? chunked - t0 : kChunk;
      observer.emit(t0, store_panels_of(s.state));
      // A state wanted inside the chunk is computed beside it, with the bits of a sequence that ends there.
      for (int64_t at = observer.next(t0, t0 + rows); at < t0 + rows; at = observer.next(at, t0 + rows)) {
        run_chunk(head, t0, at - t0, s, columns, ChunkResult::kStateOnly, s.side);
        observer.emit(at, store_panels_of(s.side));
      }
      run_chunk(head, t0, rows, s, columns, ChunkResult::kOutputAndState, s.state);
    }
    observer.emit(chunked, store_panels_of(s.state));
    if (token_rows == 0) {
      store_panels(p, s.state, final, s, columns);
      return;
    }
    current = final.data != nullptr && final.dtype == FKDA_FLOAT32 ? final : stage;
    store_panels(p, s.state, current, s, columns);
  } else {
    observer.emit(0, store_copy_of(initial));
  }
  if (token_rows == 0) {  // an empty sequence
    copy_state(p, initial, final, columns);
    return;
  }
  const StateView target = final.data != nullptr && final.dtype == FKDA_FLOAT32 ? final : stage;
  if (current.data == nullptr || current.dtype != FKDA_FLOAT32) {
    copy_state(p, current, target, columns);
    current = target;
  }
  run_tokens(head, chunked, token_rows, s, columns, static_cast<const float*>(current.data),
             static_cast<float*>(target.data));
  copy_state(p, target, final, columns);
}

const char* target_name_simd() { return hwy::TargetName(HWY_TARGET); }

}  // namespace flashkda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashkda::cpu {

HWY_EXPORT(run_item_simd);
HWY_EXPORT(target_name_simd);

void run_item(const Problem& p, const Item& item, float* scratch) {
  HWY_DYNAMIC_DISPATCH(run_item_simd)(p, item, scratch);
}

const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_name_simd)(); }

}  // namespace flashkda::cpu
#endif
