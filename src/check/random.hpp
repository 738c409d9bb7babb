// Random numbers that are the same with every C++ library; normal ones up to the last bits of the machine's log, sin,
// cos.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace flashkda::checks {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  double normal() {  // Box-Muller makes two at a time
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    const double angle = 2.0 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  std::mt19937_64 engine_;  // its sequence is fixed by the standard, unlike that of the distributions
  double spare_ = 0.0;
  bool has_spare_ = false;
};

}  // namespace flashkda::checks
