/// Switches in environment variables.
/// Threads: a pure function.
#pragma once

#include <optional>
#include <string_view>

namespace accelerate::trackers {

/// y yes t true on 1 / n no f false off 0, in any case; nothing for another text.
std::optional<bool> yes_or_no(std::string_view text);

}  // namespace accelerate::trackers
