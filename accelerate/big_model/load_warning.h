/// Warnings about weights that are loaded or offloaded.
///
/// Threads: the rank's thread.
#pragma once

#include <string>

namespace accelerate::internal {

/// A warning of the rank's logger, where there is a PartialState.
void warn_of_load(const std::string& text);

}  // namespace accelerate::internal
