// Families of inputs: what gates, keys and betas look like in use and at the edges of the contract.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "check/problem.hpp"
#include "check/random.hpp"

namespace flashkda::checks {

// How the tensors of a family are made. q, k and v are N(0,1), or U(0,1), before the keys are made equal. Rules are
// called once an element; one that is absent (nullptr) leaves its tensor absent.
struct Family {
  std::string_view name;         // as given on the command line
  std::string_view description;  // one line
  fkda_gate gate;
  double (*g)(Random& random, int64_t token, int64_t channel);
  double (*A_log)(Random& random);
  double (*dt_bias)(Random& random);
  double (*beta)(Random& random);  // logits
  bool one_key;                    // the first key of each head at every token
  bool positive = false;           // q, k, v ~ U(0,1): any two keys have a cosine near 3/4
};

std::span<const Family> families();
// Sixteen settings of the bounded gate at A_log = 0, from forgetting everything to forgetting nothing, by token and by
// channel, on positive q, k and v, whose keys interfere at every token. The first ten and their inputs are those of
// FlashKDA's own comparison with fla (its tests/test_fwd.py); the other six vary token and channel together.
std::span<const Family> gate_families();
const Family* find_family(std::string_view name);  // of either list; nullptr if there is none

// Sizes of a problem. Every member has a default, so that a caller names only what it is about.
struct ProblemShape {
  int64_t B = 1, T = 0;
  std::vector<int64_t> lengths = {};  // not empty: a packed batch of these sequences; B and T do not count
  int64_t H = 1;
  int64_t HV = 0;  // 0: H
  int64_t K = 128, V = 128;
};

struct ProblemDTypes {
  int32_t qkv = FKDA_BFLOAT16;
  int32_t g = FKDA_BFLOAT16;
  int32_t beta = FKDA_BFLOAT16;
  int32_t initial_state = FKDA_FLOAT32;  // 0: no initial state
};

// Inputs of the family, with an initial state of N(0, 0.25); no outputs.
OwnedProblem make_problem(const Family& family, const ProblemShape& shape, const ProblemDTypes& dtypes = {},
                          uint64_t seed = 1);

// A problem of the given shape whose tokens and heads are those of a layer, repeated as often as needed (token t is
// token t mod T of the layer, head h head h mod H). Same dtypes, gate and options as the layer; the shape's K, V must
// be its.
OwnedProblem tile_layer(const OwnedProblem& layer, const ProblemShape& shape, int32_t initial_state_dtype,
                        uint64_t seed = 1);

}  // namespace flashkda::checks
