#include "cli/text.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <filesystem>

namespace flashkda::cli {

std::string format(const char* pattern, ...) {
  va_list args, again;
  va_start(args, pattern);
  va_copy(again, args);
  std::string text(static_cast<size_t>(std::max(0, std::vsnprintf(nullptr, 0, pattern, args))), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  va_end(args);
  return text;
}

std::string with_separators(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (left % 3 == 0 && i > 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string byte_size(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1000) return format("%d bytes", static_cast<int>(bytes));
  if (bytes < 1000 * 1000) return format("%.1f KB", value / 1e3);
  if (bytes < 1000 * 1000 * 1000) return format("%.1f MB", value / 1e6);
  return format("%.2f GB", value / 1e9);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d > 0) text += ',';
    text += std::to_string(shape[d]);
  }
  return text + "]";
}

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

std::vector<std::string> Table::lines() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.title.size());
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  const auto line = [&](const auto& cell) {
    std::string text;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string padding(widths[c] - cell(c).size(), ' ');
      if (c > 0) text += "  ";
      text += columns_[c].align == Align::kLeft ? cell(c) + padding : padding + cell(c);
    }
    return text.substr(0, text.find_last_not_of(' ') + 1);
  };
  std::vector<std::string> result = {line([&](size_t c) { return columns_[c].title; })};
  for (const auto& row : rows_) result.push_back(line([&](size_t c) { return c < row.size() ? row[c] : ""; }));
  return result;
}

}  // namespace flashkda::cli
