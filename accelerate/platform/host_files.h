/// The machine's own files.
///
/// Threads: any.
#pragma once

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

}  // namespace accelerate
