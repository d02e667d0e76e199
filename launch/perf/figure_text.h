/// Figures, and tables of them, as people read them.
///
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace accelerate::launcher::perf {

/// "401.703 us", with the sign of a negative one.
std::string duration_text(double ns);
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
