// flashkda bench: times named cases.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "check/bench_case.hpp"
#include "check/layer_file.hpp"
#include "cli/command.hpp"
#include "cli/problem_options.hpp"
#include "cli/report.hpp"
#include "cli/terminal.hpp"
#include "cli/text.hpp"

namespace flashkda::cli {
namespace {

// What is timed by default, and what a machine with time and memory to spare can do besides.
constexpr const char* kDefaultCases[] = {"H8 T8192", "H8 mixed6", "H8 8x1024", "H32 256x32", "H32 1x1000", "B64 H32"};
constexpr const char* kLargeCases[] = {"H96 T8192", "H96 mixed6", "H96 8x1024",
                                       "H64 T8192", "H64 mixed6", "H64 8x1024"};

constexpr int kMinimumRuns = 3, kMaximumRuns = 100;
constexpr double kMeasuredMs = 1000.0;  // without --repeat: as many runs as fit into this

struct BenchOptions {
  std::vector<std::string> cases, gates = {"random"};
  bool large = false;
  std::optional<int32_t> state_dtype;
  std::string data, json;
  int repeat = 0;
  BackendOptions backend;
};

struct Timing {
  std::string name, gates, gate, state, backend;
  bool decode = false;
  int64_t tokens = 0, heads = 0;
  double median_ms = 0.0, min_ms = 0.0;
  int runs = 0;
  size_t state_bytes = 0, workspace_bytes = 0;
  double tokens_per_s() const { return static_cast<double>(tokens) / median_ms * 1e3; }
  double gfma_per_s() const { return tokens_per_s() * static_cast<double>(heads) * checks::kFmaPerTokenHead * 1e-9; }
  // Decode reads and writes every state once, which is nearly all of its work.
  double state_gb_per_s() const { return 2.0 * static_cast<double>(state_bytes) / median_ms * 1e-6; }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

Timing time_case(const checks::BenchCase& bench_case, const std::string& gates, const checks::OwnedProblem& p,
                 int repeat) {
  checks::Runner runner(checks::bench_views(bench_case, p));
  runner.run();  // first touch of the workspace and the outputs
  std::vector<double> ms;
  double total = 0.0;
  const auto enough = [&] {
    const int runs = static_cast<int>(ms.size());
    if (repeat > 0) return runs == repeat;
    return runs >= kMaximumRuns || (runs >= kMinimumRuns && total >= kMeasuredMs);
  };
  while (!enough()) {
    ms.push_back(runner.run());
    total += ms.back();
  }
  return {.name = bench_case.name,
          .gates = gates,
          .gate = std::string(checks::gate_name(p.options.gate)),
          .state = std::string(checks::short_dtype_name(p.initial_state.dtype())),
          .backend = runner.backend(),
          .decode = bench_case.decode,
          .tokens = p.tokens(),
          .heads = p.value_heads(),
          .median_ms = median(ms),
          .min_ms = *std::min_element(ms.begin(), ms.end()),
          .runs = static_cast<int>(ms.size()),
          .state_bytes = p.initial_state.bytes().size(),
          .workspace_bytes = runner.workspace_bytes()};
}

std::vector<checks::BenchCase> chosen_cases(const BenchOptions& options) {
  std::vector<std::string> names = options.cases;
  if (names.empty()) {
    names.assign(std::begin(kDefaultCases), std::end(kDefaultCases));
    if (options.large) names.insert(names.end(), std::begin(kLargeCases), std::end(kLargeCases));
  }
  std::vector<checks::BenchCase> cases;
  for (const std::string& name : names) {
    const std::optional<checks::BenchCase> parsed = checks::parse_bench_case(name);
    if (!parsed) {
      throw UsageError("--case: got '" + name +
                       "', needs a name like \"H8 T8192\", \"H32 256x32\", \"H96 mixed6\" or, "
                       "for decode, \"B64 H32\"");
    }
    cases.push_back(*parsed);
  }
  return cases;
}

// The real layers to take tokens from.
std::vector<checks::LayerFile> real_layers(const BenchOptions& options) {
  const std::string folder = options.data.empty() ? checks::default_data_folder() : options.data;
  std::vector<checks::LayerFile> layers;
  for (const checks::LayerWithResult& files : checks::find_layers(folder)) {
    layers.push_back(checks::read_layer(files.path));
  }
  if (layers.empty()) {
    throw UsageError("--gates real: no layer files found; --data says where they are");
  }
  return layers;
}

std::vector<Timing> time_all(const BenchOptions& options) {
  const std::vector<checks::BenchCase> cases = chosen_cases(options);
  const int32_t state = options.state_dtype.value_or(FKDA_FLOAT32);
  std::vector<checks::LayerFile> layers;
  int sources = 0;  // of inputs, for every case
  for (const std::string& gates : options.gates) {
    if (gates == "real") layers = real_layers(options);
    sources += gates == "real" ? static_cast<int>(layers.size()) : 1;
  }
  Progress progress;
  int step = 0;
  std::vector<Timing> timings;
  const auto add = [&](const checks::BenchCase& bench_case, const std::string& gates, const auto& source) {
    progress.begin(bench_case.name + ", " + gates, step++, static_cast<int>(cases.size()) * sources);
    checks::OwnedProblem p = checks::make_bench_problem(bench_case, source, state);
    options.backend.apply(p.options);
    timings.push_back(time_case(bench_case, gates, p, options.repeat));
  };
  for (const checks::BenchCase& bench_case : cases) {
    for (const std::string& gates : options.gates) {
      if (gates == "real") {
        for (const checks::LayerFile& layer : layers) add(bench_case, gates, layer.problem);
      } else {
        add(bench_case, gates, *checks::find_family(gates));
      }
    }
  }
  return timings;
}

void print_table(const std::vector<Timing>& timings, const BenchOptions& options) {
  const Terminal terminal = detect_terminal("auto");
  const std::string& backend = timings.front().backend;
  const Json header = report_header(backend, options.backend.threads);
  std::printf("%s (%s), %d threads, %s\n", backend.c_str(), backend_detail(backend).c_str(),
              header["threads"].get<int>(), cpu_model().c_str());
  std::printf("bf16, K = V = 128, state %s in and out\n\n", timings.front().state.c_str());
  Table table({{"op", Table::Align::kLeft},
               {"case", Table::Align::kLeft},
               {"gates", Table::Align::kLeft},
               {"ms median"},
               {"ms min"},
               {"tokens/s"},
               {"speed"}});
  for (const Timing& t : timings) {
    table.add({t.decode ? "decode" : "prefill", t.name, t.gates == "real" ? "real " + t.gate : t.gates,
               format("%.3f", t.median_ms), format("%.3f", t.min_ms), with_separators(std::llround(t.tokens_per_s())),
               t.decode ? format("%.1f GB/s", t.state_gb_per_s()) : format("%.1f GFMA/s", t.gfma_per_s())});
  }
  bool first = true;
  for (const std::string& line : table.lines()) {
    std::printf("%s\n", first ? bold(terminal, line).c_str() : line.c_str());
    first = false;
  }
}

Json report(const std::vector<Timing>& timings, const BenchOptions& options) {
  Json result = report_header(timings.front().backend, options.backend.threads);
  result["bench"] = Json::array();
  for (const Timing& t : timings) {
    result["bench"].push_back(
        {{"op", t.decode ? "decode" : "prefill"},
         {"case", t.name},
         {"gates", t.gates},
         {"gate", t.gate},
         {"state", t.state},
         {"ms_median", t.median_ms},
         {"ms_min", t.min_ms},
         {"runs", t.runs},
         {"tokens_per_s", t.tokens_per_s()},
         {t.decode ? "state_gb_per_s" : "gfma_per_s", t.decode ? t.state_gb_per_s() : t.gfma_per_s()},
         {"workspace_bytes", t.workspace_bytes}});
  }
  return result;
}

int bench(const BenchOptions& options) {
  const std::vector<Timing> timings = time_all(options);
  if (options.json != "-") print_table(timings, options);
  if (!options.json.empty()) write_json(options.json, report(timings, options));
  return 0;
}

std::string joined(const char* const* begin, const char* const* end) {
  std::string text;
  for (; begin != end; ++begin) text += (text.empty() ? "" : ", ") + std::string(*begin);
  return text;
}

}  // namespace

Subcommand add_bench(CLI::App& program) {
  CLI::App* command = program.add_subcommand("bench", "Time prefill and decode");
  auto options = std::make_shared<BenchOptions>();
  command
      ->add_option("--case", options->cases,
                   "Cases by name:\n  H8 T8192    one sequence of 8192 tokens, 8 heads\n"
                   "  H32 256x32  256 packed sequences of 32 tokens\n  H96 mixed6  six uneven packed sequences\n"
                   "  B64 H32     decode: 64 sequences of one token\nDefault: " +
                       joined(std::begin(kDefaultCases), std::end(kDefaultCases)))
      ->type_name("NAME,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_flag(
      "--large", options->large,
      "Also these, which take several GB of memory:\n" + joined(std::begin(kLargeCases), std::end(kLargeCases)));
  std::vector<std::string> gates = {"real"};
  for (const checks::Family& family : checks::families()) gates.emplace_back(family.name);
  command->add_option("--gates", options->gates, "random, long, real (the layers of --data), or a family of check")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(gates).description(""));
  add_choice(*command, "--state", options->state_dtype, checks::parse_dtype, "fp32, bf16",
             "Dtype of the state at both ends (default fp32)");
  command->add_option("--data", options->data, "Folder of the real layers (default as for check)")->type_name("DIR");
  command
      ->add_option("--repeat", options->repeat, "Runs of a case after one to warm up (default: what fits one second)")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--json", options->json, "Write the table to this file as well; -: to standard output instead")
      ->type_name("FILE");
  options->backend.add_to(*command);
  return {command, [options] { return bench(*options); }};
}

}  // namespace flashkda::cli
