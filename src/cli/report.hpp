// What a report says about the machine and the library, and where its JSON goes.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace flashkda::cli {

using Json = nlohmann::ordered_json;

std::string cpu_model();                                 // as the system names it, "" if it does not
int available_cores();                                   // this process may run on
std::string backend_detail(const std::string& backend);  // e.g. the instruction set

// version, backend, detail, device, threads, date (UTC).
Json report_header(const std::string& backend, int threads);

// To a file, or to standard output if path is "-".
void write_json(const std::string& path, const Json& report);

}  // namespace flashkda::cli
