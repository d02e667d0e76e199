/// The file that keeps what a rank wrote to one of its streams.
///
/// The launcher writes it rather than the rank: a full disk then costs the rest of the log and not
/// the training, and the last lines are at hand when the rank fails.
/// Threads: one user.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate::launch::supervise {

class RankLog {
 public:
  /// No file: takes everything and keeps nothing.
  RankLog() = default;

  /// Makes the file, empty, and the folders above it.
  /// Errors: DataLoss if the disk is full, Internal for any other reason; both name the path and
  ///         what the system said.
  static absl::StatusOr<RankLog> open(const std::string& path);

  bool is_open() const { return file_.is_open(); }
  const std::string& path() const { return path_; }

  /// Appends. Errors: DataLoss naming the file; returned once, and the file takes no more.
  absl::Status append(absl::string_view bytes);

 private:
  std::string path_;
  UniqueFd file_;
};

}  // namespace accelerate::launch::supervise
