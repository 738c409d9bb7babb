// docs/algorithm.md prints what the library computes.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/printed_numbers.hpp"

namespace flashkda::test {
namespace {

std::string read_document() {
  const std::ifstream file(FLASHKDA_SOURCE_DIR "/docs/algorithm.md");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("the document has no \"" + from + "\"");
  return text.replace(at, from.size(), to);
}

TEST(AlgorithmDoc, PrintsWhatTheLibraryComputes) {
  const std::string document = read_document();
  const std::vector<PrintedNumber> numbers = find_printed_numbers(document);
  EXPECT_GT(numbers.size(), 500u) << "the checked blocks were not found";
  for (const PrintedNumber& number : numbers) {
    const std::string printed = document.substr(number.begin, number.end - number.begin);
    const auto line =
        1 + std::count(document.begin(), document.begin() + static_cast<std::ptrdiff_t>(number.begin), '\n');
    EXPECT_TRUE(is_rounded(printed, number.value)) << "line " << line << " prints " << printed
                                                   << ", the library computes " << testing::PrintToString(number.value);
  }
}

TEST(AlgorithmDoc, AnEditedDigitIsNoticed) {
  const std::string document = read_document();
  for (const PrintedNumber& number : find_printed_numbers(document)) {
    std::string printed = document.substr(number.begin, number.end - number.begin);
    char& digit = printed[std::min(printed.find('e'), printed.size()) - 1];
    ASSERT_TRUE(std::isdigit(static_cast<unsigned char>(digit))) << printed;
    digit = digit == '9' ? '8' : static_cast<char>(digit + 1);
    EXPECT_FALSE(is_rounded(printed, number.value)) << printed;
  }
}

TEST(AlgorithmDoc, AWrongFormulaIsNoticed) {
  const std::string document = read_document();
  const auto read = [&](const std::string& from, const std::string& to) {
    find_printed_numbers(replaced(document, from, to));
  };
  EXPECT_NO_THROW(read("exp(G[1,:] - G[0,:])", "exp(a[1,:])"));  // the same value
  EXPECT_THROW(read("exp(G[1,:] - G[0,:])", "exp(G[1,:] + G[0,:])"), std::runtime_error);
  EXPECT_THROW(read("L[2,1] * INV[1,0])", "L[2,1] * INV[2,0])"), std::runtime_error);
  EXPECT_THROW(read("a[2,50] = -0.0279 + ", "a[2,50] = -0.0279 - "), std::runtime_error);  // numbers, another formula
  EXPECT_THROW(read(" 1  'f' |", " 1  'x' |"), std::runtime_error);                        // another token
  EXPECT_THROW(read("kr[4,50] * U[4,43]", "kr[4,50] * U[5,43]"), std::runtime_error);      // there is no row 5
  EXPECT_THROW(read("0.0547  0.0310  0.0482  0.1126", "0.0547  0.0310  0.0482"), std::runtime_error);  // left out
}

}  // namespace
}  // namespace flashkda::test
