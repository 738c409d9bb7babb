// How far a result is from the fp64 token recurrence.
#pragma once

#include "check/problem.hpp"

namespace flashkda::checks {

struct ErrorMeasures {
  double rms = 0.0;            // rms(x - reference) / rms(reference); rms(x) if the reference is all zero
  double max = 0.0;            // largest |x - reference|
  double mae = 0.0;            // mean |x - reference|
  double reference_rms = 0.0;  // rms(reference), the unit to read max and mae by
};

// Tensors of the same number of elements. A NaN anywhere makes every measure NaN, which misses any bar.
ErrorMeasures measure(const HostTensor& x, const HostTensor& reference);

// Largest rms error allowed, for an output in bf16 and for a final state in fp32.
constexpr double kOutputBar = 2e-3;
constexpr double kStateBar = 2e-5;

struct ReferenceResult {
  HostTensor out;          // float64, shape of v
  HostTensor final_state;  // float64, state_shape()
};

// The problem's result in fp64, by the implementation named "reference". Its outputs are left alone.
ReferenceResult reference_result(const OwnedProblem& problem);

}  // namespace flashkda::checks
