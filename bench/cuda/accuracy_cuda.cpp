// Accuracy of the CUDA backend against the fp64 recurrence: the families of `flashkda check`, the sixteen gate families
// and the trained layers, each error as rms(x - truth) / rms(truth) of o and of the final state, on every path.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "check/accuracy.hpp"
#include "check/families.hpp"
#include "check/layer_file.hpp"
#include "device.hpp"

namespace {

using namespace flashkda;
using bench::check;

// bf16 operands of every product and a bf16 output. One key, beta near 1 and no decay is the inverse at its worst.
constexpr double kOutputBar = 5.5e-3, kStateBar = 5e-3, kIdenticalKeysBar = 2e-2;
constexpr double kOutputMeanBar = 4.2e-3, kStateMeanBar = 3.5e-3;  // geometric means over the gate families
// For a problem and its workspace on every path: at least, and of a token and head.
constexpr int64_t kArenaBytes = int64_t{2} << 30, kArenaBytesOfAToken = 8192;

struct Row {
  std::string family, path;
  bool gate_family;
  checks::ErrorMeasures out, state;

  bool passed() const {
    const bool hard = family == "identical-keys";
    return out.rms <= (hard ? kIdenticalKeysBar : kOutputBar) && state.rms <= (hard ? kIdenticalKeysBar : kStateBar);
  }
};

// Runs a problem of host tensors on the device; outputs start as NaN and come back to the host.
void run_on_device(checks::OwnedProblem& p, const std::string& backend, bench::Arena& arena) {
  arena.release();
  fkda_problem d = p.problem();
  d.backend = backend.c_str();
  const std::pair<fkda_tensor fkda_problem::*, checks::HostTensor*> tensors[] = {
      {&fkda_problem::q, &p.q},
      {&fkda_problem::k, &p.k},
      {&fkda_problem::v, &p.v},
      {&fkda_problem::g, &p.g},
      {&fkda_problem::beta, &p.beta},
      {&fkda_problem::A_log, &p.A_log},
      {&fkda_problem::dt_bias, &p.dt_bias},
      {&fkda_problem::cu_seqlens, &p.cu_seqlens},
      {&fkda_problem::initial_state, &p.initial_state},
      {&fkda_problem::out, &p.out},
      {&fkda_problem::final_state, &p.final_state}};
  for (const auto& [member, tensor] : tensors) d.*member = bench::upload(*tensor, arena);
  checks::HostTensor* const outputs[] = {&p.out, &p.final_state};
  for (const checks::HostTensor* x : outputs) {
    void* const data = x == &p.out ? d.out.data : d.final_state.data;
    check(cudaMemset(data, 0xff, x->bytes().size()), "cudaMemset");
  }
  size_t bytes = 0;
  checks::require_ok(fkda_workspace_size(&d, &bytes));
  checks::require_ok(fkda_forward(&d, arena.take(bytes), bytes, nullptr));
  check(cudaMemcpy(p.out.bytes().data(), d.out.data, p.out.bytes().size(), cudaMemcpyDeviceToHost), "o");
  check(cudaMemcpy(p.final_state.bytes().data(), d.final_state.data, p.final_state.bytes().size(),
                   cudaMemcpyDeviceToHost),
        "final_state");
}

// Errors of every row. Inputs and references are made on all cores; the device takes one problem after the other.
std::vector<Row> measure_all(int64_t tokens, int64_t heads, const std::string& data,
                             const std::vector<std::string>& paths) {
  bench::Arena arena(static_cast<size_t>(std::max(kArenaBytes, tokens * heads * kArenaBytesOfAToken)));
  std::mutex device;
  std::vector<std::future<std::vector<Row>>> jobs;
  const auto add = [&](const std::string& name, bool gate_family, const std::function<checks::OwnedProblem()>& make) {
    jobs.push_back(std::async(std::launch::async, [&, name, gate_family, make] {
      checks::OwnedProblem p = make();
      p.allocate_outputs(FKDA_BFLOAT16, FKDA_FLOAT32);
      const checks::ReferenceResult truth = checks::reference_result(p);
      const std::lock_guard lock(device);
      std::vector<Row> rows;
      for (const std::string& path : paths) {
        run_on_device(p, "cuda_" + path, arena);
        rows.push_back({name, path, gate_family, checks::measure(p.out, truth.out),
                        checks::measure(p.final_state, truth.final_state)});
      }
      return rows;
    }));
  };
  for (const auto list : {checks::families(), checks::gate_families()}) {
    for (const checks::Family& family : list) {
      add(std::string(family.name), list.data() == checks::gate_families().data(),
          [&family, tokens, heads] { return checks::make_problem(family, {.T = tokens, .H = heads}); });
    }
  }
  if (data != "none") {
    for (const checks::LayerWithResult& layer :
         checks::find_layers(data.empty() ? checks::default_data_folder() : data)) {
      add(layer.name, false, [path = layer.path] { return checks::read_layer(path).problem; });
    }
  }
  std::vector<Row> rows;
  for (auto& job : jobs) {
    for (Row& row : job.get()) rows.push_back(std::move(row));
  }
  return rows;
}

double geometric_mean(const std::vector<Row>& rows, const std::string& path, checks::ErrorMeasures Row::*which) {
  double sum = 0.0;
  int count = 0;
  for (const Row& row : rows) {
    if (!row.gate_family || row.path != path) continue;
    sum += std::log((row.*which).rms);
    ++count;
  }
  return std::exp(sum / count);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Accuracy of the CUDA backend against fp64. Exit status 1 if a bar is missed.");
  int64_t tokens = 8192, heads = 1;
  std::string data, json;
  std::vector<std::string> paths = {"portable", "fused", "apart", "split"};
  app.add_option("--tokens", tokens, "tokens of a family's sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--heads", heads, "heads of it, which a path may be shaped by")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--path", paths, "backends without their \"cuda_\"")->capture_default_str();
  app.add_option("--data", data, "folder of the trained layers, or none");
  app.add_option("--json", json, "file for the rows");
  CLI11_PARSE(app, argc, argv);

  const std::vector<Row> rows = measure_all(tokens, heads, data, paths);
  bool passed = true;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::printf("%-28s %-10s %10s %10s\n", "family", "path", "o", "state");
  for (const Row& row : rows) {
    passed &= row.passed();
    std::printf("%-28s %-10s %10.2e %10.2e%s\n", row.family.c_str(), row.path.c_str(), row.out.rms, row.state.rms,
                row.passed() ? "" : "  MISSED");
    list.push_back({{"family", row.family},
                    {"path", row.path},
                    {"o", row.out.rms},
                    {"state", row.state.rms},
                    {"o_max", row.out.max},
                    {"o_mae", row.out.mae},
                    {"o_reference_rms", row.out.reference_rms},
                    {"gate_family", row.gate_family}});
  }
  for (const std::string& path : paths) {
    const double out_mean = geometric_mean(rows, path, &Row::out), state_mean = geometric_mean(rows, path, &Row::state);
    passed &= out_mean <= kOutputMeanBar && state_mean <= kStateMeanBar;
    std::printf("%-28s %-10s %10.2e %10.2e\n", "geometric mean of the gates", path.c_str(), out_mean, state_mean);
  }
  if (!json.empty()) {
    std::ofstream(json) << nlohmann::ordered_json{{"cuda", bench::runtime_version()}, {"accuracy", list}}.dump(1)
                        << "\n";
  }
  return passed ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "accuracy_cuda: %s\n", e.what());
  return 2;
}
