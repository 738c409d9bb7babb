#include "reference/printed_numbers.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "check/layer_file.hpp"
#include "reference/chunk.hpp"
#include "reference/gate.hpp"

namespace flashkda::test {
namespace {

using Values = std::vector<double>;  // a scalar has one element

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

// What the names in a block stand for.
class Symbols {
 public:
  Symbols(const checks::LayerFile& layer, int64_t head, int64_t chunk, int32_t size)
      : layer_(layer), head_(head), chunk_(128, 128, size, 0, head, chunk) {
    const fkda_problem problem = layer.problem.problem();
    if (fkda_inspect_chunk(&problem, &chunk_.request) != FKDA_OK) fail(fkda_last_error());
    const int64_t C = chunk_.rows(), K = 128;
    matrices_ = {{"q", {&chunk_.q, K}},   {"k", {&chunk_.k, K}},          {"v", {&chunk_.v, K}},
                 {"a", {&chunk_.a, K}},   {"G", {&chunk_.G, K}},          {"b", {&chunk_.b, 1}},
                 {"kd", {&chunk_.kd, K}}, {"qd", {&chunk_.qd, K}},        {"ki", {&chunk_.ki, K}},
                 {"kr", {&chunk_.kr, K}}, {"L", {&chunk_.L, C}},          {"Mqk", {&chunk_.Mqk, C}},
                 {"U", {&chunk_.U, K}},   {"INV", {&chunk_.INV, C}},      {"O", {&chunk_.O, K}},
                 {"S", {&chunk_.S, K}},   {"S_next", {&chunk_.S_next, K}}};
  }

  // An index of -1 is ":".
  Values get(const std::string& name, const std::vector<int64_t>& index) const {
    const checks::OwnedProblem& inputs = layer_.problem;
    const auto i = [&](size_t n) { return index.at(n); };
    const auto row_of_head = [&] { return (chunk_.request.first_token + i(0)) * inputs.value_heads() + head_; };
    if (name == "g") return {inputs.g.get(row_of_head() * 128 + i(1))};
    if (name == "beta") return {inputs.beta.get(row_of_head())};
    if (name == "A_log") return {inputs.A_log.get(head_)};
    if (name == "dt_bias") return {inputs.dt_bias.get(head_ * 128 + i(0))};
    if (name == "lower_bound") return {static_cast<double>(inputs.options.lower_bound)};
    if (name == "scale") return {static_cast<double>(inputs.options.scale)};
    const auto found = matrices_.find(name);
    if (found == matrices_.end()) fail("unknown symbol " + name);
    const auto& [data, columns] = found->second;
    const int64_t rows = name[0] == 'S' ? 128 : chunk_.rows();
    const int64_t row = i(0), column = index.size() > 1 ? i(1) : 0;
    if (row >= rows || column >= columns) fail(name + ": index out of range");
    Values result;
    for (int64_t r = row < 0 ? 0 : row; r < (row < 0 ? rows : row + 1); ++r)
      for (int64_t m = column < 0 ? 0 : column; m < (column < 0 ? columns : column + 1); ++m)
        result.push_back((*data)[static_cast<size_t>(r * columns + m)]);
    return result;
  }

  int64_t columns(const std::string& name) const { return matrices_.at(name).second; }
  char byte(int64_t row) const { return layer_.text.at(static_cast<size_t>(chunk_.request.first_token + row)); }

 private:
  const checks::LayerFile& layer_;
  int64_t head_;
  Chunk chunk_;
  std::map<std::string, std::pair<const std::vector<double>*, int64_t>> matrices_;
};

// Tokens of an expression, with the values of those that a number can stand for.
struct Piece {
  std::string text;
  size_t begin, end;  // in the document
  bool is_number = false;
  bool is_atom = false;  // a symbol with its indices, or a sum
  double value = 0.0;    // of an atom
};

// Recursive descent over one expression of the document.
class Expression {
 public:
  Expression(const std::string& document, size_t begin, size_t end, const Symbols& symbols)
      : text_(document), at_(begin), end_(end), symbols_(symbols) {
    const Values result = sum_of_terms();
    skip_blanks();
    if (at_ != end_) fail("cannot read \"" + text_.substr(at_, end_ - at_) + "\"");
    if (result.size() != 1) fail("not a scalar");
    value_ = result[0];
  }
  double value() const { return value_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  bool symbolic() const {
    return std::any_of(pieces_.begin(), pieces_.end(), [](const Piece& p) { return p.is_atom; });
  }

 private:
  void skip_blanks() {
    while (at_ < end_ && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool accept(char c) {
    skip_blanks();
    if (at_ == end_ || text_[at_] != c) return false;
    pieces_.push_back({std::string(1, c), at_, at_ + 1});
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("expected ") + c);
  }
  std::string name() {
    skip_blanks();
    const size_t begin = at_;
    while (at_ < end_ && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  template <typename Operation>
  static Values combine(const Values& x, const Values& y, Operation operation) {
    if (x.size() != y.size() && x.size() != 1 && y.size() != 1) fail("vectors of different length");
    Values result(std::max(x.size(), y.size()));
    for (size_t i = 0; i < result.size(); ++i)
      result[i] = operation(x[x.size() == 1 ? 0 : i], y[y.size() == 1 ? 0 : i]);
    return result;
  }

  Values sum_of_terms() {
    Values result = product();
    for (;;) {
      if (accept('+')) {
        result = combine(result, product(), std::plus<>());
      } else if (accept('-')) {
        result = combine(result, product(), std::minus<>());
      } else {
        return result;
      }
    }
  }
  Values product() {
    Values result = factor();
    for (;;) {
      if (accept('*')) {
        result = combine(result, factor(), std::multiplies<>());
      } else if (accept('/')) {
        result = combine(result, factor(), std::divides<>());
      } else {
        return result;
      }
    }
  }
  Values factor() {
    skip_blanks();
    const size_t begin = at_;
    if (at_ < end_ && text_[at_] == '-' && at_ + 1 < end_ && std::isdigit(static_cast<unsigned char>(text_[at_ + 1])))
      return number(begin);  // the sign belongs to the number
    if (accept('-')) return combine({0.0}, factor(), std::minus<>());
    if (accept('(')) {
      const Values inner = sum_of_terms();
      expect(')');
      return inner;
    }
    if (at_ < end_ && std::isdigit(static_cast<unsigned char>(text_[at_]))) return number(begin);
    return symbol_or_call(begin);
  }
  Values number(size_t begin) {
    const std::string rest = text_.substr(begin, end_ - begin);
    size_t length = 0;
    const double value = std::stod(rest, &length);
    at_ = begin + length;
    pieces_.push_back({rest.substr(0, length), begin, at_, true});
    return {value};
  }
  Values symbol_or_call(size_t begin) {
    const size_t first_piece = pieces_.size();
    const std::string id = name();
    if (id.empty()) fail("expected an expression at \"" + text_.substr(begin, end_ - begin) + "\"");
    if (id == "sum" || id == "exp" || id == "sigmoid" || id == "softplus") {
      pieces_.push_back({id, begin, at_});
      expect('(');
      Values inner = sum_of_terms();
      expect(')');
      if (id == "sum") {
        double total = 0.0;
        for (const double x : inner) total += x;
        return atom(begin, first_piece, {total});
      }
      for (double& x : inner) x = id == "exp" ? std::exp(x) : id == "sigmoid" ? sigmoid(x) : softplus(x);
      return inner;
    }
    std::vector<int64_t> index;
    if (accept('[')) {
      do {
        if (accept(':')) {
          index.push_back(-1);
        } else {
          index.push_back(std::stoll(name()));
        }
      } while (accept(','));
      expect(']');
    }
    return atom(begin, first_piece, symbols_.get(id, index));
  }
  // Replaces the pieces that make up an atom by one.
  Values atom(size_t begin, size_t first_piece, const Values& values) {
    pieces_.resize(first_piece);
    pieces_.push_back({text_.substr(begin, at_ - begin), begin, at_, false, true, values[0]});
    return values;
  }

  const std::string& text_;
  size_t at_, end_;
  const Symbols& symbols_;
  double value_ = 0.0;
  std::vector<Piece> pieces_;
};

// The numbers of `substituted`, which must be `symbolic` with its atoms replaced.
void align(const Expression& symbolic, const Expression& substituted, std::vector<PrintedNumber>& numbers) {
  const std::vector<Piece>&from = symbolic.pieces(), &to = substituted.pieces();
  if (from.size() != to.size()) fail("the numbers do not follow the expression before them");
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].is_atom && to[i].is_number) {
      numbers.push_back({to[i].begin, to[i].end, from[i].value});
    } else if (from[i].text != to[i].text) {
      fail("\"" + to[i].text + "\" stands where the expression has \"" + from[i].text + "\"");
    }
  }
}

void read_chain(const std::string& document, size_t begin, size_t end, const Symbols& symbols,
                std::vector<PrintedNumber>& numbers) {
  std::vector<Expression> parts;
  for (size_t at = begin; at <= end;) {
    const size_t stop = std::min(document.find('=', at), end);
    parts.emplace_back(document, at, stop, symbols);
    at = stop + 1;
  }
  if (!parts[0].symbolic()) fail("a chain starts with a symbol");
  const double value = parts[0].value();
  size_t symbolic = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].symbolic()) {
      if (std::fabs(parts[i].value() - value) > 1e-9 * (1e-3 + std::fabs(value)))
        fail("an expression is " + std::to_string(parts[i].value()) + ", the first one " + std::to_string(value));
      symbolic = i;
    } else if (parts[i].pieces().size() == 1) {
      numbers.push_back({parts[i].pieces()[0].begin, parts[i].pieces()[0].end, value});
    } else {
      align(parts[symbolic], parts[i], numbers);
    }
  }
}

void read_matrix_row(const std::string& document, size_t begin, size_t end, const std::string& matrix, double times,
                     const Symbols& symbols, std::vector<PrintedNumber>& numbers) {
  static const std::regex heading(R"(\s*(\d+)\s+'(\\n|.)'\s*\|)");
  const std::string line = document.substr(begin, end - begin);
  std::smatch match;
  if (!std::regex_search(line, match, heading, std::regex_constants::match_continuous)) fail("not a row of a matrix");
  const int64_t row = std::stoll(match[1]);
  const char byte = match[2] == "\\n" ? '\n' : match[2].str()[0];
  if (byte != symbols.byte(row)) fail("the token is not '" + match[2].str() + "'");
  const Values entries = symbols.get(matrix, {row, -1});
  size_t column = 0, at = static_cast<size_t>(match.length());
  for (;; ++column) {
    at = line.find_first_not_of(' ', at);
    if (at == std::string::npos) break;
    const size_t stop = std::min(line.find(' ', at), line.size());
    if (column == entries.size()) fail("too many entries");
    numbers.push_back({begin + at, begin + stop, times * entries[column]});
    at = stop;
  }
  for (; column < entries.size(); ++column)
    if (entries[column] != 0.0) fail("entry " + std::to_string(column) + " is left out and not zero");
}

void read_block(const std::string& document, size_t begin, size_t end, const std::string& matrix, double times,
                const Symbols& symbols, std::vector<PrintedNumber>& numbers) {
  size_t at = begin;
  while (at < end) {
    size_t stop = std::min(document.find('\n', at), end);
    const auto holds = [&](char c) { return document.substr(at, stop - at).find(c) != std::string::npos; };
    if (!matrix.empty() && holds('|')) {
      read_matrix_row(document, at, stop, matrix, times, symbols, numbers);
    } else if (matrix.empty() && holds('=')) {
      for (size_t next = document.find_first_not_of(" \n", stop);  // lines that go on
           next < end && (document[next] == '=' || document[next] == '+');
           next = document.find_first_not_of(" \n", stop)) {
        stop = std::min(document.find('\n', next), end);
      }
      read_chain(document, at, stop, symbols, numbers);
    }
    at = stop + 1;
  }
}

}  // namespace

std::vector<PrintedNumber> find_printed_numbers(const std::string& document) {
  static const std::regex comment(
      R"(<!-- check: (matrix (\w+)( times=(\d+))?|values) layer=(\w+) head=(\d+) chunk=(\d+) size=(\d+) -->\n```\w*\n)");
  std::vector<PrintedNumber> numbers;
  std::map<std::string, checks::LayerFile> layers;
  for (auto match = std::sregex_iterator(document.begin(), document.end(), comment); match != std::sregex_iterator();
       ++match) {
    const std::string layer = (*match)[5];
    if (!layers.count(layer))
      layers.emplace(layer, checks::read_layer(FLASHKDA_SOURCE_DIR "/data/kda_" + layer + "_slice.safetensors"));
    const Symbols symbols(layers.at(layer), std::stoll((*match)[6]), std::stoll((*match)[7]),
                          static_cast<int32_t>(std::stol((*match)[8])));
    const size_t begin = static_cast<size_t>(match->position() + match->length());
    const size_t end = document.find("```", begin);
    if (end == std::string::npos) fail("a block has no end");
    try {
      const double times = (*match)[4].matched ? std::stod((*match)[4]) : 1.0;
      read_block(document, begin, end, (*match)[2], times, symbols, numbers);
    } catch (const std::exception& error) {
      fail(match->str() + document.substr(begin, end - begin) + error.what());
    }
  }
  return numbers;
}

bool is_rounded(const std::string& text, double value) {
  size_t length = 0;
  const double printed = std::stod(text, &length);
  if (length != text.size()) return false;
  const size_t point = text.find('.');
  const size_t exponent = std::min(text.find('e'), text.size());
  const int decimals = point == std::string::npos ? 0 : static_cast<int>(exponent - point - 1);
  const int power = exponent < text.size() ? std::stoi(text.substr(exponent + 1)) : 0;
  return std::fabs(printed - value) <= (0.5 + 1e-6) * std::pow(10.0, power - decimals);
}

}  // namespace flashkda::test
