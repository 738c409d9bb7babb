// Where a batch is cut along its tokens, as plain data: decided on the host from sizes alone, never from the lengths of
// a packed batch, which only the device knows. docs/kernels/split.md has the cost model.
#pragma once

#include <cstdint>
#include <string>

#include "core/problem.hpp"
#include "cuda/sm90/bounds.hpp"

namespace flashkda::cuda {

// Which instructions walk the chunks: mma.sync 16 tokens at a time, or wgmma 32 at a time.
enum class Engine { kMmaSync, kWgmma };

struct SplitPlan {
  int64_t segment_chunks = 0;  // chunks (of the engine) of a segment, at most; sequences of fewer are not split
  int64_t segments = 0;        // of all sequences, at most; 0: nothing is split
  int32_t row_segments = 1;    // of a dense batch's sequence, exactly
  double microseconds = 0.0;   // what the model expects, on an H200
};

int64_t chunk_tokens(Engine engine);

// Whether there are two multiprocessors for every run of a sequence or segment through its chunks. The kernels on wgmma
// give it both then, 64 value columns each, and the model counts on it.
inline bool two_each(int64_t runs, int processors) { return 2 * runs <= processors; }

// The fastest cut for `processors` multiprocessors, in two segments a sequence at least where they are long enough.
SplitPlan plan_split(const Problem& p, Engine engine, int processors);

// What the model expects of sequences in one piece and of the fused path, where a packed batch's longest sequence is
// taken to be one and a half times the mean.
double whole_microseconds(const Problem& p, Engine engine, int processors);
double fused_microseconds(const Problem& p, int processors);

// The fused path with makers and readers apart, two readers a head, each block on a multiprocessor of its own. Infinite
// where readers leave none for makers, and where images would take more than 4 GB.
double apart_microseconds(const Problem& p, int processors);
inline int makers(int64_t heads, int processors) {
  return static_cast<int>(processors - sm90::kReadersOfAHead * heads);
}

std::string describe(const SplitPlan& plan, Engine engine);  // one line

}  // namespace flashkda::cuda
