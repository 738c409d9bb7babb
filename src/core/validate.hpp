// The contract of the operation, checked before anything runs.
#pragma once

#include "core/problem.hpp"

namespace flashkda {

// What the caller will do with the problem: inspection needs no outputs.
enum class Purpose { kForward, kInspect };

// Throws Error naming the argument, what it got and what is needed. On return every contract of flashkda.h holds that
// can be checked without reading device memory; for host tensors the values of cu_seqlens, state_indices and
// checkpoint_offsets have been checked too.
Problem validate(const fkda_problem& raw, Purpose purpose = Purpose::kForward);

// The values of cu_seqlens, state_indices, checkpoint_offsets and the length of intermediate_states, which must be
// readable by the host. Part of validate for host tensors; a device backend may call it with copies.
void check_values(const Problem& p);

}  // namespace flashkda
