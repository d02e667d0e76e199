/// A disk that stops at a given operation, as if the process had been killed there.
///
///     InterruptedFiles files(disk, 7);    // six operations that change something succeed
///
/// A write that is the one to fail leaves half of its bytes.
/// Threads: one.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

class InterruptedFiles final : public ForwardingFiles {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  /// Operations that change something fail from number `fails_at` (from 1) on. `syncs`: whether
  /// syncs are more than counted; what a test writes to the machine's disk need not survive it.
  InterruptedFiles(FileSystem& disk, int64_t fails_at, bool syncs = true)
      : ForwardingFiles(disk), fails_at_(fails_at), syncs_(syncs) {}

  /// How many operations were asked for.
  int64_t operations() const { return operations_; }

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    if (absl::Status failed = count(); !failed.ok()) return failed;
    absl::StatusOr<std::unique_ptr<WritableFile>> file = ForwardingFiles::create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*this, *std::move(file));
  }
  absl::Status make_directories(const std::string& path) override {
    absl::Status failed = count();
    return failed.ok() ? ForwardingFiles::make_directories(path) : failed;
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    absl::Status failed = count();
    return failed.ok() ? ForwardingFiles::rename(from, to) : failed;
  }
  absl::Status exchange(const std::string& first, const std::string& second) override {
    absl::Status failed = count();
    return failed.ok() ? ForwardingFiles::exchange(first, second) : failed;
  }
  absl::Status remove(const std::string& path) override {
    absl::Status failed = count();
    return failed.ok() ? ForwardingFiles::remove(path) : failed;
  }
  absl::Status sync_directory(const std::string& path) override {
    absl::Status failed = count();
    return failed.ok() && syncs_ ? ForwardingFiles::sync_directory(path) : failed;
  }
  int parallelism() const override { return 1; }

 private:
  class File final : public WritableFile {
   public:
    File(InterruptedFiles& files, std::unique_ptr<WritableFile> file)
        : files_(files), file_(std::move(file)) {}

    absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
      const bool was_stopped = files_.is_stopped();
      absl::Status failed = files_.count();
      if (failed.ok()) return file_->write_at(offset, data);
      if (!was_stopped) file_->write_at(offset, data.first(data.size() / 2)).IgnoreError();
      return failed;
    }
    absl::Status sync() override {
      absl::Status failed = files_.count();
      return failed.ok() && files_.syncs_ ? file_->sync() : failed;
    }
    absl::Status close() override { return file_->close(); }

   private:
    InterruptedFiles& files_;
    const std::unique_ptr<WritableFile> file_;
  };

  bool is_stopped() const { return operations_ >= fails_at_; }
  absl::Status count() {
    ++operations_;
    return is_stopped() ? absl::DataLossError("interrupted") : absl::OkStatus();
  }

  const int64_t fails_at_;
  const bool syncs_;
  int64_t operations_ = 0;
};

}  // namespace accelerate
