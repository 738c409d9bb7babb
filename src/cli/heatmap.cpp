#include "cli/heatmap.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "cli/text.hpp"

namespace flashkda::cli {
namespace {

constexpr std::string_view kUpperHalf = "\u2580";
constexpr std::string_view kShades = ".:;+*#%@";  // of rising ink; no '-', which is the sign

// Ramps from zero to the largest magnitude, dark to bright so that they read on any background.
using Ramp = std::array<Rgb, 5>;
constexpr Ramp kPositive = {{{28, 26, 32}, {98, 24, 62}, {194, 54, 44}, {247, 152, 42}, {255, 244, 186}}};
constexpr Ramp kNegative = {{{28, 26, 32}, {26, 52, 112}, {36, 108, 188}, {98, 188, 236}, {222, 246, 255}}};
constexpr Rgb kNotFinite = {255, 0, 255};

// Position on a ramp of |value| / largest: below 1 the exponent lifts small entries into sight.
double intensity(double value, double largest) {
  constexpr double kGamma = 0.7;
  return largest > 0.0 ? std::pow(std::min(1.0, std::abs(value) / largest), kGamma) : 0.0;
}

Rgb mix(Rgb a, Rgb b, double t) {
  const auto channel = [t](uint8_t x, uint8_t y) { return static_cast<uint8_t>(std::lround(x + t * (y - x))); };
  return {channel(a.r, b.r), channel(a.g, b.g), channel(a.b, b.b)};
}

Rgb color_of(double value, double largest) {
  if (!std::isfinite(value)) return kNotFinite;
  const Ramp& ramp = value < 0.0 ? kNegative : kPositive;
  const double position = intensity(value, largest) * static_cast<double>(ramp.size() - 1);
  const size_t index = std::min(static_cast<size_t>(position), ramp.size() - 2);
  return mix(ramp[index], ramp[index + 1], position - static_cast<double>(index));
}

char shade_of(double value, double largest) {
  if (!std::isfinite(value)) return '!';
  const auto index = static_cast<size_t>(intensity(value, largest) * static_cast<double>(kShades.size()));
  return kShades[std::min(index, kShades.size() - 1)];
}

std::string spaces(int64_t count) { return std::string(static_cast<size_t>(std::max<int64_t>(0, count)), ' '); }

std::string pad_left(const std::string& text, int64_t width) {
  return spaces(width - static_cast<int64_t>(text.size())) + text;
}

// "104 f ", or as wide a blank.
int label_width(const TokenLabels& labels) {
  const int numbers = labels.numbers.empty() ? 0 : static_cast<int>(labels.numbers.front().size()) + 1;
  return numbers + (labels.symbols.empty() ? 0 : 2);
}

std::string row_label(const TokenLabels& labels, int64_t row) {
  const auto index = static_cast<size_t>(row);
  std::string text;
  if (!labels.numbers.empty()) text += labels.numbers[index] + " ";
  if (!labels.symbols.empty()) text += labels.symbols[index] + " ";
  return text;
}

// The matrix, or a copy in which so many neighbouring columns are one: the entry of largest magnitude stands for all.
class Joined {
 public:
  Joined(const Matrix& matrix, int64_t group) : matrix_(matrix), group_(group) {
    if (group_ == 1) return;
    const int64_t columns = (matrix.columns + group_ - 1) / group_;
    values_.resize(static_cast<size_t>(matrix.rows * columns));
    for (int64_t i = 0; i < matrix.rows; ++i) {
      for (int64_t j = 0; j < matrix.columns; ++j) {
        double& joined = values_[static_cast<size_t>(i * columns + j / group_)];
        const double value = matrix.at(i, j);
        if (!std::isfinite(value) || std::abs(value) > std::abs(joined)) joined = value;
      }
    }
    matrix_.values = values_.data();
    matrix_.columns = columns;
  }
  const Matrix& matrix() const { return matrix_; }

 private:
  Matrix matrix_;
  int64_t group_;
  std::vector<double> values_;
};

// One row of wide cells.
std::string wide_row(const Matrix& matrix, int64_t row, double largest, const Terminal& terminal) {
  std::string line;
  for (int64_t j = 0; j < matrix.columns; ++j) {
    const double value = matrix.at(row, j);
    if (!matrix.shows(row, j)) {
      line += "  ";
    } else if (terminal.color == Color::kNone) {
      line += {value < 0.0 ? '-' : ' ', shade_of(value, largest)};
    } else {
      line += background(terminal, color_of(value, largest)) + "  " + reset(terminal);
    }
  }
  return line;
}

// Two rows in one line: the upper in the foreground, the lower in the background of half blocks.
std::string half_rows(const Matrix& matrix, int64_t row, double largest, const Terminal& terminal) {
  std::string line;
  for (int64_t j = 0; j < matrix.columns; ++j) {
    const bool upper = matrix.shows(row, j), lower = row + 1 < matrix.rows && matrix.shows(row + 1, j);
    if (!upper && !lower) {
      line += ' ';
    } else if (!upper) {
      line += foreground(terminal, color_of(matrix.at(row + 1, j), largest)) + "\u2584" + reset(terminal);
    } else {
      line += foreground(terminal, color_of(matrix.at(row, j), largest));
      if (lower) line += background(terminal, color_of(matrix.at(row + 1, j), largest));
      line += std::string(kUpperHalf) + reset(terminal);
    }
  }
  return line;
}

// One row of one-column cells, where half blocks cannot be shown.
std::string narrow_row(const Matrix& matrix, int64_t row, double largest, const Terminal& terminal) {
  std::string line;
  for (int64_t j = 0; j < matrix.columns; ++j) {
    if (!matrix.shows(row, j)) {
      line += ' ';
    } else if (terminal.color == Color::kNone) {
      line += shade_of(matrix.at(row, j), largest);
    } else {
      line += background(terminal, color_of(matrix.at(row, j), largest)) + " " + reset(terminal);
    }
  }
  return line;
}

// Numbers of a table: fixed where that shows them, else with exponents.
std::string number(double value, bool fixed) { return fixed ? format("%.3f", value) : format("%.2e", value); }

}  // namespace

double Matrix::largest() const {
  double result = 0.0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      if (shows(i, j) && std::isfinite(at(i, j))) result = std::max(result, std::abs(at(i, j)));
    }
  }
  return result;
}

Block beside(const Block& left, const Block& right, int gap) {
  Block result{.lines = {}, .width = left.width + gap + right.width};
  const size_t height = std::max(left.lines.size(), right.lines.size());
  for (size_t i = 0; i < height; ++i) {
    result.lines.push_back((i < left.lines.size() ? left.lines[i] : spaces(left.width)) + spaces(gap) +
                           (i < right.lines.size() ? right.lines[i] : spaces(right.width)));
  }
  return result;
}

int heatmap_width(int64_t columns, const TokenLabels& rows, const HeatmapStyle& style) {
  return (style.row_labels ? label_width(rows) : 0) + static_cast<int>(columns) * (style.wide_cells ? 2 : 1);
}

int64_t columns_per_cell(int64_t columns, const TokenLabels& rows, const HeatmapStyle& style, int max_width) {
  if (max_width == 0) return 1;
  const int64_t room = std::max(1, (max_width - heatmap_width(0, rows, style)) / (style.wide_cells ? 2 : 1));
  return std::max<int64_t>(1, (columns + room - 1) / room);
}

Block heatmap(const Matrix& matrix, const TokenLabels& rows, const TokenLabels& columns, const HeatmapStyle& style,
              const Terminal& terminal, int max_width) {
  const int cell = style.wide_cells ? 2 : 1, labels = style.row_labels ? label_width(rows) : 0;
  const int64_t group = columns_per_cell(matrix.columns, rows, style, max_width);
  const Joined joined(matrix, group);
  const Matrix& shown = joined.matrix();
  const double largest = matrix.largest();
  Block block{.lines = {}, .width = labels + static_cast<int>(shown.columns) * cell};

  if (style.column_labels && !columns.symbols.empty() && group == 1) {
    std::string line = spaces(labels);
    for (const std::string& symbol : columns.symbols) line += (cell == 2 ? " " : "") + symbol;
    block.lines.push_back(dim(terminal, line));
  }
  const bool halves = !style.wide_cells && terminal.unicode && terminal.color != Color::kNone;
  for (int64_t i = 0; i < shown.rows; i += halves ? 2 : 1) {
    const std::string label = style.row_labels ? dim(terminal, row_label(rows, i)) : "";
    block.lines.push_back(label + (halves             ? half_rows(shown, i, largest, terminal)
                                   : style.wide_cells ? wide_row(shown, i, largest, terminal)
                                                      : narrow_row(shown, i, largest, terminal)));
  }
  return block;
}

Block color_scale(const Matrix& matrix, const Terminal& terminal, int width) {
  const double largest = matrix.largest();
  bool negative = false, positive = false;
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t j = 0; j < matrix.columns; ++j) {
      negative = negative || (matrix.shows(i, j) && matrix.at(i, j) < 0.0);
      positive = positive || (matrix.shows(i, j) && matrix.at(i, j) > 0.0);
    }
  }
  const double low = negative ? -largest : 0.0, high = positive ? largest : 0.0;
  const std::string low_text = format("%.3g ", low), high_text = format(" %.3g", high);
  const int cell = terminal.color == Color::kNone ? 2 : 1;  // sign and shade, or a colour
  const int room = (width - static_cast<int>(low_text.size() + high_text.size())) / cell;
  const int cells = (std::clamp(room, 5, 33 / cell) - 1) | 1;  // odd, so that zero has one
  std::string bar;
  for (int i = 0; i < cells; ++i) {
    const double value = low + (high - low) * i / (cells - 1);
    if (terminal.color == Color::kNone) {
      bar += {value < 0.0 ? '-' : ' ', shade_of(value, largest)};
    } else {
      bar += background(terminal, color_of(value, largest)) + " " + reset(terminal);
    }
  }
  return {{low_text + bar + high_text}, static_cast<int>(low_text.size() + high_text.size()) + cell * cells};
}

Block number_table(const Matrix& matrix, const TokenLabels& rows, const TokenLabels& columns, int max_width) {
  const double largest = matrix.largest();
  const bool fixed = largest == 0.0 || (largest >= 0.05 && largest < 1e4);
  size_t cell = 0;
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t j = 0; j < matrix.columns; ++j) {
      if (matrix.shows(i, j)) cell = std::max(cell, number(matrix.at(i, j), fixed).size());
    }
  }
  const auto width = static_cast<int64_t>(cell) + 1;
  const int labels = label_width(rows);
  const int64_t group =
      max_width > 0 ? std::max<int64_t>(1, (max_width - labels) / width) : std::max<int64_t>(1, matrix.columns);
  Block block{.lines = {}, .width = labels + static_cast<int>(std::min(group, matrix.columns) * width)};
  for (int64_t first = 0; first < matrix.columns; first += group) {
    const int64_t last = std::min(first + group, matrix.columns);
    if (first > 0) block.lines.push_back(spaces(block.width));
    std::string header = spaces(labels);
    for (int64_t j = first; j < last; ++j) {
      const auto index = static_cast<size_t>(j);
      header += pad_left(columns.numbers.empty() ? std::to_string(j) : columns.numbers[index], width);
    }
    block.lines.push_back(header);
    for (int64_t i = 0; i < matrix.rows; ++i) {
      std::string line = row_label(rows, i);
      for (int64_t j = first; j < last; ++j) {
        line += pad_left(matrix.shows(i, j) ? number(matrix.at(i, j), fixed) : ".", width);
      }
      block.lines.push_back(line);
    }
  }
  return block;
}

}  // namespace flashkda::cli
