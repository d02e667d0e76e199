// LibTorch loads Open MPI, and with it UCX, before main; where it does not, SIGHUP is free anyway.
#include <dlfcn.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/child.h"
#include "accelerate/process/run.h"

namespace accelerate::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct sigaction action_of_sighup() {
  struct sigaction action = {};
  EXPECT_EQ(sigaction(SIGHUP, nullptr, &action), 0);
  return action;
}

// The file that the handler of SIGHUP is in; empty without a handler.
std::string file_of_handler() {
  const struct sigaction action = action_of_sighup();
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(action.sa_handler), &info) == 0) return "";
  return info.dli_fname;
}

void own_handler(int /*signal*/) {}

Environment environment_without_ucx() {
  Environment environment;
  environment.unset("UCX_DEBUG_SIGNO");
  return environment;
}

TEST(UcxSignals, HaveTheActionThatWasAskedFor) {
  const std::string before = file_of_handler();
  Environment environment;
  environment.set("UCX_DEBUG_SIGNO", "SIGHUP");
  restore_sighup_action(environment);
  EXPECT_EQ(file_of_handler(), before);
}

TEST(UcxSignals, LeaveTheProgramsOwnHandler) {
  const struct sigaction before = action_of_sighup();
  struct sigaction own = {};
  own.sa_handler = own_handler;
  ASSERT_EQ(sigaction(SIGHUP, &own, nullptr), 0);
  restore_sighup_action(environment_without_ucx());
  EXPECT_EQ(action_of_sighup().sa_handler, &own_handler);
  ASSERT_EQ(sigaction(SIGHUP, &before, nullptr), 0);
}

// As nohup does: the test starts itself again with SIGHUP ignored, so that UCX finds it so.
TEST(UcxSignals, StayIgnoredInAProgramThatWasStartedSo) {
  constexpr char kIsChild[] = "ACCELERATE_TEST_IGNORES_SIGHUP";
  if (std::getenv(kIsChild) != nullptr) {
    restore_sighup_action(Environment());
    EXPECT_EQ(action_of_sighup().sa_handler, SIG_IGN) << file_of_handler();
    return;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  // UCX takes SIGHUP and gives it back, or was told to take no signal at all.
  for (const char* ucx : {"unset UCX_DEBUG_SIGNO", "export UCX_DEBUG_SIGNO=0"}) {
    const absl::StatusOr<ChildResult> ran = run_shell(
        absl::StrCat("trap '' HUP; ", ucx, "; export ", kIsChild, "=1; exec '", self,
                     "' --gtest_filter=UcxSignals.StayIgnoredInAProgramThatWasStartedSo"));
    ASSERT_TRUE(ran.ok()) << ran.status();
    EXPECT_EQ(ran->exit_code, 0) << ucx << "\n" << ran->output;
    EXPECT_THAT(ran->output, HasSubstr("[  PASSED  ] 1 test"));
  }
}

TEST(UcxSignals, AreNotTakenFromAProgram) {
  restore_sighup_action(environment_without_ucx());
  EXPECT_THAT(file_of_handler(), Not(HasSubstr("libucs")));
}

}  // namespace
}  // namespace accelerate::internal
