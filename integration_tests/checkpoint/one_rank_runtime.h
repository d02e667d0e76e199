/// A job of one rank without a simulation, with threads of its own behind training, whose files are
/// on a simulated disk behind a FileSystem of the test's.
#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "accelerate/platform/file_system.h"
#include "accelerate/testing/fake_runtime.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::checkpoint_tests {

/// Tests override what they spoil.
class FilesOnDisk : public ForwardingFiles {
 public:
  FilesOnDisk() : ForwardingFiles(disk_) {}
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
