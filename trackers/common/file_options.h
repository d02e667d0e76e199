/// Folders, file names and errors of trackers that write files.
/// Errors:  std::invalid_argument for init_kwargs that are not known.
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "accelerate/base/status.h"
#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

struct FileOptions {
  /// The init_kwarg `dir`, see `folder_of_rank`, or <logging_dir>/<project>.
  std::string folder;
  /// The init_kwarg `name`, or the start time in UTC and four random digits:
  /// "20260102-030405-9f2c".
  std::string run;
};

/// `tracker`: its name. Other init_kwargs are errors.
FileOptions file_options(std::string_view tracker, const TrackerSetup& setup);

/// A rank's own folder in a folder that is the same for all ranks: FOLDER itself for rank 0,
/// FOLDER/rank_3 for rank 3.
std::string folder_of_rank(const std::string& folder, int rank);

/// The bytes of a text, as files take them.
inline absl::Span<const std::byte> as_bytes(std::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

/// The name of a metric or project as a relative path below any folder: "train/loss" stays as it
/// is. Parts that would leave the folder, control characters and parts that are too long are
/// replaced:
/// "../a" becomes "%2E./a", a newline "%0A". An empty name becomes "_".
std::string safe_path(std::string_view name);

/// Runs steps that do not depend on each other, and throws the first failure after all of them.
///
///   FirstFailure failure;
///   for (AppendFile& file : files) failure.attempt([&] { file.flush(); });
///   failure.rethrow();
///
/// Threads: one.
class FirstFailure {
 public:
  template <typename Step>
  void attempt(const Step& step) {
    try {
      step();
    } catch (...) {
      if (!first_) first_ = std::current_exception();
    }
  }
  /// Throws what the first failed step threw, if any did.
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

}  // namespace accelerate::trackers
