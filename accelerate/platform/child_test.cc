#include "accelerate/platform/child.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(Child, GivesTheOutputAndTheExitCode) {
  const ChildResult both = run_shell("echo out; echo err >&2; exit 3").value();
  EXPECT_EQ(both.output, "out\nerr\n");
  EXPECT_EQ(both.exit_code, 3);
  EXPECT_EQ(both.signal, 0);
  EXPECT_EQ(run_shell("echo out; echo err >&2", {.collects_errors = false})->output, "out\n");
  EXPECT_EQ(run_command({"echo", "a  b", "$HOME"})->output, "a  b $HOME\n");
}

TEST(Child, ReadsNothing) { EXPECT_EQ(run_command({"cat"})->output, ""); }

// The process that is left behind has the output, and is not waited for.
TEST(Child, DoesNotWaitForWhatItLeavesBehind) {
  const ChildResult result = run_shell("sleep 1000 & echo $!; exit 4").value();
  EXPECT_EQ(result.exit_code, 4);
  const pid_t left = std::stoi(result.output);
  EXPECT_EQ(kill(left, SIGKILL), 0) << "it still ran";
  // One that writes on and on is not waited for either; without a reader it ends.
  EXPECT_EQ(run_shell("yes & exit 5")->exit_code, 5);
}

TEST(Child, EndsAsAShellSaysIt) {
  EXPECT_EQ(run_command({"no_such_program_anywhere"})->exit_code, 127);
  EXPECT_EQ(run_command({"/proc/self/maps"})->exit_code, 126);
  const ChildResult killed = run_shell("kill -9 $$").value();
  EXPECT_EQ(killed.exit_code, 137);
  EXPECT_EQ(killed.signal, SIGKILL);
  EXPECT_FALSE(killed.timed_out);
}

TEST(Child, IsKilledAtTheLimit) {
  const CommandOptions options = {.limit = absl::Milliseconds(50)};
  for (const char* line :
       {"echo begun; exec sleep 1000", "echo begun; exec >&- 2>&-; exec sleep 1000"}) {
    const ChildResult result = run_shell(line, options).value();
    EXPECT_TRUE(result.timed_out) << line;
    EXPECT_EQ(result.signal, SIGKILL);
  }
}

TEST(Child, KeepsTheBeginningAndTheEndOfMuchOutput) {
  const ChildResult much =
      run_shell("printf begin; head -c 30000000 /dev/zero | tr '\\0' x; printf end").value();
  EXPECT_TRUE(much.output.starts_with("beginx"));
  EXPECT_TRUE(much.output.ends_with("xend"));
  EXPECT_EQ(much.left_out, 30000008 - static_cast<int64_t>(kMostOutput));
  const std::string line = "\n... " + std::to_string(much.left_out) + " bytes are left out ...\n";
  EXPECT_EQ(much.output.find(line), kMostOutput / 2);
  EXPECT_EQ(much.output.size(), kMostOutput + line.size());
  const std::string fitting = "head -c " + std::to_string(kMostOutput) + " /dev/zero";
  EXPECT_EQ(run_shell(fitting)->output.size(), kMostOutput);
  EXPECT_EQ(run_shell(fitting)->left_out, 0);
}

TEST(Child, CallsAFunction) {
  const ChildResult result = run_in_child([](int fd) { write_all(fd, "from the child"); }).value();
  EXPECT_EQ(result.output, "from the child");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(run_in_child([](int) { abort(); })->signal, SIGABRT);
}

}  // namespace
}  // namespace accelerate
