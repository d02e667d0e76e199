/// Files that are not made durable: what a process wrote survives the process, but perhaps not the
/// machine.
///
/// Threads: those of the files below.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/runtime/file_system.h"

namespace accelerate {

class UnsyncedFiles final : public FileSystem {
 public:
  /// `files` outlive this.
  explicit UnsyncedFiles(FileSystem& files) : files_(files) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    return files_.open(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    absl::StatusOr<std::unique_ptr<WritableFile>> file = files_.create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*std::move(file));
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
  absl::Status sync_directory(const std::string&) override { return absl::OkStatus(); }
  std::string temporary_name(const std::string& path) const override {
    return files_.temporary_name(path);
  }
  int parallelism() const override { return files_.parallelism(); }

 private:
  class File final : public WritableFile {
   public:
    explicit File(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
    absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
      return file_->write_at(offset, data);
    }
    absl::Status sync() override { return absl::OkStatus(); }
    absl::Status close() override { return file_->close(); }

   private:
    const std::unique_ptr<WritableFile> file_;
  };

  FileSystem& files_;
};

}  // namespace accelerate
