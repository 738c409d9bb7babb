// Every subcommand of the tool as a user runs it: what it prints, writes and returns, and how it fails.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "check/accuracy.hpp"
#include "check/families.hpp"
#include "check/layer_file.hpp"

namespace flashkda::checks {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kData = FLASHKDA_SOURCE_DIR "/data";
constexpr const char* kBounded = FLASHKDA_SOURCE_DIR "/data/kda_bounded_slice.safetensors";
constexpr const char* kBoundedExpected = FLASHKDA_SOURCE_DIR "/data/kda_bounded_slice_expected.safetensors";
constexpr const char* kSoftplus = FLASHKDA_SOURCE_DIR "/data/kda_softplus_slice.safetensors";

struct Outcome {
  int status = -1;  // exit status; -1 if it was ended by a signal
  std::string out, err;
};

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class CliTest : public testing::Test {
 protected:
  CliTest() : folder_(fs::path(testing::TempDir()) / ("flashkda_cli_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~CliTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Runs the tool with these arguments, as the shell reads them; environment: e.g. "NO_COLOR=1".
  Outcome run(const std::string& arguments, const std::string& environment = "") const {
    const std::string command = "env -u FLASHKDA_DATA_DIR -u FLASH_KDA_BACKEND " + environment +
                                " '" FLASHKDA_CLI "' " + arguments + " > '" + path("out") + "' 2> '" + path("err") +
                                "' < /dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) && WEXITSTATUS(status) < 128 ? WEXITSTATUS(status) : -1, read_text(path("out")),
            read_text(path("err"))};
  }

  // Bad usage or input: status 2, nothing on standard output, one line on standard error that says this.
  void expect_failure(const std::string& arguments, const std::string& message) const {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.status, 2) << arguments << '\n' << o.err;
    EXPECT_EQ(o.out, "") << arguments;
    EXPECT_EQ(o.err.rfind("flashkda: ", 0), 0u) << arguments << '\n' << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << arguments << '\n' << o.err;
    EXPECT_NE(o.err.find(message), std::string::npos) << arguments << '\n' << o.err << "needs: " << message;
  }

  // in.safetensors, with every tensor that the problem has, and what its tokens stand for.
  void write_problem(const OwnedProblem& p, const std::string& text = "") const {
    std::vector<io::TensorView> tensors;
    for (const auto& [name, x] : {std::pair{"q", &p.q},
                                  {"k", &p.k},
                                  {"v", &p.v},
                                  {"g", &p.g},
                                  {"beta", &p.beta},
                                  {"A_log", &p.A_log},
                                  {"dt_bias", &p.dt_bias},
                                  {"cu_seqlens", &p.cu_seqlens},
                                  {"initial_state", &p.initial_state},
                                  {"state_indices", &p.state_indices}}) {
      if (x->present()) tensors.push_back({name, to_file_dtype(x->dtype()), x->shape(), x->bytes()});
    }
    if (!text.empty()) {
      tensors.push_back({"bytes", io::DType::kU8, {static_cast<int64_t>(text.size())}, std::as_bytes(std::span(text))});
    }
    io::write_safetensors(path("in.safetensors"), std::move(tensors), {});
  }

  fs::path folder_;
};

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
}

// What the tool prints on a terminal of this size.
std::string on_terminal(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                        int columns) {
  winsize size = {50, static_cast<unsigned short>(columns), 0, 0};
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    for (const char* name : {"NO_COLOR", "COLORTERM", "TERM", "LC_ALL", "LC_CTYPE"}) unsetenv(name);
    for (const std::string& setting : environment) putenv(const_cast<char*>(setting.c_str()));
    std::vector<char*> argv = {const_cast<char*>(FLASHKDA_CLI)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(FLASHKDA_CLI, argv.data());
    _exit(127);
  }
  std::string text;
  std::array<char, 4096> buffer;
  ssize_t got = 0;
  while ((got = read(terminal, buffer.data(), buffer.size())) > 0) text.append(buffer.data(), static_cast<size_t>(got));
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
  return text;
}

// Columns of the longest line, escape sequences and continuation bytes of UTF-8 not counted.
size_t widest_line(const std::string& text) {
  const std::string plain = std::regex_replace(text, std::regex("\x1b\\[[0-9;]*[A-Za-z]"), "");
  size_t widest = 0, width = 0;
  for (const char c : plain) {
    if (c == '\n') width = 0;
    if (c != '\n' && c != '\r' && (static_cast<unsigned char>(c) & 0xc0) != 0x80) widest = std::max(widest, ++width);
  }
  return widest;
}

// ------------------------------------------------------------------------------------------------------ the program

TEST_F(CliTest, HelpAndVersion) {
  const Outcome help = run("--help");
  EXPECT_EQ(help.status, 0);
  for (const char* name : {"info", "run", "check", "bench", "inspect"}) {
    expect_contains(help.out, name);
    const Outcome own = run(std::string(name) + " --help");
    EXPECT_EQ(own.status, 0);
    expect_contains(own.out, "--help");
  }
  EXPECT_EQ(run("--version").out, std::string("flashkda ") + fkda_version() + "\n");
}

TEST_F(CliTest, BadUsage) {
  expect_failure("", "subcommand is required");
  expect_failure("fly", "got 'fly', needs one of info, run, check, bench, inspect");
  expect_failure("info extra", "extra");
  expect_failure("run", "input is required");
  expect_failure(std::string("run ") + kBounded, "--output is required");
  expect_failure("check --no-such-flag", "--no-such-flag");
  expect_failure("check --tokens many", "--tokens");
  expect_failure("check --threads -1", "--threads");
  expect_failure("check --family nothing", "nothing");
  expect_failure("bench --case 'H8'", "--case: got 'H8'");
  expect_failure("bench --gates nothing", "nothing");
  expect_failure("bench --state fp8", "--state: got 'fp8', needs one of fp32, bf16");
  expect_failure(std::string("inspect --symbol X ") + kBounded, "X");
}

TEST_F(CliTest, FullOutputIsAnError) {
  const int status = std::system("'" FLASHKDA_CLI "' info > /dev/full 2> /dev/null");
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

TEST_F(CliTest, InfoNamesEveryImplementationAndFeature) {
  const Outcome o = run("info");
  EXPECT_EQ(o.status, 0);
  expect_contains(o.out, fkda_version());
  for (int32_t i = 0; i < fkda_implementation_count(); ++i) {
    fkda_implementation implementation;
    ASSERT_EQ(fkda_implementation_info(i, &implementation), FKDA_OK);
    expect_contains(o.out, implementation.name);
    expect_contains(o.out, implementation.detail);
    std::istringstream features(implementation.features);
    for (std::string feature; features >> feature;) expect_contains(o.out, feature);
  }
}

// -------------------------------------------------------------------------------------------------------------- run

TEST_F(CliTest, RunComputesTheRealLayer) {
  const Outcome o =
      run(std::string("run ") + kBounded + " -o " + path("o.safetensors") + " --expected " + kBoundedExpected);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.err, "");
  for (const char* part : {"T 117", "H 4", "gate     bounded, lower_bound -5", "cpu", "tokens/s", "[117,4,128] bf16",
                           "[4,128,128] fp32", "error    o: rms", "error    final_state: rms"}) {
    expect_contains(o.out, part);
  }
  const LayerResult result = read_result(path("o.safetensors")), expected = read_result(kBoundedExpected);
  EXPECT_EQ(result.out.dtype(), FKDA_BFLOAT16);
  EXPECT_LE(measure(result.out, expected.out).rms, kOutputBar);
  EXPECT_LE(measure(result.final_state, expected.final_state).rms, kStateBar);
}

TEST_F(CliTest, RunHonoursEveryFlag) {
  const auto result = [&](const std::string& flags, const char* input = kBounded) {
    const Outcome o = run("run " + std::string(input) + " -o " + path("o.safetensors") + " " + flags);
    EXPECT_EQ(o.status, 0) << flags << '\n' << o.err;
    return read_result(path("o.safetensors"));
  };
  // Each against the library called with that option.
  const auto expect = [&](const std::string& flags, const std::function<void(fkda_problem&)>& set) {
    LayerFile layer = read_layer(kBounded);
    set(layer.problem.options);
    const ReferenceResult reference = reference_result(layer.problem);
    const LayerResult actual = result(flags);
    EXPECT_LE(measure(actual.out, reference.out).rms, kOutputBar) << flags;
    EXPECT_LE(measure(actual.final_state, reference.final_state).rms, kStateBar) << flags;
  };
  expect("--lower-bound -1.5", [](fkda_problem& p) { p.lower_bound = -1.5f; });
  expect("--scale 0.5", [](fkda_problem& p) { p.scale = 0.5f; });
  expect("--gate softplus", [](fkda_problem& p) { p.gate = FKDA_GATE_SOFTPLUS; });
  expect("--beta activated", [](fkda_problem& p) { p.beta_activation = FKDA_BETA_ACTIVATED; });
  expect("--beta twice-sigmoid", [](fkda_problem& p) { p.beta_activation = FKDA_BETA_TWICE_SIGMOID; });
  expect("--state-layout k-first", [](fkda_problem& p) { p.state_layout = FKDA_STATE_K_FIRST; });
  expect("--threads 1", [](fkda_problem&) {});

  EXPECT_EQ(result("--out-dtype fp32").out.dtype(), FKDA_FLOAT32);
  EXPECT_EQ(result("--state-dtype bf16").final_state.dtype(), FKDA_BFLOAT16);
  EXPECT_FALSE(result("--no-final-state").final_state.present());
  const LayerResult exact = result("--backend reference --out-dtype fp64 --state-dtype fp64");
  EXPECT_EQ(exact.out.dtype(), FKDA_FLOAT64);
  EXPECT_LE(measure(exact.out, read_result(kBoundedExpected).out).rms, 1e-6);
}

TEST_F(CliTest, RunSaysWhichTensorsItDoesNotRead) {
  std::string file = read_text(kBounded);
  const std::string name = "\"dt_bias\"", misspelt = "\"dt_bais\"";
  file.replace(file.find(name), name.size(), misspelt);
  std::ofstream(path("in.safetensors"), std::ios::binary) << file;
  const Outcome o = run("run " + path("in.safetensors") + " -o " + path("out.safetensors"));
  EXPECT_EQ(o.status, 0) << o.err;
  expect_contains(o.out, "not read 'dt_bais'\n");
  EXPECT_EQ(run(std::string("run ") + kBounded + " -o " + path("out.safetensors")).out.find("not read"),
            std::string::npos);
}

TEST_F(CliTest, InfoSaysWhatTheEnvironmentChooses) {
  EXPECT_EQ(run("info").out.find("FLASH_KDA_BACKEND"), std::string::npos);
  expect_contains(run("info", "FLASH_KDA_BACKEND=reference").out,
                  "FLASH_KDA_BACKEND is set: where none is named, reference runs\n");
  expect_contains(run("info", "FLASH_KDA_BACKEND=abacus").out,
                  "where none is named, calls are refused, for abacus is none of these\n");
  const std::string cuda = run("info", "FLASH_KDA_BACKEND=cuda").out;
  const bool listed = cuda.find("\ncuda ") != std::string::npos;
  const bool missing = cuda.find("not available, on cuda tensors") != std::string::npos;
  expect_contains(cuda, !listed   ? "for cuda is none of these\n"
                        : missing ? "for cuda is not available\n"
                                  : "where none is named, cuda runs\n");
}

TEST_F(CliTest, RunSaysWhereTheGateIsTheDefault) {
  std::string file = read_text(kBounded);
  const std::string name = "\"gate\"", misspelt = "\"gats\"";
  file.replace(file.find(name), name.size(), misspelt);
  std::ofstream(path("in.safetensors"), std::ios::binary) << file;
  const std::string in = "run " + path("in.safetensors"), out = " -o " + path("out.safetensors");
  expect_contains(run(in + out).out, "bounded, lower_bound -5 (by default: the file names no gate)\n");
  for (const std::string& named : {in + " --gate bounded", std::string("run ") + kBounded}) {
    EXPECT_EQ(run(named + out).out.find("by default"), std::string::npos) << named;
  }
}

TEST_F(CliTest, ToolNamesTheBackendsOfItsTensors) {
  const std::string help = run("run --help").out;
  expect_contains(help, "auto, cpu, reference");
  EXPECT_EQ(help.find("cuda"), std::string::npos);
}

TEST_F(CliTest, RunWithoutNorms) {
  OwnedProblem p = make_problem(*find_family("random"), {.T = 20, .H = 2}, {.initial_state = 0});
  for (HostTensor* x : {&p.q, &p.k}) {
    for (int64_t i = 0; i < x->size(); ++i) x->set(i, 0.05 * x->get(i));
  }
  write_problem(p);
  const Outcome o = run("run --no-l2norm " + path("in.safetensors") + " -o " + path("out.safetensors"));
  EXPECT_EQ(o.status, 0) << o.err;
  p.options.qk_l2norm = 0;
  EXPECT_LE(measure(read_result(path("out.safetensors")).out, reference_result(p).out).rms, kOutputBar);
}

TEST_F(CliTest, RunTakesBatchesPacksStatesAndPools) {
  const auto run_problem = [&](const OwnedProblem& p) {
    write_problem(p);
    const Outcome o = run("run " + path("in.safetensors") + " -o " + path("out.safetensors"));
    EXPECT_EQ(o.status, 0) << o.err;
    return read_result(path("out.safetensors"));
  };
  const Family& family = *find_family("random");

  OwnedProblem dense = make_problem(family, {.B = 3, .T = 20, .H = 2, .HV = 4});
  const LayerResult of_dense = run_problem(dense);
  EXPECT_EQ(of_dense.out.shape(), dense.v.shape());
  EXPECT_LE(measure(of_dense.out, reference_result(dense).out).rms, kOutputBar);

  OwnedProblem packed = make_problem(family, {.lengths = {9, 0, 30}, .H = 2});
  const LayerResult of_packed = run_problem(packed);
  EXPECT_EQ(of_packed.final_state.shape(), (std::vector<int64_t>{3, 2, 128, 128}));
  EXPECT_LE(measure(of_packed.final_state, reference_result(packed).final_state).rms, kStateBar);

  // Slots 4 and 0 of five are the first two sequences'; the others go out as they came in.
  OwnedProblem pool = make_problem(family, {.lengths = {9, 11, 1}, .H = 2});
  pool.initial_state = make_problem(family, {.B = 5, .T = 1, .H = 2}).initial_state;
  pool.state_indices = HostTensor::integers(FKDA_INT32, {4, 0, -1});
  const LayerResult of_pool = run_problem(pool);
  ASSERT_EQ(of_pool.final_state.shape(), pool.initial_state.shape());
  const int64_t slot = 2 * 128 * 128;
  for (int64_t i = 0; i < slot; i += 97) {
    for (const int64_t kept : {1, 2, 3}) {
      EXPECT_EQ(of_pool.final_state.get(kept * slot + i), pool.initial_state.get(kept * slot + i));
    }
    for (const int64_t written : {0, 4}) {
      EXPECT_NE(of_pool.final_state.get(written * slot + i), pool.initial_state.get(written * slot + i));
    }
  }
}

TEST_F(CliTest, RunRefusesBadInput) {
  const std::string out = " -o " + path("o.safetensors"), in = std::string("run ") + kBounded;
  expect_failure("run " + path("missing") + out, "missing: no such file");
  expect_failure("run 'two\nlines'" + out, "two lines: no such file");
  expect_failure("run " + std::string(kData) + out, "not a regular file");
  expect_failure("run " FLASHKDA_SOURCE_DIR "/data/README.md" + out, "not a safetensors file?");
  expect_failure(std::string("run ") + kBoundedExpected + out, "tensor 'q' is missing");
  expect_failure(in + " -o " + path("no/such/o"), "--output: no folder");
  expect_failure(in + out + " --lower-bound 1", "lower_bound: got 1");
  expect_failure(in + out + " --lower-bound nan", "lower_bound: got nan");
  expect_failure(in + out + " --gate softplus --lower-bound -1",
                 "--lower-bound: got -1, needs the bounded gate; this one is softplus");
  expect_failure(in + out + " --gate log", "A_log");
  expect_failure(in + out + " --gate open", "--gate: got 'open'");
  expect_failure(in + out + " --gate open", "(see flashkda run --help)");
  expect_failure(in + out + " --backend abacus", "backend: got \"abacus\"");
  expect_failure(in + out + " --out-dtype fp64", "fp64-out");
  expect_failure(in + out + " --expected " + path("missing"), "missing: no such file");
  expect_failure(in + out + " --expected " + kBounded, "tensor 'o' is missing");
  EXPECT_FALSE(fs::exists(path("o.safetensors")));
}

TEST_F(CliTest, RunRefusesShapesThatDoNotFit) {
  const auto run_with = [&](HostTensor OwnedProblem::*member, HostTensor other) {
    OwnedProblem p = std::move(read_layer(kBounded).problem);
    p.*member = std::move(other);
    write_problem(p);
    return "run " + path("in.safetensors") + " -o " + path("o.safetensors");
  };
  using P = OwnedProblem;
  expect_failure(run_with(&P::k, HostTensor(FKDA_BFLOAT16, {1, 117, 3, 128})), "k: got shape [1,117,3,128]");
  expect_failure(run_with(&P::v, HostTensor(FKDA_BFLOAT16, {1, 117, 8, 128})), "needs [B,T,HV,K] = [1,117,8,128]");
  expect_failure(run_with(&P::g, HostTensor(FKDA_BFLOAT16, {1, 116, 4, 128})), "g: got shape [1,116,4,128]");
  expect_failure(run_with(&P::beta, HostTensor(FKDA_INT32, {1, 117, 4})), "beta: got int32");
  expect_failure(run_with(&P::A_log, HostTensor(FKDA_FLOAT32, {5})), "A_log: got");
  expect_failure(run_with(&P::dt_bias, HostTensor(FKDA_FLOAT32, {4})), "dt_bias: got");
  expect_failure(run_with(&P::q, HostTensor(FKDA_BFLOAT16, {2, 117, 4, 128})), "k: got shape");
  expect_failure(run_with(&P::cu_seqlens, HostTensor::integers(FKDA_INT64, {0, 118})), "cu_seqlens: ");
  expect_failure(run_with(&P::cu_seqlens, HostTensor::integers(FKDA_INT32, {0, 60, 50, 117})), "cu_seqlens: ");
}

TEST_F(CliTest, RunRefusesDamagedFiles) {
  const std::string whole = read_text(kBounded);
  const auto damaged = [&](const std::string& bytes) {
    std::ofstream(path("in.safetensors"), std::ios::binary) << bytes;
    return "run " + path("in.safetensors") + " -o " + path("o.safetensors");
  };
  for (const size_t length : {0ul, 5ul, 8ul, 100ul, whole.size() / 2, whole.size() - 1}) {
    expect_failure(damaged(whole.substr(0, length)), path("in.safetensors") + ": ");
  }
  expect_failure(damaged("\xff\xff\xff\xff\xff\xff\xff\x7f" + whole.substr(8)), "limit of 100 MB");
  std::string offsets = whole;
  offsets[offsets.find("data_offsets\":[") + 15] = '9';
  expect_failure(damaged(offsets), "data_offsets");
}

// ------------------------------------------------------------------------------------------------------------ check

TEST_F(CliTest, CheckPassesOnEveryFamilyAndTheSlices) {
  const Outcome o =
      run("check --tokens 130 --heads 1 --data '" + std::string(kData) + "' --json " + path("check.json"));
  EXPECT_EQ(o.status, 0) << o.out << o.err;
  EXPECT_EQ(o.err, "");
  expect_contains(o.out, "all within the bars");
  const Json report = Json::parse(read_text(path("check.json")));
  EXPECT_EQ(report["version"], fkda_version());
  EXPECT_EQ(report["backend"], "cpu");
  std::vector<std::string> names;
  for (const Json& row : report["accuracy"]) {
    names.push_back(row["family"]);
    EXPECT_TRUE(row["passed"]);
    EXPECT_GT(row["o"]["rms"], 0.0);
    EXPECT_LE(row["o"]["rms"], kOutputBar);
    EXPECT_LE(row["state"]["rms"], kStateBar);
    expect_contains(o.out, row["family"]);
  }
  std::vector<std::string> wanted;
  for (const Family& family : families()) wanted.emplace_back(family.name);
  wanted.insert(wanted.end(), {"kda_bounded_slice", "kda_softplus_slice"});
  EXPECT_EQ(names, wanted);
}

TEST_F(CliTest, CheckReturnsOneWhenABarIsMissed) {
  // A layer whose "expected" result is off.
  const LayerResult expected = read_result(kBoundedExpected);
  fs::copy_file(kBounded, path("layer.safetensors"));
  const auto check_against = [&](double out_factor, double state_factor) {
    LayerFile layer = read_layer(kBounded);
    layer.problem.allocate_outputs(FKDA_FLOAT32, FKDA_FLOAT32);
    HostTensor &out = layer.problem.out, &state = layer.problem.final_state;
    for (int64_t i = 0; i < out.size(); ++i) out.set(i, out_factor * expected.out.get(i));
    for (int64_t i = 0; i < state.size(); ++i) state.set(i, state_factor * expected.final_state.get(i));
    write_result(path("layer_expected.safetensors"), layer, {});
    return run("check --family random,mild --tokens 40 --heads 1 --data '" + folder_.string() + "'");
  };
  EXPECT_EQ(check_against(1.0, 1.0).status, 0);
  for (const Outcome& o : {check_against(1.01, 1.0), check_against(1.0, 1.0001)}) {
    EXPECT_EQ(o.status, 1) << o.out << o.err;
    expect_contains(o.out, "MISSED");
    expect_contains(o.out, "1 of 3 missed a bar");
  }
}

TEST_F(CliTest, CheckOptions) {
  const auto report = [&](const std::string& arguments) {
    const Outcome o = run("check --tokens 33 --heads 1 --json - " + arguments);
    EXPECT_EQ(o.status, 0) << arguments << o.err;
    return Json::parse(o.out);
  };
  EXPECT_EQ(report("--family softplus")["accuracy"].size(), 1u);
  EXPECT_EQ(report("--family softplus --family mild")["accuracy"].size(), 2u);
  EXPECT_EQ(report("--data none")["accuracy"].size(), families().size());
  EXPECT_EQ(report("--family mild --backend reference")["backend"], "reference");
  EXPECT_EQ(report("--family mild --threads 1")["threads"], 1);
  EXPECT_LT(report("--family mild --dtype fp32")["accuracy"][0]["o"]["rms"], 1e-5);
  EXPECT_NE(report("--family random --seed 2")["accuracy"][0]["o"]["rms"],
            report("--family random --seed 3")["accuracy"][0]["o"]["rms"]);
  expect_failure("check --data '" + path("nowhere") + "'", "--data");
  expect_failure("check --family mild --backend abacus", "abacus");
}

// ------------------------------------------------------------------------------------------------------------ bench

TEST_F(CliTest, BenchTimesCasesAndGates) {
  const Outcome o = run("bench --case 'H2 T40,H1 3x16' --case 'B2 H2' --gates random,real --data '" +
                        std::string(kData) + "' --repeat 3 --threads 1 --json " + path("bench.json"));
  EXPECT_EQ(o.status, 0) << o.err;
  const Json report = Json::parse(read_text(path("bench.json")));
  EXPECT_EQ(report["threads"], 1);
  ASSERT_EQ(report["bench"].size(), 9u);  // 3 cases: random, real bounded, real softplus
  for (const Json& row : report["bench"]) {
    EXPECT_EQ(row["op"], row["case"] == "B2 H2" ? "decode" : "prefill");
    EXPECT_EQ(row["state"], "fp32");
    EXPECT_EQ(row["runs"], 3);
    EXPECT_GT(row["ms_min"], 0.0);
    EXPECT_LE(row["ms_min"], row["ms_median"]);
    const double tokens = row["case"] == "H2 T40" ? 40 : row["case"] == "H1 3x16" ? 48 : 2;
    EXPECT_NEAR(row["tokens_per_s"], tokens / row["ms_median"].get<double>() * 1e3, 1.0);
    expect_contains(o.out, row["case"]);
  }
  EXPECT_EQ(report["bench"][2]["gates"], "real");
  EXPECT_EQ(report["bench"][2]["gate"], "softplus");
  expect_failure("bench --gates real --data '" + path("nowhere") + "' --case 'H1 T16'", "no layer files");
}

TEST_F(CliTest, BenchOptions) {
  const Outcome o = run("bench --case 'H1 T16' --state bf16 --repeat 1 --backend reference --json -");
  EXPECT_EQ(o.status, 0) << o.err;
  const Json report = Json::parse(o.out);
  EXPECT_EQ(report["backend"], "reference");
  EXPECT_EQ(report["bench"][0]["state"], "bf16");
}

// ---------------------------------------------------------------------------------------------------------- inspect

TEST_F(CliTest, InspectShowsTheChunk) {
  const Outcome o = run(std::string("inspect ") + kBounded + " --chunk 2 --head 1", "LC_ALL=C.UTF-8");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out.find('\x1b'), std::string::npos);  // no colour in a file
  for (const char* part : {"sequence 0, head 1, chunk 2 (tokens 32 to 47)", "bounded gate",
                           "L = ", "Mqk = ", "\u2423#\u2423ZIP", "Strongest", "max |(I + L) INV - I|", "S_next"}) {
    expect_contains(o.out, part);
  }
  const Outcome ascii = run(std::string("inspect ") + kBounded + " --chunk 2", "LC_ALL=C");
  expect_contains(ascii.out, "_#_ZIP");
  EXPECT_TRUE(
      std::all_of(ascii.out.begin(), ascii.out.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
}

TEST_F(CliTest, InspectTablesHoldTheLibrarysNumbers) {
  const Outcome o = run(std::string("inspect ") + kSoftplus + " --chunk 7 --chunk-size 16 --head 3 --table --symbol L");
  EXPECT_EQ(o.status, 0) << o.err;
  const LayerFile layer = read_layer(kSoftplus);
  std::vector<double> L(16 * 16);
  fkda_chunk chunk = {};
  chunk.struct_size = sizeof(chunk);
  chunk.chunk_size = 16;
  chunk.chunk = 7;
  chunk.head = 3;
  chunk.L = L.data();
  const fkda_problem p = layer.problem.problem();
  ASSERT_EQ(fkda_inspect_chunk(&p, &chunk), FKDA_OK);
  ASSERT_EQ(chunk.rows, 5);  // 117 tokens: the last chunk is short
  for (int64_t i = 1; i < chunk.rows; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      std::array<char, 16> number;
      std::snprintf(number.data(), number.size(), " %.3f", L[static_cast<size_t>(i * chunk.rows + j)]);
      expect_contains(o.out, number.data());
    }
  }
}

TEST_F(CliTest, InspectTableAloneShowsThreeMatrices) {
  const Outcome o = run(std::string("inspect --table ") + kSoftplus);
  for (const char* part : {"L = ", "Mqk = ", "INV = ", "1.000"}) expect_contains(o.out, part);
  EXPECT_EQ(o.out.find("Strongest"), std::string::npos);
}

TEST_F(CliTest, InspectLabelsTheTokensOfItsSequence) {
  const Family& family = *find_family("random");
  write_problem(make_problem(family, {.lengths = {3, 0, 5}}), "abcvwxyz");
  expect_contains(run("inspect --sequence 0 " + path("in.safetensors")).out, "text: abc\n");
  expect_contains(run("inspect --sequence 2 " + path("in.safetensors")).out, "text: vwxyz\n");
  write_problem(make_problem(family, {.B = 2, .T = 4}), "abcdwxyz");
  expect_contains(run("inspect --sequence 1 " + path("in.safetensors")).out, "text: wxyz\n");
  write_problem(make_problem(family, {.B = 2, .T = 4}), "abcdw\tx");  // one byte short: no text at all
  EXPECT_EQ(run("inspect --sequence 1 " + path("in.safetensors")).out.find("text:"), std::string::npos);
}

TEST_F(CliTest, InspectSavesEverySymbol) {
  const std::string saved = path("chunk.safetensors");
  const Outcome o = run(std::string("inspect ") + kBounded + " --chunk 1 --chunk-size 64 --head 2 --save " + saved);
  EXPECT_EQ(o.status, 0) << o.err;
  io::SafetensorsReader reader(saved);
  EXPECT_EQ(reader.tensors().size(), 17u);
  EXPECT_EQ(reader.find("L")->shape, (std::vector<int64_t>{53, 53}));
  EXPECT_EQ(reader.find("b")->shape, (std::vector<int64_t>{53}));
  EXPECT_EQ(reader.find("S")->shape, (std::vector<int64_t>{128, 128}));
  EXPECT_EQ(reader.metadata().at("first_token"), "64");
  EXPECT_EQ(reader.metadata().at("head"), "2");
  // The chunk is the last: its state is the layer's, v-first.
  std::vector<double> state(128 * 128);
  reader.read(*reader.find("S_next"), std::as_writable_bytes(std::span(state)));
  const HostTensor expected = read_result(kBoundedExpected).final_state;
  for (int64_t k = 0; k < 128; k += 5) {
    for (int64_t v = 0; v < 128; v += 7) {
      EXPECT_NEAR(state[static_cast<size_t>(k * 128 + v)], expected.get((2 * 128 + v) * 128 + k), 1e-6);
    }
  }
}

TEST_F(CliTest, InspectEverySymbolAndChunkSize) {
  for (const char* size : {"16", "32", "64"}) {
    for (const char* form : {"", " --table"}) {
      const Outcome o = run(std::string("inspect ") + kSoftplus + " --chunk-size " + size + form +
                            " --symbol q,k,v,a,G,b,kd,qd,ki,kr,L,Mqk,INV,U,O,S,S_next");
      EXPECT_EQ(o.status, 0) << size << form << o.err;
      expect_contains(o.out, "S_next = ");
    }
  }
}

TEST_F(CliTest, InspectFitsItsTerminal) {
  for (const int columns : {40, 80, 100, 140, 200}) {
    for (const char* size : {"16", "32", "64"}) {
      for (const char* color : {"COLORTERM=truecolor", "TERM=xterm-256color", "NO_COLOR=1"}) {
        const std::string text =
            on_terminal({"inspect", kSoftplus, "--chunk-size", size}, {color, "LC_ALL=C.UTF-8"}, columns);
        const size_t allowed = static_cast<size_t>(std::max(columns, 80));  // words and tables are made for 80
        EXPECT_LE(widest_line(text), allowed) << columns << ' ' << size << ' ' << color << '\n' << text;
      }
    }
    for (const char* form : {"--symbol=U,S,INV", "--table"}) {
      const std::string text = on_terminal({"inspect", kSoftplus, form}, {"COLORTERM=truecolor"}, columns);
      EXPECT_LE(widest_line(text), static_cast<size_t>(std::max(columns, 80))) << columns << ' ' << form << text;
    }
  }
}

TEST_F(CliTest, ColoursAreForTerminalsThatHaveThem) {
  const std::vector<std::string> arguments = {"inspect", kBounded};
  expect_contains(on_terminal(arguments, {"COLORTERM=truecolor", "TERM=xterm-256color"}, 80), "\x1b[48;2;");
  expect_contains(on_terminal(arguments, {"TERM=xterm-256color"}, 80), "\x1b[48;5;");
  const std::string wide =
      on_terminal({"inspect", kBounded, "--chunk-size", "64"}, {"COLORTERM=truecolor", "LC_ALL=C.UTF-8"}, 80);
  expect_contains(wide, "\u2580");  // half blocks
  for (const auto& plain :
       {std::vector<std::string>{"TERM=xterm-256color", "NO_COLOR=1"}, {"TERM=dumb", "COLORTERM=truecolor"}, {}}) {
    EXPECT_EQ(on_terminal(arguments, plain, 80).find('\x1b'), std::string::npos);
  }
  EXPECT_EQ(run(std::string("inspect ") + kBounded, "COLORTERM=truecolor TERM=xterm-256color").out.find('\x1b'),
            std::string::npos);
  expect_contains(run(std::string("inspect --color always ") + kBounded, "COLORTERM= TERM=").out, "\x1b[48;5;");
  EXPECT_EQ(on_terminal({"inspect", kBounded, "--color", "never"}, {"COLORTERM=truecolor"}, 80).find('\x1b'),
            std::string::npos);
}

TEST_F(CliTest, InspectRefusesBadInput) {
  const std::string in = std::string("inspect ") + kBounded;
  expect_failure(in + " --chunk 8", "chunk: got 8, needs 0..7");
  expect_failure(in + " --chunk -1", "chunk: got -1");
  expect_failure(in + " --head 4", "head: got 4, needs 0..3");
  expect_failure(in + " --sequence 1", "sequence: got 1, needs 0..0");
  expect_failure(in + " --chunk-size 20", "chunk_size: got 20, needs 16, 32 or 64");
  expect_failure("inspect " + path("missing"), "no such file");
  expect_failure(std::string("inspect ") + kBoundedExpected, "tensor 'q' is missing");
}

}  // namespace
}  // namespace flashkda::checks
