#include "launch/perf/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/base/json_text.h"
#include "launch/perf/figure_text.h"

namespace accelerate::launcher::perf {
namespace {

std::string amount_text(Measure measure, double amount) {
  if (measure == Measure::kInstructions) return absl::StrFormat("%.10g", std::round(amount));
  if (amount >= 1e9) return absl::StrFormat("%.4g s", amount / 1e9);
  if (amount >= 1e6) return absl::StrFormat("%.4g ms", amount / 1e6);
  if (amount >= 1e3) return absl::StrFormat("%.4g us", amount / 1e3);
  return absl::StrFormat("%.4g ns", amount);
}

// "slower by 5.1 % (4.2 to 6.0)", "no difference seen (-0.4 to +0.3 %)".
std::string verdict_text(const BenchmarkRow& row) {
  const Difference& found = row.difference;
  const bool counts = row.measure == Measure::kInstructions;
  const int digits = counts ? 2 : 1;
  if (found.verdict == Verdict::kNoDifference) {
    return absl::StrFormat("%s (%+.*f to %+.*f %%)", to_string(found.verdict), digits,
                           100 * (found.low - 1), digits, 100 * (found.high - 1));
  }
  const bool is_more = found.verdict == Verdict::kMore;
  const char* word = counts ? (is_more ? "more" : "fewer") : (is_more ? "slower" : "faster");
  const double sign = is_more ? 100 : -100;
  const auto [least, most] = std::minmax(sign * (found.low - 1), sign * (found.high - 1));
  return absl::StrFormat("%s by %.*f %% (%.*f to %.*f)", word, digits, sign * (found.ratio - 1),
                         digits, least, digits, most);
}

std::string summary_line(const BenchReport& report) {
  const auto number_of = [&](Verdict verdict) {
    return std::ranges::count(report.rows, verdict,
                              [](const BenchmarkRow& row) { return row.difference.verdict; });
  };
  const auto more = number_of(Verdict::kMore);
  const auto less = number_of(Verdict::kLess);
  const size_t all = report.rows.size();
  const std::string benchmarks = absl::StrCat(all, all == 1 ? " benchmark" : " benchmarks");
  if (all == 0) return "no benchmark could be compared\n";
  if (more + less == 0) return absl::StrCat(benchmarks, ": no difference seen\n");
  const bool counts = report.rounds == 0;
  return absl::StrCat(more > 0 ? "warning: " : "", benchmarks, ": ", more,
                      counts ? " with more instructions, " : " slower, ", less,
                      counts ? " with fewer\n" : " faster\n");
}

// How to read the numbers.
std::string method_line(const BenchReport& report) {
  const std::string threshold = absl::StrFormat("%.4g %%", 100 * report.threshold);
  if (report.rounds == 0) {
    return absl::StrCat("instructions an iteration; differences below ", threshold,
                        " do not count\n");
  }
  return absl::StrFormat(
      "medians of %d rounds; %.0f %% intervals for all benchmarks together; differences below "
      "%s do not count\n",
      report.rounds, 100 * kConfidence, threshold);
}

Rows rows_of(const BenchReport& report) {
  Rows rows = {{"benchmark", "measure", "base", "new", "change"}};
  for (const BenchmarkRow& row : report.rows) {
    rows.push_back({row.name, to_string(row.measure), amount_text(row.measure, row.difference.base),
                    amount_text(row.measure, row.difference.present), verdict_text(row)});
  }
  return rows;
}

}  // namespace

std::string to_table(const BenchReport& report) {
  std::string text;
  for (const std::string& each : report.notes) absl::StrAppend(&text, "note: ", each, "\n");
  return absl::StrCat(text, plain_table(rows_of(report)), method_line(report),
                      summary_line(report));
}

std::string to_markdown(const BenchReport& report) {
  std::string text = summary_line(report);
  if (!report.notes.empty()) absl::StrAppend(&text, "\n");
  for (const std::string& each : report.notes) absl::StrAppend(&text, "- note: ", each, "\n");
  absl::StrAppend(&text, "\n");
  absl::StrAppend(&text, markdown_table(rows_of(report), "| --- | --- | --: | --: | --- |"));
  return absl::StrCat(text, "\n", method_line(report));
}

std::string to_json_text(const BenchReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const BenchmarkRow& row : report.rows) {
    const Difference& found = row.difference;
    rows.push_back({{"name", row.name},
                    {"measure", to_string(row.measure)},
                    {"base", found.base},
                    {"new", found.present},
                    {"ratio", found.ratio},
                    {"low", found.low},
                    {"high", found.high},
                    {"chance", found.chance},
                    {"verdict", to_string(found.verdict)}});
  }
  return absl::StrCat(json_text({{"base", report.base},
                                 {"new", report.present},
                                 {"rounds", report.rounds},
                                 {"threshold", report.threshold},
                                 {"notes", report.notes},
                                 {"benchmarks", std::move(rows)}},
                                /*indent=*/1),
                      "\n");
}

}  // namespace accelerate::launcher::perf
