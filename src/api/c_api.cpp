// The C boundary: exceptions become status codes here and nowhere else.
#include <cmath>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/registry.hpp"
#include "core/validate.hpp"
#include "flashkda/flashkda.h"
#include "reference/inspect.hpp"

namespace {

using namespace flashkda;

template <typename Body>
fkda_status guarded(Body&& body) noexcept {
  set_last_error("");
  try {
    body();
    return FKDA_OK;
  } catch (const Error& e) {
    set_last_error(e.what());
    return e.status();
  } catch (const std::bad_alloc&) {
    set_last_error("out of host memory");
    return FKDA_INTERNAL_ERROR;
  } catch (const std::exception& e) {
    set_last_error(e.what());
    return FKDA_INTERNAL_ERROR;
  } catch (...) {
    set_last_error("unknown failure");
    return FKDA_INTERNAL_ERROR;
  }
}

const fkda_problem& dereference(const fkda_problem* problem) {
  if (problem == nullptr) throw_error(FKDA_INVALID_ARGUMENT, "problem: got a null pointer");
  return *problem;
}

void require(bool given, const char* name) {
  if (!given) throw_error(FKDA_INVALID_ARGUMENT, "%s: got a null pointer", name);
}

}  // namespace

extern "C" {

const char* fkda_status_string(fkda_status status) {
  switch (status) {
    case FKDA_OK: return "ok";
    case FKDA_INVALID_ARGUMENT: return "invalid argument";
    case FKDA_UNSUPPORTED: return "unsupported";
    case FKDA_WORKSPACE_TOO_SMALL: return "workspace too small";
    case FKDA_DEVICE_ERROR: return "device error";
    case FKDA_INTERNAL_ERROR: return "internal error";
  }
  return "unknown status";
}

const char* fkda_last_error(void) { return last_error(); }

const char* fkda_version(void) { return FLASHKDA_VERSION_STRING; }

fkda_tensor fkda_dense(void* data, fkda_dtype dtype, int32_t ndim, const int64_t* shape) {
  fkda_tensor t = {};
  t.data = data;
  t.dtype = dtype;
  t.ndim = ndim;
  if (shape == nullptr) return t;
  int64_t stride = 1;
  for (int32_t d = (ndim < FKDA_MAX_DIMS ? ndim : FKDA_MAX_DIMS) - 1; d >= 0; --d) {
    t.shape[d] = shape[d];
    t.stride[d] = stride;
    // A product past 64 bits is left for validation to refuse.
    if (__builtin_mul_overflow(stride, shape[d], &stride)) stride = 0;
  }
  return t;
}

void fkda_problem_init(fkda_problem* problem) {
  if (problem == nullptr) return;
  *problem = {};
  problem->struct_size = sizeof(fkda_problem);
  problem->gate = FKDA_GATE_BOUNDED;
  problem->lower_bound = -5.0f;
  problem->scale = std::nanf("");
  problem->qk_l2norm = 1;
  problem->beta_activation = FKDA_BETA_SIGMOID;
  problem->state_layout = FKDA_STATE_V_FIRST;
  problem->intermediate_every = 64;
}

fkda_status fkda_validate(const fkda_problem* problem, const char** name) {
  return guarded([&] {
    const Problem p = validate(dereference(problem));
    const Implementation& implementation = select_implementation(p);
    if (name != nullptr) *name = implementation.name;
  });
}

fkda_status fkda_workspace_size(const fkda_problem* problem, size_t* bytes) {
  return guarded([&] {
    require(bytes != nullptr, "bytes");
    const Problem p = validate(dereference(problem));
    *bytes = select_implementation(p).workspace_size(p);
  });
}

fkda_status fkda_forward(const fkda_problem* problem, void* workspace, size_t workspace_bytes, void* stream) {
  return guarded([&] {
    const Problem p = validate(dereference(problem));
    const Implementation& implementation = select_implementation(p);
    const size_t needed = implementation.workspace_size(p);
    if (workspace_bytes < needed || (workspace == nullptr && needed > 0)) {
      throw_error(FKDA_WORKSPACE_TOO_SMALL, "workspace: got %s%zu bytes, needs %zu",
                  workspace == nullptr ? "a null pointer and " : "", workspace_bytes, needed);
    }
    const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(workspace) % FKDA_WORKSPACE_ALIGNMENT);
    if (needed > 0 && past != 0) {
      constexpr int kAlignment = FKDA_WORKSPACE_ALIGNMENT;
      throw_error(FKDA_INVALID_ARGUMENT,
                  "workspace: its address is %d bytes past a multiple of %d, needs to be a multiple of %d", past,
                  kAlignment, kAlignment);
    }
    implementation.forward(p, workspace, stream);
  });
}

int32_t fkda_implementation_count(void) { return static_cast<int32_t>(implementations().size()); }

fkda_status fkda_implementation_info(int32_t index, fkda_implementation* info) {
  return guarded([&] {
    require(info != nullptr, "info");
    // Feature texts are built once, so that the returned strings are static.
    static const std::vector<std::string> features = [] {
      std::vector<std::string> texts;
      for (const Implementation& i : implementations()) texts.push_back(i.features.names());
      return texts;
    }();
    if (index < 0 || index >= fkda_implementation_count()) {
      throw_error(FKDA_INVALID_ARGUMENT, "index: got %d, needs 0..%d", index, fkda_implementation_count() - 1);
    }
    const Implementation& i = implementations()[static_cast<size_t>(index)];
    const bool available = i.available();
    const char* const why_not = i.device_type == FKDA_CUDA ? "no CUDA device of compute capability 8.0 or later" : "";
    *info = {i.name, i.device_type, available ? 1 : 0, available ? i.detail() : why_not,
             features[static_cast<size_t>(index)].c_str()};
  });
}

fkda_status fkda_inspect_chunk(const fkda_problem* problem, fkda_chunk* chunk) {
  return guarded([&] {
    require(chunk != nullptr, "chunk");
    if (chunk->struct_size != sizeof(fkda_chunk)) {
      throw_error(FKDA_INVALID_ARGUMENT, "chunk: struct_size is %u, needs %zu", chunk->struct_size, sizeof(fkda_chunk));
    }
    const Problem p = validate(dereference(problem), Purpose::kInspect);
    if (p.q.device_type != FKDA_CPU) {
      throw_error(FKDA_UNSUPPORTED, "q: is on cuda:%d, inspection needs cpu tensors", p.q.device_index);
    }
    inspect_chunk(p, *chunk);
  });
}

}  // extern "C"
