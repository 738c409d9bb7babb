#include "reference/inspect.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "reference/gate.hpp"
#include "reference/oracle.hpp"

namespace flashkda {
namespace {

// A dense row-major matrix of zeros.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns)
      : rows_(rows), columns_(columns), data_(static_cast<size_t>(rows * columns), 0.0) {}
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  double* operator[](int64_t row) { return data_.data() + row * columns_; }
  const double* operator[](int64_t row) const { return data_.data() + row * columns_; }
  void copy_to(double* buffer) const {
    if (buffer) std::copy(data_.begin(), data_.end(), buffer);
  }

 private:
  int64_t rows_, columns_;
  std::vector<double> data_;
};

// C += A B
void multiply_add(Matrix& C, const Matrix& A, const Matrix& B) {
  for (int64_t i = 0; i < A.rows(); ++i)
    for (int64_t m = 0; m < A.columns(); ++m)
      for (int64_t j = 0; j < B.columns(); ++j) C[i][j] += A[i][m] * B[m][j];
}

void check_range(const char* argument, int64_t got, int64_t count, const char* of_what) {
  if (got >= 0 && got < count) return;
  const long long value = got, last = count - 1;
  if (count == 0) throw_error(FKDA_INVALID_ARGUMENT, "%s: got %lld, but %s is 0", argument, value, of_what);
  throw_error(FKDA_INVALID_ARGUMENT, "%s: got %lld, needs 0..%lld (%s is %lld)", argument, value, last, of_what,
              last + 1);
}

Sequence check_arguments(const Problem& p, const fkda_chunk& chunk) {
  if (chunk.chunk_size != 16 && chunk.chunk_size != 32 && chunk.chunk_size != 64)
    throw_error(FKDA_INVALID_ARGUMENT, "chunk_size: got %d, needs 16, 32 or 64", chunk.chunk_size);
  check_range("sequence", chunk.sequence, p.N, "the number of sequences");
  check_range("head", chunk.head, p.HV, "the number of value heads");
  const Sequence sequence = p.sequence(chunk.sequence);
  check_range("chunk", chunk.chunk, (sequence.length + chunk.chunk_size - 1) / chunk.chunk_size,
              "the number of chunks of this sequence");
  return sequence;
}

}  // namespace

void inspect_chunk(const Problem& p, fkda_chunk& chunk) {
  const Sequence sequence = check_arguments(p, chunk);
  const int64_t K = p.K, V = p.V;
  const int64_t first = chunk.chunk * chunk.chunk_size;
  const int64_t rows = std::min<int64_t>(chunk.chunk_size, sequence.length - first);

  // The tokens of the chunk. Row 0 also holds, one after the other, the tokens before the chunk.
  Matrix q(rows, K), k(rows, K), v(rows, V), a(rows, K), b(rows, 1);
  const auto load = [&](int64_t t, int64_t row) {
    Token token{.q = q[row], .k = k[row], .a = a[row], .v = v[row], .b = 0.0};
    load_token(p, sequence, t, chunk.head, token);
    b[row][0] = token.b;
    return token;
  };

  Matrix S(K, V);
  load_initial_state(p, chunk.sequence, chunk.head, S[0]);
  std::vector<double> u(static_cast<size_t>(V)), o(static_cast<size_t>(V));
  for (int64_t t = 0; t < first; ++t) step(p, load(t, 0), S[0], u.data(), o.data());
  for (int64_t i = 0; i < rows; ++i) load(first + i, i);

  // Decays and decayed rows (eq. 10, 11). Differences of G are summed from a, never subtracted: where a channel has
  // forgotten everything (G = -inf) they are still defined.
  Matrix G(rows, K), kd(rows, K), qd(rows, K), ki(rows, K), kr(rows, K);
  std::vector<double> sum(static_cast<size_t>(K), 0.0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < K; ++c) {
      G[i][c] = a[i][c] + (i > 0 ? G[i - 1][c] : 0.0);
      kd[i][c] = k[i][c] * std::exp(G[i][c]);
      qd[i][c] = p.scale * q[i][c] * std::exp(G[i][c]);
      ki[i][c] = product_or_zero(k[i][c], std::exp(-G[i][c]));
    }
  }
  for (int64_t j = rows - 1; j >= 0; --j) {
    for (int64_t c = 0; c < K; ++c) {
      kr[j][c] = k[j][c] * std::exp(sum[c]);
      sum[c] += a[j][c];
    }
  }

  // L and Mqk pair by pair (eq. 14, 15): with sum = G_i - G_j nothing overflows.
  Matrix L(rows, rows), Mqk(rows, rows);
  for (int64_t j = 0; j < rows; ++j) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t i = j; i < rows; ++i) {
      for (int64_t c = 0; c < K; ++c) {
        if (i > j) sum[c] += a[i][c];
        const double decayed_key = k[j][c] * std::exp(sum[c]);
        if (i > j) L[i][j] += b[i][0] * k[i][c] * decayed_key;
        Mqk[i][j] += p.scale * q[i][c] * decayed_key;
      }
    }
  }

  // INV = (I + L)^-1 by forward substitution (eq. 17, 21): row i is e_i less what the rows above contribute.
  Matrix INV(rows, rows);
  for (int64_t i = 0; i < rows; ++i) {
    INV[i][i] = 1.0;
    for (int64_t j = 0; j < i; ++j)
      for (int64_t m = 0; m <= j; ++m) INV[i][m] -= L[i][j] * INV[j][m];
  }

  // U = INV (b o (v - kd S)) (eq. 18)
  Matrix kd_S(rows, V), target(rows, V), U(rows, V);
  multiply_add(kd_S, kd, S);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < V; ++c) target[i][c] = b[i][0] * (v[i][c] - kd_S[i][c]);
  multiply_add(U, INV, target);

  // O = qd S + Mqk U (eq. 19)
  Matrix O(rows, V);
  multiply_add(O, qd, S);
  multiply_add(O, Mqk, U);

  // S_next = diag(exp(G_last)) S + kr^T U (eq. 20)
  Matrix S_next(K, V);
  for (int64_t c = 0; c < K; ++c) {
    const double decay = std::exp(G[rows - 1][c]);
    for (int64_t d = 0; d < V; ++d) {
      S_next[c][d] = decay * S[c][d];
      for (int64_t i = 0; i < rows; ++i) S_next[c][d] += kr[i][c] * U[i][d];
    }
  }

  chunk.rows = rows;
  chunk.first_token = first;
  const std::pair<const Matrix*, double*> results[] = {
      {&q, chunk.q},     {&k, chunk.k},   {&v, chunk.v},   {&a, chunk.a},   {&G, chunk.G},          {&b, chunk.b},
      {&kd, chunk.kd},   {&qd, chunk.qd}, {&ki, chunk.ki}, {&kr, chunk.kr}, {&L, chunk.L},          {&Mqk, chunk.Mqk},
      {&INV, chunk.INV}, {&U, chunk.U},   {&O, chunk.O},   {&S, chunk.S},   {&S_next, chunk.S_next}};
  for (const auto& [matrix, buffer] : results) matrix->copy_to(buffer);
}

}  // namespace flashkda
