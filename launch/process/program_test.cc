#include "accelerate/platform/host_files.h"
#include "launch/process/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/status/status.h"

namespace accelerate::launcher::process {
namespace {

using ::testing::HasSubstr;

class FindProgram : public ::testing::Test {
 protected:
  // Makes a file under the root; returns its path.
  std::string make(const std::string& name, mode_t mode) {
    const std::filesystem::path path = in_root(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "#!/bin/sh\n";
    chmod(path.c_str(), mode);
    return path.string();
  }

  std::string in_root(const std::string& name) { return root_.path(name); }

  const TemporaryFolder root_;
};

TEST_F(FindProgram, SearchesDirectoriesInOrderAndPrefersOneThatWorks) {
  make("a/train", 0644);
  const std::string second = make("b/train", 0755);
  make("c/train", 0755);
  const std::string path =
      in_root("none") + ":" + in_root("a") + ":" + in_root("b") + ":" + in_root("c");
  EXPECT_EQ(find_program("train", path).value(), second);
}

TEST_F(FindProgram, DoesNotSearchForAPath) {
  const std::string program = make("a/train", 0755);
  EXPECT_EQ(find_program(program, "").value(), program);
}

TEST_F(FindProgram, TellsMissingFromNotExecutable) {
  const std::string data = make("a/data", 0644);
  EXPECT_TRUE(absl::IsNotFound(find_program(in_root("a/none"), "").status()));
  EXPECT_TRUE(absl::IsNotFound(find_program(data + "/under_a_file", "").status()));
  EXPECT_TRUE(absl::IsNotFound(find_program("none", in_root("a")).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(find_program(data, "").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(find_program("data", in_root("a")).status()));
  const absl::Status directory = find_program(in_root("a"), "").status();
  EXPECT_TRUE(absl::IsPermissionDenied(directory));
  EXPECT_THAT(std::string(directory.message()), HasSubstr("is a directory"));
}

TEST(SearchPath, IsTheSystemsWherePathIsNotSet) {
  EXPECT_EQ(search_path_of({"A=b", "PATH=/x:/y"}), "/x:/y");
  EXPECT_EQ(search_path_of({"PATH="}), "");
  EXPECT_EQ(search_path_of({"APATH=/x"}), "/bin:/usr/bin");
}

}  // namespace
}  // namespace accelerate::launcher::process
