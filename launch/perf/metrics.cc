#include "launch/perf/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/number_text.h"

namespace accelerate::launcher::perf {
namespace {

// In the order of README.md. Floors keep the launcher from the simulator's lists of phases,
// activities and categories.
constexpr const char* kMetrics[] = {
    "time/step",
    "time/first_step",
    "time/run",
    "time/forward",
    "time/backward",
    "time/optimizer",
    "time/attention",
    "time/matrix_products",
    "time/other_kernels",
    "time/exposed_communication",
    "time/copies",
    "time/nothing_to_do",
    "time/hidden_communication",
    "memory/peak",
    "memory/tensors",
    "memory/parameters",
    "memory/gathered_parameters",
    "memory/gradients",
    "memory/optimizer_state",
    "memory/activations",
    "memory/buckets",
    "memory/temporaries",
    "communication/bytes",
    "work/flops",
    "work/bytes",
    "work/allocated_bytes",
    "work/step_flops",
    "work/step_bytes",
    "work/step_allocated_bytes",
    "files/reads",
    "files/writes",
    "files/syncs",
    "files/read_bytes",
    "files/write_bytes",
    "count/kernels",
    "count/collectives",
    "count/steps",
    "count/allocation_retries",
    "count/allocations",
    "count/launches",
    "count/step_kernels",
    "count/step_allocations",
    "count/step_launches",
    "count/synchronisations",
};

}  // namespace

absl::string_view group_of(absl::string_view metric) { return metric.substr(0, metric.find('/')); }

Unit unit_of(absl::string_view metric_or_group) {
  const absl::string_view group = group_of(metric_or_group);
  if (group == "time") return Unit::kNanoseconds;
  if (group == "memory" || group == "communication") return Unit::kBytes;
  return absl::EndsWith(metric_or_group, "bytes") ? Unit::kBytes : Unit::kNumber;
}

std::vector<std::string> metrics_of(absl::string_view group) {
  std::vector<std::string> names;
  for (const char* metric : kMetrics) {
    if (group_of(metric) == group) names.emplace_back(metric);
  }
  return names;
}

std::string duration_text(double ns, int digits) {
  const double size = std::abs(ns);
  if (size >= 1e9) return absl::StrFormat("%.*g s", digits, ns / 1e9);
  if (size >= 1e6) return absl::StrFormat("%.*g ms", digits, ns / 1e6);
  if (size >= 1e3) return absl::StrFormat("%.*g us", digits, ns / 1e3);
  return absl::StrFormat("%.*g ns", digits, ns);
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
