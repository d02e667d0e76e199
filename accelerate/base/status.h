/// Early returns of a status, and the bridge between absl::Status and exceptions.
///
///   ACCELERATE_ASSIGN_OR_RETURN(const std::string text, read_file(files, path));
///   ACCELERATE_RETURN_IF_ERROR(files.remove(path));
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
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// The variable that holds a result until it is known to be a value has the line in its name, since
// one block may have several.
#define ACCELERATE_RESULT_OF(line) accelerate_result_##line
#define ACCELERATE_RESULT(line) ACCELERATE_RESULT_OF(line)

/// Declares a variable with the value of an absl::StatusOr, or returns its status. A type with a
/// comma stands as auto.
#define ACCELERATE_ASSIGN_OR_RETURN(variable, ...)                                               \
  auto ACCELERATE_RESULT(__LINE__) = (__VA_ARGS__);                                              \
  if (!ACCELERATE_RESULT(__LINE__).ok()) return std::move(ACCELERATE_RESULT(__LINE__)).status(); \
  variable = *std::move(ACCELERATE_RESULT(__LINE__))

/// Returns an absl::Status that is not OK.
#define ACCELERATE_RETURN_IF_ERROR(...)                                          \
  do {                                                                           \
    if (absl::Status accelerate_status = (__VA_ARGS__); !accelerate_status.ok()) \
      return accelerate_status;                                                  \
  } while (false)

namespace accelerate {

/// InvalidArgument with a message of these parts, as absl::StrCat joins them.
absl::Status invalid(const auto&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

/// The same status, but a problem has the path before its message.
inline absl::Status in_file(absl::string_view path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}
template <typename T>
absl::StatusOr<T> in_file(absl::string_view path, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return in_file(path, result.status());
}

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
