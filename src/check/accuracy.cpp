#include "check/accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace flashkda::checks {

ErrorMeasures measure(const HostTensor& x, const HostTensor& reference) {
  if (x.size() != reference.size()) throw std::logic_error("measure: tensors of different size");
  ErrorMeasures result;
  double squared_error = 0.0, squared_reference = 0.0;
  for (int64_t i = 0; i < x.size(); ++i) {
    const double expected = reference.get(i), difference = std::abs(x.get(i) - expected);
    squared_error += difference * difference;
    squared_reference += expected * expected;
    result.mae += difference;
    result.max = std::max(difference, result.max);
  }
  if (x.size() == 0) return result;
  if (std::isnan(result.mae)) result.max = result.mae;  // std::max passes over a NaN
  const auto count = static_cast<double>(x.size());
  result.mae /= count;
  result.reference_rms = std::sqrt(squared_reference / count);
  result.rms = std::sqrt(squared_error / (squared_reference > 0.0 ? squared_reference : count));
  return result;
}

ReferenceResult reference_result(const OwnedProblem& problem) {
  ReferenceResult result{HostTensor(FKDA_FLOAT64, problem.v.shape()), HostTensor(FKDA_FLOAT64, problem.state_shape())};
  fkda_problem p = problem.problem();
  p.backend = "reference";
  p.out = result.out.view();
  p.final_state = result.final_state.view();
  Runner(p).run();
  return result;
}

}  // namespace flashkda::checks
