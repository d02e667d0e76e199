/// The bridge between absl::Status and exceptions.
///
/// Code that throws for tensors calls code that returns a status, and the other way round. Only
/// these functions convert.
/// Threads: pure functions.
#pragma once

#include <concepts>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace accelerate {

/// Throws an Error made from the status or, if Error has no such constructor, from its message.
template <typename Error = std::runtime_error>
void throw_if_error(const absl::Status& status) {
  if (status.ok()) return;
  if constexpr (std::constructible_from<Error, const absl::Status&>) {
    throw Error(status);
  } else {
    throw Error(std::string(status.message()));
  }
}

/// The value, or an exception as throw_if_error throws it.
template <typename Error = std::runtime_error, typename T>
T value_or_throw(absl::StatusOr<T> result) {
  throw_if_error<Error>(result.status());
  return *std::move(result);
}

/// The result of `body`, an absl::Status or absl::StatusOr; a std::exception becomes a status with
/// this code and the exception's text.
template <typename Body>
std::invoke_result_t<Body> as_status(absl::StatusCode code, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& error) {
    return absl::Status(code, error.what());
  }
}

}  // namespace accelerate
