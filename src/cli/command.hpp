// The subcommands. Each adds its options to the program and returns what to do when it is chosen; that returns the exit
// status: 0, or 1 if a bar was missed. Bad usage and bad input are thrown and become exit status 2 in main.
#pragma once

#include <functional>
#include <stdexcept>

#include <CLI/CLI.hpp>

namespace flashkda::cli {

// A request that cannot be met; the message is for the user.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Subcommand {
  CLI::App* app;
  std::function<int()> run;
};

Subcommand add_info(CLI::App& program);
Subcommand add_run(CLI::App& program);
Subcommand add_check(CLI::App& program);
Subcommand add_bench(CLI::App& program);
Subcommand add_inspect(CLI::App& program);

}  // namespace flashkda::cli
