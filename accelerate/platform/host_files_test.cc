#include "accelerate/platform/host_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "accelerate/testing/file_contract/file_system_contract.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> bytes_of(std::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

TEST(HostFiles, TakesALinkToAFolderForTheFolder) {
  HostFiles files;
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  ASSERT_TRUE(write_file(files, folder + "/real/file", "text").ok());
  std::filesystem::create_directory_symlink("real", folder + "/link");
  EXPECT_TRUE(files.info(folder + "/link")->is_directory);
  EXPECT_EQ(*read_file(files, folder + "/link/file"), "text");
  EXPECT_TRUE(files.make_directories(folder + "/link").ok());
  EXPECT_TRUE(files.sync_directory(folder + "/link").ok());
}

TEST(HostFiles, RemovesALinkAndNotWhatItPointsTo) {
  HostFiles files;
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  ASSERT_TRUE(write_file(files, folder + "/real", "text").ok());
  std::filesystem::create_symlink("real", folder + "/link");
  EXPECT_TRUE(files.remove(folder + "/link").ok());
  EXPECT_EQ(*read_file(files, folder + "/real"), "text");
}

// A folder must never be emptied through a link into it.
TEST(HostFiles, RemovesAllButWhatLinksPointTo) {
  HostFiles files;
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  ASSERT_TRUE(write_file(files, folder + "/elsewhere/file", "text").ok());
  ASSERT_TRUE(write_file(files, folder + "/old/file", "old").ok());
  std::filesystem::create_directory_symlink("../elsewhere", folder + "/old/link");
  std::filesystem::create_symlink("nowhere", folder + "/old/broken");
  const absl::Status removed = remove_all(files, folder + "/old");
  EXPECT_TRUE(removed.ok()) << removed;
  EXPECT_FALSE(*exists(files, folder + "/old"));
  EXPECT_EQ(*read_file(files, folder + "/elsewhere/file"), "text");
}

TEST(HostFiles, RefusesAFolderBehindABrokenLink) {
  HostFiles files;
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  std::filesystem::create_symlink("nowhere", folder + "/link");
  EXPECT_FALSE(files.make_directories(folder + "/link").ok());
  EXPECT_TRUE(absl::IsNotFound(files.info(folder + "/link").status()));
}

TEST(HostFiles, SaysThatItMayNot) {
  HostFiles files;
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  ASSERT_TRUE(write_file(files, folder + "/file", "text").ok());
  ASSERT_EQ(::chmod((folder + "/file").c_str(), 0), 0);
  ASSERT_EQ(::chmod(folder.c_str(), 0500), 0);
  if (::geteuid() != 0) {  // root may everything
    EXPECT_TRUE(absl::IsPermissionDenied(files.open(folder + "/file").status()));
    EXPECT_TRUE(absl::IsPermissionDenied(files.create(folder + "/new").status()));
    EXPECT_TRUE(absl::IsPermissionDenied(files.remove(folder + "/file")));
    EXPECT_TRUE(absl::IsPermissionDenied(files.make_directories(folder + "/new/below")));
    EXPECT_TRUE(absl::IsPermissionDenied(files.rename(folder + "/file", folder + "/to")));
    EXPECT_TRUE(absl::IsPermissionDenied(write_file(files, folder + "/new", "text")));
  }
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
  EXPECT_TRUE(files.remove(folder + "/file").ok());
}

TEST(HostFiles, SaysThatTheDiskIsFull) {
  HostFiles files;
  ASSERT_TRUE(std::filesystem::exists("/dev/full")) << "Linux has it";
  auto file = files.create("/dev/full");
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status full = (*file)->write_at(0, bytes_of("text"));
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(full.message(), HasSubstr("/dev/full"));
}

TEST(HostFiles, SaysThatAFileWasCutShort) {
  HostFiles files;
  const TemporaryFolder folder;
  const std::string path = folder.path("file");
  ASSERT_TRUE(write_file(files, path, "long text").ok());
  auto reader = files.open(path);
  std::filesystem::resize_file(path, 4);
  std::byte bytes[9];
  EXPECT_EQ((*reader)->size(), 9);
  EXPECT_TRUE(absl::IsOutOfRange((*reader)->read_at(0, absl::MakeSpan(bytes))));
}

TEST(HostFiles, WritesAndReadsBeyondTwoGigabytes) {
  HostFiles files;
  const TemporaryFolder folder;
  const std::string path = folder.path("sparse");
  auto file = files.create(path);
  const int64_t far = int64_t{5} << 30;
  EXPECT_TRUE((*file)->write_at(far, bytes_of("end")).ok());
  EXPECT_TRUE((*file)->close().ok());
  auto reader = files.open(path);
  EXPECT_EQ((*reader)->size(), far + 3);
  std::byte bytes[3];
  EXPECT_TRUE((*reader)->read_at(far, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(absl::MakeConstSpan(bytes), bytes_of("end"));
  EXPECT_TRUE(files.remove(path).ok());
}

TEST(HostFiles, HasTheParallelismItWasGiven) {
  EXPECT_EQ(HostFiles(3).parallelism(), 3);
  EXPECT_GE(HostFiles().parallelism(), 1);
  EXPECT_LE(HostFiles().parallelism(), 8);
}

TEST(TemporaryFolder, IsNewAndGoesWithItsContents) {
  std::string path;
  {
    const TemporaryFolder folder("test_of_folders_"), other("test_of_folders_");
    path = folder.path();
    EXPECT_NE(path, other.path());
    EXPECT_NE(path.find("/test_of_folders_"), std::string::npos);
    std::ofstream(folder.path("file")) << "text";
    EXPECT_TRUE(std::filesystem::exists(path + "/file"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryFolder, IsNamedWhereItCannotBeMade) {
  const absl::Status failed = make_temporary_folder("no/such/folder").status();
  EXPECT_TRUE(absl::IsUnavailable(failed));
  EXPECT_NE(failed.message().find("no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace accelerate

namespace accelerate::testing {

namespace {

// Files of the machine with a folder that goes with them.
std::pair<std::shared_ptr<FileSystem>, std::string> files_with_folder() {
  struct FilesAndFolder {
    HostFiles files;
    TemporaryFolder folder;
  };
  const auto both = std::make_shared<FilesAndFolder>();
  return {std::shared_ptr<FileSystem>(both, &both->files), both->folder.path()};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Host, FileSystemContract,
                         ::testing::Values(FileSystemUnderTest{.name = "files",
                                                               .make = files_with_folder}),
                         file_system_name);

}  // namespace accelerate::testing
