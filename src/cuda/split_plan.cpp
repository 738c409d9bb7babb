#include "cuda/split_plan.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "cuda/tile/image.cuh"

namespace flashkda::cuda {
namespace {

constexpr int64_t kShortestSegment = 4;  // chunks

// Measured on an H200, K = V = 128, microseconds. A start is what a kernel takes however short the work is.
constexpr double kPrepareToken = 0.667e-3;  // a token and head, all SMs busy
constexpr double kPrepareStart = 4.0;
constexpr double kAffineChunk = 1.43, kAffineStart = 16.0;      // one block an SM
constexpr double kChainStep = 1.9, kChainStart = 3.0;           // one block an SM
constexpr double kNarrowChunk = 0.77, kNarrowPairChunk = 1.24;  // 64 columns a block, one and two blocks an SM
constexpr double kWideChunk = 1.19, kWidePairChunk = 2.08;      // 128 columns a block
constexpr double kRecurStart = 9.0;
constexpr double kFusedChunk = 0.92, kFusedSharedChunk = 1.2;  // 16 tokens; a head on two SMs, on one
constexpr double kFusedStart = 10.0;
constexpr double kStateBytes = 4.0e6;  // moved in a microsecond

int64_t ceil_divide(int64_t x, int64_t y) { return (x + y - 1) / y; }

int64_t chunk_count(const Problem& p) { return p.packed() ? ceil_divide(p.T, kChunk) : p.B * ceil_divide(p.T, kChunk); }

// Chunks of the longest sequence, guessed where only the device knows.
int64_t longest(const Problem& p) {
  const int64_t all = chunk_count(p);
  if (p.N == 1) return all;
  return p.packed() ? std::min(all, ceil_divide(2 * all, p.N)) : ceil_divide(p.T, kChunk);
}

double prepare_time(const Problem& p) {
  return kPrepareStart + kPrepareToken * static_cast<double>(chunk_count(p) * kChunk * p.HV);
}

// The recurrence over `runs` runs of `chunks` chunks each.
double recur_time(int64_t runs, int64_t chunks, int processors) {
  const auto c = static_cast<double>(chunks);
  if (2 * runs <= processors) return kRecurStart + kNarrowChunk * c;
  if (runs <= processors) return kRecurStart + std::min(kNarrowPairChunk, kWideChunk) * c;
  return static_cast<double>(ceil_divide(runs, 2 * processors)) * (kRecurStart + kWidePairChunk * c);
}

double split_time(const Problem& p, int64_t segments, int64_t chunks, int processors) {
  const int64_t inner = std::max<int64_t>(segments - p.N, 1) * p.HV;  // blocks of the segment kernel
  const double affine =
      static_cast<double>(ceil_divide(inner, processors)) * (kAffineStart + kAffineChunk * static_cast<double>(chunks));
  const double steps = static_cast<double>(std::max<int64_t>(ceil_divide(longest(p), chunks) - 2, 0));
  const double chain = kChainStart + static_cast<double>(ceil_divide(p.N * p.HV * 8, processors)) * kChainStep * steps;
  return prepare_time(p) + affine + chain + recur_time(segments * p.HV, chunks, processors);
}

}  // namespace

SplitPlan plan_split(const Problem& p, int processors) {
  const int64_t chunks = chunk_count(p), heads = p.N * p.HV;
  SplitPlan best;
  if (heads == 0 || chunks == 0) return best;
  for (const int waves : {1, 2, 4}) {
    for (const int more : {0, 1}) {
      SplitPlan plan;
      const int64_t a_sequence = std::max<int64_t>(waves * processors / heads + more, 2);
      plan.segment_chunks = std::max(ceil_divide(chunks, a_sequence * p.N), kShortestSegment);
      if (p.packed()) {
        plan.segments = chunks / plan.segment_chunks + p.N;
      } else {
        plan.row_segments =
            static_cast<int32_t>(std::max<int64_t>(ceil_divide(ceil_divide(p.T, kChunk), plan.segment_chunks), 1));
        plan.segments = p.B * plan.row_segments;
      }
      plan.microseconds = split_time(p, plan.segments, plan.segment_chunks, processors);
      if (best.segments == 0 || plan.microseconds < best.microseconds) best = plan;
    }
  }
  return best;
}

double portable_microseconds(const Problem& p, int processors) {
  const double all = recur_time(p.N * p.HV, ceil_divide(chunk_count(p), p.N), processors);
  return prepare_time(p) + std::max(all, recur_time(p.HV, longest(p), processors));
}

double fused_microseconds(const Problem& p, int processors) {
  const int64_t heads = p.N * p.HV;
  const bool one_slice = 2 * heads <= processors;
  const double chunk = one_slice ? kFusedChunk : kFusedSharedChunk;
  const double waves = std::max(1.0, static_cast<double>(heads) / processors);
  const double states = static_cast<double>(heads * p.K * p.V * 8) / kStateBytes;
  const double mean = static_cast<double>(chunk_count(p)) / static_cast<double>(p.N);
  return std::max(
      {waves * (kFusedStart + chunk * mean), kFusedStart + chunk * static_cast<double>(longest(p)), states});
}

std::string describe(const SplitPlan& plan) {
  if (plan.segments == 0) return "not split";
  return std::to_string(plan.segments) + " segments of at most " + std::to_string(plan.segment_chunks) + " chunks of " +
         std::to_string(kChunk) + " tokens, " + std::to_string(std::lround(plan.microseconds)) + " us expected";
}

}  // namespace flashkda::cuda
