// Speed of the CUDA backend through the C interface, by CUDA events.
//
// A measurement replays a CUDA graph of many calls, so that no launch gap is timed, over several input sets that hold
// more than the L2 cache together, so that no call finds its tensors there. Each repeat is one replay; reported are the
// median, the smallest and the interquartile range of the repeats, per call. Before the first the card rests: these
// kernels take it to its power limit, and for some time after a row it would still give clock away. What the limit
// costs is in docs/kernels/sm90a.md.
//
// bytes        tensors once, and the workspace written and read once
// floor_ms     the tensors alone (each input read once, each output written once) at the copy bandwidth of this run
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "check/bench_case.hpp"
#include "check/layer_file.hpp"
#include "check/random.hpp"
#include "core/dtype.hpp"
#include "device.hpp"

namespace {

using namespace flashkda;
using bench::check;

constexpr int64_t kD = 128;
constexpr size_t kArenaBytes = size_t{20} << 30;
constexpr size_t kPoolElements = 6'000'016;      // random numbers of a kind; a multiple of 8, not of a token
constexpr size_t kRotation = size_t{256} << 20;  // bytes of all input sets together: four times the L2 of an H200
constexpr int kMaxSets = 64;
constexpr double kMinReplayMs = 3.0;
constexpr int kWarmUps = 3;  // replays
constexpr std::chrono::milliseconds kRest{250};

const std::vector<std::string> kCases = {
    "H96 T8192",  "H96 mixed6", "H96 8x1024", "H64 T8192",  "H64 mixed6", "H64 8x1024", "H32 T8192", "H16 T8192",
    "H12 T8192",  "H8 T8192",   "H4 T8192",   "H1 T8192",   "H8 T65536",  "H8 T131072", "H4 T65536", "H1 T1048576",
    "H12 4x2048", "H8 mixed6",  "H32 256x32", "H32 64x128", "H32 256x1",  "H32 1x1000", "H8 10000x8"};
// More points of the pictures (bench/python/time_picture.py).
const std::vector<std::string> kPictureCases = {"H2 T8192", "H24 T8192", "H48 T8192", "H128 T8192", "H8 T512",
                                                "H8 T2048", "H8 T16384", "H8 T32768", "H8 T262144"};
const std::vector<std::string> kDecodeCases = {"B1 H32", "B32 H32", "B128 H32", "B512 H32"};
const std::vector<std::string> kSoftplusCases = {"H96 T8192", "H64 mixed6"};

// ------------------------------------------------------------------------------------------------- inputs

// Random numbers on the device, copied wherever a tensor is wanted: making gigabytes of them anew takes minutes.
class Pool {
 public:
  // Elements of dtype, from next().
  Pool(int32_t dtype, const std::function<double()>& next) : size_(dtype_size(dtype)) {
    checks::HostTensor host(dtype, {static_cast<int64_t>(kPoolElements)});
    host.generate(next);
    check(cudaMalloc(&data_, host.bytes().size()), "cudaMalloc");
    check(cudaMemcpy(data_, host.bytes().data(), host.bytes().size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~Pool() { cudaFree(data_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Fills `bytes` at `to`, going on in the pool where the last call stopped.
  void fill(void* to, size_t bytes) {
    const size_t end = kPoolElements * static_cast<size_t>(size_);
    for (size_t done = 0; done < bytes;) {
      const size_t count = std::min(bytes - done, end - position_);
      check(cudaMemcpyAsync(static_cast<char*>(to) + done, static_cast<char*>(data_) + position_, count,
                            cudaMemcpyDeviceToDevice),
            "cudaMemcpyAsync");
      done += count;
      position_ = (position_ + count) % end;
    }
  }

 private:
  int64_t size_;
  void* data_ = nullptr;
  size_t position_ = 0;
};

enum class Gates { kRandom, kLong, kReal, kSoftplus, kRealSoftplus };

const std::map<std::string, Gates> kGateNames = {{"random", Gates::kRandom},
                                                 {"long", Gates::kLong},
                                                 {"real", Gates::kReal},
                                                 {"softplus", Gates::kSoftplus},
                                                 {"real softplus", Gates::kRealSoftplus}};

// A trained layer on the device.
struct DeviceLayer {
  checks::OwnedProblem host;
  bench::Arena arena{size_t{64} << 20};
  fkda_tensor q, k, v, g, beta;

  explicit DeviceLayer(const std::string& path) : host(checks::read_layer(path).problem) {
    q = bench::upload(host.q, arena);
    k = bench::upload(host.k, arena);
    v = bench::upload(host.v, arena);
    g = bench::upload(host.g, arena);
    beta = bench::upload(host.beta, arena);
  }
};

// Makes problems on the device.
class Inputs {
 public:
  explicit Inputs(const std::string& data) {
    if (data == "none") return;
    const std::string folder = data.empty() ? checks::default_data_folder() : data;
    for (const checks::LayerWithResult& layer : checks::find_layers(folder)) {
      const bool softplus = checks::read_layer(layer.path).problem.options.gate == FKDA_GATE_SOFTPLUS;
      auto& slot = softplus ? softplus_layer_ : bounded_layer_;
      if (!slot) slot.emplace(layer.path);
    }
  }

  bool have(Gates gates) const {
    if (gates == Gates::kReal) return bounded_layer_.has_value();
    if (gates == Gates::kRealSoftplus) return softplus_layer_.has_value();
    return true;
  }

  // One input set of the case: bf16 tensors, states of `state` at both ends (decode: in place). Contents differ from
  // call to call.
  fkda_problem make(const checks::BenchCase& bench_case, Gates gates, int32_t state, bench::Arena& arena) {
    const checks::ProblemShape& shape = bench_case.shape;
    std::vector<int64_t> cu = {0};
    for (const int64_t length : shape.lengths) cu.push_back(cu.back() + length);
    const bool packed = !shape.lengths.empty();
    const int64_t B = packed ? 1 : shape.B, T = packed ? cu.back() : shape.T, H = shape.H;
    const int64_t N = packed ? static_cast<int64_t>(shape.lengths.size()) : B;

    fkda_problem p;
    fkda_problem_init(&p);
    const auto tensor = [&](int32_t dtype, std::vector<int64_t> extents) {
      int64_t bytes = dtype_size(dtype);
      for (const int64_t extent : extents) bytes *= extent;
      fkda_tensor t = fkda_dense(arena.take(static_cast<size_t>(bytes)), static_cast<fkda_dtype>(dtype),
                                 static_cast<int32_t>(extents.size()), extents.data());
      t.device_type = FKDA_CUDA;
      return t;
    };
    const DeviceLayer* const layer = gates == Gates::kReal           ? &*bounded_layer_
                                     : gates == Gates::kRealSoftplus ? &*softplus_layer_
                                                                     : nullptr;
    const auto rows = [&](const fkda_tensor DeviceLayer::*source, Pool& pool, bool scalar) {
      fkda_tensor t = tensor(layer ? (layer->*source).dtype : FKDA_BFLOAT16,
                             scalar ? std::vector<int64_t>{B, T, H} : std::vector<int64_t>{B, T, H, kD});
      if (layer) {
        tile(layer->*source, t);
      } else {
        pool.fill(t.data, bytes_of(t));
      }
      return t;
    };
    p.q = rows(&DeviceLayer::q, normal_, false);
    p.k = rows(&DeviceLayer::k, normal_, false);
    p.v = rows(&DeviceLayer::v, normal_, false);
    p.g = rows(&DeviceLayer::g, gates == Gates::kLong ? tenth_ : normal_, false);
    p.beta = rows(&DeviceLayer::beta, normal_, true);
    p.out = tensor(FKDA_BFLOAT16, {B, T, H, kD});
    if (layer) {
      p.gate = layer->host.options.gate;
      p.lower_bound = layer->host.options.lower_bound;
    } else {
      p.gate = gates == Gates::kSoftplus ? FKDA_GATE_SOFTPLUS : FKDA_GATE_BOUNDED;
    }
    p.A_log = bench::upload(per_head(layer ? &layer->host.A_log : nullptr, {H}, gates, false), arena);
    p.dt_bias = bench::upload(per_head(layer ? &layer->host.dt_bias : nullptr, {H, kD}, gates, true), arena);
    if (packed) p.cu_seqlens = bench::upload(checks::HostTensor::integers(FKDA_INT64, cu), arena);
    p.initial_state = tensor(state, {N, H, kD, kD});
    (state == FKDA_FLOAT32 ? state_fp32_ : state_bf16_).fill(p.initial_state.data, bytes_of(p.initial_state));
    p.final_state = bench_case.decode ? p.initial_state : tensor(state, {N, H, kD, kD});
    return p;
  }

  static size_t bytes_of(const fkda_tensor& t) {
    int64_t bytes = t.ndim == 0 ? 0 : dtype_size(t.dtype);
    for (int d = 0; d < t.ndim; ++d) bytes *= t.shape[d];
    return static_cast<size_t>(bytes);
  }

 private:
  // Tokens and heads of a layer repeated over a larger tensor, as strips of as many heads as the layer has.
  static void tile(const fkda_tensor& source, const fkda_tensor& to) {
    const int64_t element = dtype_size(source.dtype) * (source.ndim > 3 ? kD : 1);
    const int64_t heads = to.shape[2], strip = std::min(heads, source.shape[2]);
    const int64_t tokens = to.shape[0] * to.shape[1], block = source.shape[1];
    for (int64_t t = 0; t < tokens; t += block) {
      for (int64_t h = 0; h < heads; h += strip) {
        check(cudaMemcpy2DAsync(static_cast<char*>(to.data) + (t * heads + h) * element,
                                static_cast<size_t>(heads * element), source.data,
                                static_cast<size_t>(source.shape[2] * element),
                                static_cast<size_t>(std::min(strip, heads - h) * element),
                                static_cast<size_t>(std::min(block, tokens - t)), cudaMemcpyDeviceToDevice),
              "cudaMemcpy2DAsync");
      }
    }
  }

  // A_log and dt_bias: the layer's, repeated, or by the gates. random and softplus: U(0,1). long: 0, and the inverse
  // softplus of a step log-uniform in 0.001 .. 0.1.
  checks::HostTensor per_head(const checks::HostTensor* source, std::vector<int64_t> shape, Gates gates, bool bias) {
    if (source && !source->present()) return {};
    checks::HostTensor x(FKDA_FLOAT32, std::move(shape));
    for (int64_t i = 0; i < x.size(); ++i) {
      if (source) {
        x.set(i, source->get(i % source->size()));
      } else if (gates == Gates::kLong) {
        x.set(i, bias ? std::log(std::expm1(std::exp(random_.uniform(std::log(1e-3), std::log(0.1))))) : 0.0);
      } else {
        x.set(i, random_.uniform());
      }
    }
    return x;
  }

  checks::Random random_{1};
  Pool normal_{FKDA_BFLOAT16, [&] { return random_.normal(); }};
  Pool tenth_{FKDA_BFLOAT16, [&] { return 0.1 * random_.normal(); }};
  Pool state_fp32_{FKDA_FLOAT32, [&] { return 0.5 * random_.normal(); }};
  Pool state_bf16_{FKDA_BFLOAT16, [&] { return 0.5 * random_.normal(); }};
  std::optional<DeviceLayer> bounded_layer_, softplus_layer_;
};

// ------------------------------------------------------------------------------------------------- timing

struct Times {
  double median, min, iqr;  // milliseconds
};

Times summary(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double share) {
    return ms[static_cast<size_t>(std::lround(share * static_cast<double>(ms.size() - 1)))];
  };
  return {at(0.5), ms.front(), at(0.75) - at(0.25)};
}

class Timer {
 public:
  Timer() {
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    check(cudaEventCreate(&start_), "cudaEventCreate");
    check(cudaEventCreate(&stop_), "cudaEventCreate");
  }
  cudaStream_t stream() const { return stream_; }

  // Milliseconds of what `enqueue` puts on the stream.
  template <typename Enqueue>
  double once(Enqueue&& enqueue) {
    check(cudaEventRecord(start_, stream_), "cudaEventRecord");
    enqueue();
    check(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(stop_), "cudaEventSynchronize");
    float ms = 0.0f;
    check(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
    return ms;
  }

  // `repeats` replays of a graph that holds `calls` calls, after kWarmUps of them; per call.
  Times replay(cudaGraph_t graph, int64_t calls, int repeats) {
    cudaGraphExec_t executable;
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    std::vector<double> ms;
    const auto launch = [&] { check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch"); };
    for (int i = 0; i < kWarmUps; ++i) once(launch);
    for (int i = 0; i < repeats; ++i) ms.push_back(once(launch) / static_cast<double>(calls));
    check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    return summary(ms);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_, stop_;
};

// Bytes per second of a device-to-device copy, read and written.
double copy_bandwidth(Timer& timer, bench::Arena& arena, int repeats) {
  constexpr size_t kBytes = size_t{2} << 30;
  arena.release();
  void *from = arena.take(kBytes), *to = arena.take(kBytes);
  check(cudaMemset(from, 0x5a, kBytes), "cudaMemset");
  std::vector<double> ms;
  for (int i = 0; i < repeats + 2; ++i) {
    ms.push_back(timer.once([&] {
      check(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, timer.stream()), "cudaMemcpyAsync");
    }));
  }
  ms.erase(ms.begin(), ms.begin() + 2);
  return 2.0 * static_cast<double>(kBytes) / (summary(ms).median * 1e-3);
}

// The kernels whose time alone is worth knowing, by a part of their names. Not that with makers and readers: they
// would find the flags of their last run.
constexpr const char* kKernels[] = {"prepare", "affine", "combine", "recur", "fused"};

// A function of the driver, which knows the kernels of a shared library that has a runtime of its own.
template <typename Function>
Function* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(name, &function, 12030, cudaEnableDefault, &found), name);
#else
  check(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found), name);
#endif
  if (found != cudaDriverEntryPointSuccess) throw std::runtime_error(std::string("the driver has no ") + name);
  return reinterpret_cast<Function*>(function);
}

void check_driver(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) throw std::runtime_error(std::string(what) + ": driver error " + std::to_string(result));
}

// Calls one after the other over the input sets, `rounds` times, as a graph.
class CallGraph {
 public:
  CallGraph(const std::vector<fkda_problem>& sets, void* workspace, size_t workspace_bytes, int64_t rounds,
            cudaStream_t stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int64_t round = 0; round < rounds; ++round) {
      for (const fkda_problem& p : sets) checks::require_ok(fkda_forward(&p, workspace, workspace_bytes, stream));
    }
    check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
  }
  ~CallGraph() { cudaGraphDestroy(graph_); }
  CallGraph(const CallGraph&) = delete;
  CallGraph& operator=(const CallGraph&) = delete;
  cudaGraph_t graph() const { return graph_; }

  // The kernels alone: a graph of only those nodes whose kernel's name contains `name`, in a row. Null: there is none.
  cudaGraph_t only(const std::string& name) const {
    static auto* const params_of =
        driver_function<CUresult(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>("cuGraphKernelNodeGetParams");
    static auto* const name_of = driver_function<CUresult(const char**, CUfunction)>("cuFuncGetName");
    static auto* const add =
        driver_function<CUresult(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const CUDA_KERNEL_NODE_PARAMS*)>(
            "cuGraphAddKernelNode");
    // A node's parameters do not say that its blocks come in clusters.
    static auto* const attribute_of =
        driver_function<CUresult(CUgraphNode, CUkernelNodeAttrID, CUkernelNodeAttrValue*)>(
            "cuGraphKernelNodeGetAttribute");
    static auto* const set_attribute =
        driver_function<CUresult(CUgraphNode, CUkernelNodeAttrID, const CUkernelNodeAttrValue*)>(
            "cuGraphKernelNodeSetAttribute");
    size_t count = 0;
    check(cudaGraphGetNodes(graph_, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(count);
    check(cudaGraphGetNodes(graph_, nodes.data(), &count), "cudaGraphGetNodes");
    cudaGraph_t result;
    check(cudaGraphCreate(&result, 0), "cudaGraphCreate");
    cudaGraphNode_t last = nullptr;
    for (cudaGraphNode_t node : nodes) {
      CUDA_KERNEL_NODE_PARAMS params;
      const char* function = nullptr;
      check_driver(params_of(node, &params), "cuGraphKernelNodeGetParams");
      check_driver(name_of(&function, params.func), "cuFuncGetName");
      if (std::string(function).find(name) == std::string::npos) continue;
      cudaGraphNode_t added;
      check_driver(add(&added, result, last ? &last : nullptr, last ? 1 : 0, &params), "cuGraphAddKernelNode");
      CUkernelNodeAttrValue cluster{};
      check_driver(attribute_of(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster),
                   "cuGraphKernelNodeGetAttribute");
      if (cluster.clusterDim.x > 1) {
        check_driver(set_attribute(added, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster),
                     "cuGraphKernelNodeSetAttribute");
      }
      last = added;
    }
    if (last != nullptr) return result;
    check(cudaGraphDestroy(result), "cudaGraphDestroy");
    return nullptr;
  }

 private:
  cudaGraph_t graph_ = nullptr;
};

// Microseconds of host time that one call costs its caller: validation, plan, launches, no waiting.
double host_cost(const char* name, Inputs& inputs, bench::Arena& arena, cudaStream_t stream) {
  arena.release();
  const fkda_problem p = inputs.make(*checks::parse_bench_case(name), Gates::kRandom, FKDA_FLOAT32, arena);
  size_t bytes = 0;
  checks::require_ok(fkda_workspace_size(&p, &bytes));
  void* const workspace = arena.take(bytes);
  std::vector<double> us;
  constexpr int kCalls = 100;  // fewer launches than the driver's queue holds
  for (int round = 0; round < 12; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) checks::require_ok(fkda_forward(&p, workspace, bytes, stream));
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kCalls);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  return summary(us).median;
}

// ------------------------------------------------------------------------------------------------- a case

struct Setting {
  std::string name, gates;
  int32_t state;
};

nlohmann::ordered_json measure(const Setting& setting, Inputs& inputs, bench::Arena& arena, Timer& timer, int repeats,
                               bool split, double bandwidth) {
  const checks::BenchCase bench_case = *checks::parse_bench_case(setting.name);
  arena.release();
  std::vector<fkda_problem> sets = {inputs.make(bench_case, kGateNames.at(setting.gates), setting.state, arena)};
  const size_t set_bytes = arena.used();
  const auto wanted = std::clamp<int64_t>(static_cast<int64_t>(kRotation / set_bytes) + 1, 2, kMaxSets);
  while (static_cast<int64_t>(sets.size()) < wanted && arena.used() + 2 * set_bytes < kArenaBytes) {
    sets.push_back(inputs.make(bench_case, kGateNames.at(setting.gates), setting.state, arena));
  }
  const fkda_problem& p = sets.front();
  size_t workspace_bytes = 0;
  checks::require_ok(fkda_workspace_size(&p, &workspace_bytes));
  void* const workspace = arena.take(workspace_bytes);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

  const auto run_once = [&](const fkda_problem& set) {
    checks::require_ok(fkda_forward(&set, workspace, workspace_bytes, timer.stream()));
  };
  run_once(p);  // loads the kernels
  const double estimate = timer.once([&] { run_once(sets.back()); }) * static_cast<double>(sets.size());
  const int64_t rounds = std::clamp<int64_t>(static_cast<int64_t>(kMinReplayMs / estimate) + 1, 1, 20);
  const CallGraph calls(sets, workspace, workspace_bytes, rounds, timer.stream());
  const int64_t count = rounds * static_cast<int64_t>(sets.size());
  std::this_thread::sleep_for(kRest);
  const Times times = timer.replay(calls.graph(), count, repeats);

  double tensors = 0.0;
  for (const fkda_tensor* t : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.A_log, &p.dt_bias, &p.cu_seqlens, &p.out,
                               &p.initial_state, &p.final_state}) {
    tensors += static_cast<double>(Inputs::bytes_of(*t));
  }
  const double bytes = tensors + 2.0 * static_cast<double>(workspace_bytes);
  const double floor_ms = tensors / bandwidth * 1e3;
  nlohmann::ordered_json row = {{"op", bench_case.decode ? "decode" : "prefill"},
                                {"case", setting.name},
                                {"gates", setting.gates},
                                {"state", setting.state == FKDA_FLOAT32 ? "fp32" : "bf16"},
                                {"ms_median", times.median},
                                {"ms_min", times.min},
                                {"ms_iqr", times.iqr},
                                {"bytes", bytes},
                                {"gb_per_s", bytes / times.median * 1e-6},
                                {"floor_ms", floor_ms},
                                {"floor_fraction", floor_ms / times.median},
                                {"workspace_bytes", workspace_bytes}};
  if (split) {
    for (const char* kernel : kKernels) {
      cudaGraph_t graph = calls.only(kernel);
      if (graph == nullptr) continue;  // the other path's
      std::this_thread::sleep_for(kRest);
      row[std::string(kernel) + "_ms"] = timer.replay(graph, count, repeats).median;
      check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
  }
  return row;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Speed of the CUDA backend.");
  std::vector<std::string> cases;
  std::vector<std::string> gates = {"random", "long", "real"};
  std::vector<std::string> states = {"fp32", "bf16"};
  std::string data, json;
  int repeats = 15;
  bool split = false;
  app.add_option("--case", cases,
                 "such as \"H8 T8192\", \"H32 256x32\", \"H96 mixed6\", \"B64 H32\" (decode); default: all");
  app.add_option("--gates", gates, "random, long, real, softplus, 'real softplus'")
      ->check(CLI::IsMember(kGateNames, CLI::ignore_case))
      ->capture_default_str();
  app.add_option("--state", states, "fp32, bf16: the states' dtype at both ends")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--data", data, "folder of the trained layers, or none");
  app.add_option("--repeat", repeats, "replays a measurement")->check(CLI::Range(3, 1000))->capture_default_str();
  app.add_flag("--split", split, "time each kernel alone as well");
  app.add_option("--json", json, "file for the rows");
  CLI11_PARSE(app, argc, argv);

  std::vector<Setting> settings;
  const auto add = [&](const std::vector<std::string>& names, const std::vector<std::string>& kinds) {
    for (const std::string& name : names) {
      for (const std::string& kind : kinds) {
        for (const std::string& state : states) {
          settings.push_back({name, kind, state == "fp32" ? FKDA_FLOAT32 : FKDA_BFLOAT16});
        }
      }
    }
  };
  for (const std::string& name : cases) {
    if (!checks::parse_bench_case(name)) throw std::runtime_error("--case: there is no case \"" + name + '"');
  }
  if (cases.empty()) {
    add(kCases, gates);
    add(kPictureCases, {"random", "long"});
    add(kSoftplusCases, {"softplus", "real softplus"});
    add(kDecodeCases, {"random"});
  } else {
    add(cases, gates);
  }

  Timer timer;
  bench::Arena arena(kArenaBytes);
  Inputs inputs(data);
  const double bandwidth = copy_bandwidth(timer, arena, repeats);
  const double host_us = host_cost("H1 T64", inputs, arena, timer.stream());
  const double packed_host_us = host_cost("H1 4x16", inputs, arena, timer.stream());
  std::printf("copy %.0f GB/s, host cost of a call %.1f us, of a packed one %.1f us\n", bandwidth * 1e-9, host_us,
              packed_host_us);
  std::printf("%-8s %-12s %-14s %-5s %9s %9s %9s %8s %7s\n", "op", "case", "gates", "state", "median ms", "min ms",
              "iqr ms", "GB/s", "floor");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Setting& setting : settings) {
    if (!inputs.have(kGateNames.at(setting.gates))) continue;
    rows.push_back(measure(setting, inputs, arena, timer, repeats, split, bandwidth));
    const auto& row = rows.back();
    std::printf("%-8s %-12s %-14s %-5s %9.4f %9.4f %9.4f %8.0f %6.0f%%", row["op"].get<std::string>().c_str(),
                setting.name.c_str(), setting.gates.c_str(), row["state"].get<std::string>().c_str(),
                row["ms_median"].get<double>(), row["ms_min"].get<double>(), row["ms_iqr"].get<double>(),
                row["gb_per_s"].get<double>(), 100.0 * row["floor_fraction"].get<double>());
    for (const char* kernel : kKernels) {
      const auto alone = row.find(std::string(kernel) + "_ms");
      if (alone != row.end()) std::printf("  %s %.4f", kernel, alone->get<double>());
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  if (!json.empty()) {
    std::ofstream(json) << nlohmann::ordered_json{{"cuda", bench::runtime_version()},
                                                  {"copy_gb_per_s", bandwidth * 1e-9},
                                                  {"host_us_per_call", host_us},
                                                  {"host_us_per_packed_call", packed_host_us},
                                                  {"bench", rows}}
                               .dump(1)
                        << "\n";
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_cuda: %s\n", e.what());
  return 1;
}
