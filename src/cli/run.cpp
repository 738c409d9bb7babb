// flashkda run: a layer file in, its result file out.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "check/accuracy.hpp"
#include "check/layer_file.hpp"
#include "cli/command.hpp"
#include "cli/problem_options.hpp"
#include "cli/report.hpp"
#include "cli/terminal.hpp"
#include "cli/text.hpp"

namespace flashkda::cli {
namespace {

struct RunOptions {
  std::string input, output, expected;
  std::optional<int32_t> out_dtype, state_dtype;
  bool no_final_state = false;
  ProblemOptions problem;
  BackendOptions backend;
};

// default_gate: neither the file nor the command line named one.
void print_input(const checks::LayerFile& layer, bool default_gate) {
  const checks::OwnedProblem& p = layer.problem;
  const auto& q = p.q.shape();
  std::string gate(checks::gate_name(p.options.gate));
  if (p.options.gate == FKDA_GATE_BOUNDED) gate += format(", lower_bound %g", p.options.lower_bound);
  if (default_gate) gate += " (by default: the file names no gate)";
  std::string sequences = format("B %lld, T %lld", static_cast<long long>(q[0]), static_cast<long long>(q[1]));
  if (p.cu_seqlens.present()) sequences += format(", N %lld packed", static_cast<long long>(p.sequences()));
  std::printf("in       %s: %s, H %lld, HV %lld, K %lld, V %lld, %s\n", file_name(layer.path).c_str(),
              sequences.c_str(), static_cast<long long>(q[2]), static_cast<long long>(p.value_heads()),
              static_cast<long long>(q[3]), static_cast<long long>(p.v.shape()[3]),
              std::string(checks::short_dtype_name(p.q.dtype())).c_str());
  std::printf("gate     %s\n", gate.c_str());
  std::printf("options  beta %s, %s, scale %s, state %s, %s\n",
              std::string(checks::beta_name(p.options.beta_activation)).c_str(),
              p.options.qk_l2norm ? "l2norm" : "no l2norm",
              std::isnan(p.options.scale) ? "1/sqrt(K)" : format("%g", p.options.scale).c_str(),
              std::string(checks::state_layout_name(p.options.state_layout)).c_str(),
              p.initial_state.present() ? "from initial_state" : "from zero");
  if (!layer.unread.empty()) {
    std::string names;
    for (const std::string& name : layer.unread) names += " " + name;
    std::printf("not read%s\n", names.c_str());
  }
}

void print_error(const char* name, const checks::HostTensor& x, const checks::HostTensor& expected) {
  if (!x.present() || !expected.present()) return;
  if (x.size() != expected.size()) {
    throw UsageError(format("--expected: %s has shape %s, the result %s", name, shape_text(expected.shape()).c_str(),
                            shape_text(x.shape()).c_str()));
  }
  const checks::ErrorMeasures error = checks::measure(x, expected);
  std::printf("error    %s: rms %.2e of rms, max %.2e, mean %.2e\n", name, error.rms, error.max, error.mae);
}

int run_file(const RunOptions& options) {
  checks::LayerFile layer = checks::read_layer(options.input);
  checks::OwnedProblem& p = layer.problem;
  options.problem.apply(p.options);
  options.backend.apply(p.options);
  // A wrong path should not cost the time of the run.
  const std::filesystem::path folder = std::filesystem::path(options.output).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    throw UsageError("--output: no folder " + folder.string());
  }
  checks::LayerResult expected;
  if (!options.expected.empty()) expected = checks::read_result(options.expected);

  p.allocate_outputs(options.out_dtype.value_or(p.q.dtype()),
                     options.no_final_state ? 0 : options.state_dtype.value_or(FKDA_FLOAT32));
  if (p.state_indices.present() && p.initial_state.present()) {
    // A pool: slots that no sequence uses go out as they came in.
    for (int64_t i = 0; i < p.final_state.size(); ++i) p.final_state.set(i, p.initial_state.get(i));
  }
  Progress progress;
  progress.begin("run", 0, 1);
  fkda_problem problem = p.problem();
  progress.follow(problem);
  checks::Runner runner(problem);
  const double ms = runner.run();
  progress.clear();
  checks::write_result(options.output, layer,
                       {{"made_by", format("flashkda %s, %s", fkda_version(), runner.backend())}});

  print_input(layer, !layer.metadata.contains("gate") && !options.problem.gate);
  const std::string detail = backend_detail(runner.backend());
  std::printf("run      %s%s: %.3f ms, %s tokens/s, workspace %s\n", runner.backend(),
              detail.empty() ? "" : (" (" + detail + ")").c_str(), ms,
              with_separators(static_cast<int64_t>(static_cast<double>(p.tokens()) / ms * 1e3)).c_str(),
              byte_size(runner.workspace_bytes()).c_str());
  std::printf("out      %s: o %s %s", file_name(options.output).c_str(),
              shape_text(checks::stored_out_shape(layer)).c_str(),
              std::string(checks::short_dtype_name(p.out.dtype())).c_str());
  if (p.final_state.present()) {
    std::printf(", final_state %s %s", shape_text(checks::stored_state_shape(layer)).c_str(),
                std::string(checks::short_dtype_name(p.final_state.dtype())).c_str());
  }
  std::printf("\n");
  print_error("o", p.out, expected.out);
  print_error("final_state", p.final_state, expected.final_state);
  return 0;
}

}  // namespace

Subcommand add_run(CLI::App& program) {
  CLI::App* command = program.add_subcommand("run", "Compute o and final_state for the inputs in a safetensors file");
  auto options = std::make_shared<RunOptions>();
  command
      ->add_option(
          "input", options->input,
          "Tensors q k v g beta [A_log] [dt_bias] [initial_state] [cu_seqlens] [state_indices], with or without "
          "a batch dimension; metadata gate, lower_bound, scale")
      ->required()
      ->type_name("IN.safetensors");
  command->add_option("-o,--output", options->output, "Gets the tensors o and final_state")
      ->required()
      ->type_name("OUT.safetensors");
  command->add_option("--expected", options->expected, "Print the error against o and final_state of this file")
      ->type_name("FILE");
  add_choice(*command, "--out-dtype", options->out_dtype, checks::parse_dtype, "bf16, fp16, fp32, fp64",
             "Dtype of o (default: that of q)");
  add_choice(*command, "--state-dtype", options->state_dtype, checks::parse_dtype, "bf16, fp32, fp64",
             "Dtype of final_state (default: fp32)");
  command->add_flag("--no-final-state", options->no_final_state, "Do not compute final_state");
  options->backend.add_to(*command);
  options->problem.add_to(*command);
  return {command, [options] { return run_file(*options); }};
}

}  // namespace flashkda::cli
