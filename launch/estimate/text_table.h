/// A table in a box, with a title, for terminals.
///
///     ┌───────────────┐
///     │     title     │
///     ├───────┬───────┤
///     │ left  │ right │
///     ├───────┼───────┤
///     │   1   │   2   │
///     └───────┴───────┘
/// Threads: pure function.
/// Mirrors: accelerate commands/estimate.py, create_ascii_table.
#pragma once

#include <string>
#include <vector>

namespace accelerate::launch::estimate {

/// Every row has as many cells as there are headers, at least one. Texts are UTF-8 and centred; an
/// odd blank goes where Python's str.center puts it. The last line has no newline.
std::string text_table(const std::vector<std::string>& headers,
                       const std::vector<std::vector<std::string>>& rows, const std::string& title);

}  // namespace accelerate::launch::estimate
