#include "cli/problem_options.hpp"

#include "cli/command.hpp"
#include "cli/text.hpp"

namespace flashkda::cli {

void add_choice(CLI::App& command, const std::string& flag, std::optional<int32_t>& value,
                std::optional<int32_t> (*parse)(std::string_view), const std::string& names, const std::string& help) {
  command
      .add_option_function<std::string>(
          flag, [&value, parse](const std::string& name) { value = parse(name); }, help + ": " + names)
      ->check([parse, names](const std::string& name) {
        return parse(name) ? "" : "got '" + name + "', needs one of " + names;
      })
      ->type_name("NAME");
}

void ProblemOptions::add_to(CLI::App& command) {
  const std::string group = "Operation (default: the file's metadata)";
  const size_t before = command.get_options().size();
  add_choice(command, "--gate", gate, checks::parse_gate, "bounded, softplus, log", "Gate kind");
  command.add_option("--lower-bound", lower_bound, "Least log decay of the bounded gate, in [-5, 0)")->type_name("X");
  command.add_option("--scale", scale, "Factor of the output (default 1/sqrt(K))")->type_name("X");
  command.add_flag("--no-l2norm", no_l2norm, "Take q and k as they are, without normalising their rows");
  add_choice(command, "--beta", beta, checks::parse_beta, "sigmoid, twice-sigmoid, activated", "Activation of beta");
  add_choice(command, "--state-layout", state_layout, checks::parse_state_layout, "v-first, k-first",
             "Order of the state's last two dimensions");
  const auto options = command.get_options();
  for (size_t i = before; i < options.size(); ++i) options[i]->group(group);
}

void ProblemOptions::apply(fkda_problem& options) const {
  if (gate) options.gate = *gate;
  if (beta) options.beta_activation = *beta;
  if (state_layout) options.state_layout = *state_layout;
  if (lower_bound) {
    if (options.gate != FKDA_GATE_BOUNDED) {
      throw UsageError(format("--lower-bound: got %g, needs the bounded gate; this one is %s", *lower_bound,
                              std::string(checks::gate_name(options.gate)).c_str()));
    }
    options.lower_bound = *lower_bound;
  }
  if (scale) options.scale = *scale;
  if (no_l2norm) options.qk_l2norm = 0;
}

void BackendOptions::add_to(CLI::App& command) {
  std::string names = "auto";
  for (int32_t i = 0; i < fkda_implementation_count(); ++i) {
    fkda_implementation implementation;
    if (fkda_implementation_info(i, &implementation) != FKDA_OK || implementation.device_type != FKDA_CPU) continue;
    names += std::string(", ") + implementation.name;
  }
  command
      .add_option("--backend", backend,
                  "Implementation, of those for CPU tensors, which are what this tool makes: " + names)
      ->type_name("NAME");
  command.add_option("--threads", threads, "Worker threads on the CPU (default: all cores)")
      ->type_name("N")
      ->check(CLI::Range(0, 4096));
}

void BackendOptions::apply(fkda_problem& options) const {
  options.backend = backend.c_str();
  options.num_threads = threads;
}

}  // namespace flashkda::cli
