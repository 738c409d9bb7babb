#include "cuda/split_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/sm90/bounds.hpp"
#include "cuda/tile/image.cuh"

namespace flashkda::cuda {

int64_t chunk_tokens(Engine engine) { return engine == Engine::kWgmma ? 2 * kChunk : kChunk; }

namespace {

constexpr int64_t kShortestSegment = 64;  // tokens

// Microseconds, measured on an H200 with K = V = 128. A start is what a kernel takes however short the work is; the
// others are of a token, of one block an SM if nothing else is said.
struct Costs {
  double prepare_start, prepare, prepare_tame;  // of a head, all SMs busy; sm90/bounds.hpp
  double affine_start, affine;
  int affine_blocks;          // of a segment and head
  double recur_start, recur;  // a run on two SMs: the walk itself
  double recur_full;          // of one run of an SM that is full
  int recur_places;           // runs that fill an SM
  double recur_next;          // what a further wave adds to its own start (negative: is spared)
  double recur_bytes;         // moved, of a token and head
};
constexpr Costs kMmaSyncCosts = {.prepare_start = 4.0,
                                 .prepare = 0.65e-3,
                                 .prepare_tame = 0.65e-3,
                                 .affine_start = 16.0,
                                 .affine = 1.43 / 16,
                                 .affine_blocks = 1,
                                 .recur_start = 9.0,
                                 .recur = 0.77 / 16,
                                 .recur_full = 1.04 / 16,
                                 .recur_places = 2,
                                 .recur_next = 7.0,
                                 .recur_bytes = 0.0};  // never what binds
constexpr Costs kWgmmaCosts = {.prepare_start = 5.0,
                               .prepare = 0.72e-3,
                               .prepare_tame = 0.53e-3,
                               .affine_start = 8.0,
                               .affine = 0.91 / 32,
                               .affine_blocks = 2,
                               .recur_start = 9.0,
                               .recur = 0.76 / 32,
                               .recur_full = 1.32 / 32,
                               .recur_places = 1,
                               .recur_next = -2.5,
                               .recur_bytes = 1760.0};
constexpr double kChainStart = 2.0, kChainStep = 1.2;
constexpr double kFusedStart = 9.0, kFused = 1.31 / 32, kFusedFull = 2.25 / 32;  // a head on two SMs, on one
// A head's readers; a maker; the most bytes that images may take.
constexpr double kApartStart = 14.0, kReader = 0.98 / 32, kMaker = 1.8 / 32, kApartLimit = 4e9;
constexpr double kStateBytes = 4.0e6, kRecurBytes = 3.6e6;  // moved in a microsecond

const Costs& costs(Engine engine) { return engine == Engine::kWgmma ? kWgmmaCosts : kMmaSyncCosts; }

int64_t ceil_divide(int64_t x, int64_t y) { return (x + y - 1) / y; }

int64_t tokens(const Problem& p) { return p.B * p.T; }

// Tokens and those that fill last chunks up; of a packed batch half a chunk a sequence.
int64_t padded_tokens(const Problem& p, int64_t chunk) {
  return p.packed() ? p.T + p.N * chunk / 2 : p.B * ceil_divide(p.T, chunk) * chunk;
}

// Tokens of the longest sequence, guessed where only the device knows.
int64_t longest(const Problem& p) { return p.packed() && p.N > 1 ? std::min(p.T, ceil_divide(3 * p.T, 2 * p.N)) : p.T; }

double prepare_time(const Problem& p, Engine engine) {
  const Costs& c = costs(engine);
  return c.prepare_start + (sm90::is_tame(p) ? c.prepare_tame : c.prepare) *
                               static_cast<double>(padded_tokens(p, chunk_tokens(engine)) * p.HV);
}

// The recurrence over `runs` runs of `length` tokens each.
double recur_time(int64_t runs, int64_t length, const Costs& c, int processors) {
  const auto n = static_cast<double>(length);
  const double memory = c.recur_bytes * static_cast<double>(runs) * n / kRecurBytes;
  if (two_each(runs, processors)) return std::max(c.recur_start + c.recur * n, memory);
  const auto waves = static_cast<double>(ceil_divide(runs, int64_t{c.recur_places} * processors));
  return std::max(waves * (c.recur_start + c.recur_full * c.recur_places * n) + (waves - 1.0) * c.recur_next, memory);
}

double split_time(const Problem& p, int64_t segments, int64_t length, Engine engine, int processors) {
  const Costs& c = costs(engine);
  const int64_t blocks = c.affine_blocks * std::max<int64_t>(segments - p.N, 1) * p.HV;
  const double affine =
      static_cast<double>(ceil_divide(blocks, processors)) * (c.affine_start + c.affine * static_cast<double>(length));
  const auto steps = static_cast<double>(std::max<int64_t>(ceil_divide(longest(p), length) - 2, 0));
  const double chain = kChainStart + static_cast<double>(ceil_divide(p.N * p.HV * 8, processors)) * kChainStep * steps;
  return prepare_time(p, engine) + affine + chain + recur_time(segments * p.HV, length, c, processors);
}

}  // namespace

SplitPlan plan_split(const Problem& p, Engine engine, int processors) {
  const int64_t chunk = chunk_tokens(engine), heads = p.N * p.HV, row_chunks = ceil_divide(p.T, chunk);
  SplitPlan best;
  if (heads == 0 || tokens(p) == 0) return best;
  for (const int parts : {1, 2, 4, 8, 16, 32}) {  // segments and heads for an eighth of the SMs, for a quarter, ...
    for (const int more : {0, 1}) {
      SplitPlan plan;
      const int64_t a_sequence = std::max<int64_t>(parts * processors / (8 * heads) + more, 2);
      plan.segment_chunks =
          std::max(ceil_divide(p.packed() ? row_chunks : row_chunks * p.B, a_sequence * p.N), kShortestSegment / chunk);
      if (p.packed()) {
        plan.segments = row_chunks / plan.segment_chunks + p.N;
      } else {
        plan.row_segments = static_cast<int32_t>(ceil_divide(row_chunks, plan.segment_chunks));
        plan.segments = p.B * plan.row_segments;
      }
      plan.microseconds = split_time(p, plan.segments, plan.segment_chunks * chunk, engine, processors);
      if (best.segments == 0 || plan.microseconds < best.microseconds) best = plan;
    }
  }
  return best;
}

double whole_microseconds(const Problem& p, Engine engine, int processors) {
  const Costs& c = costs(engine);
  const double all = recur_time(p.N * p.HV, ceil_divide(padded_tokens(p, chunk_tokens(engine)), p.N), c, processors);
  return prepare_time(p, engine) + std::max(all, recur_time(p.HV, longest(p), c, processors));
}

double fused_microseconds(const Problem& p, int processors) {
  const int64_t heads = p.N * p.HV;
  const double token = two_each(heads, processors) ? kFused : kFusedFull;
  const double waves = std::max(1.0, static_cast<double>(heads) / processors);
  const double states = static_cast<double>(heads * p.K * p.V * 8) / kStateBytes;
  const double mean = static_cast<double>(padded_tokens(p, 2 * kChunk)) / static_cast<double>(p.N);
  return std::max(
      {waves * (kFusedStart + token * mean), kFusedStart + token * static_cast<double>(longest(p)), states});
}

double apart_microseconds(const Problem& p, int processors) {
  const int64_t heads = p.N * p.HV;
  const auto all = static_cast<double>(padded_tokens(p, 2 * kChunk) * p.HV);
  if (heads == 0 || makers(heads, processors) < 1 || all / (2 * kChunk) * sm90::kApartImageBytes > kApartLimit) {
    return std::numeric_limits<double>::infinity();
  }
  return kApartStart + std::max(kReader * static_cast<double>(longest(p)), kMaker * all / makers(heads, processors));
}

std::string describe(const SplitPlan& plan, Engine engine) {
  if (plan.segments == 0) return "not split";
  return std::to_string(plan.segments) + " segments of at most " +
         std::to_string(plan.segment_chunks * chunk_tokens(engine)) + " tokens, " +
         std::to_string(std::lround(plan.microseconds)) + " us expected";
}

}  // namespace flashkda::cuda
