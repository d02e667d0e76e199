/// What `accelerate perf bench` tells of two builds: a table for a terminal and for a comment on a
/// pull request, and the same as JSON.
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "accelerate/base/enum_text.h"
#include "launch/perf/pairing.h"

namespace accelerate::launcher::perf {

enum class Measure { kCpuTime, kWallTime, kInstructions };

struct BenchmarkRow {
  std::string name;
  Measure measure = Measure::kCpuTime;
  Difference difference;  ///< nanoseconds or instructions, an iteration
};

struct BenchReport {
  std::string base;     ///< the program, as typed
  std::string present;  ///< the program, as typed
  int rounds = 0;       ///< 0: instructions were counted
  double threshold = 0;
  std::vector<BenchmarkRow> rows;
  /// Benchmarks that could not be compared, each with the reason.
  std::vector<std::string> notes;
};

std::string to_table(const BenchReport& report);
std::string to_markdown(const BenchReport& report);
std::string to_json_text(const BenchReport& report);

}  // namespace accelerate::launcher::perf

namespace accelerate {

ACCELERATE_ENUM_TEXTS(launcher::perf::Measure, "measure", "CPU time", "wall time", "instructions")
ACCELERATE_ENUM_TEXTS(launcher::perf::Verdict, "verdict", "no difference seen", "more", "less")

}  // namespace accelerate
