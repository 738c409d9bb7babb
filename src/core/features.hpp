// What a problem may ask of an implementation, as a set of named bits. This list is the one place of it: messages,
// `flashkda info` and the documentation are generated from it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/problem.hpp"

namespace flashkda {

// X(identifier, name, meaning)
#define FLASHKDA_FEATURES(X)                                                       \
  X(kGateBounded, "gate-bounded", "lower_bound * sigmoid gate")                    \
  X(kGateSoftplus, "gate-softplus", "-exp(A_log) * softplus gate")                 \
  X(kGateLog, "gate-log", "g is the log decay")                                    \
  X(kRawQK, "raw-qk", "q and k used as they are (no l2norm)")                      \
  X(kBetaForms, "beta-forms", "2*sigmoid and activated beta")                      \
  X(kBF16, "bf16", "q, k, v in bfloat16")                                          \
  X(kFP16, "fp16", "q, k, v in float16")                                           \
  X(kFP32, "fp32", "q, k, v in float32")                                           \
  X(kGVA, "gva", "more value heads than q/k heads")                                \
  X(kPacked, "packed", "cu_seqlens")                                               \
  X(kPool, "pool", "state_indices")                                                \
  X(kCheckpoints, "checkpoints", "states after given numbers of tokens")           \
  X(kIntermediate, "intermediate", "states before every n tokens")                 \
  X(kDim128, "K=V=128", "key and value width 128")                                 \
  X(kDim64, "K=V=64", "key and value width 64")                                    \
  X(kDim8n, "K,V=8n<=512", "other multiples of 8 up to 512, K and V equal or not") \
  X(kDimAny, "K,V=any", "any other widths")                                        \
  X(kFP64Out, "fp64-out", "out and states in float64")

enum class Feature : int {
#define FLASHKDA_FEATURE_ENUM(id, name, meaning) id,
  FLASHKDA_FEATURES(FLASHKDA_FEATURE_ENUM)
#undef FLASHKDA_FEATURE_ENUM
};

class FeatureSet {
 public:
  constexpr FeatureSet() = default;
  constexpr FeatureSet(std::initializer_list<Feature> list) {
    for (const Feature f : list) add(f);
  }
  constexpr void add(Feature f) { bits_ |= 1u << static_cast<int>(f); }
  constexpr bool has(Feature f) const { return bits_ >> static_cast<int>(f) & 1u; }
  constexpr bool contains(FeatureSet other) const { return (other.bits_ & ~bits_) == 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr FeatureSet without(FeatureSet other) const {
    FeatureSet result;
    result.bits_ = bits_ & ~other.bits_;
    return result;
  }
  std::string names() const;  // space-separated

 private:
  uint32_t bits_ = 0;
};

FeatureSet required_features(const Problem& p);

}  // namespace flashkda
