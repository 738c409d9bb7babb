// Bad input: every rejection names the argument, says what it got and what it needs, and comes before anything is
// written.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.hpp"
#include "flashkda/flashkda.h"
#include "support/case.hpp"
#include "support/environment.hpp"
#include "support/tensor.hpp"

namespace flashkda::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kUnknown = 99;

// A valid problem that uses every view but state_indices: two packed sequences of 8 and 32 tokens, B 1, T 40, N 2, H 2,
// HV 4, K 64, V 32, P 2. No two of these sizes can be mistaken for each other.
struct ValidProblem {
  ValidProblem()
      : c({.H = 2,
           .HV = 4,
           .K = 64,
           .V = 32,
           .cu = {0, 8, 40},
           .initial_state = FKDA_FLOAT32,
           .checkpoint_offsets = {{0, -1}, {16, 32}}}),
        outputs(c.make_outputs({.final_state = FKDA_BFLOAT16,
                                .checkpoints = FKDA_FLOAT32,
                                .intermediate_states = FKDA_FLOAT16,
                                .intermediate_every = 16})),
        problem(c.problem(outputs)) {}

  // Turns the states into pools of 5 slots, with those indices.
  void use_pool(const std::vector<int64_t>& indices) {
    c.initial_state = Tensor(FKDA_FLOAT32, c.state_shape(5));
    outputs.final_state = Tensor(FKDA_BFLOAT16, c.state_shape(5));
    c.state_indices = Tensor::integers(FKDA_INT64, indices);
    problem = c.problem(outputs);
  }
  void set_cu(const std::vector<int64_t>& cu) {
    c.cu_seqlens = Tensor::integers(FKDA_INT64, cu);
    problem.cu_seqlens = c.cu_seqlens.view();
  }
  void use_dense_batch() {
    c = Case({.B = 2, .T = 40, .H = 2, .HV = 4, .K = 64, .V = 32, .initial_state = FKDA_FLOAT32});
    outputs = c.make_outputs({});
    problem = c.problem(outputs);
  }

  std::vector<std::pair<const Buffer*, std::vector<std::byte>>> memory() const {
    std::vector<std::pair<const Buffer*, std::vector<std::byte>>> result;
    for (const Tensor* t : {&c.q, &c.k, &c.v, &c.g, &c.beta, &c.A_log, &c.dt_bias, &c.cu_seqlens, &c.initial_state,
                            &c.state_indices, &c.checkpoint_offsets, &outputs.out, &outputs.final_state,
                            &outputs.checkpoints, &outputs.intermediate_states}) {
      if (!t->present()) continue;
      const Buffer& buffer = *t->buffer();
      result.emplace_back(&buffer, std::vector<std::byte>(buffer.data(), buffer.data() + buffer.size()));
    }
    return result;
  }

  Case c;
  Outputs outputs;
  fkda_problem problem;
};

// One way to break the contract. The message must begin with the argument and hold both texts.
struct Rejection {
  std::string name;
  std::string argument, got, needs;
  std::function<void(ValidProblem&)> break_it;
  fkda_status status = FKDA_INVALID_ARGUMENT;
};

std::ostream& operator<<(std::ostream& out, const Rejection& r) { return out << r.name; }

using View = fkda_tensor fkda_problem::*;

struct NamedView {
  const char* name;
  View view;
  const char* shape;               // what its documentation says, "" if any shape will do
  std::vector<int32_t> not_dtype;  // element types that it refuses
};

const std::vector<NamedView>& views() {
  static const std::vector<int32_t> ints = {FKDA_INT32, FKDA_INT64, kUnknown};
  static const std::vector<int32_t> not_like_q = {FKDA_FLOAT16, FKDA_FLOAT32, FKDA_FLOAT64, FKDA_INT32, kUnknown};
  static const std::vector<int32_t> not_float = {FKDA_FLOAT64, FKDA_INT32, kUnknown};
  static const std::vector<int32_t> not_fp32 = {FKDA_BFLOAT16, FKDA_FLOAT16, FKDA_FLOAT64, FKDA_INT32, kUnknown};
  static const std::vector<int32_t> not_integer = {FKDA_FLOAT32, FKDA_BFLOAT16, FKDA_FLOAT64, 0, kUnknown};
  static const std::vector<int32_t> not_state = {FKDA_FLOAT16, FKDA_INT32, kUnknown};
  static const std::vector<NamedView> all = {
      {"q", &fkda_problem::q, "[B,T,H,K]", {FKDA_FLOAT64, FKDA_INT32, 0, kUnknown}},
      {"k", &fkda_problem::k, "[B,T,H,K]", not_like_q},
      {"v", &fkda_problem::v, "[B,T,HV,V]", not_like_q},
      {"g", &fkda_problem::g, "[B,T,HV,K]", not_float},
      {"beta", &fkda_problem::beta, "[B,T,HV]", not_float},
      {"A_log", &fkda_problem::A_log, "", not_fp32},
      {"dt_bias", &fkda_problem::dt_bias, "", not_fp32},
      {"cu_seqlens", &fkda_problem::cu_seqlens, "[N+1]", not_integer},
      {"initial_state", &fkda_problem::initial_state, "[N,HV,V,K]", not_state},
      {"checkpoint_offsets", &fkda_problem::checkpoint_offsets, "[N,P]", not_integer},
      {"out", &fkda_problem::out, "[B,T,HV,V]", ints},
      {"final_state", &fkda_problem::final_state, "[N,HV,V,K]", not_state},
      {"checkpoints", &fkda_problem::checkpoints, "[N,P,HV,V,K]", not_state},
      {"intermediate_states", &fkda_problem::intermediate_states, "[B,NT,HV,V,K]", ints},
  };
  return all;
}

bool ends_with_state(const NamedView& v) { return std::string(v.shape).ends_with(",V,K]"); }

// What holds for every view alike.
std::vector<Rejection> rejections_of_every_view() {
  std::vector<Rejection> all;
  for (const NamedView& n : views()) {
    const View view = n.view;
    const std::string name = n.name;
    const auto add = [&](const std::string& what, const std::string& got, const std::string& needs,
                         std::function<void(fkda_tensor&)> edit) {
      all.push_back({name + "_" + what, name, got, needs, [view, edit](ValidProblem& s) { edit(s.problem.*view); }});
    };

    add("SixDimensions", "6", "5", [](fkda_tensor& t) { t.ndim = 6; });
    add("NegativeRank", "-1", "", [](fkda_tensor& t) { t.ndim = -1; });
    add("NegativeSize", "-3", ">= 0", [](fkda_tensor& t) { t.shape[0] = -3; });
    add("NegativeStride", "-7", ">= 0", [](fkda_tensor& t) { t.stride[0] = -7; });
    add("HugeShape", std::to_string(int64_t{1} << 62), "overflow", [](fkda_tensor& t) {
      t.shape[0] = int64_t{1} << 62;
      t.stride[0] = int64_t{1} << 62;
    });
    add("HugeStride", "", "overflow", [](fkda_tensor& t) {  // the last element's offset is the largest integer
      t.shape[0] = 2;
      t.stride[0] = std::numeric_limits<int64_t>::max();
      for (int d = 1; d < t.ndim; ++d) t.stride[d] = 0;
    });
    if (*n.shape != '\0') {
      // A view of one dimension gets a second one, the others lose their last.
      add("WrongRank", "shape [", n.shape, [](fkda_tensor& t) {
        if (t.ndim == 1) {
          t.shape[1] = t.stride[1] = 1;
          t.ndim = 2;
        } else {
          --t.ndim;
        }
      });
    }
    for (const int32_t dtype : n.not_dtype) {
      add("Dtype" + std::to_string(dtype), dtype_name(dtype), name == "k" || name == "v" ? "bfloat16" : "needs",
          [dtype](fkda_tensor& t) { t.dtype = dtype; });
    }
    add("UnknownDevice", "device type 7", "", [](fkda_tensor& t) { t.device_type = 7; });
    add("NegativeDeviceType", "device type -1", "", [](fkda_tensor& t) { t.device_type = -1; });
    if (name == "q") {  // every tensor is compared with q, so the next one is named
      all.push_back({"q_OtherDevice", "k", "cpu", "cuda:1", [](ValidProblem& s) {
                       s.problem.q.device_type = FKDA_CUDA;
                       s.problem.q.device_index = 1;
                     }});
    } else {
      add("OtherDevice", "cuda:1", "cpu", [](fkda_tensor& t) {
        t.device_type = FKDA_CUDA;
        t.device_index = 1;
      });
      // The same among tensors of one GPU and another. No data may be touched, there is none.
      all.push_back({name + "_OtherGpu", name, "cuda:1", "cuda:0", [view](ValidProblem& s) {
                       for (const NamedView& each : views()) (s.problem.*each.view).device_type = FKDA_CUDA;
                       (s.problem.*view).device_index = 1;
                     }});
    }
    add("LastDimensionNotDense", "stride 2", "dense", [](fkda_tensor& t) { t.stride[t.ndim - 1] = 2; });
    add("LastDimensionBroadcast", "stride 0", "dense", [](fkda_tensor& t) { t.stride[t.ndim - 1] = 0; });
    if (ends_with_state(n) || name == "dt_bias") {
      add("MatrixNotDense", "stride 65", "64", [](fkda_tensor& t) { t.stride[t.ndim - 2] = 65; });
    }
    add("Misaligned", "1 byte", "alignment", [](fkda_tensor& t) { t.data = static_cast<std::byte*>(t.data) + 1; });
    add("Null", "null", n.shape[0] ? "[" : "", [](fkda_tensor& t) { t.data = nullptr; });
  }
  return all;
}

// Sizes. q defines B, T, H and K, v defines HV and V, cu_seqlens defines N: a wrong size there is found at the first
// tensor that disagrees.
std::vector<Rejection> rejections_of_sizes() {
  std::vector<Rejection> all;
  const auto add = [&](const char* name, View view, int dim, int64_t size, const char* argument, const char* got,
                       const char* needs) {
    all.push_back({std::string(name) + "_Dim" + std::to_string(dim) + "Size" + std::to_string(size), argument, got,
                   needs, [=](ValidProblem& s) { (s.problem.*view).shape[dim] = size; }});
  };
  add("q", &fkda_problem::q, 0, 2, "k", "[1,40,2,64]", "[2,40,2,64]");
  add("q", &fkda_problem::q, 1, 39, "k", "[1,40,2,64]", "[1,39,2,64]");
  add("q", &fkda_problem::q, 2, 4, "k", "[1,40,2,64]", "[1,40,4,64]");
  add("q", &fkda_problem::q, 3, 32, "k", "[1,40,2,64]", "[1,40,2,32]");
  add("k", &fkda_problem::k, 0, 2, "k", "[2,40,2,64]", "[1,40,2,64]");
  add("k", &fkda_problem::k, 1, 41, "k", "[1,41,2,64]", "[1,40,2,64]");
  add("k", &fkda_problem::k, 2, 1, "k", "[1,40,1,64]", "[1,40,2,64]");
  add("k", &fkda_problem::k, 3, 128, "k", "[1,40,2,128]", "[1,40,2,64]");
  add("v", &fkda_problem::v, 0, 3, "v", "[3,40,4,32]", "[1,40,4,32]");
  add("v", &fkda_problem::v, 1, 39, "v", "[1,39,4,32]", "[1,40,4,32]");
  add("v", &fkda_problem::v, 2, 8, "g", "[1,40,4,64]", "[1,40,8,64]");
  add("v", &fkda_problem::v, 3, 16, "initial_state", "[2,4,32,64]", "[2,4,16,64]");
  add("g", &fkda_problem::g, 0, 2, "g", "[2,40,4,64]", "[1,40,4,64]");
  add("g", &fkda_problem::g, 1, 8, "g", "[1,8,4,64]", "[1,40,4,64]");
  add("g", &fkda_problem::g, 2, 2, "g", "[1,40,2,64]", "[1,40,4,64]");
  add("g", &fkda_problem::g, 3, 1, "g", "[1,40,4,1]", "[1,40,4,64]");
  add("beta", &fkda_problem::beta, 0, 2, "beta", "[2,40,4]", "[1,40,4]");
  add("beta", &fkda_problem::beta, 1, 41, "beta", "[1,41,4]", "[1,40,4]");
  add("beta", &fkda_problem::beta, 2, 2, "beta", "[1,40,2]", "[1,40,4]");
  add("A_log", &fkda_problem::A_log, 0, 2, "A_log", "[2]", "4");
  add("A_log", &fkda_problem::A_log, 0, 5, "A_log", "[5]", "4");
  add("dt_bias", &fkda_problem::dt_bias, 0, 2, "dt_bias", "[2,64]", "[4,64]");
  add("dt_bias", &fkda_problem::dt_bias, 1, 1, "dt_bias", "[4,1]", "[4,64]");
  add("cu_seqlens", &fkda_problem::cu_seqlens, 0, 0, "cu_seqlens", "[0]", "[N+1]");
  add("cu_seqlens", &fkda_problem::cu_seqlens, 0, 2, "initial_state", "[2,4,32,64]", "[1,4,32,64]");
  add("cu_seqlens", &fkda_problem::cu_seqlens, 0, 4, "initial_state", "[2,4,32,64]", "[3,4,32,64]");
  add("initial_state", &fkda_problem::initial_state, 0, 3, "initial_state", "[3,4,32,64]", "[2,4,32,64]");
  add("initial_state", &fkda_problem::initial_state, 1, 2, "initial_state", "[2,2,32,64]", "[2,4,32,64]");
  add("initial_state", &fkda_problem::initial_state, 2, 64, "initial_state", "[2,4,64,64]", "[2,4,32,64]");
  add("initial_state", &fkda_problem::initial_state, 3, 32, "initial_state", "[2,4,32,32]", "[2,4,32,64]");
  add("checkpoint_offsets", &fkda_problem::checkpoint_offsets, 0, 1, "checkpoint_offsets", "[1,2]", "[2,2]");
  add("checkpoint_offsets", &fkda_problem::checkpoint_offsets, 1, 3, "checkpoint_offsets", "[2,3]", "[2,2]");
  add("out", &fkda_problem::out, 0, 2, "out", "[2,40,4,32]", "[1,40,4,32]");
  add("out", &fkda_problem::out, 1, 39, "out", "[1,39,4,32]", "[1,40,4,32]");
  add("out", &fkda_problem::out, 2, 2, "out", "[1,40,2,32]", "[1,40,4,32]");
  add("out", &fkda_problem::out, 3, 64, "out", "[1,40,4,64]", "[1,40,4,32]");
  add("final_state", &fkda_problem::final_state, 0, 1, "final_state", "[1,4,32,64]", "[2,4,32,64]");
  add("final_state", &fkda_problem::final_state, 1, 5, "final_state", "[2,5,32,64]", "[2,4,32,64]");
  add("final_state", &fkda_problem::final_state, 2, 16, "final_state", "[2,4,16,64]", "[2,4,32,64]");
  add("final_state", &fkda_problem::final_state, 3, 16, "final_state", "[2,4,32,16]", "[2,4,32,64]");
  add("checkpoints", &fkda_problem::checkpoints, 0, 1, "checkpoints", "[1,2,4,32,64]", "[2,2,4,32,64]");
  add("checkpoints", &fkda_problem::checkpoints, 1, 1, "checkpoint_offsets", "[2,2]", "[2,1]");
  add("checkpoints", &fkda_problem::checkpoints, 2, 2, "checkpoints", "[2,2,2,32,64]", "[2,2,4,32,64]");
  add("checkpoints", &fkda_problem::checkpoints, 3, 31, "checkpoints", "[2,2,4,31,64]", "[2,2,4,32,64]");
  add("checkpoints", &fkda_problem::checkpoints, 4, 63, "checkpoints", "[2,2,4,32,63]", "[2,2,4,32,64]");
  add("intermediate_states", &fkda_problem::intermediate_states, 0, 2, "intermediate_states", "[2,3,4,32,64]",
      "[1,3,4,32,64]");
  add("intermediate_states", &fkda_problem::intermediate_states, 1, 2, "intermediate_states", "[1,2,4,32,64]",
      "[1,3,4,32,64]");
  add("intermediate_states", &fkda_problem::intermediate_states, 1, 4, "intermediate_states", "[1,4,4,32,64]",
      "[1,3,4,32,64]");
  add("intermediate_states", &fkda_problem::intermediate_states, 2, 1, "intermediate_states", "[1,3,1,32,64]",
      "[1,3,4,32,64]");
  add("intermediate_states", &fkda_problem::intermediate_states, 3, 8, "intermediate_states", "[1,3,4,8,64]",
      "[1,3,4,32,64]");
  add("intermediate_states", &fkda_problem::intermediate_states, 4, 8, "intermediate_states", "[1,3,4,32,8]",
      "[1,3,4,32,64]");
  return all;
}

std::vector<Rejection> other_rejections() {
  const auto widths = [](int64_t K, int64_t V) {
    return [=](ValidProblem& s) {
      s.c = Case({.T = 20, .K = K, .V = V});
      s.outputs = s.c.make_outputs({});
      s.problem = s.c.problem(s.outputs);
    };
  };
  const auto option = [](std::string name, const char* argument, const char* got, const char* needs,
                         std::function<void(fkda_problem&)> edit) {
    return Rejection{std::move(name), argument, got, needs, [edit](ValidProblem& s) { edit(s.problem); }};
  };
  return {
      // Options.
      option("Gate_Negative", "gate", "-1", "0..2", [](fkda_problem& p) { p.gate = -1; }),
      option("Gate_PastTheLast", "gate", "3", "0..2", [](fkda_problem& p) { p.gate = 3; }),
      option("BetaActivation_Negative", "beta_activation", "-1", "0..2",
             [](fkda_problem& p) { p.beta_activation = -1; }),
      option("BetaActivation_PastTheLast", "beta_activation", "3", "0..2",
             [](fkda_problem& p) { p.beta_activation = 3; }),
      option("StateLayout_PastTheLast", "state_layout", "2", "0..1", [](fkda_problem& p) { p.state_layout = 2; }),
      option("StateLayout_Negative", "state_layout", "-1", "0..1", [](fkda_problem& p) { p.state_layout = -1; }),
      option("QkL2norm_Two", "qk_l2norm", "2", "0..1", [](fkda_problem& p) { p.qk_l2norm = 2; }),
      option("BatchInvariant_Negative", "batch_invariant", "-1", "0..1",
             [](fkda_problem& p) { p.batch_invariant = -1; }),
      option("SequenceSplit_Negative", "sequence_split", "-1", "0..2", [](fkda_problem& p) { p.sequence_split = -1; }),
      option("SequenceSplit_PastTheLast", "sequence_split", "3", "0..2", [](fkda_problem& p) { p.sequence_split = 3; }),
      option("NumThreads_Negative", "num_threads", "-1", ">= 0", [](fkda_problem& p) { p.num_threads = -1; }),
      option("LowerBound_Zero", "lower_bound", "0", "[-5, 0)", [](fkda_problem& p) { p.lower_bound = 0.0f; }),
      option("LowerBound_MinusZero", "lower_bound", "0", "[-5, 0)", [](fkda_problem& p) { p.lower_bound = -0.0f; }),
      option("LowerBound_Positive", "lower_bound", "1", "[-5, 0)", [](fkda_problem& p) { p.lower_bound = 1.0f; }),
      option("LowerBound_JustBelow", "lower_bound", "-5.00", "[-5, 0)",
             [](fkda_problem& p) { p.lower_bound = std::nextafter(-5.0f, -6.0f); }),
      option("LowerBound_NaN", "lower_bound", "nan", "[-5, 0)", [](fkda_problem& p) { p.lower_bound = kNaN; }),
      option("LowerBound_MinusInfinity", "lower_bound", "-inf", "[-5, 0)",
             [](fkda_problem& p) { p.lower_bound = -kInfinity; }),
      option("Scale_Infinity", "scale", "inf", "finite", [](fkda_problem& p) { p.scale = kInfinity; }),
      option("Scale_MinusInfinity", "scale", "-inf", "finite", [](fkda_problem& p) { p.scale = -kInfinity; }),
      option("IntermediateEvery_Zero", "intermediate_every", "0", "multiple of 16",
             [](fkda_problem& p) { p.intermediate_every = 0; }),
      option("IntermediateEvery_Negative", "intermediate_every", "-16", "multiple of 16",
             [](fkda_problem& p) { p.intermediate_every = -16; }),
      option("IntermediateEvery_Unaligned", "intermediate_every", "24", "multiple of 16",
             [](fkda_problem& p) { p.intermediate_every = 24; }),
      option("StructSize_Zero", "problem", "0", "fkda_problem_init", [](fkda_problem& p) { p.struct_size = 0; }),
      option("StructSize_TooSmall", "problem", "12", "fkda_problem_init", [](fkda_problem& p) { p.struct_size = 12; }),
      option("StructSize_TooLarge", "problem", "65536", "fkda_problem_init",
             [](fkda_problem& p) { p.struct_size = 65536; }),
      option("Backend_Unknown", "backend", "\"abacus\"", "cpu", [](fkda_problem& p) { p.backend = "abacus"; }),
      option("Backend_Empty", "backend", "\"\"", "cpu", [](fkda_problem& p) { p.backend = ""; }),
      option("Backend_OtherCase", "backend", "\"CPU\"", "cpu", [](fkda_problem& p) { p.backend = "CPU"; }),

      // Tensors that are missing, or given where they mean nothing.
      option("q_Absent", "q", "absent", "", [](fkda_problem& p) { p.q = {}; }),
      option("k_Absent", "k", "absent", "", [](fkda_problem& p) { p.k = {}; }),
      option("v_Absent", "v", "absent", "", [](fkda_problem& p) { p.v = {}; }),
      option("g_Absent", "g", "absent", "", [](fkda_problem& p) { p.g = {}; }),
      option("beta_Absent", "beta", "absent", "", [](fkda_problem& p) { p.beta = {}; }),
      option("out_Absent", "out", "absent", "", [](fkda_problem& p) { p.out = {}; }),
      option("checkpoint_offsets_Absent", "checkpoint_offsets", "absent", "[N,P]",
             [](fkda_problem& p) { p.checkpoint_offsets = {}; }),
      option("checkpoints_Absent", "checkpoints", "absent", "[N,P,HV,V,K]",
             [](fkda_problem& p) { p.checkpoints = {}; }),
      option("LogGate_WithALog", "A_log", "given", "absent",
             [](fkda_problem& p) {
               p.gate = FKDA_GATE_LOG;
               p.dt_bias = {};
             }),
      option("LogGate_WithDtBias", "dt_bias", "given", "absent",
             [](fkda_problem& p) {
               p.gate = FKDA_GATE_LOG;
               p.A_log = {};
             }),

      // Row 44 of docs/cases.md.
      option("Row44_Heads_NoMultiple", "v", "4", "multiple of H = 3",
             [](fkda_problem& p) { p.q.shape[2] = p.k.shape[2] = 3; }),
      option("Row44_Heads_FewerValueHeads", "v", "4", "multiple of H = 8",
             [](fkda_problem& p) { p.q.shape[2] = p.k.shape[2] = 8; }),
      option("Row44_Heads_None", "q", "[1,40,0,64]", "at least one head",
             [](fkda_problem& p) { p.q.shape[2] = p.k.shape[2] = 0; }),
      option("Row44_Heads_NoValueHeads", "v", "0", "multiple of H = 2",
             [](fkda_problem& p) { p.v.shape[2] = p.g.shape[2] = p.beta.shape[2] = 0; }),
      option("Channels_None", "q", "[1,40,2,0]", "at least one",
             [](fkda_problem& p) { p.q.shape[3] = p.k.shape[3] = p.g.shape[3] = 0; }),
      option("ValueChannels_None", "v", "[1,40,4,0]", "at least one", [](fkda_problem& p) { p.v.shape[3] = 0; }),

      // Row 21 of docs/cases.md.
      option("Row21_dt_bias_OnePerHead", "dt_bias", "[4]", "256",
             [](fkda_problem& p) {
               p.dt_bias.ndim = 1;
               p.dt_bias.shape[0] = 4;
               p.dt_bias.stride[0] = 1;
             }),
      option("Row21_dt_bias_FlatTooLong", "dt_bias", "[257]", "256",
             [](fkda_problem& p) {
               p.dt_bias.ndim = 1;
               p.dt_bias.shape[0] = 257;
               p.dt_bias.stride[0] = 1;
             }),

      // Row 19 of docs/cases.md.
      {"Row19_cu_seqlens_BatchOfTwo", "q", "B = 2", "B = 1",
       [](ValidProblem& s) {
         s.use_dense_batch();
         s.set_cu({0, 40, 80});
       }},
      {"Row19_cu_seqlens_DoesNotStartAtZero", "cu_seqlens", "1", "0",
       [](ValidProblem& s) {
         s.set_cu({1, 8, 40});
       }},
      {"Row19_cu_seqlens_StartsBelowZero", "cu_seqlens", "-8", "0",
       [](ValidProblem& s) {
         s.set_cu({-8, 8, 40});
       }},
      {"Row19_cu_seqlens_Descending", "cu_seqlens", "falls from 48 to 40", "ascending",
       [](ValidProblem& s) {
         s.set_cu({0, 48, 40});
       }},
      {"Row19_cu_seqlens_NegativeInside", "cu_seqlens", "falls from 0 to -1", "ascending",
       [](ValidProblem& s) {
         s.set_cu({0, -1, 40});
       }},
      {"Row19_cu_seqlens_EndsBeforeT", "cu_seqlens", "39", "T = 40",
       [](ValidProblem& s) {
         s.set_cu({0, 8, 39});
       }},
      {"Row19_cu_seqlens_EndsPastT", "cu_seqlens", "41", "T = 40",
       [](ValidProblem& s) {
         s.set_cu({0, 8, 41});
       }},
      {"Row19_cu_seqlens_HugeEnd", "cu_seqlens", "9223372036854775807", "T = 40",
       [](ValidProblem& s) {
         s.set_cu({0, 8, std::numeric_limits<int64_t>::max()});
       }},
      {"Row19_cu_seqlens_OneElementWithTokens", "cu_seqlens", "0", "T = 40",
       [](ValidProblem& s) {
         s.set_cu({0});
         s.problem.initial_state = s.problem.final_state = {};
         s.problem.checkpoints = s.problem.checkpoint_offsets = s.problem.intermediate_states = {};
       }},
      {"Row19_cu_seqlens_Int32EndsPastT", "cu_seqlens", "41", "T = 40",
       [](ValidProblem& s) {
         s.c.cu_seqlens = Tensor::integers(FKDA_INT32, {0, 8, 41});
         s.problem.cu_seqlens = s.c.cu_seqlens.view();
       }},

      // Row 6 of docs/cases.md.
      {"Row06_state_indices_PastThePool", "state_indices", "5", "5 slots",
       [](ValidProblem& s) {
         s.use_pool({0, 5});
       }},
      {"Row06_state_indices_Huge", "state_indices", "4611686018427387904", "5 slots",
       [](ValidProblem& s) {
         s.use_pool({int64_t{1} << 62, 1});
       }},
      {"Row06_state_indices_Twice", "state_indices", "3", "different",
       [](ValidProblem& s) {
         s.use_pool({3, 3});
       }},
      {"Row06_state_indices_PastTheSmallerPool", "state_indices", "4", "3 slots",
       [](ValidProblem& s) {
         s.use_pool({0, 4});
         s.problem.final_state.shape[0] = 3;
       }},
      {"Row06_state_indices_TooFew", "state_indices", "[1]", "[2]", [](ValidProblem& s) { s.use_pool({1}); }},
      {"Row06_state_indices_TooMany", "state_indices", "[3]", "[2]",
       [](ValidProblem& s) {
         s.use_pool({1, 2, 3});
       }},
      {"Row06_state_indices_WrongRank", "state_indices", "[2,1]", "[N]",
       [](ValidProblem& s) {
         s.use_pool({1, 2});
         s.problem.state_indices.ndim = 2;
         s.problem.state_indices.shape[1] = s.problem.state_indices.stride[1] = 1;
       }},
      {"Row06_state_indices_Float", "state_indices", "float32", "int32 or int64",
       [](ValidProblem& s) {
         s.use_pool({1, 2});
         s.problem.state_indices.dtype = FKDA_FLOAT32;
       }},
      {"Row06_state_indices_Strided", "state_indices", "stride 2", "dense",
       [](ValidProblem& s) {
         s.use_pool({1, 2});
         s.problem.state_indices.stride[0] = 2;
       }},
      {"Row06_state_indices_OtherDevice", "state_indices", "cuda:0", "cpu",
       [](ValidProblem& s) {
         s.use_pool({1, 2});
         s.problem.state_indices.device_type = FKDA_CUDA;
       }},
      {"Row06_state_indices_Null", "state_indices", "null", "[2]",
       [](ValidProblem& s) {
         s.use_pool({1, 2});
         s.problem.state_indices.data = nullptr;
       }},
      {"Row06_Pool_WrongRank", "initial_state", "[5,4,32]", "[slots,HV,V,K]",
       [](ValidProblem& s) {
         s.use_pool({1, 2});
         s.problem.initial_state.ndim = 3;
       }},
      {"Row06_Pool_WrongHeads", "final_state", "[5,3,32,64]", "[5,4,32,64]",
       [](ValidProblem& s) {
         s.use_pool({1, 2});
         s.problem.final_state.shape[1] = 3;
       }},
      {"Row06_Pool_WithoutIndices", "initial_state", "[5,4,32,64]", "[2,4,32,64]",
       [](ValidProblem& s) {
         s.use_pool({1, 2});
         s.problem.state_indices = {};
       }},
      {"StateLayout_StatesOfTheOther", "initial_state", "[2,4,32,64]", "[N,HV,K,V] = [2,4,64,32]",
       [](ValidProblem& s) { s.problem.state_layout = FKDA_STATE_K_FIRST; }},

      // Row 61 of docs/cases.md.
      {"Row61_checkpoint_offsets_Unaligned", "checkpoint_offsets", "17", "multiple of 16",
       [](ValidProblem& s) { static_cast<int64_t*>(s.c.checkpoint_offsets.data())[2] = 17; }},
      {"Row61_checkpoint_offsets_BeyondTheSequence", "checkpoint_offsets", "16 at [0,1]", "0..8",
       [](ValidProblem& s) { static_cast<int64_t*>(s.c.checkpoint_offsets.data())[1] = 16; }},
      {"Row61_checkpoint_offsets_BeyondByOneChunk", "checkpoint_offsets", "48 at [1,1]", "0..32",
       [](ValidProblem& s) { static_cast<int64_t*>(s.c.checkpoint_offsets.data())[3] = 48; }},

      // Aliasing.
      {"Alias_OutIsV", "out", "overlaps v", "memory of its own",
       [](ValidProblem& s) { s.problem.out.data = s.problem.v.data; }},
      {"Alias_OutIsQ", "out", "overlaps q", "memory of its own",
       [](ValidProblem& s) { s.problem.out.data = s.problem.q.data; }},
      {"Alias_OutInsideG", "out", "overlaps g", "memory of its own",
       [](ValidProblem& s) { s.problem.out.data = static_cast<std::byte*>(s.problem.g.data) + 4096; }},
      {"Alias_OutEndsInBeta", "out", "overlaps beta", "memory of its own",
       [](ValidProblem& s) {
         s.problem.beta.data = static_cast<std::byte*>(s.problem.out.data) + 1 * 40 * 4 * 32 * 2 - 2;
       }},
      {"Alias_OutAndFinalState", "out", "overlaps final_state", "memory of its own",
       [](ValidProblem& s) { s.problem.final_state.data = s.problem.out.data; }},
      {"Alias_OutAndInitialState", "out", "overlaps initial_state", "memory of its own",
       [](ValidProblem& s) { s.problem.out.data = s.problem.initial_state.data; }},
      {"Alias_FinalStateOfOtherDtype", "final_state", "overlaps initial_state", "very same view",
       [](ValidProblem& s) { s.problem.final_state.data = s.problem.initial_state.data; }},
      {"Alias_FinalStateShifted", "final_state", "overlaps initial_state", "very same view",
       [](ValidProblem& s) {
         s.problem.final_state = s.problem.initial_state;
         s.problem.final_state.data = static_cast<float*>(s.problem.initial_state.data) + 64;
       }},
      {"Alias_FinalStateOfOtherStride", "final_state", "overlaps initial_state", "very same view",
       [](ValidProblem& s) {
         s.c.initial_state = Tensor(FKDA_FLOAT32, {4, 4, 32, 64});
         s.problem.initial_state.data = s.c.initial_state.data();
         s.problem.final_state = s.problem.initial_state;
         s.problem.final_state.stride[0] *= 2;
       }},
      {"Alias_PoolOfAnotherOffset", "final_state", "overlaps initial_state", "very same view",
       [](ValidProblem& s) {
         s.use_pool({0, 1});
         s.problem.final_state = s.problem.initial_state;
         s.problem.initial_state.shape[0] = s.problem.final_state.shape[0] = 4;
         s.problem.final_state.data = static_cast<float*>(s.problem.initial_state.data) + 4 * 32 * 64;
       }},
      {"Alias_CheckpointsAndInitialState", "checkpoints", "overlaps initial_state", "memory of its own",
       [](ValidProblem& s) { s.problem.initial_state.data = s.problem.checkpoints.data; }},
      {"Alias_CheckpointsAndFinalState", "final_state", "overlaps checkpoints", "memory of its own",
       [](ValidProblem& s) { s.problem.final_state.data = s.problem.checkpoints.data; }},
      {"Alias_IntermediateStatesAndOut", "out", "overlaps intermediate_states", "memory of its own",
       [](ValidProblem& s) { s.problem.intermediate_states.data = s.problem.out.data; }},
      {"Alias_OutAndCuSeqlens", "out", "overlaps cu_seqlens", "memory of its own",
       [](ValidProblem& s) { s.problem.out.data = s.problem.cu_seqlens.data; }},
      {"Alias_OutOntoItself", "out", "stride 0", "must not overlap",
       [](ValidProblem& s) { s.problem.out.stride[1] = 0; }},
      {"Alias_OutHeadsOverlap", "out", "stride 31", "must not overlap",
       [](ValidProblem& s) { s.problem.out.stride[2] = 31; }},
      {"Alias_FinalStateSequencesOverlap", "final_state", "stride 4096", "must not overlap",
       [](ValidProblem& s) { s.problem.final_state.stride[0] = 4096; }},
      // One buffer [T, B + 1, V], tokens outermost: out is the sequences 0 and 1 of it, v the sequences 1 and 2.
      {"Alias_NeighbourOfATokenMajorBuffer", "out", "overlaps v", "memory of its own",
       [](ValidProblem& s) {
         s.c = Case({.B = 2, .T = 40, .K = 64, .V = 32});
         s.outputs = s.c.make_outputs({.final_state = kAbsent});
         s.problem = s.c.problem(s.outputs);
         s.outputs.out = Tensor(FKDA_BFLOAT16, {40, 3, 32});
         s.problem.out.data = s.outputs.out.data();
         s.problem.out.stride[0] = 32;
         s.problem.out.stride[1] = 3 * 32;
         s.problem.v = s.problem.out;
         s.problem.v.data = static_cast<uint16_t*>(s.problem.out.data) + 32;
       }},

      // No implementation.
      {"AllOnAGpuThatNobodyServes", "no implementation", "cuda", "cpu computes on cpu tensors",
       [](ValidProblem& s) {
         for (const NamedView& n : views()) (s.problem.*n.view).device_type = FKDA_CUDA;
       },
       FKDA_UNSUPPORTED},
      {"Cpu_DoublePrecisionOut", "backend", "fp64-out", "misses",
       [](ValidProblem& s) {
         s.outputs.out = Tensor(FKDA_FLOAT64, {1, 40, 4, 32});
         s.problem.out = s.outputs.out.view();
         s.problem.backend = "cpu";
       },
       FKDA_UNSUPPORTED},
      {"Row42_UnsupportedK", "no implementation", "K = 100", "K,V=8n<=512", widths(100, 32), FKDA_UNSUPPORTED},
      {"Row42_UnsupportedKThatTheReferenceRuns", "no implementation", "K = 100", "reference runs it where FLASH_KDA",
       widths(100, 32), FKDA_UNSUPPORTED},
      {"Row42_UnsupportedV", "no implementation", "V = 520", "K,V=8n<=512", widths(32, 520), FKDA_UNSUPPORTED},
  };
}

std::vector<Rejection> all_rejections() {
  std::vector<Rejection> all = rejections_of_every_view();
  for (const auto& more : {rejections_of_sizes(), other_rejections()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

class Refused : public testing::TestWithParam<Rejection> {};

TEST_P(Refused, NamesTheArgumentAndWritesNothing) {
  const Environment automatic("FLASH_KDA_BACKEND", nullptr);
  const Rejection& rejection = GetParam();
  ValidProblem s;
  rejection.break_it(s);
  const auto before = s.memory();
  Buffer workspace(1 << 20);

  const char* name = "unset";
  size_t bytes = 12345;
  const std::function<fkda_status()> calls[] = {
      [&] { return fkda_validate(&s.problem, &name); },
      [&] { return fkda_workspace_size(&s.problem, &bytes); },
      [&] { return fkda_forward(&s.problem, workspace.data(), workspace.size(), nullptr); },
  };
  for (const auto& call : calls) {
    EXPECT_EQ(call(), rejection.status);
    const std::string message = fkda_last_error();
    EXPECT_TRUE(message.starts_with(rejection.argument)) << message;
    EXPECT_NE(message.find(rejection.got, rejection.argument.size()), std::string::npos) << message;
    EXPECT_NE(message.find(rejection.needs, rejection.argument.size()), std::string::npos) << message;
  }
  EXPECT_STREQ(name, "unset");
  EXPECT_EQ(bytes, 12345u);
  for (const auto& [buffer, old] : before) {
    EXPECT_TRUE(std::equal(old.begin(), old.end(), buffer->data())) << "a tensor was written";
    EXPECT_TRUE(buffer->guards_intact());
  }
  EXPECT_TRUE(std::all_of(workspace.data(), workspace.data() + workspace.size(), [](std::byte b) {
    return b == std::byte{0xff};
  })) << "the workspace was written";
}

INSTANTIATE_TEST_SUITE_P(Input, Refused, testing::ValuesIn(all_rejections()),
                         [](const auto& rejection) { return rejection.param.name; });

// A cuda backend by a name that is none: whether there could be one is said.
TEST(NamesOfBackends, ABuildWithoutCudaSaysSo) {
  bool with_cuda = false;
  for (int32_t i = 0; i < fkda_implementation_count(); ++i) {
    fkda_implementation implementation;
    ASSERT_EQ(fkda_implementation_info(i, &implementation), FKDA_OK);
    with_cuda |= implementation.device_type == FKDA_CUDA;
  }
  ValidProblem s;
  for (const char* name : {"cuda_fusd", "abacus"}) {
    s.problem.backend = name;
    EXPECT_EQ(fkda_validate(&s.problem, nullptr), FKDA_INVALID_ARGUMENT);
    const bool said = std::string(fkda_last_error()).find("built without CUDA") != std::string::npos;
    EXPECT_EQ(said, !with_cuda && name[0] == 'c') << fkda_last_error();
  }
}

// Sizes whose products overflow although a tensor has no element: refused or accepted, but computed with care.
TEST(HugeEmptyShapes, AreCheckedWithoutOverflow) {
  const int64_t huge = int64_t{1} << 61;
  for (const bool flat_bias : {true, false}) {
    ValidProblem s;
    s.c = Case({.T = 0, .K = 64, .V = 32});
    s.outputs = s.c.make_outputs({});
    s.problem = s.c.problem(s.outputs);
    s.problem.final_state = {};
    for (fkda_tensor* t : {&s.problem.v, &s.problem.g, &s.problem.beta, &s.problem.out}) t->shape[2] = huge;
    s.problem.A_log = {};
    if (flat_bias) {
      s.problem.dt_bias.ndim = 1;
      s.problem.dt_bias.stride[0] = 1;
    }
    EXPECT_EQ(fkda_validate(&s.problem, nullptr), FKDA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fkda_last_error()).find("overflow"), std::string::npos) << fkda_last_error();
  }
}

}  // namespace
}  // namespace flashkda::test
