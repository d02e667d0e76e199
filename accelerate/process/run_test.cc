// Programs of one rank: their ends and exit codes, and one without the simulator that is told to
// simulate. Ranks of several are in integration_tests/launchers.
#include "accelerate/process/run.h"

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/environment.h"
#include "accelerate/process/launchers.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The targets that users of this checkout, of another Bazel workspace, and of CMake have to add.
const auto kSaysWhatToLink =
    AllOf(HasSubstr("`//simulator/run`"), HasSubstr("`@accelerate_cpp//simulator/run`"),
          HasSubstr("`Accelerate::simulator`"));

TEST(Run, SaysWhatAProgramLinksToSimulate) {
  setenv(env::kSimulate, "1x2", /*overwrite=*/1);
  ::testing::internal::CaptureStderr();
  const int code = run(0, nullptr, [](int, char**) { return 0; });
  const std::string errors = ::testing::internal::GetCapturedStderr();
  unsetenv(env::kSimulate);
  EXPECT_EQ(code, 2);
  EXPECT_THAT(errors, AllOf(HasSubstr("ACCELERATE_SIMULATE is set"), kSaysWhatToLink));
}

TEST(Run, LaunchSaysWhatAProgramLinksToSimulate) {
  try {
    launch([] {}, {.simulate = "1x2"});
    FAIL() << "launched a simulation without the simulator";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), kSaysWhatToLink);
  }
}

// A rank alone, whatever started this test.
Environment alone(const std::vector<std::pair<std::string, std::string>>& more = {}) {
  Environment environment;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                           "ACCELERATE_CPU_AFFINITY"}) {
    environment.unset(name);
  }
  environment.set("ACCELERATE_USE_CPU", "true");
  for (const auto& [name, value] : more) environment.set(name, value);
  return environment;
}

struct Ended {
  int code = -1;
  std::vector<std::string> failures;
};

Ended run_alone(const TrainFunction& train,
                const std::vector<std::pair<std::string, std::string>>& more = {}) {
  Ended ended;
  ended.code = internal::run_real(0, nullptr, train, alone(more), [&](const std::string& failure) {
    ended.failures.push_back(failure);
  });
  return ended;
}

TEST(RunReal, ReturnsWhatTheProgramDoes) {
  for (const int code : {0, 1, 7, 255}) {
    const Ended ended = run_alone([code](int, char**) { return code; });
    EXPECT_EQ(ended.code, code);
    EXPECT_THAT(ended.failures, IsEmpty()) << "the program has said why itself";
  }
}

TEST(RunReal, InstallsTheRanksRuntimeWhileTheProgramRuns) {
  const Ended ended = run_alone(
      [](int, char**) {
        const Runtime& runtime = Runtime::current();
        EXPECT_EQ(runtime.topology().world_size, 1);
        EXPECT_EQ(runtime.environment().get("OF_THE_TEST"), "1");
        EXPECT_EQ(runtime.environment().get("RANK"), "0") << "it is written back";
        return 0;
      },
      {{"OF_THE_TEST", "1"}});
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(Runtime::find_current(), nullptr);
}

TEST(RunReal, NamesTheRankThatThrew) {
  const Ended ended =
      run_alone([](int, char**) -> int { throw std::runtime_error("out of luck"); });
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.failures, ElementsAre("rank 0 failed: out of luck"));
  EXPECT_EQ(Runtime::find_current(), nullptr);
  // What it throws may be anything.
  EXPECT_THAT(run_alone([](int, char**) -> int { throw 7; }).failures,
              ElementsAre(HasSubstr("rank 0 failed: ")));
}

TEST(RunReal, RefusesAnEnvironmentThatMakesNoSense) {
  bool ran = false;
  const TrainFunction train = [&](int, char**) {
    ran = true;
    return 0;
  };
  Ended ended = run_alone(train, {{"RANK", "5"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.failures, ElementsAre("rank 5 failed: RANK=5 is not below WORLD_SIZE=2"));
  ended = run_alone(train, {{"ACCELERATE_TORCH_DEVICE", "toaster"}});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.failures, ElementsAre(HasSubstr("\"toaster\" is not a device")));
  EXPECT_FALSE(ran);
}

TEST(RunInMode, TakesTheFirstModeWhoseVariableIsThere) {
  std::string taken;
  const auto mode = [&](const char* variable, int code) {
    register_run_mode({.variable = variable,
                       .run = [&taken, variable, code](int, char**, const TrainFunction& train,
                                                       const Environment&) {
                         taken += variable;
                         return code + train(0, nullptr);
                       }});
  };
  mode("RUN_TEST_A", 10);
  mode("RUN_TEST_B", 20);
  const TrainFunction train = [](int, char**) { return 3; };
  const auto run = [&](const std::vector<std::pair<std::string, std::string>>& variables) {
    taken.clear();
    return internal::run_in_mode(0, nullptr, train, alone(variables));
  };
  EXPECT_EQ(run({}), std::nullopt);
  EXPECT_EQ(run({{"RUN_TEST_B", "1"}}), 23);
  EXPECT_EQ(taken, "RUN_TEST_B");
  EXPECT_EQ(run({{"RUN_TEST_B", "1"}, {"RUN_TEST_A", ""}}), 13) << "its presence is enough";
  EXPECT_EQ(taken, "RUN_TEST_A");
}

TEST(Launch, RefusesOptionsThatMakeNoSense) {
  const auto refused = [](const LaunchOptions& options) -> std::string {
    try {
      launch([] { FAIL() << "it was started"; }, options);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  EXPECT_THAT(refused({.num_processes = 0}), HasSubstr("num_processes is 0"));
  EXPECT_THAT(refused({.num_processes = 2, .use_port = 1, .node_rank = 2, .num_nodes = 2}),
              HasSubstr("node_rank is 2 of num_nodes 2"));
  EXPECT_THAT(refused({.num_processes = 2, .use_port = 1, .node_rank = -1, .num_nodes = 2}),
              HasSubstr("node_rank is -1 of num_nodes 2"));
  EXPECT_THAT(refused({.num_processes = 2, .num_nodes = 2}), HasSubstr("need a use_port"));
  EXPECT_THAT(refused({.num_processes = 2, .max_restarts = -1}), HasSubstr("max_restarts is -1"));
}

}  // namespace
}  // namespace accelerate
