/// The machine's own files, and temporary folders among them.
///
/// Threads: any, unless stated.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

/// A folder that is a symbolic link counts as a folder, except for FileSystem::remove, which
/// removes the link.
class HostFiles final : public FileSystem {
 public:
  /// `parallelism`: see FileSystem; 0: as many as there are CPUs, at most 8.
  explicit HostFiles(int parallelism = 0);

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ScratchFile>> open_scratch(const std::string& path) override;
  absl::StatusOr<FileInfo> info(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& directory) override;
  absl::Status make_directories(const std::string& path) override;
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status exchange(const std::string& first, const std::string& second) override;
  absl::Status remove(const std::string& path) override;
  absl::Status sync_directory(const std::string& path) override;
  std::string temporary_name(const std::string& path) const override;
  int parallelism() const override { return parallelism_; }

 private:
  const int parallelism_;
};

/// Makes a folder among the machine's temporary ones whose name begins with `prefix` and leaves it
/// to the caller. Errors: Unavailable naming the folder and the system's reason.
absl::StatusOr<std::string> make_temporary_folder(absl::string_view prefix);

/// Such a folder, removed with its contents at the end of scope. Threads: one owner.
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
