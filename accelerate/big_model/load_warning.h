/// Warnings about weights that are loaded or offloaded.
///
/// Threads: the rank's thread.
#pragma once

#include <string>

#include "accelerate/state/log_line.h"

namespace accelerate::internal {

/// A warning of the rank's logger, where there is a PartialState.
inline void warn_of_load(const std::string& text) { log_warning("accelerate.big_model", text); }

}  // namespace accelerate::internal
