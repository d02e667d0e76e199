/// Files that are not made durable: what a process wrote survives the process, but perhaps not the
/// machine.
///
/// Threads: those of the files below.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "accelerate/platform/file_system.h"
#include "accelerate/platform/forwarding_files.h"

namespace accelerate {

class UnsyncedFiles final : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    absl::StatusOr<std::unique_ptr<WritableFile>> file = ForwardingFiles::create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*std::move(file));
  }
  absl::Status sync_directory(const std::string&) override { return absl::OkStatus(); }

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
};

}  // namespace accelerate
