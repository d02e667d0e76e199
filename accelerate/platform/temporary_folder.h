/// A new folder among the machine's temporary ones, removed with its contents at the end of scope.
///
/// Threads: one owner.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate {

/// Makes a folder whose name begins with `prefix` and leaves it to the caller.
/// Errors: Unavailable naming the folder and the system's reason.
absl::StatusOr<std::string> make_temporary_folder(absl::string_view prefix);

class TemporaryFolder {
 public:
  /// Errors: absl::BadStatusOrAccess with the status of `make_temporary_folder`.
  explicit TemporaryFolder(absl::string_view prefix = "accelerate_")
      : path_(make_temporary_folder(prefix).value()) {}
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  /// The path of an entry.
  std::string path(absl::string_view name) const;

 private:
  const std::string path_;
};

}  // namespace accelerate
