/// A file that is there as a whole or not at all.
///
/// Written under a temporary name in the same folder, piece by piece, and renamed at the end. One
/// that is not committed leaves nothing behind, and what stood at the path stays.
/// Errors: a Status that names the path: NotFound, PermissionDenied, ResourceExhausted (disk full)
/// and so on, as errno says. After an error the file cannot be used.
/// Threads: one at a time.
#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::simulator {

class OutputFile {
 public:
  static absl::StatusOr<OutputFile> create(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  /// Errors appear in commit(), so that writers need not look after every piece.
  void append(absl::string_view text);

  /// Makes the file appear at its path.
  absl::Status commit();

 private:
  OutputFile(std::string path, std::string partial, std::FILE* file);

  std::string path_;
  std::string partial_;
  std::FILE* file_;
  int error_ = 0;  // errno of the first write that failed
};

}  // namespace accelerate::simulator
