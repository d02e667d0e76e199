
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::HasSubstr;

class TestCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    self_test_ = write("accelerate-self-test", "");
    // Stands for the launcher: says how it was called.
    launcher_ = write("accelerate", "#!/bin/sh\nfor w in \"$@\"; do echo \"[$w]\"; done > " +
                                        folder_ + "/said\nexit ${CODE:-0}\n");
  }

  std::string write(const std::string& name, const std::string& contents) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << contents;
    EXPECT_EQ(chmod(path.c_str(), 0755), 0);
    return path;
  }

  std::string said() {
    std::stringstream text;
    text << std::ifstream(folder_ + "/said").rdbuf();
    return text.str();
  }

  CommandResult run(std::vector<std::string> words, std::vector<std::string> environment = {}) {
    return run_command(kTest, std::move(words),
                       {.environment = std::move(environment), .executable = launcher_});
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  std::string self_test_;
  std::string launcher_;
};

TEST_F(TestCommand, LaunchesTheSelfTest) {
  CommandResult result = run({"--config_file", "c.yaml", "--", "--simulate", "2x4"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(said(),
            "[launch]\n[--config_file]\n[c.yaml]\n[--simulate]\n[2x4]\n[" + self_test_ + "]\n");
  EXPECT_THAT(result.out, HasSubstr("The self-test passed"));
  result = run({});
  EXPECT_EQ(said(), "[launch]\n[" + self_test_ + "]\n");
}

// As its outputs, and as the runfiles of whoever has //launch:accelerate in a workspace of any
// name.
TEST_F(TestCommand, FindsTheSelfTestWhereBazelBuildsIt) {
  std::filesystem::create_directories(folder_ + "/launch");
  std::filesystem::create_directories(folder_ + "/integration_tests/self_test");
  std::filesystem::rename(launcher_, folder_ + "/launch/accelerate");
  launcher_ = folder_ + "/launch/accelerate";
  const std::string built = folder_ + "/integration_tests/self_test/accelerate-self-test";
  std::filesystem::rename(self_test_, built);
  EXPECT_EQ(run({}).exit_code, 0);
  EXPECT_EQ(said(), "[launch]\n[" + built + "]\n");
}

TEST_F(TestCommand, PassesAFailureOn) {
  const CommandResult result = run({}, {"CODE=7"});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err, HasSubstr("the self-test failed with exit code 7"));
  EXPECT_EQ(result.out, "");
}

TEST_F(TestCommand, HearsOfAFailureWhereEndsOfChildrenAreIgnored) {
  signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(run({}, {"CODE=7"}).exit_code, 7);
  signal(SIGCHLD, SIG_DFL);
}

TEST_F(TestCommand, SaysWhyTheLauncherCannotBeStarted) {
  write("accelerate", "#!/nowhere/sh\n");
  const CommandResult result = run({});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("/accelerate cannot be executed: No such file"));
}

TEST_F(TestCommand, SaysWhereTheSelfTestShouldBe) {
  std::filesystem::remove(self_test_);
  const CommandResult result = run({});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_THAT(result.err, HasSubstr("there is no self-test " + self_test_ + "; "));
  EXPECT_THAT(result.err, HasSubstr("build //launch:accelerate with Bazel"));
}

}  // namespace
}  // namespace accelerate::launcher::commands
