/// What kind of failure an exception of a rank is.
///
/// Threads: pure functions.
#pragma once

#include <exception>

namespace accelerate::simulator {

/// Whether a rank failed because of other ranks: its peers had ended, were blocked or disagreed, or
/// its machine died.
bool is_consequence(const std::exception_ptr& exception);

bool is_out_of_memory(const std::exception_ptr& exception);

}  // namespace accelerate::simulator
