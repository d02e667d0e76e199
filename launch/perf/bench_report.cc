#include "launch/perf/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "launch/perf/metrics.h"

namespace accelerate::launcher::perf {
namespace {

using nlohmann::json;

double nanoseconds_of(const std::string& unit) {
  if (unit == "us") return 1e3;
  if (unit == "ms") return 1e6;
  if (unit == "s") return 1e9;
  return 1;
}

absl::StatusOr<std::vector<BenchmarkTimes>> times_of(const json& output) {
  std::vector<BenchmarkTimes> all;
  for (const json& run : output.at("benchmarks")) {
    const std::string name = run.value("run_name", run.at("name").get<std::string>());
    if (run.value("error_occurred", false)) {
      return invalid(name, " ended with an error: ", run.value("error_message", ""));
    }
    if (run.value("skipped", false) || run.value("run_type", "iteration") != "iteration") continue;
    const double unit = nanoseconds_of(run.value("time_unit", "ns"));
    const double cpu = unit * run.at("cpu_time").get<double>();
    const double wall = unit * run.at("real_time").get<double>();
    const auto found = std::ranges::find(all, name, &BenchmarkTimes::name);
    if (found != all.end()) {
      found->cpu_ns = std::min(found->cpu_ns, cpu);
      found->wall_ns = std::min(found->wall_ns, wall);
      continue;
    }
    all.push_back({.name = name,
                   .cpu_ns = cpu,
                   .wall_ns = wall,
                   .measures_wall_time = absl::StrContains(name, "/real_time") ||
                                         absl::StrContains(name, "/manual_time")});
  }
  return all;
}

std::string amount_text(Measure measure, double amount) {
  if (measure == Measure::kInstructions) return absl::StrFormat("%.10g", std::round(amount));
  return duration_text(amount, /*digits=*/4);
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

absl::StatusOr<std::vector<BenchmarkTimes>> parse_benchmark_output(absl::string_view text) {
  // Counters that are not finite are written as no JSON.
  const std::string finite = absl::StrReplaceAll(
      text, {{": NaN", ": null"}, {": Infinity", ": null"}, {": -Infinity", ": null"}});
  try {
    return times_of(accelerate::internal::parse_json(finite));
  } catch (const json::exception& error) {
    return invalid("it is not the JSON of Google Benchmark: ", error.what());
  }
}

std::string filter_of(absl::string_view name) {
  std::string filter = "^";
  for (const char c : name) {
    if (absl::StrContains("\\^$.|?*+()[]{}", c)) filter += '\\';
    filter += c;
  }
  return filter + "$";
}

bool fixes_iterations(absl::string_view name) {
  return absl::StrContains(name, "/iterations:") || absl::StrContains(name, "/min_time:");
}

absl::StatusOr<double> parse_instructions(absl::string_view text) {
  double instructions = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "totals: ")) continue;
    if (absl::SimpleAtod(line.substr(0, line.find(' ')), &instructions)) return instructions;
  }
  return absl::InvalidArgumentError("callgrind's file has no line with totals");
}

}  // namespace accelerate::launcher::perf
