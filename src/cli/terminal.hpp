// What the terminal can show, colours, and progress of long work.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "flashkda/flashkda.h"

namespace flashkda::cli {

enum class Color { kNone, k256, kTrue };

struct Terminal {
  Color color = Color::kNone;
  bool unicode = false;
  int width = 0;  // columns; 0: no limit
};

// Of standard output. mode: auto, always or never. Automatic is colour on a terminal, unless NO_COLOR is set.
Terminal detect_terminal(std::string_view mode);

struct Rgb {
  uint8_t r = 0, g = 0, b = 0;
};
std::string foreground(const Terminal& terminal, Rgb color);  // escape sequences; "" without colour
std::string background(const Terminal& terminal, Rgb color);
std::string reset(const Terminal& terminal);
std::string dim(const Terminal& terminal, std::string_view text);
std::string bold(const Terminal& terminal, std::string_view text);
std::string green(const Terminal& terminal, std::string_view text);
std::string red(const Terminal& terminal, std::string_view text);

// One line on standard error, if that is a terminal: appears when the work lasts, is gone when it is over.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Part `step` of `steps` begins.
  void begin(std::string what, int step, int steps);
  // Reports the progress of this problem's run as that of the part. The problem must not outlive this object.
  void follow(fkda_problem& problem);
  // Part of the part that is done, 0 .. 1.
  void update(double fraction);
  // Removes the line, before something else is printed.
  void clear();

 private:
  bool enabled_ = false, visible_ = false;
  std::string what_;
  int step_ = 0, steps_ = 1;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace flashkda::cli
