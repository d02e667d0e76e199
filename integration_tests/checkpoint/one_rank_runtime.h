/// A job of one rank without a simulation, with threads of its own behind training, whose files are
/// on a simulated disk behind a FileSystem of the test's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/runtime/file_system.h"
#include "accelerate/testing/fake_runtime.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::checkpoint_tests {

/// Passes everything on; tests override what they spoil.
class FilesOnDisk : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    return disk_.open(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    return disk_.create(path);
  }
  absl::StatusOr<FileInfo> info(const std::string& path) override { return disk_.info(path); }
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override {
    return disk_.list(path);
  }
  absl::Status make_directories(const std::string& path) override {
    return disk_.make_directories(path);
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    return disk_.rename(from, to);
  }
  absl::Status exchange(const std::string& first, const std::string& second) override {
    return disk_.exchange(first, second);
  }
  absl::Status remove(const std::string& path) override { return disk_.remove(path); }
  absl::Status sync_directory(const std::string& path) override {
    return disk_.sync_directory(path);
  }
  std::string temporary_name(const std::string& path) const override {
    return disk_.temporary_name(path);
  }
  int parallelism() const override { return 2; }

 private:
  simulator::SimDisk disk_;
};

template <typename Files>
class OneRankRuntime : public FakeRuntime {
 public:
  Files own_files;
  FileSystem& files() override { return own_files; }
  c10::intrusive_ptr<c10d::Store> store() override { return store_; }

 private:
  const c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

}  // namespace accelerate::checkpoint_tests
