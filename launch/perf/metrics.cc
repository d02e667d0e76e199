#include "launch/perf/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/number_text.h"

namespace accelerate::launcher::perf {
namespace {

// In the order of README.md. Floors keep the launcher from the simulator's lists of phases,
// activities and categories.
struct MetricGroup {
  const char* name;
  const char* metrics;
};
constexpr MetricGroup kMetrics[] = {
    {"time",
     "step first_step run forward backward optimizer attention matrix_products other_kernels "
     "exposed_communication copies nothing_to_do hidden_communication"},
    {"memory",
     "peak tensors parameters gathered_parameters gradients optimizer_state activations "
     "buckets temporaries"},
    {"communication", "bytes"},
    {"work", "flops bytes allocated_bytes step_flops step_bytes step_allocated_bytes"},
    {"files", "reads writes syncs read_bytes write_bytes"},
    {"count",
     "kernels collectives steps allocation_retries allocations launches step_kernels "
     "step_allocations step_launches synchronisations"},
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
  for (const auto& [name, metrics] : kMetrics) {
    if (name != group) continue;
    for (const absl::string_view metric : absl::StrSplit(metrics, ' ')) {
      names.push_back(absl::StrCat(name, "/", metric));
    }
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
