#include "cli/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cli/text.hpp"

namespace flashkda::cli {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

Color color_of_environment() {
  const std::string depth = environment("COLORTERM"), term = environment("TERM");
  if (contains(depth, "truecolor") || contains(depth, "24bit")) return Color::kTrue;
  return contains(term, "256color") || contains(term, "direct") ? Color::k256 : Color::kNone;
}

bool utf8_of_environment() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // the first one set decides
    const std::string value = environment(name);
    if (!value.empty()) return contains(value, "UTF-8") || contains(value, "utf8");
  }
  return false;
}

int columns(int file) {
  winsize size = {};
  return ioctl(file, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// The nearest of the 6x6x6 cube and the 24 greys of the 256-colour palette.
int palette_index(Rgb color) {
  constexpr int kLevels[] = {0, 95, 135, 175, 215, 255};
  const auto nearest_level = [&](int value) {
    int best = 0;
    for (int i = 1; i < 6; ++i) {
      if (std::abs(kLevels[i] - value) < std::abs(kLevels[best] - value)) best = i;
    }
    return best;
  };
  const auto distance = [&](int r, int g, int b) {
    return (r - color.r) * (r - color.r) + (g - color.g) * (g - color.g) + (b - color.b) * (b - color.b);
  };
  const int r = nearest_level(color.r), g = nearest_level(color.g), b = nearest_level(color.b);
  const int grey = std::clamp(((color.r + color.g + color.b) / 3 - 8 + 5) / 10, 0, 23), level = 8 + 10 * grey;
  if (distance(level, level, level) < distance(kLevels[r], kLevels[g], kLevels[b])) return 232 + grey;
  return 16 + 36 * r + 6 * g + b;
}

std::string color_sequence(const Terminal& terminal, Rgb color, int selector) {
  switch (terminal.color) {
    case Color::kNone: return "";
    case Color::k256: return format("\x1b[%d;5;%dm", selector, palette_index(color));
    case Color::kTrue: return format("\x1b[%d;2;%d;%d;%dm", selector, color.r, color.g, color.b);
  }
  return "";
}

std::string styled(const Terminal& terminal, int style, std::string_view text) {
  if (terminal.color == Color::kNone) return std::string(text);
  return format("\x1b[%dm", style) + std::string(text) + "\x1b[0m";
}

}  // namespace

Terminal detect_terminal(std::string_view mode) {
  Terminal terminal;
  const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  terminal.unicode = utf8_of_environment();
  if (is_terminal) terminal.width = columns(STDOUT_FILENO);
  if (mode == "always") {
    terminal.color = std::max(color_of_environment(), Color::k256);
  } else if (mode == "auto" && is_terminal && environment("NO_COLOR").empty() && environment("TERM") != "dumb") {
    terminal.color = color_of_environment();
  }
  return terminal;
}

std::string foreground(const Terminal& terminal, Rgb color) { return color_sequence(terminal, color, 38); }
std::string background(const Terminal& terminal, Rgb color) { return color_sequence(terminal, color, 48); }
std::string reset(const Terminal& terminal) { return terminal.color == Color::kNone ? "" : "\x1b[0m"; }
std::string dim(const Terminal& terminal, std::string_view text) { return styled(terminal, 2, text); }
std::string bold(const Terminal& terminal, std::string_view text) { return styled(terminal, 1, text); }
std::string green(const Terminal& terminal, std::string_view text) { return styled(terminal, 32, text); }
std::string red(const Terminal& terminal, std::string_view text) { return styled(terminal, 31, text); }

Progress::Progress() : enabled_(isatty(STDERR_FILENO) == 1 && environment("TERM") != "dumb") {
  start_ = last_ = std::chrono::steady_clock::now();
}

Progress::~Progress() { clear(); }

void Progress::begin(std::string what, int step, int steps) {
  what_ = std::move(what);
  step_ = step;
  steps_ = std::max(1, steps);
  update(0.0);
}

void Progress::follow(fkda_problem& problem) {
  if (!enabled_) return;
  problem.progress_user = this;
  problem.progress = [](void* user, int64_t done, int64_t total) {
    static_cast<Progress*>(user)->update(total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0.0);
  };
}

void Progress::update(double fraction) {
  using namespace std::chrono_literals;
  constexpr int kBar = 24;
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || now - start_ < 300ms || (visible_ && now - last_ < 100ms)) return;
  last_ = now;
  visible_ = true;
  const double done = (step_ + std::clamp(fraction, 0.0, 1.0)) / steps_;
  const int filled = static_cast<int>(done * kBar);
  const std::string bar =
      std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kBar - filled), '.');
  std::fprintf(stderr, "\r[%s] %3.0f %%  %.40s\x1b[K", bar.c_str(), 100.0 * done, what_.c_str());
  std::fflush(stderr);
}

void Progress::clear() {
  if (!visible_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  visible_ = false;
}

}  // namespace flashkda::cli
