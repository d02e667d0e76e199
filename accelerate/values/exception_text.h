/// What an exception says to a person: LibTorch's without their backtraces.
///
/// Threads: pure functions.
#pragma once

#include <exception>
#include <string>

namespace accelerate {

std::string exception_text(const std::exception& error);

/// Also of one that is no std::exception, of which nothing is known. Null: the one that is being
/// handled.
std::string exception_text(const std::exception_ptr& error = nullptr);

}  // namespace accelerate
