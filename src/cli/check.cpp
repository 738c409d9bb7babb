// flashkda check: the accuracy of an implementation against fp64, family by family.
#include <cstdio>
#include <memory>
#include <numeric>

#include "check/accuracy.hpp"
#include "check/families.hpp"
#include "check/layer_file.hpp"
#include "cli/command.hpp"
#include "cli/problem_options.hpp"
#include "cli/report.hpp"
#include "cli/terminal.hpp"
#include "cli/text.hpp"

namespace flashkda::cli {
namespace {

struct CheckOptions {
  std::vector<std::string> families;
  std::string data;  // empty: default_data_folder(); "none": no layers
  std::string json;
  int64_t tokens = 1000, heads = 4;
  uint64_t seed = 1;
  std::optional<int32_t> dtype;
  BackendOptions backend;
};

// One line of the table.
struct Row {
  std::string inputs;
  int64_t tokens = 0, heads = 0;
  std::string gate;
  checks::ErrorMeasures out, state;
  bool passed() const { return out.rms <= checks::kOutputBar && state.rms <= checks::kStateBar; }
};

Row measure(const std::string& inputs, const checks::OwnedProblem& p, const checks::HostTensor& expected_out,
            const checks::HostTensor& expected_state) {
  return {.inputs = inputs,
          .tokens = p.tokens(),
          .heads = p.value_heads(),
          .gate = std::string(checks::gate_name(p.options.gate)),
          .out = checks::measure(p.out, expected_out),
          .state = checks::measure(p.final_state, expected_state)};
}

// Sequences of uneven lengths, an empty one among them, that hold `tokens` tokens together.
std::vector<int64_t> uneven_lengths(int64_t tokens) {
  std::vector<int64_t> lengths = {tokens / 2, 0, tokens / 3, tokens / 10};
  lengths.push_back(tokens - std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  return lengths;
}

class Checker {
 public:
  explicit Checker(const CheckOptions& options) : options_(options) {}

  std::vector<Row> run() {
    const std::vector<const checks::Family*> families = chosen_families();
    const std::vector<checks::LayerWithResult> layers = chosen_layers();
    steps_ = static_cast<int>(families.size() + layers.size());
    std::vector<Row> rows;
    for (const checks::Family* family : families) rows.push_back(check_family(*family));
    for (const checks::LayerWithResult& layer : layers) rows.push_back(check_layer(layer));
    progress_.clear();
    return rows;
  }

  const std::string& backend() const { return backend_; }

 private:
  std::vector<const checks::Family*> chosen_families() const {
    std::vector<const checks::Family*> chosen;
    for (const checks::Family& family : checks::families()) {
      const auto& names = options_.families;
      if (names.empty() || std::find(names.begin(), names.end(), family.name) != names.end()) chosen.push_back(&family);
    }
    return chosen;
  }

  std::vector<checks::LayerWithResult> chosen_layers() const {
    if (options_.data == "none" || (options_.data.empty() && !options_.families.empty())) return {};
    const std::string folder = options_.data.empty() ? checks::default_data_folder() : options_.data;
    std::vector<checks::LayerWithResult> layers = checks::find_layers(folder);
    if (layers.empty() && !options_.data.empty()) {
      throw UsageError("--data: no X.safetensors beside an X_expected.safetensors in " + folder);
    }
    return layers;
  }

  void run_into(checks::OwnedProblem& p) {
    options_.backend.apply(p.options);
    p.allocate_outputs(p.q.dtype(), FKDA_FLOAT32);
    fkda_problem problem = p.problem();
    progress_.follow(problem);
    checks::Runner runner(problem);
    runner.run();
    backend_ = runner.backend();
  }

  Row check_family(const checks::Family& family) {
    progress_.begin(std::string(family.name), step_++, steps_);
    const int32_t dtype = options_.dtype.value_or(FKDA_BFLOAT16);
    const checks::ProblemShape shape{.lengths = uneven_lengths(options_.tokens), .H = options_.heads};
    checks::OwnedProblem p =
        checks::make_problem(family, shape, {.qkv = dtype, .g = dtype, .beta = dtype}, options_.seed);
    run_into(p);
    const checks::ReferenceResult reference = checks::reference_result(p);
    return measure(std::string(family.name), p, reference.out, reference.final_state);
  }

  Row check_layer(const checks::LayerWithResult& files) {
    progress_.begin(files.name, step_++, steps_);
    checks::LayerFile layer = checks::read_layer(files.path);
    const checks::LayerResult expected = checks::read_result(files.expected_path);
    run_into(layer.problem);
    if (expected.out.size() != layer.problem.out.size() ||
        expected.final_state.size() != layer.problem.final_state.size()) {
      throw UsageError(files.expected_path + ": not the result of " + file_name(files.path) + " (other shapes)");
    }
    return measure(files.name, layer.problem, expected.out, expected.final_state);
  }

  const CheckOptions& options_;
  Progress progress_;
  int step_ = 0, steps_ = 1;
  std::string backend_;
};

void print_table(const std::vector<Row>& rows, const std::string& backend) {
  const Terminal terminal = detect_terminal("auto");
  std::printf("Error of %s (%s) against fp64: rms(x - ref) / rms(ref), and max |x - ref|.\n", backend.c_str(),
              backend_detail(backend).c_str());
  std::printf("Bars: rms error of o %.0e, of the final state %.0e.\n\n", checks::kOutputBar, checks::kStateBar);
  Table table({{"inputs", Table::Align::kLeft},
               {"tokens"},
               {"o rms"},
               {"o max"},
               {"state rms"},
               {"state max"},
               {"", Table::Align::kLeft}});
  for (const Row& row : rows) {
    table.add({row.inputs, std::to_string(row.tokens), format("%.2e", row.out.rms), format("%.2e", row.out.max),
               format("%.2e", row.state.rms), format("%.2e", row.state.max), row.passed() ? "ok" : "MISSED"});
  }
  const std::vector<std::string> lines = table.lines();
  std::printf("%s\n", bold(terminal, lines[0]).c_str());
  int missed = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool passed = rows[i].passed();
    missed += !passed;
    const std::string& line = lines[i + 1];
    const size_t verdict = line.rfind(' ') + 1;
    const std::string text = line.substr(verdict);
    std::printf("%s%s\n", line.substr(0, verdict).c_str(),
                (passed ? green(terminal, text) : red(terminal, text)).c_str());
  }
  if (missed == 0) {
    std::printf("\nall within the bars\n");
  } else {
    std::printf("\n%d of %zu missed a bar\n", missed, rows.size());
  }
}

Json measures_json(const checks::ErrorMeasures& measures) {
  return {
      {"rms", measures.rms}, {"max", measures.max}, {"mean", measures.mae}, {"reference_rms", measures.reference_rms}};
}

Json report(const std::vector<Row>& rows, const CheckOptions& options, const std::string& backend) {
  Json result = report_header(backend, options.backend.threads);
  result["bars"] = {{"o", checks::kOutputBar}, {"state", checks::kStateBar}};
  result["accuracy"] = Json::array();
  for (const Row& row : rows) {
    result["accuracy"].push_back({{"family", row.inputs},
                                  {"gate", row.gate},
                                  {"tokens", row.tokens},
                                  {"heads", row.heads},
                                  {"o", measures_json(row.out)},
                                  {"state", measures_json(row.state)},
                                  {"passed", row.passed()}});
  }
  return result;
}

int check(const CheckOptions& options) {
  Checker checker(options);
  const std::vector<Row> rows = checker.run();
  if (options.json != "-") print_table(rows, checker.backend());
  if (!options.json.empty()) write_json(options.json, report(rows, options, checker.backend()));
  return std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.passed(); }) ? 0 : 1;
}

}  // namespace

Subcommand add_check(CLI::App& program) {
  CLI::App* command = program.add_subcommand("check", "Accuracy against fp64, input family by input family");
  auto options = std::make_shared<CheckOptions>();
  std::vector<std::string> names;
  std::string help = "Only these families:";
  for (const checks::Family& family : checks::families()) {
    names.emplace_back(family.name);
    help += "\n  " + std::string(family.name) + ": " + std::string(family.description);
  }
  command->add_option("--family", options->families, help)
      ->type_name("NAME,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(names).description(""));
  command
      ->add_option("--data", options->data,
                   "Folder of real layers, X.safetensors with X_expected.safetensors; none: leave them out (default: "
                   "$FLASHKDA_DATA_DIR, ../shared/data or data)")
      ->type_name("DIR");
  command->add_option("--tokens", options->tokens, "Tokens of a family, in five uneven sequences (default 1000)")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000'000));
  command->add_option("--heads", options->heads, "Heads of a family (default 4)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command->add_option("--seed", options->seed, "Seed of the random inputs (default 1)")->type_name("N");
  add_choice(*command, "--dtype", options->dtype, checks::parse_dtype, "bf16, fp16, fp32",
             "Dtype of the inputs and of o (default bf16)");
  command->add_option("--json", options->json, "Write the table to this file as well; -: to standard output instead")
      ->type_name("FILE");
  options->backend.add_to(*command);
  return {command, [options] { return check(*options); }};
}

}  // namespace flashkda::cli
