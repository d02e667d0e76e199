#include "launch/perf/figure_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/number_text.h"
#include "launch/perf/metrics.h"

namespace accelerate::launcher::perf {

std::string duration_text(double ns) {
  const double size = std::abs(ns);
  if (size >= 1e9) return absl::StrFormat("%.6g s", ns / 1e9);
  if (size >= 1e6) return absl::StrFormat("%.6g ms", ns / 1e6);
  if (size >= 1e3) return absl::StrFormat("%.6g us", ns / 1e3);
  return absl::StrFormat("%.6g ns", ns);
}

std::string byte_amount(double bytes) {
  return absl::StrCat(bytes < 0 ? "-" : "",
                      binary_byte_text(static_cast<int64_t>(std::llround(std::abs(bytes)))));
}

std::string value_text(absl::string_view metric, double value) {
  switch (unit_of(metric)) {
    case Unit::kNanoseconds: return duration_text(value);
    case Unit::kBytes: return byte_amount(value);
    case Unit::kNumber: return absl::StrFormat("%.12g", value);
  }
  return "";
}

std::string plain_table(const Rows& rows, size_t indent) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line(indent, ' ');
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

std::string markdown_table(const Rows& rows, absl::string_view alignment) {
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const std::string& cell : rows[i]) {
      absl::StrAppend(&text, "| ", absl::StrReplaceAll(cell, {{"|", "\\|"}}), " ");
    }
    absl::StrAppend(&text, "|\n");
    if (i == 0) absl::StrAppend(&text, alignment, "\n");
  }
  return text;
}

}  // namespace accelerate::launcher::perf
