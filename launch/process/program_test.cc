#include "accelerate/platform/host_files.h"
#include "launch/process/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace accelerate::launcher::process {
namespace {

using ::testing::HasSubstr;

class FindProgram : public ::testing::Test {
 protected:
  // Makes a file under the root; returns its path.
  std::string make(const std::string& name, mode_t mode, const std::string& text = "#!/bin/sh\n") {
    const std::filesystem::path path = in_root(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
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

TEST_F(FindProgram, TakesAnEmptyDirectoryForTheCurrentOne) {
  make("train", 0755);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(root_.path());
  for (const char* path : {"", ":/nowhere", "/nowhere:", "/nowhere::/none"}) {
    const absl::StatusOr<std::string> found = find_program("train", path);
    EXPECT_EQ(found.value_or(""), "./train") << path << ": " << found.status();
  }
  EXPECT_TRUE(absl::IsNotFound(find_program("train", "/nowhere").status()));
  std::filesystem::current_path(before);
}

class RunProgram : public FindProgram {
 protected:
  // The exit code, or -1 where the program does not run.
  static int run(const std::vector<std::string>& argv,
                 const std::vector<std::string>& environment = {}) {
    const absl::StatusOr<int> code = run_program(argv, environment);
    EXPECT_TRUE(code.ok()) << code.status();
    return code.value_or(-1);
  }
};

TEST_F(RunProgram, ReturnsHowItEnded) {
  EXPECT_EQ(run({"/bin/sh", "-c", "exit 0"}), 0);
  EXPECT_EQ(run({"/bin/sh", "-c", "exit 7"}), 7);
  EXPECT_EQ(run({"/bin/sh", "-c", "kill -KILL $$"}), 128 + SIGKILL);
}

TEST_F(RunProgram, HasTheEnvironmentThatItIsGivenAndNoOther) {
  setenv("OF_THIS_PROCESS", "1", /*overwrite=*/1);
  EXPECT_EQ(run({"/bin/sh", "-c", "[ \"$A ${OF_THIS_PROCESS-none}\" = 'b c none' ]"}, {"A=b c"}),
            0);
  // Its PATH says where the program is, and not that of this process.
  make("bin/tool", 0755, "#!/bin/sh\nexit 4\n");
  EXPECT_EQ(run({"tool"}, {"PATH=" + in_root("bin")}), 4);
  EXPECT_TRUE(absl::IsNotFound(run_program({"tool"}, {"PATH=/nowhere"}).status()));
}

TEST_F(RunProgram, HandsAFileWithoutAKnownFormatToTheShell) {
  EXPECT_EQ(run({make("tool", 0755, "exit $(($# * 10 + $1))\n"), "3", "x"}), 23);
}

TEST_F(RunProgram, SaysWhichPartOfAProgramIsMissing) {
  const std::string tool = make("tool", 0755, "#!/nowhere/sh\n");
  const absl::Status status = run_program({tool}, {}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is the interpreter in its first line"));
}

// Ctrl-C is the program's business while it runs, and ours again afterwards.
TEST_F(RunProgram, LeavesAnInterruptToTheProgram) {
  struct sigaction own = {};
  own.sa_handler = SIG_DFL;
  struct sigaction before = {};
  ASSERT_EQ(sigaction(SIGINT, &own, &before), 0);
  EXPECT_EQ(run({"/bin/sh", "-c", "kill -INT $$; exit 3"}), 128 + SIGINT);
  // The program's parent is this process, which goes on.
  EXPECT_EQ(run({"/bin/sh", "-c", "kill -INT $PPID; exit 3"}), 3);
  struct sigaction after = {};
  sigaction(SIGINT, &before, &after);
  EXPECT_TRUE(after.sa_handler == SIG_DFL);
}

TEST(SearchPath, IsTheSystemsWherePathIsNotSet) {
  EXPECT_EQ(search_path_of({"A=b", "PATH=/x:/y"}), "/x:/y");
  EXPECT_EQ(search_path_of({"PATH="}), "");
  EXPECT_EQ(search_path_of({"APATH=/x"}), "/bin:/usr/bin");
}

}  // namespace
}  // namespace accelerate::launcher::process
