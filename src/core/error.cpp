#include "core/error.hpp"

#include <cstdarg>
#include <cstdio>

namespace flashkda {
namespace {
// Fixed storage: reporting an out-of-memory error must not allocate.
thread_local char t_last_error[1024] = "";
}  // namespace

void throw_error(fkda_status status, const char* format, ...) {
  char buffer[sizeof(t_last_error)];
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof(buffer), format, args);
  va_end(args);
  throw Error(status, buffer);
}

void set_last_error(const char* message) noexcept { std::snprintf(t_last_error, sizeof(t_last_error), "%s", message); }

const char* last_error() noexcept { return t_last_error; }

}  // namespace flashkda
