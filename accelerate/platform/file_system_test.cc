#include "accelerate/platform/file_system.h"

#include <unistd.h>

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The machine's files, writing down what is done to them, and failing where it is told to.
class WatchedFiles final : public ForwardingFiles {
 public:
  WatchedFiles() : ForwardingFiles(files_) {}

  std::vector<std::string> done;
  std::string failing;  // what fails, as in "rename"

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    const absl::Status status = note("create", path);
    if (!status.ok()) return status;
    auto file = files_.create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<Writer>(*this, *std::move(file));
  }
  absl::Status make_directories(const std::string& path) override {
    const absl::Status status = note("make", path);
    return status.ok() ? files_.make_directories(path) : status;
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    const absl::Status status = note("rename", to);
    return status.ok() ? files_.rename(from, to) : status;
  }
  absl::Status sync_directory(const std::string& path) override {
    const absl::Status status = note("sync names", path);
    return status.ok() ? files_.sync_directory(path) : status;
  }

 private:
  class Writer final : public WritableFile {
   public:
    Writer(WatchedFiles& files, std::unique_ptr<WritableFile> file)
        : files_(files), file_(std::move(file)) {}
    absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
      const absl::Status status = files_.note("write", "");
      return status.ok() ? file_->write_at(offset, data) : status;
    }
    absl::Status sync() override {
      const absl::Status status = files_.note("sync", "");
      return status.ok() ? file_->sync() : status;
    }
    absl::Status close() override {
      file_->close().IgnoreError();
      return files_.note("close", "");
    }

   private:
    WatchedFiles& files_;
    const std::unique_ptr<WritableFile> file_;
  };

  absl::Status note(const std::string& what, const std::string& path) {
    std::string name = path;
    if (name.ends_with(std::to_string(::getpid()))) name = "partial";
    done.push_back(name.empty() ? what : what + " " + name.substr(name.rfind('/') + 1));
    return what == failing ? absl::DataLossError(what) : absl::OkStatus();
  }

  HostFiles files_{1};
};

TEST(FileSystem, WritesAFileInTheOrderThatMakesItDurable) {
  WatchedFiles files;
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  ASSERT_TRUE(write_file(files, join_path(folder, "a/b/file"), "text").ok());
  EXPECT_THAT(
      files.done,
      ElementsAre("make b", "sync names a", "sync names " + folder.substr(folder.rfind('/') + 1),
                  "create partial", "write", "sync", "close", "rename file", "sync names b"));
}

TEST(FileSystem, SyncsOnlyTheFoldersThatItMade) {
  WatchedFiles files;
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  ASSERT_TRUE(make_directories_durably(files, folder).ok());
  EXPECT_THAT(files.done, ElementsAre("make " + folder.substr(folder.rfind('/') + 1)));
}

// Whatever fails: the old file stays as it was, and nothing partial is left beside it.
TEST(FileSystem, LeavesTheOldFileWhereAStepFails) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  HostFiles host;
  ASSERT_TRUE(write_file(host, join_path(folder, "file"), "old").ok());
  for (const char* failing : {"create", "write", "sync", "close", "rename"}) {
    WatchedFiles files;
    files.failing = failing;
    EXPECT_TRUE(absl::IsDataLoss(write_file(files, join_path(folder, "file"), "new"))) << failing;
    EXPECT_EQ(*read_file(host, join_path(folder, "file")), "old") << failing;
    EXPECT_THAT(*host.list(folder), ElementsAre("file")) << failing;
  }
  WatchedFiles files;
  files.failing = "sync names";
  EXPECT_TRUE(absl::IsDataLoss(write_file(files, join_path(folder, "file"), "new")));
  EXPECT_EQ(*read_file(host, join_path(folder, "file")), "new");
}

TEST(FileSystem, PutsPathsTogetherAndTakesThemApart) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("/", "b"), "/b");
  EXPECT_EQ(parent_path("a/b"), "a");
  EXPECT_EQ(parent_path("b"), ".");
  EXPECT_EQ(parent_path("/b"), "/");
  EXPECT_EQ(parent_path("/"), "/");
}

// A relative path: the folder is the current one.
TEST(FileSystem, WritesBesideTheProgram) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  ASSERT_EQ(::chdir(folder.c_str()), 0);
  HostFiles files;
  EXPECT_TRUE(write_file(files, "file", "text").ok());
  EXPECT_TRUE(write_file(files, "below/file", "text").ok());
  EXPECT_EQ(*read_file(files, "file"), "text");
  EXPECT_TRUE(remove_all(files, "below").ok());
  EXPECT_TRUE(remove_all(files, "file").ok());
  EXPECT_THAT(*files.list("."), IsEmpty());
}

}  // namespace
}  // namespace accelerate
