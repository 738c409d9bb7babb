// flashkda inspect: L, Mqk, INV and every other symbol of one chunk.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <memory>

#include "check/layer_file.hpp"
#include "cli/command.hpp"
#include "cli/heatmap.hpp"
#include "cli/problem_options.hpp"
#include "cli/terminal.hpp"
#include "cli/text.hpp"

namespace flashkda::cli {
namespace {

struct InspectOptions {
  std::string input, save, color = "auto";
  int64_t sequence = 0, head = 0, chunk = 0;
  int32_t chunk_size = 16;
  std::vector<std::string> symbols;
  bool table = false;
  ProblemOptions problem;
};

enum class Extent { kTokens, kKeys, kValues, kOne };

// A symbol of the chunked form: a member of fkda_chunk.
struct Symbol {
  const char* name;
  double* fkda_chunk::*buffer;
  Extent rows, columns;
  const char* meaning;
  Matrix::Blank blank = Matrix::Blank::kNone;
};

constexpr Symbol kSymbols[] = {
    {"q", &fkda_chunk::q, Extent::kTokens, Extent::kKeys, "query"},
    {"k", &fkda_chunk::k, Extent::kTokens, Extent::kKeys, "key"},
    {"v", &fkda_chunk::v, Extent::kTokens, Extent::kValues, "value"},
    {"a", &fkda_chunk::a, Extent::kTokens, Extent::kKeys, "log decay of the token"},
    {"G", &fkda_chunk::G, Extent::kTokens, Extent::kKeys, "sum of a in the chunk"},
    {"b", &fkda_chunk::b, Extent::kTokens, Extent::kOne, "write strength"},
    {"kd", &fkda_chunk::kd, Extent::kTokens, Extent::kKeys, "k exp(G)"},
    {"qd", &fkda_chunk::qd, Extent::kTokens, Extent::kKeys, "scale q exp(G)"},
    {"ki", &fkda_chunk::ki, Extent::kTokens, Extent::kKeys, "k exp(-G)"},
    {"kr", &fkda_chunk::kr, Extent::kTokens, Extent::kKeys, "k exp(G_last - G)"},
    {"L", &fkda_chunk::L, Extent::kTokens, Extent::kTokens, "b_i (kd_i . ki_j), i > j",
     Matrix::Blank::kDiagonalAndAbove},
    {"Mqk", &fkda_chunk::Mqk, Extent::kTokens, Extent::kTokens, "qd_i . ki_j, i >= j", Matrix::Blank::kAboveDiagonal},
    {"INV", &fkda_chunk::INV, Extent::kTokens, Extent::kTokens, "(I + L)^-1", Matrix::Blank::kAboveDiagonal},
    {"U", &fkda_chunk::U, Extent::kTokens, Extent::kValues, "INV (b o (v - kd S))"},
    {"O", &fkda_chunk::O, Extent::kTokens, Extent::kValues, "qd S + Mqk U"},
    {"S", &fkda_chunk::S, Extent::kKeys, Extent::kValues, "state before the chunk"},
    {"S_next", &fkda_chunk::S_next, Extent::kKeys, Extent::kValues, "exp(G_last) S + kr^T U"},
};
constexpr size_t kSymbolCount = std::size(kSymbols);

const Symbol& symbol_named(const std::string& name) {
  return *std::find_if(std::begin(kSymbols), std::end(kSymbols), [&](const Symbol& s) { return name == s.name; });
}

// Every symbol of a chunk.
class Chunk {
 public:
  Chunk(const fkda_problem& problem, const InspectOptions& options)
      : keys_(problem.q.shape[3]), values_(problem.v.shape[3]) {
    chunk_.struct_size = sizeof(chunk_);
    chunk_.chunk_size = options.chunk_size;
    chunk_.sequence = options.sequence;
    chunk_.head = options.head;
    chunk_.chunk = options.chunk;
    checks::require_ok(fkda_inspect_chunk(&problem, &chunk_));  // without buffers: checks, and counts the rows
    for (size_t i = 0; i < kSymbolCount; ++i) {
      buffers_[i].resize(static_cast<size_t>(options.chunk_size) * static_cast<size_t>(std::max(keys_, values_)) +
                         static_cast<size_t>(keys_ * values_));
      chunk_.*kSymbols[i].buffer = buffers_[i].data();
    }
    checks::require_ok(fkda_inspect_chunk(&problem, &chunk_));
  }

  int64_t rows() const { return chunk_.rows; }
  int64_t first_token() const { return chunk_.first_token; }

  Matrix matrix(const Symbol& symbol) const {
    return {chunk_.*symbol.buffer, extent(symbol.rows), extent(symbol.columns), symbol.blank};
  }
  Matrix matrix(const std::string& name) const { return matrix(symbol_named(name)); }

 private:
  int64_t extent(Extent e) const {
    switch (e) {
      case Extent::kTokens: return chunk_.rows;
      case Extent::kKeys: return keys_;
      case Extent::kValues: return values_;
      case Extent::kOne: return 1;
    }
    return 0;
  }

  int64_t keys_, values_;
  fkda_chunk chunk_ = {};
  std::vector<double> buffers_[kSymbolCount];
};

// ------------------------------------------------------------------------------------------------------ token labels

// A byte of text as one column.
std::string byte_symbol(unsigned char byte, bool unicode) {
  if (byte == ' ') return unicode ? "\u2423" : "_";
  if (byte == '\n') return unicode ? "\u21b5" : "$";
  if (byte == '\t') return unicode ? "\u2192" : ">";
  if (byte > ' ' && byte < 0x7f) return std::string(1, static_cast<char>(byte));
  return "?";
}

// A token in a sentence: its number in the sequence and, where it is known, the byte it stands for.
std::string token_text(const TokenLabels& labels, int64_t row) {
  const auto index = static_cast<size_t>(row);
  const std::string& number = labels.numbers[index];
  return number.substr(number.find_first_not_of(' ')) +
         (labels.symbols.empty() ? "" : " '" + labels.symbols[index] + "'");
}

TokenLabels token_labels(const checks::LayerFile& layer, const InspectOptions& options, const Chunk& chunk,
                         bool unicode) {
  TokenLabels labels;
  const int64_t first = chunk.first_token(), last = first + chunk.rows() - 1;
  const int width = static_cast<int>(std::to_string(last).size());
  for (int64_t t = first; t <= last; ++t) labels.numbers.push_back(format("%*lld", width, static_cast<long long>(t)));

  const checks::OwnedProblem& p = layer.problem;
  const int64_t begin = p.cu_seqlens.present() ? static_cast<int64_t>(p.cu_seqlens.get(options.sequence))
                                               : options.sequence * p.q.shape()[1];
  if (begin + last >= static_cast<int64_t>(layer.text.size())) return labels;
  for (int64_t t = first; t <= last; ++t) {
    labels.symbols.push_back(
        byte_symbol(static_cast<unsigned char>(layer.text[static_cast<size_t>(begin + t)]), unicode));
  }
  return labels;
}

// ------------------------------------------------------------------------------------------------------------- pages

void print(const Block& block, const char* indent = "  ") {
  for (const std::string& line : block.lines) std::printf("%s%s\n", indent, line.c_str());
}

void print_title(const checks::LayerFile& layer, const InspectOptions& options, const Chunk& chunk,
                 const TokenLabels& labels, const Terminal& terminal) {
  const fkda_problem& o = layer.problem.options;
  const std::string title =
      format("%s: sequence %lld, head %lld, chunk %lld (tokens %lld to %lld)", file_name(layer.path).c_str(),
             static_cast<long long>(options.sequence), static_cast<long long>(options.head),
             static_cast<long long>(options.chunk), static_cast<long long>(chunk.first_token()),
             static_cast<long long>(chunk.first_token() + chunk.rows() - 1));
  std::printf("%s\n", bold(terminal, title).c_str());
  std::string facts = std::string(checks::gate_name(o.gate)) + " gate";
  if (o.gate == FKDA_GATE_BOUNDED) facts += format(" (lower bound %g)", o.lower_bound);
  facts += format(", chunks of %d, fp64", options.chunk_size);
  std::printf("%s\n", facts.c_str());
  if (!labels.symbols.empty()) {
    std::string text;
    for (const std::string& symbol : labels.symbols) text += symbol;
    std::printf("text: %s\n", text.c_str());
  }
  std::printf("\n");
}

std::string title_of(const Symbol& symbol) { return format("%s = %s", symbol.name, symbol.meaning); }

const char* extent_name(Extent extent) {
  switch (extent) {
    case Extent::kTokens: return "tokens";
    case Extent::kKeys: return "key channels";
    case Extent::kValues: return "value channels";
    case Extent::kOne: return "1";
  }
  return "";
}

// A heat map under its name, with its scale below.
Block titled_heatmap(std::string title, const Matrix& matrix, const TokenLabels& rows, const TokenLabels& columns,
                     const HeatmapStyle& style, const Terminal& terminal, int max_width) {
  Block block = heatmap(matrix, rows, columns, style, terminal, max_width);
  const int indent = style.row_labels ? heatmap_width(0, rows, style) : 0;
  const Block scale = color_scale(matrix, terminal, block.width - indent);
  const auto add = [&](const std::string& text, int width, bool at_top) {
    const std::string line = std::string(static_cast<size_t>(indent), ' ') + text;
    block.width = std::max(block.width, indent + width);
    block.lines.insert(at_top ? block.lines.begin() : block.lines.end(), line);
  };
  const int64_t joined = columns_per_cell(matrix.columns, rows, style, max_width);
  if (joined > 1) title += format(" (%lld columns a cell)", static_cast<long long>(joined));
  const int old_width = block.width;
  add(bold(terminal, title), static_cast<int>(title.size()), true);
  add("", 0, false);
  add(scale.lines.front(), scale.width, false);
  // The map's own lines keep their width; lines shorter than the block are filled up so that blocks can stand side by
  // side.
  const auto fill = [&](size_t line, int width) {
    block.lines[line] += std::string(static_cast<size_t>(std::max(0, block.width - width)), ' ');
  };
  fill(0, indent + static_cast<int>(title.size()));
  for (size_t i = 1; i + 2 < block.lines.size(); ++i) fill(i, old_width);
  fill(block.lines.size() - 2, indent);
  fill(block.lines.size() - 1, indent + scale.width);
  return block;
}

// The entries of largest magnitude below the diagonal, in words.
void print_strongest(const Matrix& matrix, const char* name, const char* verb, const TokenLabels& labels) {
  struct Entry {
    double value;
    int64_t i, j;
  };
  std::vector<Entry> entries;
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t j = 0; j < i; ++j) entries.push_back({matrix.at(i, j), i, j});
  }
  const size_t shown = std::min<size_t>(3, entries.size());
  std::partial_sort(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(shown), entries.end(),
                    [](const Entry& a, const Entry& b) { return std::abs(a.value) > std::abs(b.value); });
  for (size_t n = 0; n < shown; ++n) {
    const Entry& e = entries[n];
    std::printf("  %-3s %+.3f  token %s %s this much of what token %s wrote\n", name, e.value,
                token_text(labels, e.i).c_str(), verb, token_text(labels, e.j).c_str());
  }
}

// max |(I + L) INV - I|
double inverse_residual(const Matrix& L, const Matrix& INV) {
  double residual = 0.0;
  for (int64_t i = 0; i < L.rows; ++i) {
    for (int64_t j = 0; j < L.rows; ++j) {
      double sum = INV.at(i, j) - (i == j ? 1.0 : 0.0);
      for (int64_t m = 0; m < i; ++m) sum += L.at(i, m) * INV.at(m, j);
      residual = std::max(residual, std::abs(sum));
    }
  }
  return residual;
}

void print_summary(const Chunk& chunk, const Terminal& terminal) {
  Table table({{"symbol", Table::Align::kLeft},
               {"shape", Table::Align::kLeft},
               {"min"},
               {"max"},
               {"rms"},
               {"what it is", Table::Align::kLeft}});
  for (const Symbol& symbol : kSymbols) {
    const Matrix m = chunk.matrix(symbol);
    double low = std::numeric_limits<double>::infinity(), high = -low, squares = 0.0;
    int64_t count = 0;
    for (int64_t i = 0; i < m.rows; ++i) {
      for (int64_t j = 0; j < m.columns; ++j) {
        if (!m.shows(i, j)) continue;
        low = std::min(low, m.at(i, j));
        high = std::max(high, m.at(i, j));
        squares += m.at(i, j) * m.at(i, j);
        ++count;
      }
    }
    const auto text = [&](double value) { return count > 0 ? format("%.3g", value) : "-"; };
    table.add({symbol.name, shape_text({m.rows, m.columns}), text(low), text(high),
               text(std::sqrt(squares / static_cast<double>(std::max<int64_t>(count, 1)))), symbol.meaning});
  }
  const std::vector<std::string> lines = table.lines();
  std::printf("  %s\n", bold(terminal, lines[0]).c_str());
  for (size_t i = 1; i < lines.size(); ++i) std::printf("  %s\n", lines[i].c_str());
  std::printf("\n  max |(I + L) INV - I| = %.1e\n", inverse_residual(chunk.matrix("L"), chunk.matrix("INV")));
}

// L and Mqk side by side where the terminal is wide enough, then what stands out, then every symbol's range.
void print_overview(const Chunk& chunk, const TokenLabels& labels, const Terminal& terminal) {
  constexpr int kGap = 4, kIndent = 2;
  const int64_t n = chunk.rows();
  HeatmapStyle style, right_style;
  const auto together = [&] {
    return kIndent + heatmap_width(n, labels, style) + kGap + heatmap_width(n, labels, right_style);
  };
  right_style.row_labels = false;
  const bool wide_fits = terminal.width == 0 || together() <= terminal.width;
  style.wide_cells = right_style.wide_cells = wide_fits || (terminal.color == Color::kNone && n <= 32);
  const bool side_by_side = terminal.width == 0 || together() <= terminal.width;
  const Symbol &L = symbol_named("L"), &Mqk = symbol_named("Mqk");
  const int width = terminal.width > 0 ? terminal.width - kIndent : 0;
  const Block left = titled_heatmap(title_of(L), chunk.matrix(L), labels, labels, style, terminal, width);
  if (side_by_side) {
    print(
        beside(left, titled_heatmap(title_of(Mqk), chunk.matrix(Mqk), labels, labels, right_style, terminal, 0), kGap));
  } else {
    print(left);
    std::printf("\n");
    print(titled_heatmap(title_of(Mqk), chunk.matrix(Mqk), labels, labels, style, terminal, width));
  }
  std::printf(
      "\n  Row i, column j. L: how much of what token j wrote token i reads back with\n"
      "  its key; that much it must not write again. Mqk: the attention of query i to\n"
      "  key j, through the decay between them.\n");
  if (n > 1) {
    std::printf("\n  %s\n", bold(terminal, "Strongest").c_str());
    print_strongest(chunk.matrix(L), "L", "reads back", labels);
    print_strongest(chunk.matrix(Mqk), "Mqk", "outputs", labels);
  }
  std::printf("\n");
  print_summary(chunk, terminal);
}

void print_symbol(const Symbol& symbol, const Chunk& chunk, const TokenLabels& tokens, bool numbers,
                  const Terminal& terminal) {
  const Matrix matrix = chunk.matrix(symbol);
  const std::string title = title_of(symbol) + ", " + extent_name(symbol.rows) + " x " + extent_name(symbol.columns);
  TokenLabels rows = tokens;
  if (symbol.rows != Extent::kTokens) {  // a state: rows are key channels
    rows = {};
    const int width = static_cast<int>(std::to_string(matrix.rows - 1).size());
    for (int64_t i = 0; i < matrix.rows; ++i) rows.numbers.push_back(format("%*lld", width, static_cast<long long>(i)));
  }
  const TokenLabels columns = symbol.columns == Extent::kTokens ? tokens : TokenLabels{};
  const int width = terminal.width > 0 ? std::max(20, terminal.width - 2) : 0;
  if (numbers) {
    std::printf("  %s\n", bold(terminal, title).c_str());
    print(number_table(matrix, rows, columns, width));
  } else {
    HeatmapStyle style;
    style.wide_cells = width == 0 ? matrix.columns <= 64 : heatmap_width(matrix.columns, rows, style) <= width;
    // Half lines cannot be labelled one by one.
    style.row_labels = style.wide_cells || !terminal.unicode || terminal.color == Color::kNone;
    print(titled_heatmap(title, matrix, rows, columns, style, terminal, width));
  }
}

void save(const std::string& path, const checks::LayerFile& layer, const InspectOptions& options, const Chunk& chunk) {
  std::vector<io::TensorView> tensors;
  for (const Symbol& symbol : kSymbols) {
    const Matrix m = chunk.matrix(symbol);
    std::vector<int64_t> shape = {m.rows};
    if (symbol.columns != Extent::kOne) shape.push_back(m.columns);
    tensors.push_back({symbol.name, io::DType::kF64, shape,
                       std::as_bytes(std::span(m.values, static_cast<size_t>(m.rows * m.columns)))});
  }
  io::write_safetensors(path, std::move(tensors),
                        {{"source", file_name(layer.path)},
                         {"gate", std::string(checks::gate_name(layer.problem.options.gate))},
                         {"sequence", std::to_string(options.sequence)},
                         {"head", std::to_string(options.head)},
                         {"chunk", std::to_string(options.chunk)},
                         {"chunk_size", std::to_string(options.chunk_size)},
                         {"first_token", std::to_string(chunk.first_token())}});
}

int inspect(const InspectOptions& options) {
  checks::LayerFile layer = checks::read_layer(options.input);
  options.problem.apply(layer.problem.options);
  const Chunk chunk(layer.problem.problem(), options);
  const Terminal terminal = detect_terminal(options.color);
  const TokenLabels labels = token_labels(layer, options, chunk, terminal.unicode);
  print_title(layer, options, chunk, labels, terminal);
  if (options.symbols.empty() && !options.table) {
    print_overview(chunk, labels, terminal);
  } else {
    std::vector<std::string> names = options.symbols;
    if (names.empty()) names = {"L", "Mqk", "INV"};
    bool first = true;
    for (const std::string& name : names) {
      if (!first) std::printf("\n");
      first = false;
      print_symbol(symbol_named(name), chunk, labels, options.table, terminal);
    }
  }
  if (!options.save.empty()) {
    save(options.save, layer, options, chunk);
    std::printf("\nsaved %zu symbols to %s\n", kSymbolCount, options.save.c_str());
  }
  return 0;
}

}  // namespace

Subcommand add_inspect(CLI::App& program) {
  CLI::App* command = program.add_subcommand("inspect", "See L, Mqk, INV and every other symbol of one chunk");
  auto options = std::make_shared<InspectOptions>();
  command->add_option("input", options->input, "A layer file, as for run")->required()->type_name("FILE.safetensors");
  command->add_option("--sequence", options->sequence, "Sequence of the batch (default 0)")->type_name("N");
  command->add_option("--head", options->head, "Value head (default 0)")->type_name("N");
  command->add_option("--chunk", options->chunk, "Chunk of the sequence (default 0)")->type_name("N");
  command->add_option("--chunk-size", options->chunk_size, "Tokens a chunk: 16, 32 or 64 (default 16)")->type_name("N");
  std::vector<std::string> names;
  std::string help = "Show only these symbols:";
  for (const Symbol& symbol : kSymbols) {
    names.emplace_back(symbol.name);
    help += "\n  " + format("%-6s  ", symbol.name) + symbol.meaning;
  }
  command->add_option("--symbol", options->symbols, help)
      ->type_name("NAME,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(names).description(""));
  command->add_flag("--table", options->table, "Numbers instead of heat maps");
  command->add_option("--save", options->save, "Also write every symbol to this file, in fp64")
      ->type_name("FILE.safetensors");
  command->add_option("--color", options->color, "auto, always or never (default auto)")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"auto", "always", "never"}).description(""));
  options->problem.add_to(*command);
  return {command, [options] { return inspect(*options); }};
}

}  // namespace flashkda::cli
