// Runs `accelerate test` on real processes and on a simulated cluster.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Ran {
  int exit_code = -1;
  std::string output;  // both streams
};

// HOME is the test's own folder: no configuration of the machine takes part.
Ran run_test_command(const std::string& launch_options) {
  const std::string line = "HF_HOME='" + ::testing::TempDir() + "' '" +
                           std::getenv("ACCELERATE_LAUNCHER") + "' test -- --cpu " +
                           launch_options + " 2>&1";
  Ran ran;
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return ran;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) ran.output.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ran.exit_code = WEXITSTATUS(status);
  return ran;
}

TEST(SelfTest, PassesOnProcesses) {
  const Ran ran = run_test_command("--num_processes 2");
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_THAT(ran.output,
              AllOf(HasSubstr("All checks passed on 2 ranks."), HasSubstr("The self-test passed")));
}

TEST(SelfTest, PassesOnASimulatedCluster) {
  const Ran ran = run_test_command("--simulate 2x2");
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("All checks passed on 4 ranks."));
}

}  // namespace
