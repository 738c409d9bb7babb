// Problems with random inputs, and their run on a backend with every guard checked.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "flashkda/flashkda.h"
#include "support/tensor.hpp"

namespace flashkda::test {

constexpr int32_t kAbsent = 0;  // as a dtype: the tensor is absent

// The length of a test's long sequence: T, but an eighth under sanitizers, which are slow and find nothing more in it.
constexpr int64_t long_sequence(int64_t T) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return T / 8;
#else
  return T;
#endif
}

// Numbers that are the same on every machine and with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  double normal();                              // nearly: the sum of four uniform numbers, of mean 0 and variance 1
  int64_t integer(int64_t low, int64_t high) {  // inclusive
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 engine_;
};

// What to make inputs for. Every member has a default, so that a test names only what it is about.
struct Spec {
  int64_t B = 1, T = 64, H = 1;
  int64_t HV = 0;  // 0: H
  int64_t K = 128, V = 128;
  std::vector<int64_t> cu = {};   // not empty: a packed batch, T = its last entry
  int32_t dtype = FKDA_BFLOAT16;  // q, k, v
  int32_t g_dtype = kAbsent;      // kAbsent: dtype
  int32_t beta_dtype = kAbsent;   // kAbsent: dtype
  int32_t cu_dtype = FKDA_INT64;
  int32_t gate = FKDA_GATE_BOUNDED;
  int32_t beta = FKDA_BETA_SIGMOID;
  int32_t qk_l2norm = 1;              // 0: the rows of q and k are made with unit norm
  bool A_log = true, dt_bias = true;  // ignored with the log gate, which takes neither
  int32_t initial_state = kAbsent;    // dtype
  int32_t state_layout = FKDA_STATE_V_FIRST;
  int64_t slots = 0;                  // not 0: initial_state is a pool; needs indices
  std::vector<int64_t> indices = {};  // state_indices
  int32_t index_dtype = FKDA_INT32;
  std::vector<std::vector<int64_t>> checkpoint_offsets = {};  // [N][P]
  int32_t checkpoint_offset_dtype = FKDA_INT64;
  uint64_t seed = 1;
  Fence fence = Fence::kNaN;
};

// Which outputs to ask for.
struct Want {
  int32_t out = FKDA_BFLOAT16;
  int32_t final_state = FKDA_FLOAT32;
  int32_t checkpoints = kAbsent;  // dtype, used if the case has checkpoint_offsets
  int32_t intermediate_states = kAbsent;
  int64_t intermediate_every = 64;
  bool in_place = false;  // final_state is a copy of initial_state and the problem's view of both
  Fence fence = Fence::kNaN;
};

struct Outputs {
  Tensor out, final_state, checkpoints, intermediate_states;
  bool in_place = false;
  int64_t intermediate_every = 64;
};

// Inputs and options of a problem.
struct Case {
  explicit Case(const Spec& spec);

  int64_t B, T, N, H, HV, K, V, P;
  std::vector<int64_t> cu;  // [N+1], of a dense batch too: multiples of T
  Tensor q, k, v, g, beta, A_log, dt_bias, cu_seqlens, initial_state, state_indices, checkpoint_offsets;
  fkda_problem options;  // every member that is not a view

  bool packed() const { return cu_seqlens.present(); }
  int64_t length(int64_t n) const { return cu[static_cast<size_t>(n) + 1] - cu[static_cast<size_t>(n)]; }
  // The rows of sequence n of a [B,T,..] tensor, as [1,length,..] that shares memory.
  Tensor rows(const Tensor& tensor, int64_t n) const;
  // [n0, HV, V, K] or [n0, HV, K, V].
  std::vector<int64_t> state_shape(int64_t n0) const;

  // Sequence n, tokens begin to end of it, as a dense problem of its own with that initial state ([1,HV,V,K] or
  // absent). Its inputs are copies.
  Case part(int64_t n, int64_t begin, int64_t end, const Tensor& state) const;
  Case sequence(int64_t n) const;  // all of it, with its own initial state

  Outputs make_outputs(const Want& want) const;  // all poisoned
  fkda_problem problem(const Outputs& outputs) const;
};

// How a problem is run.
struct RunOptions {
  std::string backend = "cpu";
  int32_t num_threads = 0;
};

// fkda_forward with exactly the workspace it asks for, which is guarded and full of NaN. Returns the status.
fkda_status forward(const fkda_problem& problem);

// The same, and expects: success; inputs, gaps and guard zones unchanged.
void forward(const Case& c, Outputs& outputs, const RunOptions& how);

// Makes the outputs and runs.
Outputs run(const Case& c, const Want& want, const RunOptions& how);

// The fp64 result: float64 outputs of the backend "reference". Of `want` only which outputs are present matters.
Outputs reference(const Case& c, const Want& want = {});

// Relative errors of a run against fp64.
struct Errors {
  double out = 0.0, final_state = 0.0;
};
Errors errors(const Outputs& actual, const Outputs& expected);

}  // namespace flashkda::test
