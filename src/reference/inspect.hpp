// Every symbol of the chunked form for one chunk (docs/algorithm.md, eq. 10-20), in fp64.
#pragma once

#include "core/problem.hpp"

namespace flashkda {

// Host tensors only. Fills the buffers of `chunk` that are not null; its first members say which chunk (see
// fkda_chunk). The state before the chunk comes from the token recurrence of the oracle. Throws Error naming the
// argument before anything is written.
void inspect_chunk(const Problem& p, fkda_chunk& chunk);

}  // namespace flashkda
