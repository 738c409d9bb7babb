#include "core/registry.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "core/error.hpp"
#include "cpu/backend.hpp"
#include "reference/oracle.hpp"
#ifdef FLASHKDA_WITH_CUDA
#include "cuda/backend.hpp"
#endif

namespace flashkda {
namespace {

constexpr FeatureSet kEveryOption = {
    Feature::kGateBounded, Feature::kGateSoftplus, Feature::kGateLog,     Feature::kRawQK, Feature::kBetaForms,
    Feature::kBF16,        Feature::kFP16,         Feature::kFP32,        Feature::kGVA,   Feature::kPacked,
    Feature::kPool,        Feature::kCheckpoints,  Feature::kIntermediate};

constexpr FeatureSet with(FeatureSet set, std::initializer_list<Feature> more) {
  for (const Feature f : more) set.add(f);
  return set;
}

#ifdef FLASHKDA_WITH_CUDA
constexpr FeatureSet kCudaOptions = {
    Feature::kGateBounded, Feature::kGateSoftplus, Feature::kGateLog, Feature::kRawQK,  Feature::kBetaForms,
    Feature::kBF16,        Feature::kFP16,         Feature::kGVA,     Feature::kPacked, Feature::kPool,
    Feature::kCheckpoints, Feature::kIntermediate, Feature::kDim128,  Feature::kDim64};
#endif

constexpr Implementation kImplementations[] = {
    {
        .name = "cpu",
        .device_type = FKDA_CPU,
        .automatic = true,
        .features = with(kEveryOption, {Feature::kDim128, Feature::kDim64, Feature::kDim8n}),
        .available = [] { return true; },
        .detail = cpu::target_name,
        .check = nullptr,
        .workspace_size = cpu::workspace_size,
        .forward = cpu::forward,
    },
#ifdef FLASHKDA_WITH_CUDA
    {
        .name = "cuda",
        .device_type = FKDA_CUDA,
        .automatic = true,
        .features = kCudaOptions,
        .available = cuda::available,
        .detail = cuda::detail,
        .check = cuda::check_problem,
        .workspace_size = cuda::workspace_size,
        .forward = cuda::forward,
    },
#define FLASHKDA_PATH_ENTRY(path)                    \
  {                                                  \
      .name = "cuda_" #path,                         \
      .device_type = FKDA_CUDA,                      \
      .automatic = false,                            \
      .features = kCudaOptions,                      \
      .available = cuda::available,                  \
      .detail = cuda::detail_##path,                 \
      .check = cuda::check_problem,                  \
      .workspace_size = cuda::workspace_size_##path, \
      .forward = cuda::forward_##path,               \
  },
    FLASHKDA_CUDA_PATHS(FLASHKDA_PATH_ENTRY)
#undef FLASHKDA_PATH_ENTRY
#endif
        {
            .name = "reference",
            .device_type = FKDA_CPU,
            .automatic = false,
            .features = with(kEveryOption,
                             {Feature::kDim128, Feature::kDim64, Feature::kDim8n, Feature::kDimAny, Feature::kFP64Out}),
            .available = [] { return true; },
            .detail = [] { return "fp64 token recurrence, one thread"; },
            .check = nullptr,
            .workspace_size = reference_workspace_size,
            .forward = forward_reference,
        },
};

constexpr bool kWithCuda = std::any_of(std::begin(kImplementations), std::end(kImplementations),
                                       [](const Implementation& i) { return i.device_type == FKDA_CUDA; });

const char* device_type_name(int32_t device_type) { return device_type == FKDA_CPU ? "cpu" : "cuda"; }

const Implementation* find(const std::string& name) {
  for (const Implementation& i : kImplementations) {
    if (name == i.name) return &i;
  }
  return nullptr;
}

std::string available_names() {
  std::string names = "auto";
  for (const Implementation& i : kImplementations) names += std::string(", ") + i.name;
  return names;
}

// "" if i can run p, else why not.
std::string objection(const Implementation& i, const Problem& p, FeatureSet required) {
  if (i.device_type != p.q.device_type) {
    return std::string(i.name) + " computes on " + device_type_name(i.device_type) + " tensors, q is on " +
           device_type_name(p.q.device_type);
  }
  if (!i.available()) return std::string(i.name) + " is not available on this machine";
  const FeatureSet missing = required.without(i.features);
  if (missing.empty()) return "";
  return std::string(i.name) + " misses: " + missing.names() + "; supports: " + i.features.names();
}

}  // namespace

std::string FeatureSet::names() const {
  std::string text;
#define FLASHKDA_FEATURE_NAME(id, name, meaning) \
  if (has(Feature::id)) text += text.empty() ? name : std::string(" ") + name;
  FLASHKDA_FEATURES(FLASHKDA_FEATURE_NAME)
#undef FLASHKDA_FEATURE_NAME
  return text;
}

FeatureSet required_features(const Problem& p) {
  FeatureSet set;
  set.add(p.gate == FKDA_GATE_BOUNDED    ? Feature::kGateBounded
          : p.gate == FKDA_GATE_SOFTPLUS ? Feature::kGateSoftplus
                                         : Feature::kGateLog);
  if (!p.qk_l2norm) set.add(Feature::kRawQK);
  if (p.beta_activation != FKDA_BETA_SIGMOID) set.add(Feature::kBetaForms);
  set.add(p.q.dtype == FKDA_BFLOAT16 ? Feature::kBF16 : p.q.dtype == FKDA_FLOAT16 ? Feature::kFP16 : Feature::kFP32);
  if (p.HV != p.H) set.add(Feature::kGVA);
  if (p.packed()) set.add(Feature::kPacked);
  if (present(p.state_indices)) set.add(Feature::kPool);
  if (present(p.checkpoints)) set.add(Feature::kCheckpoints);
  if (present(p.intermediate_states)) set.add(Feature::kIntermediate);
  const auto tuned = [](int64_t d) { return d % 8 == 0 && d <= 512; };
  set.add(p.K == 128 && p.V == 128   ? Feature::kDim128
          : p.K == 64 && p.V == 64   ? Feature::kDim64
          : tuned(p.K) && tuned(p.V) ? Feature::kDim8n
                                     : Feature::kDimAny);
  for (const fkda_tensor* t : {&p.out, &p.initial_state, &p.final_state, &p.checkpoints, &p.intermediate_states}) {
    if (present(*t) && t->dtype == FKDA_FLOAT64) set.add(Feature::kFP64Out);
  }
  return set;
}

std::span<const Implementation> implementations() { return kImplementations; }

const Implementation& select_implementation(const Problem& p) {
  const FeatureSet required = required_features(p);
  const char* name = p.backend;
  const char* origin = "backend";
  if (name == nullptr || std::strcmp(name, "auto") == 0) {
    name = std::getenv("FLASH_KDA_BACKEND");
    origin = "FLASH_KDA_BACKEND";
    if (name != nullptr && *name == '\0') name = nullptr;  // as good as unset
  }
  const std::string sizes = "K = " + std::to_string(p.K) + ", V = " + std::to_string(p.V);
  if (name != nullptr && std::strcmp(name, "auto") != 0) {
    const Implementation* chosen = find(name);
    if (chosen == nullptr) {
      throw_error(FKDA_INVALID_ARGUMENT, "%s: got \"%.64s\", needs one of %s%s", origin, name,
                  available_names().c_str(),
                  kWithCuda || std::strncmp(name, "cuda", 4) != 0 ? "" : "; this library was built without CUDA");
    }
    const std::string why = objection(*chosen, p, required);
    if (!why.empty()) {
      throw_error(FKDA_UNSUPPORTED, "%s: \"%s\" cannot run this problem (%s). required: %s; %s", origin, name,
                  sizes.c_str(), required.names().c_str(), why.c_str());
    }
    if (chosen->check != nullptr) chosen->check(p);
    return *chosen;
  }
  std::string objections, by_name;
  for (const Implementation& i : kImplementations) {
    const std::string why = objection(i, p, required);
    if (!i.automatic) {
      if (why.empty())
        by_name += std::string("; ") + i.name + " runs it where FLASH_KDA_BACKEND or the problem's backend names it";
      continue;
    }
    if (why.empty()) {
      if (i.check != nullptr) i.check(p);
      return i;
    }
    objections += "; " + why;
  }
  throw_error(FKDA_UNSUPPORTED, "no implementation is chosen for this problem (%s). required: %s%s%s", sizes.c_str(),
              required.names().c_str(), objections.c_str(), by_name.c_str());
}

}  // namespace flashkda
