/// Environment variables read as values.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/runtime/environment.h"

namespace accelerate {

/// y yes t true on 1 / n no f false off 0, in any case; `fallback` where unset or empty.
/// Errors: c10::ValueError naming the variable and its text.
bool flag_from_env(const Environment& environment, const char* name, bool fallback);

/// A number of at least `minimum`; nothing where unset or empty. Errors: as above.
std::optional<int64_t> count_from_env(const Environment& environment, const char* name,
                                      int64_t minimum);

}  // namespace accelerate
