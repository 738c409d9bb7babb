#include "cpu/backend.hpp"

#include <algorithm>
#include <atomic>

#include "cpu/config.hpp"
#include "cpu/forward.hpp"
#include "cpu/thread_pool.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace flashkda::cpu {
namespace {

// Decays run products through fp32's subnormals, where x86 and some Arm cores are a hundred times slower. Results
// below 1e-38 become zero for the duration of the call.
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }  // FTZ and DAZ
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
  FlushSubnormals() : saved_(__builtin_aarch64_get_fpcr64()) { __builtin_aarch64_set_fpcr64(saved_ | (1ull << 24)); }
  ~FlushSubnormals() { __builtin_aarch64_set_fpcr64(saved_); }

 private:
  unsigned long long saved_;
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif
 public:
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

// How the work is cut: sequences x groups of value heads, and value columns too where heads are fewer than threads.
// Nothing here changes a bit of the result.
struct Plan {
  int64_t group;    // heads an item
  int64_t groups;   // groups a sequence
  int64_t pieces;   // column ranges a group is cut into
  int64_t columns;  // columns a piece, a multiple of kPanel
  int64_t items;
  int workers;
};

Plan make_plan(const Problem& p) {
  const int64_t threads = p.num_threads > 0 ? p.num_threads : hardware_threads();
  const int64_t heads = p.N * p.HV;
  const int64_t panels = round_up(p.V, kPanel) / kPanel;
  Plan plan{};
  plan.group = std::clamp<int64_t>(heads / threads, 1, std::min(kHeadGroup, p.HV));
  plan.groups = (p.HV + plan.group - 1) / plan.group;
  plan.pieces = heads == 0 ? 1 : std::clamp<int64_t>((threads + heads - 1) / heads, 1, panels);
  plan.columns = (panels + plan.pieces - 1) / plan.pieces * kPanel;
  plan.pieces = (p.V + plan.columns - 1) / plan.columns;
  plan.items = p.N * plan.groups * plan.pieces;
  plan.workers = static_cast<int>(std::min(threads, plan.items));
  return plan;
}

// Index of each sequence's first entry in intermediate_states, at the start of the workspace (packed batches only).
int64_t index_table_bytes(const Problem& p) {
  const bool needed = present(p.intermediate_states) && p.packed();
  return needed ? round_up(p.N * static_cast<int64_t>(sizeof(int64_t)), FKDA_WORKSPACE_ALIGNMENT) : 0;
}

}  // namespace

size_t workspace_size(const Problem& p) {
  const Plan plan = make_plan(p);
  return static_cast<size_t>(index_table_bytes(p) + plan.workers * ScratchLayout(p, plan.group).total);
}

void forward(const Problem& p, void* workspace, void* /*stream*/) {
  const Plan plan = make_plan(p);
  if (plan.items == 0) return;
  auto* const first_intermediate = static_cast<int64_t*>(workspace);
  const bool indexed = index_table_bytes(p) > 0;
  if (indexed) {
    int64_t next = 0;
    for (int64_t n = 0; n < p.N; ++n) {
      first_intermediate[n] = next;
      next += (p.sequence(n).length + p.intermediate_every - 1) / p.intermediate_every;
    }
  }
  char* const scratch = static_cast<char*>(workspace) + index_table_bytes(p);
  const ScratchLayout layout(p, plan.group);

  std::atomic<int64_t> next_item{0}, done_items{0};
  run_on_workers(plan.workers, [&](int worker) {
    auto* const memory = reinterpret_cast<float*>(scratch + worker * layout.total);
    for (int64_t i = next_item++; i < plan.items; i = next_item++) {
      const int64_t piece = i % plan.pieces, group = i / plan.pieces;
      Item item{};
      item.n = group / plan.groups;
      item.head_begin = group % plan.groups * plan.group;
      item.head_end = std::min(p.HV, item.head_begin + plan.group);
      item.column_begin = piece * plan.columns;
      item.column_end = std::min(p.V, item.column_begin + plan.columns);
      item.first_intermediate = indexed ? first_intermediate[item.n] : 0;
      {
        const FlushSubnormals flush;  // not while the caller's progress runs
        run_item(p, item, layout, memory);
      }
      const int64_t done = ++done_items;
      if (worker == 0 && p.progress != nullptr && done < plan.items) p.progress(p.progress_user, done, plan.items);
    }
  });
  if (p.progress != nullptr) p.progress(p.progress_user, plan.items, plan.items);
}

}  // namespace flashkda::cpu
