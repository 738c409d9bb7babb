#include "cli/report.hpp"

#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include "cli/command.hpp"
#include "flashkda/flashkda.h"

namespace flashkda::cli {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

int available_cores() { return static_cast<int>(std::thread::hardware_concurrency()); }

std::string backend_detail(const std::string& backend) {
  for (int32_t i = 0; i < fkda_implementation_count(); ++i) {
    fkda_implementation implementation;
    if (fkda_implementation_info(i, &implementation) == FKDA_OK && backend == implementation.name) {
      return implementation.detail;
    }
  }
  return "";
}

Json report_header(const std::string& backend, int threads) {
  std::array<char, 32> date = {};
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  if (gmtime_r(&now, &utc) != nullptr) std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  Json header;
  header["version"] = fkda_version();
  header["backend"] = backend;
  header["detail"] = backend_detail(backend);
  header["device"] = cpu_model();
  header["threads"] = threads > 0 ? threads : available_cores();
  header["date"] = date.data();
  return header;
}

void write_json(const std::string& path, const Json& report) {
  const std::string text = report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return;
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw UsageError(path + ": cannot be written");
}

}  // namespace flashkda::cli
