// One work item of the CPU forward, behind Highway's run-time dispatch.
#pragma once

#include <cstdint>

#include "cpu/config.hpp"

namespace flashkda::cpu {

// Value columns [column_begin, column_end) of value heads [head_begin, head_end) of sequence n.
struct Item {
  int64_t n;
  int64_t head_begin, head_end;  // at most kHeadGroup heads
  int64_t column_begin, column_end;
  int64_t first_intermediate;  // index of the sequence's first state in intermediate_states
};

// Runs the item on this thread. scratch: layout.total bytes, 64-byte aligned.
void run_item(const Problem& p, const Item& item, const ScratchLayout& layout, float* scratch);

// Name of the instruction set that run_item uses.
const char* target_name();

}  // namespace flashkda::cpu
