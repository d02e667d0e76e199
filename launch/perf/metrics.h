/// The names of metrics, "time/step", and their units. README.md of this folder says what each is.
///
/// Threads: pure functions.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace accelerate::launcher::perf {

/// "time" of "time/step".
absl::string_view group_of(absl::string_view metric);

/// All groups of metrics, in the order of a table.
inline constexpr std::array kMetricGroups = {"time", "memory", "communication",
                                             "work", "files",  "count"};

enum class Unit { kNanoseconds, kBytes, kNumber };

/// The unit of a metric, or of a group: kNumber if its metrics have several.
Unit unit_of(absl::string_view metric_or_group);

/// The metrics of a group, also those that a run may lack.
std::vector<std::string> metrics_of(absl::string_view group);

}  // namespace accelerate::launcher::perf
