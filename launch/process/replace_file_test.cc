#include "launch/process/replace_file.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/platform/unique_fd.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace accelerate::launcher::process {
namespace {

using ::testing::HasSubstr;

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

mode_t mode_of(const std::string& path) {
  struct stat facts = {};
  EXPECT_EQ(stat(path.c_str(), &facts), 0);
  return facts.st_mode & 0777;
}

TEST(ReplaceFile, FollowsALinkAndTouchesNothingElse) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/real/c.yaml";
  const std::string link = folder.path() + "/c.yaml";
  std::filesystem::create_directory(folder.path() + "/real");
  ASSERT_TRUE(replace_file(file, "old").ok());
  std::filesystem::create_symlink("real/c.yaml", link);
  std::ofstream(link + ".new") << "mine";
  ASSERT_TRUE(replace_file(link, "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(content(file), "new");
  EXPECT_EQ(content(link + ".new"), "mine");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path() + "/real"), {}), 1);
}

TEST(ReplaceFile, LeavesTheOldTextToThoseWhoHaveItOpen) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/c.yaml";
  ASSERT_TRUE(replace_file(file, "a long old text").ok());
  const UniqueFd reader(open(file.c_str(), O_RDONLY));
  ASSERT_TRUE(replace_file(file, "new").ok());
  char buffer[32] = {};
  EXPECT_EQ(read(reader.get(), buffer, sizeof(buffer) - 1), 15);
  EXPECT_STREQ(buffer, "a long old text");
  EXPECT_EQ(content(file), "new");
}

TEST(ReplaceFile, LeavesNothingBehindWhereItFails) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() + "/c.yaml");
  EXPECT_THAT(std::string(replace_file(folder.path() + "/c.yaml", "text").message()),
              HasSubstr("/c.yaml: cannot be written: "));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(ReplaceFile, GivesTheModeThatWasAskedFor) {
  const TemporaryFolder folder;
  const mode_t before = umask(022);
  ASSERT_TRUE(replace_file(folder.path() + "/a", "text").ok());
  ASSERT_TRUE(replace_file(folder.path() + "/b", "text", 0600).ok());
  umask(before);
  EXPECT_EQ(mode_of(folder.path() + "/a"), 0644);
  EXPECT_EQ(mode_of(folder.path() + "/b"), 0600);
}

TEST(ReplaceFile, WritesToWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const UniqueFd reader(open(pipe.c_str(), O_RDWR | O_NONBLOCK));
  ASSERT_TRUE(reader.is_open());
  ASSERT_TRUE(replace_file(pipe, "text").ok());
  char buffer[8];
  EXPECT_EQ(read(reader.get(), buffer, sizeof(buffer)), 4);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  ASSERT_TRUE(replace_file("/dev/null", "text").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(ReplaceFile, SaysWhyItCannot) {
  EXPECT_THAT(std::string(replace_file("/nowhere/file", "text").message()),
              HasSubstr("/nowhere/file: cannot be written: No such file"));
}

}  // namespace
}  // namespace accelerate::launcher::process
