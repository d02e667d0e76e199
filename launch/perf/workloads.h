/// The programs whose cost a project watches, in a file that is called `perf.yaml`:
///
///   baselines: perf            # folder with a file for each workload; relative to this file
///   tolerances: {time: 1 %}    # of a metric or a group of them; 0 if not named
///   workloads:
///     - name: lm
///       program: lm --model tiny --max_steps 4       # words as in a shell, or a list of words;
///                                                    # {scratch} is an empty folder for each run
///       options: --mixed_precision bf16              # of `accelerate launch`
///       clusters: [2x4:h100, 16x8:a100-80]           # as in --simulate
///       tolerances: {memory: 64 KiB}
///
/// Errors: InvalidArgument that names the file, and the line where there is one; NotFound for a
///         file that is not there.
/// Threads: any.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::launcher::perf {

/// How far a metric may be from its baseline: by a share of it, or by an amount in its unit.
struct Tolerance {
  double share = 0;
  double amount = 0;

  bool allows(double before, double after) const;
  bool operator==(const Tolerance&) const = default;
};

/// By the name of a metric ("time/step") or the group that it begins with ("time").
using Tolerances = std::map<std::string, Tolerance>;

/// That of the metric, else of its group, else none.
Tolerance tolerance_of(const Tolerances& tolerances, absl::string_view metric);

/// For a metric or group: "1 %", "3", and with its unit, if it has one, "64 KiB" or "5 us".
absl::StatusOr<Tolerance> parse_tolerance(absl::string_view metric, absl::string_view text);

struct Workload {
  std::string name;  ///< also the name of its baseline's file, without .json
  std::vector<std::string> program;
  std::vector<std::string> options;
  std::vector<std::string> clusters;
  Tolerances tolerances;  ///< its own, and those of the file that it has none for

  bool operator==(const Workload&) const = default;
};

struct Workloads {
  std::string path;
  /// As the file has them, relative to the working directory.
  std::string baselines;
  std::vector<Workload> list;
};

/// Words with single and double quotes and backslashes as in a shell; nothing is replaced.
absl::StatusOr<std::vector<std::string>> shell_words(absl::string_view text);

absl::StatusOr<Workloads> load_workloads(const std::string& path);
/// The same for a text; `path` is what errors call it.
absl::StatusOr<Workloads> parse_workloads(const std::string& text, const std::string& path);

}  // namespace accelerate::launcher::perf
