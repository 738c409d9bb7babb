#include "reference/dense_kda.hpp"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace flashkda::test {
namespace {

using Real = long double;

class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns)
      : rows_(rows), columns_(columns), data_(static_cast<size_t>(rows * columns), Real{0}) {}
  Real& at(int64_t i, int64_t j) { return data_[static_cast<size_t>(i * columns_ + j)]; }
  Real at(int64_t i, int64_t j) const { return data_[static_cast<size_t>(i * columns_ + j)]; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

 private:
  int64_t rows_, columns_;
  std::vector<Real> data_;
};

Matrix operator*(const Matrix& x, const Matrix& y) {
  Matrix product(x.rows(), y.columns());
  for (int64_t i = 0; i < x.rows(); ++i)
    for (int64_t j = 0; j < y.columns(); ++j)
      for (int64_t m = 0; m < x.columns(); ++m) product.at(i, j) += x.at(i, m) * y.at(m, j);
  return product;
}

Matrix transposed(const Matrix& x) {
  Matrix result(x.columns(), x.rows());
  for (int64_t i = 0; i < x.rows(); ++i)
    for (int64_t j = 0; j < x.columns(); ++j) result.at(j, i) = x.at(i, j);
  return result;
}

Real logistic(Real x) { return (1 + std::tanh(x / 2)) / 2; }

// Row [b, t, head, :] of a tensor as a column.
Matrix column(const Tensor& tensor, int64_t b, int64_t t, int64_t head) {
  Matrix result(tensor.shape()[3], 1);
  for (int64_t i = 0; i < result.rows(); ++i) result.at(i, 0) = static_cast<Real>(tensor.at({b, t, head, i}));
  return result;
}

void normalise(Matrix& x) {
  const Real sum = (transposed(x) * x).at(0, 0);
  for (int64_t i = 0; i < x.rows(); ++i) x.at(i, 0) /= std::sqrt(sum + 1e-6L);
}

Matrix initial(const Case& c, int64_t slot, int64_t head) {
  Matrix S(c.K, c.V);
  if (!c.initial_state.present() || slot < 0) return S;
  const bool v_first = c.options.state_layout == FKDA_STATE_V_FIRST;
  for (int64_t i = 0; i < c.K; ++i)
    for (int64_t j = 0; j < c.V; ++j)
      S.at(i, j) =
          static_cast<Real>(v_first ? c.initial_state.at({slot, head, j, i}) : c.initial_state.at({slot, head, i, j}));
  return S;
}

// Writes S to matrix number `index` (row-major over the leading dimensions) of a state tensor.
void write(const Case& c, const Matrix& S, Tensor& tensor, int64_t index) {
  const bool v_first = c.options.state_layout == FKDA_STATE_V_FIRST;
  for (int64_t i = 0; i < c.K; ++i)
    for (int64_t j = 0; j < c.V; ++j)
      tensor.set(index * c.K * c.V + (v_first ? j * c.K + i : i * c.V + j), static_cast<double>(S.at(i, j)));
}

}  // namespace

Outputs dense_kda(const Case& c, const Want& want) {
  Outputs outputs = c.make_outputs(want);
  for (Tensor* tensor : {&outputs.out, &outputs.final_state, &outputs.checkpoints, &outputs.intermediate_states})
    *tensor = tensor->to(FKDA_FLOAT64);

  int64_t intermediates_before = 0;  // of the earlier sequences in the same row of the batch
  for (int64_t n = 0; n < c.N; ++n) {
    const int64_t b = c.packed() ? 0 : n;
    const int64_t begin = c.packed() ? c.cu[static_cast<size_t>(n)] : 0;
    const int64_t length = c.length(n);
    const int64_t slot = c.state_indices.present() ? static_cast<int64_t>(c.state_indices.get(n)) : n;
    for (int64_t head = 0; head < c.HV; ++head) {
      int64_t qk_head = 0;
      while ((qk_head + 1) * (c.HV / c.H) <= head) ++qk_head;
      Matrix S = initial(c, slot, head);
      for (int64_t done = 0; done <= length; ++done) {
        // S is the state after `done` tokens.
        for (int64_t i = 0; i < c.P && outputs.checkpoints.present(); ++i)
          if (static_cast<int64_t>(c.checkpoint_offsets.at({n, i})) == done)
            write(c, S, outputs.checkpoints, (n * c.P + i) * c.HV + head);
        if (done == length) break;
        if (outputs.intermediate_states.present() && done % want.intermediate_every == 0) {
          const int64_t count = outputs.intermediate_states.shape()[1];
          const int64_t index = b * count + intermediates_before + done / want.intermediate_every;
          write(c, S, outputs.intermediate_states, index * c.HV + head);
        }

        const int64_t t = begin + done;
        Matrix q = column(c.q, b, t, qk_head), k = column(c.k, b, t, qk_head);
        const Matrix v = column(c.v, b, t, head), g = column(c.g, b, t, head);
        if (c.options.qk_l2norm) {
          normalise(q);
          normalise(k);
        }
        Real strength = static_cast<Real>(c.beta.at({b, t, head}));
        if (c.options.beta_activation != FKDA_BETA_ACTIVATED) strength = logistic(strength);
        if (c.options.beta_activation == FKDA_BETA_TWICE_SIGMOID) strength *= 2;

        Matrix decay(c.K, c.K);
        for (int64_t i = 0; i < c.K; ++i) {
          const Real rate = c.A_log.present() ? std::exp(static_cast<Real>(c.A_log.get(head))) : 1;
          const Real bias = c.dt_bias.present() ? static_cast<Real>(c.dt_bias.get(head * c.K + i)) : 0;
          const Real x = g.at(i, 0) + bias;
          if (c.options.gate == FKDA_GATE_BOUNDED)
            decay.at(i, i) = std::exp(static_cast<Real>(c.options.lower_bound) * logistic(rate * x));
          else if (c.options.gate == FKDA_GATE_SOFTPLUS)
            decay.at(i, i) = std::pow(1 + std::exp(x), -rate);
          else
            decay.at(i, i) = std::exp(x);
        }
        Matrix keep = k * transposed(k);  // I - b k k^T
        for (int64_t i = 0; i < c.K; ++i)
          for (int64_t j = 0; j < c.K; ++j) keep.at(i, j) = (i == j ? 1 : 0) - strength * keep.at(i, j);
        const Matrix written = k * transposed(v);
        S = keep * (decay * S);
        for (int64_t i = 0; i < c.K; ++i)
          for (int64_t j = 0; j < c.V; ++j) S.at(i, j) += strength * written.at(i, j);

        const Matrix o = transposed(S) * q;
        const Real scale =
            std::isnan(c.options.scale) ? static_cast<float>(1 / std::sqrt(static_cast<double>(c.K))) : c.options.scale;
        for (int64_t j = 0; j < c.V; ++j) outputs.out.set_at({b, t, head, j}, static_cast<double>(scale * o.at(j, 0)));
      }
      if (outputs.final_state.present() && slot >= 0) write(c, S, outputs.final_state, slot * c.HV + head);
    }
    if (c.packed()) intermediates_before += (length + want.intermediate_every - 1) / want.intermediate_every;
  }
  return outputs;
}

}  // namespace flashkda::test
