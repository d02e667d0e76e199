/// The error of a checkpoint that cannot be written, or is damaged: it names the file, and the
/// tensor if there is one. Wrong folders and arguments are c10::ValueError, as everywhere.
#pragma once

#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/base/status.h"

namespace accelerate {

namespace internal {

/// Whether a file is damaged, rather than unreachable.
inline bool is_damage(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnknown: return false;
    default: return true;
  }
}

}  // namespace internal

class CheckpointError : public c10::Error {
 public:
  explicit CheckpointError(const std::string& message, bool is_damage = true)
      : c10::Error(message, /*backtrace=*/nullptr), is_damage_(is_damage) {}
  explicit CheckpointError(const absl::Status& status)
      : CheckpointError(std::string(status.message()), internal::is_damage(status)) {}

  /// False if the file was unreachable (no permission, too many open files, a server that does not
  /// answer): its contents may be intact.
  bool is_damage() const { return is_damage_; }

 private:
  bool is_damage_;
};

namespace internal {

/// Throws CheckpointError with the status's message.
inline void check_ok(const absl::Status& status) { throw_if_error<CheckpointError>(status); }
template <typename T>
T value_or_throw(absl::StatusOr<T> result) {
  return accelerate::value_or_throw<CheckpointError>(std::move(result));
}

}  // namespace internal
}  // namespace accelerate
