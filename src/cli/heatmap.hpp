// Matrices in the terminal: heat maps in colour or in characters, and tables of numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/terminal.hpp"

namespace flashkda::cli {

// Lines of equal width on the screen, whatever escape sequences they hold.
struct Block {
  std::vector<std::string> lines;
  int width = 0;  // columns
};

// Side by side with a gap between them, the tops aligned.
Block beside(const Block& left, const Block& right, int gap);

// Values to show. Row-major.
struct Matrix {
  const double* values = nullptr;
  int64_t rows = 0, columns = 0;
  // What is structurally zero is left blank: the entries above the diagonal, or on it as well.
  enum class Blank { kNone, kAboveDiagonal, kDiagonalAndAbove } blank = Blank::kNone;

  double at(int64_t row, int64_t column) const { return values[row * columns + column]; }
  bool shows(int64_t row, int64_t column) const {
    return blank == Blank::kNone || (blank == Blank::kAboveDiagonal ? column <= row : column < row);
  }
  // Largest magnitude of a finite entry that shows; 0 if there is none.
  double largest() const;
};

// Labels of the rows or columns of a matrix that are tokens.
struct TokenLabels {
  std::vector<std::string> numbers;  // e.g. "104", of equal length
  std::vector<std::string> symbols;  // one column wide each; empty: unknown
};

struct HeatmapStyle {
  bool wide_cells = true;  // two columns a cell and one line a row, else one column and half a line
  bool row_labels = true;  // of tokens
  bool column_labels = true;
};

// Columns that a heat map with this many needs, row labels and all.
int heatmap_width(int64_t columns, const TokenLabels& rows, const HeatmapStyle& style);

// Colour stands for value / largest magnitude, negative in blue, positive in red to yellow; without colour a cell is a
// sign and a shade. Entries that are not finite show as "!". Columns are joined (the entry of largest magnitude stands
// for all) where they do not fit max_width; 0: no limit.
Block heatmap(const Matrix& matrix, const TokenLabels& rows, const TokenLabels& columns, const HeatmapStyle& style,
              const Terminal& terminal, int max_width);

// How many columns of a matrix share a cell, so that a heat map is at most max_width wide (0: no limit).
int64_t columns_per_cell(int64_t columns, const TokenLabels& rows, const HeatmapStyle& style, int max_width);

// The scale of a matrix's heat map: -largest to largest, or only the side of zero on which it has values. As wide as
// asked for, but not narrower than its numbers and a few cells.
Block color_scale(const Matrix& matrix, const Terminal& terminal, int width);

// Numbers, in as many groups of columns as max_width asks for (0: one).
Block number_table(const Matrix& matrix, const TokenLabels& rows, const TokenLabels& columns, int max_width);

}  // namespace flashkda::cli
