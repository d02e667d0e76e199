/// Files that are another FileSystem's; what derives from it changes single operations.
///
/// Threads: those of the files below.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

class ForwardingFiles : public FileSystem {
 public:
  /// `files` outlive this.
  explicit ForwardingFiles(FileSystem& files) : files_(files) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    return files_.open(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    return files_.create(path);
  }
  absl::StatusOr<FileInfo> info(const std::string& path) override { return files_.info(path); }
  absl::StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    return files_.list(directory);
  }
  absl::Status make_directories(const std::string& path) override {
    return files_.make_directories(path);
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    return files_.rename(from, to);
  }
  absl::Status exchange(const std::string& first, const std::string& second) override {
    return files_.exchange(first, second);
  }
  absl::Status remove(const std::string& path) override { return files_.remove(path); }
  absl::Status sync_directory(const std::string& path) override {
    return files_.sync_directory(path);
  }
  std::string temporary_name(const std::string& path) const override {
    return files_.temporary_name(path);
  }
  int parallelism() const override { return files_.parallelism(); }

 private:
  FileSystem& files_;
};

}  // namespace accelerate
