/// The names of metrics, "time/step", and their units; README.md of this folder says what each is.
/// Figures, and tables of them, as people read them.
///
/// Threads: pure functions.
#pragma once

#include <array>
#include <cstddef>
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

/// "401.703 us", with the sign of a negative one.
std::string duration_text(double ns, int digits = 6);
/// "14.72 MiB", with the sign of a negative one.
std::string byte_amount(double bytes);
/// A value of a metric, or a change of it, in its unit.
std::string value_text(absl::string_view metric, double value);

/// Rows of as many cells each, the first of which is the head.
using Rows = std::vector<std::vector<std::string>>;
/// Columns with two spaces between them, behind so many.
std::string plain_table(const Rows& rows, size_t indent = 0);
/// `alignment`: the line below the head, "| --- | --: |".
std::string markdown_table(const Rows& rows, absl::string_view alignment);

}  // namespace accelerate::launcher::perf
