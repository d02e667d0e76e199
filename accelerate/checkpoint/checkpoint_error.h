/// What is thrown where a checkpoint cannot be written, or is not what it should be: it names the
/// file, and the tensor where there is one.
///
/// Folders and arguments that are wrong are c10::ValueError, as everywhere.
#pragma once

#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace accelerate {

class CheckpointError : public c10::Error {
 public:
  explicit CheckpointError(const std::string& message)
      : c10::Error(message, /*backtrace=*/nullptr) {}
};

namespace internal {

/// Throws CheckpointError with the status's message.
inline void check_ok(const absl::Status& status) {
  if (!status.ok()) throw CheckpointError(std::string(status.message()));
}
template <typename T>
T value_or_throw(absl::StatusOr<T> result) {
  check_ok(result.status());
  return *std::move(result);
}

}  // namespace internal
}  // namespace accelerate
