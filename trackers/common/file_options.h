/// What trackers that write files of their own in a project's folder are told.
/// Errors:  std::invalid_argument for init_kwargs that are not known.
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

struct FileOptions {
  /// `dir` of the init_kwargs, see `folder_of_rank`, or <logging_dir>/<project>.
  std::string folder;
  /// `name` of the init_kwargs, or when the run began, in UTC, and four random digits:
  /// "20260102-030405-9f2c".
  std::string run;
};

/// `tracker`: its name. There must be no other init_kwargs.
FileOptions file_options(std::string_view tracker, const TrackerSetup& setup);

/// A folder that all ranks are told, apart for each: rank 0's is the folder, rank 3's
/// FOLDER/rank_3.
std::string folder_of_rank(const std::string& folder, int rank);

/// Throws std::runtime_error with the status's message, which names the path.
void throw_if_error(const absl::Status& status);

/// The value. Errors: as throw_if_error.
template <typename T>
T value_or_throw(absl::StatusOr<T> result) {
  throw_if_error(result.status());
  return *std::move(result);
}

/// The bytes of a text, as files take them.
inline absl::Span<const std::byte> as_bytes(std::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

/// A relative path that stays below the folder it is put into: "train/loss" is "train/loss". Parts
/// that would lead elsewhere, characters that no terminal shows, and parts too long for a disk are
/// written otherwise: "../a" is "%2E./a", a newline "%0A". Never empty: of nothing it is "_".
std::string safe_path(std::string_view name);

}  // namespace accelerate::trackers
