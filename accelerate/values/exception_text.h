/// The message of an exception; LibTorch's without their backtraces.
///
/// Threads: pure functions.
#pragma once

#include <exception>
#include <string>

namespace accelerate {

std::string exception_text(const std::exception& error);

/// Also for an exception that is not a std::exception. Null: the exception that is being handled.
std::string exception_text(const std::exception_ptr& error = nullptr);

}  // namespace accelerate
