// An environment variable for the life of an object.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace flashkda::test {

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {  // nullptr: unset
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Environment() { set(old_ ? old_->c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const char* value) const {
    if (value != nullptr) {
      setenv(name_, value, 1);
    } else {
      unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace flashkda::test
