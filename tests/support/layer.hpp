// The inputs and fp64 results of the trained layers (data/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/case.hpp"

namespace flashkda::test {

struct Layer {
  Case inputs;
  Tensor o;                   // [1,T,4,128] fp32
  Tensor final_state;         // [1,4,128,128] fp32, v-first
  std::vector<uint8_t> text;  // the byte that each token stands for
};

// name: "bounded" or "softplus".
Layer load_slice(const std::string& name);

// The whole layer of 2048 tokens; nothing if its files are not in full_layer_directory().
std::optional<Layer> load_full_layer(const std::string& name);

// $FLASHKDA_DATA_DIR, or ../shared/data beside the repository.
std::string full_layer_directory();

}  // namespace flashkda::test
