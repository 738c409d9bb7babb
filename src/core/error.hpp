// Failure inside the core: thrown as Error, turned into a status and a thread-local message at the C boundary (api/).
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "flashkda/flashkda.h"

namespace flashkda {

class Error : public std::exception {
 public:
  Error(fkda_status status, std::string message) : status_(status), message_(std::move(message)) {}
  fkda_status status() const { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  fkda_status status_;
  std::string message_;
};

// printf-style construction of the message: throw_error(FKDA_INVALID_ARGUMENT, "q: got %s", ...).
[[noreturn]] __attribute__((format(printf, 2, 3))) void throw_error(fkda_status status, const char* format, ...);

// The thread's last message, for fkda_last_error().
void set_last_error(const char* message) noexcept;
const char* last_error() noexcept;

}  // namespace flashkda
