// flashkda info: the library, its implementations, the machine.
#include <cstdio>
#include <cstdlib>

#include "check/problem.hpp"
#include "cli/command.hpp"
#include "cli/report.hpp"
#include "cli/terminal.hpp"
#include "cli/text.hpp"

namespace flashkda::cli {
namespace {

const char* device_name(int32_t device_type) { return device_type == FKDA_CUDA ? "cuda" : "cpu"; }

// Words of text in lines of at most width columns, each after the indent.
void print_wrapped(const std::string& text, const std::string& indent, size_t width) {
  std::string line;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > width) {
      std::printf("%s%s\n", indent.c_str(), line.c_str());
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  if (!line.empty()) std::printf("%s%s\n", indent.c_str(), line.c_str());
}

// What comes of it where no call names an implementation.
std::string of_environment(const std::string& name) {
  if (name == "auto") return name + " runs";
  for (int32_t i = 0; i < fkda_implementation_count(); ++i) {
    fkda_implementation implementation;
    checks::require_ok(fkda_implementation_info(i, &implementation));
    if (name != implementation.name) continue;
    return implementation.available ? name + " runs" : "calls are refused, for " + name + " is not available";
  }
  return "calls are refused, for " + name + " is none of these";
}

int print_info() {
  const Terminal terminal = detect_terminal("auto");
  std::printf("flashkda %s\n", fkda_version());
  std::printf("cpu      %s, %d cores\n", cpu_model().empty() ? "unknown" : cpu_model().c_str(), available_cores());
  std::printf(
      "\nimplementations, by the names that --backend takes; of tensors this tool makes those of the CPU alone:\n");
  if (const char* name = std::getenv("FLASH_KDA_BACKEND"); name != nullptr && *name != '\0') {
    std::printf("FLASH_KDA_BACKEND is set: where none is named, %s\n", of_environment(name).c_str());
  }
  constexpr int kNameWidth = 19;  // of the longest
  for (int32_t i = 0; i < fkda_implementation_count(); ++i) {
    fkda_implementation implementation;
    checks::require_ok(fkda_implementation_info(i, &implementation));
    const std::string name = format("%-*s", kNameWidth, implementation.name);
    std::printf(
        "\n%s %s, on %s tensors%s%s\n", bold(terminal, name).c_str(),
        implementation.available ? green(terminal, "available").c_str() : red(terminal, "not available").c_str(),
        device_name(implementation.device_type), *implementation.detail ? ": " : "", implementation.detail);
    print_wrapped(implementation.features, std::string(kNameWidth + 1, ' '), 80);
  }
  return 0;
}

}  // namespace

Subcommand add_info(CLI::App& program) {
  return {program.add_subcommand("info", "Version, implementations and what they support, machine"), print_info};
}

}  // namespace flashkda::cli
