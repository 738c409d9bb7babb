// The options of a problem as flags, for the subcommands that read a layer file.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "check/layer_file.hpp"

namespace flashkda::cli {

// A flag that is given replaces what the file's metadata says.
struct ProblemOptions {
  std::optional<int32_t> gate, beta, state_layout;
  std::optional<float> lower_bound, scale;
  bool no_l2norm = false;

  void add_to(CLI::App& command);
  void apply(fkda_problem& options) const;
};

// --backend and --threads.
struct BackendOptions {
  std::string backend = "auto";
  int32_t threads = 0;

  void add_to(CLI::App& command);
  // Valid while this object lives.
  void apply(fkda_problem& options) const;
};

// An option whose value is one of a few names. parse returns nothing for any other; names lists them.
void add_choice(CLI::App& command, const std::string& flag, std::optional<int32_t>& value,
                std::optional<int32_t> (*parse)(std::string_view), const std::string& names, const std::string& help);

}  // namespace flashkda::cli
