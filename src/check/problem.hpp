// A problem that owns its tensors, and its run through the C interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "check/host_tensor.hpp"
#include "flashkda/flashkda.h"

namespace flashkda::checks {

// A call of the library failed; the message is fkda_last_error().
class ApiError : public std::runtime_error {
 public:
  ApiError(fkda_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  fkda_status status() const { return status_; }

 private:
  fkda_status status_;
};

void require_ok(fkda_status status);  // throws ApiError

// Shapes and meaning as in fkda_problem.
struct OwnedProblem {
  OwnedProblem() { fkda_problem_init(&options); }

  HostTensor q, k, v, g, beta, A_log, dt_bias, cu_seqlens, initial_state, state_indices;
  HostTensor out, final_state;
  fkda_problem options;  // every member that is not a view

  int64_t tokens() const { return q.shape()[0] * q.shape()[1]; }  // B*T
  int64_t sequences() const { return cu_seqlens.present() ? cu_seqlens.size() - 1 : q.shape()[0]; }
  int64_t value_heads() const { return v.shape()[2]; }
  // Shape of final_state: [N,HV,V,K] or [N,HV,K,V]; that of the pool if there are state_indices.
  std::vector<int64_t> state_shape() const;

  // Replaces the outputs by zeroed ones. A state dtype of 0: no final state.
  void allocate_outputs(int32_t out_dtype, int32_t state_dtype);

  // Views of the tensors that are present, and the options. Valid while this object lives.
  fkda_problem problem() const;
};

// One problem, validated, with the workspace it asks for.
class Runner {
 public:
  explicit Runner(const fkda_problem& problem);
  double run();  // milliseconds of one fkda_forward
  const char* backend() const { return backend_; }
  size_t workspace_bytes() const { return workspace_.size(); }

 private:
  fkda_problem problem_;
  const char* backend_ = "";
  AlignedBuffer workspace_;
};

}  // namespace flashkda::checks
