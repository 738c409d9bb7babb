// Text for people: formatted numbers and tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashkda::cli {

// printf into a string.
__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...);

std::string with_separators(int64_t value);  // 1234567 -> "1,234,567"
std::string byte_size(uint64_t bytes);       // "1.5 MB"
std::string shape_text(const std::vector<int64_t>& shape);
std::string file_name(const std::string& path);  // without the folders

// Columns separated by two spaces, each as wide as its widest cell. Cells are ASCII.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::vector<std::string> lines() const;  // the first is the header

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace flashkda::cli
