// The table of implementations. Adding a backend means adding one entry to kImplementations in registry.cpp.
#pragma once

#include <cstddef>
#include <span>

#include "core/features.hpp"

namespace flashkda {

struct Implementation {
  const char* name;
  int32_t device_type;  // fkda_device_type of the tensors it computes on
  bool automatic;       // may be chosen without being named
  FeatureSet features;
  bool (*available)();
  const char* (*detail)();
  // Throws Error where the implementation asks more of a problem than flashkda.h does; null: it asks nothing more.
  void (*check)(const Problem& p);
  size_t (*workspace_size)(const Problem& p);
  // The workspace is aligned and at least workspace_size(p) bytes. Throws Error.
  void (*forward)(const Problem& p, void* workspace, void* stream);
};

// In the order in which the automatic choice tries them.
std::span<const Implementation> implementations();

// The implementation that runs p: p.backend, else FLASH_KDA_BACKEND, else the first available one on the tensors'
// device that has the required features. Throws Error(FKDA_UNSUPPORTED) that says required, supported, missing.
const Implementation& select_implementation(const Problem& p);

}  // namespace flashkda
