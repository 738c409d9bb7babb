// flashkda: Kimi Delta Attention on the command line.
//
// Exit status: 0 done, 1 a bar of `check` was missed, 2 bad usage or input.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "cli/command.hpp"
#include "flashkda/flashkda.h"

namespace {

using namespace flashkda::cli;

constexpr int kBadUsage = 2;

int fail(std::string message) {
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  std::fflush(stdout);
  std::fprintf(stderr, "flashkda: %s\n", message.c_str());
  return kBadUsage;
}

// What was wrong with the command line.
std::string explain(const CLI::ParseError& error, const CLI::App& program, int argc, char** argv) {
  if (!program.get_subcommands().empty() || argc < 2 || argv[1][0] == '-') return error.what();
  std::string names;
  for (const CLI::App* subcommand : program.get_subcommands({})) {
    names += (names.empty() ? "" : ", ") + subcommand->get_name();
  }
  return std::string("got '") + argv[1] + "', needs one of " + names;
}

int run(int argc, char** argv) {
  CLI::App program("Kimi Delta Attention: run it on files, check it against fp64, time it, look inside.", "flashkda");
  program.set_version_flag("--version", std::string("flashkda ") + fkda_version());
  program.require_subcommand(1);
  const Subcommand subcommands[] = {add_info(program), add_run(program), add_check(program), add_bench(program),
                                    add_inspect(program)};
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    const auto parsed = program.get_subcommands();
    const std::string name = parsed.empty() ? "" : parsed.front()->get_name() + " ";
    return fail(explain(error, program, argc, argv) + " (see flashkda " + name + "--help)");
  }
  for (const Subcommand& subcommand : subcommands) {
    if (!subcommand.app->parsed()) continue;
    const int status = subcommand.run();
    if (std::fflush(stdout) != 0) return fail("standard output cannot be written");
    return status;
  }
  return kBadUsage;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
