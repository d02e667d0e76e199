// HostFiles ask the kernel to make files and names durable. A test cannot cut the power, so it
// stands in for the system calls, notes what they were asked for, and makes them.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

// The calls of fsync and fdatasync in this process.
struct Syncs {
  std::mutex mutex;
  std::vector<std::string> paths;
  std::atomic<int> failure = 0;  // what they fail with instead
};

Syncs& syncs() {
  static auto& all = *new Syncs();
  return all;
}

int note_and_sync(long number, int fd) {
  std::error_code ignored;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored);
  {
    const std::lock_guard lock(syncs().mutex);
    syncs().paths.push_back(path.string());
  }
  if (const int failure = syncs().failure; failure != 0) {
    errno = failure;
    return -1;
  }
  return static_cast<int>(::syscall(number, fd));
}

}  // namespace
}  // namespace accelerate

// These take the place of the C library's in this program.
extern "C" int fsync(int fd) { return accelerate::note_and_sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return accelerate::note_and_sync(SYS_fdatasync, fd); }

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class DurableFiles : public ::testing::Test {
 protected:
  DurableFiles() { take(); }
  ~DurableFiles() override { syncs().failure = 0; }

  // The paths that were made durable since the last call, in order.
  static std::vector<std::string> take() {
    const std::lock_guard lock(syncs().mutex);
    return std::exchange(syncs().paths, {});
  }

  std::string path(const std::string& name) const { return root_ + "/" + name; }

  HostFiles files_;
  const TemporaryFolder folder_{"durable_files_"};
  // As the kernel names it.
  const std::string root_ = std::filesystem::canonical(folder_.path()).string();
};

TEST_F(DurableFiles, AFilesBytesAreSyncedWhenAskedFor) {
  auto file = files_.create(path("weights"));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string_view text = "text";
  ASSERT_TRUE((*file)
                  ->write_at(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                                                    text.size()))
                  .ok());
  (*file)->begin_sync(0, 4);
  EXPECT_THAT(take(), IsEmpty()) << "to begin with it is not to wait for it";
  EXPECT_TRUE((*file)->sync().ok());
  EXPECT_THAT(take(), ElementsAre(path("weights")));
  EXPECT_TRUE((*file)->close().ok());
  EXPECT_THAT(take(), IsEmpty());
}

TEST_F(DurableFiles, AFoldersNamesAreSyncedWhenAskedFor) {
  EXPECT_TRUE(files_.sync_directory(root_).ok());
  EXPECT_THAT(take(), ElementsAre(root_));
}

// First its bytes, under the name that it has until they are there; then its own name.
TEST_F(DurableFiles, AWholeFileIsWrittenWithTwoSyncs) {
  ASSERT_TRUE(write_file(files_, path("manifest.json"), "{}").ok());
  EXPECT_THAT(take(), ElementsAre(StartsWith(path("manifest.json.partial-")), root_));
}

TEST_F(DurableFiles, EachNewFoldersNameIsSyncedInTheFolderAbove) {
  ASSERT_TRUE(make_directories_durably(files_, path("a/b")).ok());
  EXPECT_THAT(take(), ElementsAre(path("a"), root_));
  ASSERT_TRUE(make_directories_durably(files_, path("a/b")).ok());
  EXPECT_THAT(take(), IsEmpty()) << "they were there";
}

TEST_F(DurableFiles, WhatNeedNotBeDurableIsNotSynced) {
  UnsyncedFiles unsynced(files_);
  ASSERT_TRUE(write_file(unsynced, path("folder/file"), "text").ok());
  EXPECT_THAT(take(), IsEmpty());
}

TEST_F(DurableFiles, AFailureToSyncIsAnError) {
  auto file = files_.create(path("weights"));
  ASSERT_TRUE(file.ok()) << file.status();
  syncs().failure = EIO;
  const absl::Status failed = (*file)->sync();
  EXPECT_TRUE(absl::IsDataLoss(failed)) << failed;
  EXPECT_THAT(failed.message(), HasSubstr(path("weights")));
  EXPECT_TRUE(absl::IsDataLoss(files_.sync_directory(root_)));
  EXPECT_TRUE(absl::IsDataLoss(write_file(files_, path("other"), "text")));
  // Some network disks cannot sync folders.
  syncs().failure = EINVAL;
  EXPECT_TRUE(files_.sync_directory(root_).ok());
  EXPECT_FALSE((*file)->sync().ok());
}

}  // namespace
}  // namespace accelerate
