#include "launch/estimate/text_table.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate::launch::estimate {
namespace {

// Code points; none of what is printed here is wide or combined.
size_t length_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string repeated(const std::string& text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

std::string centred(const std::string& text, size_t width) {
  const size_t length = length_of(text);
  const size_t blanks = width > length ? width - length : 0;
  const size_t left = blanks / 2 + (blanks & width & 1);
  return absl::StrCat(std::string(left, ' '), text, std::string(blanks - left, ' '));
}

}  // namespace

std::string text_table(const std::vector<std::string>& headers,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::string& title) {
  std::vector<size_t> widths;
  for (size_t column = 0; column < headers.size(); ++column) {
    size_t width = length_of(headers[column]);
    for (const auto& row : rows) width = std::max(width, length_of(row[column]));
    widths.push_back(width);
  }
  size_t inner = std::accumulate(widths.begin(), widths.end(), widths.size() - 1);
  if (const size_t needed = length_of(title); needed > inner) {
    widths.back() += needed - inner;
    inner = needed;
  }
  const auto rule = [&](const char* left, const char* between, const char* right) {
    std::vector<std::string> lines;
    for (const size_t width : widths) lines.push_back(repeated("─", width));
    return absl::StrCat(left, absl::StrJoin(lines, between), right);
  };
  const auto line = [&](const std::vector<std::string>& cells) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < cells.size(); ++i) texts.push_back(centred(cells[i], widths[i]));
    return absl::StrCat("│", absl::StrJoin(texts, "│"), "│");
  };
  std::vector<std::string> lines = {rule("┌", "─", "┐"),
                                    absl::StrCat("│", centred(title, inner), "│"),
                                    rule("├", "┬", "┤"), line(headers), rule("├", "┼", "┤")};
  for (const auto& row : rows) lines.push_back(line(row));
  lines.push_back(rule("└", "┴", "┘"));
  return absl::StrJoin(lines, "\n");
}

}  // namespace accelerate::launch::estimate
