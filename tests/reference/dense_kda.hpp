// A second implementation of the operation, written from the matrix form of one token (docs/algorithm.md, eq. 9),
// S_t = (I - b k k^T) diag(exp(a)) S_{t-1} + b k v^T, with every factor a full matrix, in long double. It shares no
// code with the oracle, reads tensors by index and costs K^2 V a token: for tiny problems only.
#pragma once

#include "support/case.hpp"

namespace flashkda::test {

// The outputs of `c` in float64, of the kinds that `want` asks for. What must not be written stays poisoned.
Outputs dense_kda(const Case& c, const Want& want);

}  // namespace flashkda::test
