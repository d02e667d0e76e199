/// What programs of Google Benchmark, and callgrind, write; and what `accelerate perf bench` tells
/// of two builds by it: a table for a terminal and for a comment on a pull request, and the same as
/// JSON.
///
/// Errors: InvalidArgument that says what is wrong with the text; it does not name the program.
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/enum_text.h"
#include "launch/perf/pairing.h"

namespace accelerate::launcher::perf {

/// A benchmark in the output of one process, in nanoseconds an iteration.
struct BenchmarkTimes {
  std::string name;  ///< with its arguments: "BM_HandOver/8/real_time"
  /// That of the repetition that took least: load of other programs only adds to it.
  double cpu_ns = 0;
  double wall_ns = 0;  ///< or what the benchmark itself counts as its time
  /// Whether the benchmark asks for other than CPU time (UseRealTime, UseManualTime), as where
  /// other threads do the work.
  bool measures_wall_time = false;
};

/// The JSON of `--benchmark_out_format=json`, in the order of the benchmarks; those that skip
/// themselves are left out. Errors: also a benchmark that ended with an error, by name.
absl::StatusOr<std::vector<BenchmarkTimes>> parse_benchmark_output(absl::string_view text);

/// A `--benchmark_filter` that matches this benchmark alone.
std::string filter_of(absl::string_view name);

/// Whether the source sets the number of iterations, or the time, itself, so that flags do not.
bool fixes_iterations(absl::string_view name);

/// All instructions of a run, in the file that `valgrind --tool=callgrind` writes.
absl::StatusOr<double> parse_instructions(absl::string_view text);

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
