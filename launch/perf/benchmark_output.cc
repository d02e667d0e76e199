#include "launch/perf/benchmark_output.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/base/json_text.h"

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
      return absl::InvalidArgumentError(
          absl::StrCat(name, " ended with an error: ", run.value("error_message", "")));
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

}  // namespace

absl::StatusOr<std::vector<BenchmarkTimes>> parse_benchmark_output(absl::string_view text) {
  // Counters that are not finite are written as no JSON.
  const std::string finite = absl::StrReplaceAll(
      text, {{": NaN", ": null"}, {": Infinity", ": null"}, {": -Infinity", ": null"}});
  try {
    return times_of(accelerate::internal::parse_json(finite));
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is not the JSON of Google Benchmark: ", error.what()));
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
