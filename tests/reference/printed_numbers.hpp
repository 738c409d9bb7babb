// The numbers that a document prints about the trained layers, each with the value the library computes for it.
//
// A checked block is a fenced block right after one of these comments:
//
//   <!-- check: matrix L layer=bounded head=0 chunk=3 size=16 -->
//     Lines "index 'c' | number number ..": row `index` of the matrix, the token's byte, the entries. Entries left out
//     at the end of a row must be zero. "matrix Mqk times=1000" prints thousandths.
//
//   <!-- check: values layer=softplus head=0 chunk=7 size=16 -->
//     Chains "expression = expression = .. = number", continued on lines that start with "=" or "+". Expressions are
//     built from the symbols of fkda_chunk with indices (L[2,0], kd[2,:] for a row, S[:,5] for a column), the layer's
//     inputs (g[2,5], beta[2], A_log, dt_bias[5], lower_bound), scale, + - * /, exp, sigmoid, softplus and sum. All
//     must have the same value. A part without symbols is a number, or the expression before it with every symbol and
//     every sum(..) replaced by its number.
//
// Other lines of a block (headings, blank lines) have neither "|" nor "=".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace flashkda::test {

struct PrintedNumber {
  size_t begin, end;  // its characters in the document
  double value;       // what the library computes
};

// Throws std::runtime_error with the line if a block cannot be read, an expression does not have the value of the first
// in its chain, or a token's byte is not the one printed.
std::vector<PrintedNumber> find_printed_numbers(const std::string& document);

// The text is `value` rounded to the digits it has.
bool is_rounded(const std::string& text, double value);

}  // namespace flashkda::test
