/// What tests of costs measure: host memory, and what is read of files.
///
/// Threads: the rank's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <c10/core/Allocator.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

/// The bytes of tensors in host memory that this thread asked for, while it lives.
class HostGauge final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    in_use += bytes;
    peak = std::max(peak, in_use);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t in_use = 0;
  int64_t peak = 0;
};

/// Counts what is read of files.
class CountedFiles final : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    auto file = ForwardingFiles::open(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*std::move(file), bytes[path]);
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const auto& [path, read] : bytes) sum += read;
    return sum;
  }

  std::map<std::string, int64_t> bytes;  ///< by path

 private:
  class File final : public ReadableFile {
   public:
    File(std::unique_ptr<ReadableFile> file, int64_t& bytes)
        : file_(std::move(file)), bytes_(bytes) {}
    int64_t size() const override { return file_->size(); }
    absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const override {
      bytes_ += static_cast<int64_t>(out.size());
      return file_->read_at(offset, out);
    }
    absl::StatusOr<std::shared_ptr<const absl::Span<const std::byte>>> map() const override {
      bytes_ += file_->size();
      return file_->map();
    }

   private:
    const std::unique_ptr<ReadableFile> file_;
    int64_t& bytes_;
  };
};

}  // namespace accelerate
