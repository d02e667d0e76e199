// What the variables of a simulated run do. The command line is in integration_tests/digits.
#include <atomic>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/simulated_run.h"
#include "accelerate/process/run.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code = -1;
  std::string said;  // on stderr
};

using Settings = std::map<std::string, std::string>;

Outcome simulate(const std::string& spec, const TrainFunction& train,
                 const Settings& settings = {}) {
  Environment environment;
  environment.set(env::kSimulate, spec);
  for (const auto& [name, value] : settings) environment.set(name, value);
  std::vector<std::string> words = {"program", "--size", "3"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::testing::internal::CaptureStderr();
  const std::optional<int> code =
      internal::run_in_mode(static_cast<int>(words.size()), argv.data(), train, environment);
  EXPECT_EQ(words, (std::vector<std::string>{"program", "--size", "3"}));
  return {code.value_or(-1), ::testing::internal::GetCapturedStderr()};
}

int rank() { return Runtime::current().topology().rank; }

at::TensorOptions here() { return at::TensorOptions(Runtime::current().device()); }

TEST(Simulate, ReturnsTheFirstFailingRanksCodeAndNamesAllThatReturnedIt) {
  const Outcome outcome = simulate("1x4", [](int, char**) {
    const int codes[] = {0, 5, 7, 5};
    return codes[rank()];
  });
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.said, HasSubstr("accelerate: ranks 1, 3 returned 5"));
  const Outcome success = simulate("1x4", [](int, char**) { return 0; });
  EXPECT_EQ(success.code, 0);
  EXPECT_THAT(success.said, Not(HasSubstr("accelerate:")));
}

TEST(Simulate, ReturnsOneWhereARankThrew) {
  const Outcome outcome = simulate("1x2", [](int, char**) {
    if (rank() == 1) throw std::runtime_error("out of patience");
    return 5;
  });
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.said, HasSubstr("rank 1 failed: out of patience"));
}

TEST(Simulate, GivesEachRankItsOwnArguments) {
  std::atomic<int> ran = 0;
  const Outcome outcome = simulate("1x3", [&](int argc, char** argv) {
    EXPECT_EQ(argc, 3);
    EXPECT_STREQ(argv[0], "program");
    EXPECT_STREQ(argv[2], "3");
    EXPECT_EQ(argv[3], nullptr);
    argv[2][0] = 'x';  // as parsers of arguments do
    argv[0] = nullptr;
    ++ran;
    return 0;
  });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(ran.load(), 3);
}

TEST(Simulate, RefusesWordsThatItDoesNotKnow) {
  for (const auto& [name, word] :
       std::vector<std::pair<std::string, std::string>>{{env::kSimulateSeed, "-1"},
                                                        {env::kSimulateSeed, "red"},
                                                        {env::kSimulateSeed, ""},
                                                        {env::kSimulateReportSlices, "many"},
                                                        {env::kSimulateNumerics, "fake"},
                                                        {env::kSimulateUnknownValues, "0"},
                                                        {env::kSimulateFold, "1"},
                                                        {env::kSimulateNoDetect, "races,leeks"},
                                                        {env::kSimulateTimeOuts, "never"},
                                                        {env::kSimulateSemantics, "gloom"}}) {
    const Outcome outcome = simulate("1x2:h100",
                                     [](int, char**) {
                                       ADD_FAILURE() << "it runs";
                                       return 0;
                                     },
                                     {{name, word}});
    EXPECT_EQ(outcome.code, 2) << name;
    EXPECT_THAT(outcome.said, HasSubstr(absl::StrCat("accelerate: ", name, "=\"", word, "\"")));
  }
  for (const auto& [spec, settings] : std::vector<std::pair<std::string, Settings>>{
           {"2y2", {}},
           {"1x2", {{env::kSimulateNumerics, "shapes"}}},
           {"1x2:h100", {{env::kSimulateFold, "true"}}}}) {
    EXPECT_EQ(simulate(spec, [](int, char**) { return 0; }, settings).code, 2) << spec;
  }
}

TEST(Simulate, RunsUnderAPlanOfFaults) {
  const auto steps = [](int, char**) {
    for (int step = 0; step < 3; ++step) Runtime::current().record_step();
    return 0;
  };
  const auto under = [&](const std::string& plan) {
    return simulate("1x2", steps, {{env::kSimulateFaults, plan}});
  };
  const Outcome dies = under("rank 1 at step 2: crash");
  EXPECT_EQ(dies.code, 1);
  EXPECT_THAT(dies.said, HasSubstr("rank 1 failed: rank 1 was killed at step 2"));
  EXPECT_THAT(dies.said, HasSubstr("--faults 'rank 1 at step 2: crash'"));
  const Outcome unfired = under("rank 1 at step 9: crash");
  EXPECT_EQ(unfired.code, 0);
  EXPECT_THAT(unfired.said,
              HasSubstr("accelerate: fault: \"rank 1 at step 9: crash\" did not fire: "
                        "rank 1 made 3 steps"));
  const Outcome from_json =
      under(R"json([{"where": "rank 1", "when": "at step 2", "what": ["exit(4)"]}])json");
  EXPECT_THAT(from_json.said, HasSubstr("rank 1 exited with code 4 at step 2"));
  const std::string path = ::testing::TempDir() + "/plan.txt";
  std::ofstream(path) << "# a plan\nrank 0 at step 1: crash\n";
  EXPECT_THAT(under("@" + path).said, HasSubstr("rank 0 was killed at step 1"));
}

TEST(Simulate, WritesALogAndFollowsIt) {
  const auto sums = [](int, char**) {
    const auto store = Runtime::current().store();
    for (int round = 0; round < 5; ++round) store->add("round", 1);
    Runtime::current().record_step();
    return 0;
  };
  const std::string path = ::testing::TempDir() + "/simulate_run.log";
  const Outcome first = simulate("1x3", sums,
                                 {{env::kSimulateLog, path},
                                  {env::kSimulateSeed, "9"},
                                  {env::kSimulateFaults, "rank 1 at step 1: crash"}});
  EXPECT_THAT(first.said, HasSubstr("rank 1 was killed at step 1"));
  // The seed and the faults are those of the log.
  const Outcome second = simulate("1x3", sums, {{env::kSimulateReplay, path}});
  EXPECT_THAT(second.said, HasSubstr("rank 1 was killed at step 1"));
  EXPECT_THAT(second.said, Not(HasSubstr("differs")));
  EXPECT_THAT(second.said, HasSubstr("accelerate launch --simulate 1x3 --simulate_seed 9 "
                                     "--faults 'rank 1 at step 1: crash' "));
  const Outcome other = simulate("1x2", sums, {{env::kSimulateReplay, path}});
  EXPECT_NE(other.code, 0);
  EXPECT_THAT(other.said, HasSubstr("the log is of another cluster: \"1x3\", not \"1x2\""));
  EXPECT_EQ(simulate("1x3", sums, {{env::kSimulateReplay, "/nowhere/log"}}).code, 2);
}

TEST(Simulate, FollowsALogWithItsTimeOutsAndItsLibrary) {
  const auto adds = [](int, char**) {
    Runtime::current().store()->add("arrived", 1);
    return 0;
  };
  const std::string path = ::testing::TempDir() + "/simulate_wait.log";
  EXPECT_EQ(simulate("1x2", adds,
                     {{env::kSimulateLog, path},
                      {env::kSimulateTimeOuts, "wait"},
                      {env::kSimulateSemantics, "gloo"}})
                .code,
            0);
  const Outcome again = simulate("1x2", adds, {{env::kSimulateReplay, path}});
  EXPECT_EQ(again.code, 0) << again.said;
  // What is asked for counts.
  for (const auto& [name, word] :
       {std::pair(env::kSimulateTimeOuts, "diagnose"), std::pair(env::kSimulateSemantics, "mpi")}) {
    const Outcome other = simulate("1x2", adds, {{env::kSimulateReplay, path}, {name, word}});
    EXPECT_NE(other.code, 0) << name;
    EXPECT_THAT(other.said, HasSubstr("the log is of another"));
  }
}

TEST(Simulate, RunsTwiceAndTellsTheDifference) {
  int calls = 0;
  const auto changing = [&](int, char**) {
    Runtime::current().store()->set(absl::StrCat("key", ++calls > 2 ? 1 : 0), "value");
    return 0;
  };
  const Outcome differs = simulate("1x2", changing, {{env::kSimulateTwice, "true"}});
  EXPECT_EQ(differs.code, 1);
  EXPECT_THAT(differs.said, HasSubstr("the second run differs from the first: entry"));
  EXPECT_THAT(differs.said, HasSubstr("store set key1"));
  const Outcome alike =
      simulate("1x2", [](int, char**) { return 0; }, {{env::kSimulateTwice, "true"}});
  EXPECT_EQ(alike.code, 0);
  EXPECT_THAT(alike.said, HasSubstr("both runs did the same"));
}

TEST(Simulate, FailsAsAProgramThatFailsTwice) {
  const Settings twice = {{env::kSimulateTwice, "true"}};
  const Outcome returns = simulate("1x2", [](int, char**) { return 5; }, twice);
  EXPECT_EQ(returns.code, 5);
  EXPECT_THAT(returns.said, HasSubstr("both runs did the same"));
  const Outcome throws = simulate(
      "1x2", [](int, char**) -> int { throw std::runtime_error("out of patience"); }, twice);
  EXPECT_EQ(throws.code, 1);
  EXPECT_THAT(throws.said, HasSubstr("both runs did the same"));
}

TEST(Simulate, KeepsTheLogOfTheFirstOfTwoRuns) {
  int calls = 0;
  const auto changing = [&](int, char**) {
    Runtime::current().store()->set(absl::StrCat("key", ++calls > 2 ? 1 : 0), "value");
    return 0;
  };
  const std::string path = ::testing::TempDir() + "/simulate_twice.log";
  const Outcome differs =
      simulate("1x2", changing, {{env::kSimulateTwice, "true"}, {env::kSimulateLog, path}});
  EXPECT_EQ(differs.code, 1);
  std::ifstream file(path);
  const std::string log{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_THAT(log, HasSubstr("store set key0"));
  EXPECT_THAT(log, Not(HasSubstr("store set key1")));
}

TEST(Simulate, RefusesPlansThatAreWrong) {
  for (const auto& [plan, error] : std::vector<std::pair<std::string, std::string>>{
           {"rank 1 at step 2: crahs",
            "did you mean crash? at character 19\n  rank 1 at step 2: "
            "crahs\n                    ^"},
           {"rank 7 at step 2: crash", "there is no rank 7: the cluster has 2 ranks"},
           {"rank tp=0 at step 2: crash", "this run has no mesh"},
           {"rank 1 at op#2: crash", "the cluster names none"},
           {"link nic of node 0 at step 1: down", "communication takes no time"},
           {"@/nowhere/plan.txt", "cannot read /nowhere/plan.txt"}}) {
    const Outcome outcome = simulate("1x2",
                                     [](int, char**) {
                                       ADD_FAILURE() << "it runs";
                                       return 0;
                                     },
                                     {{env::kSimulateFaults, plan}});
    EXPECT_EQ(outcome.code, 2) << plan;
    EXPECT_THAT(outcome.said, HasSubstr(error));
  }
}

TEST(Simulate, GivesUnknownValuesAsTold) {
  const auto read = [](int, char**) {
    const at::Tensor sum = at::ones({1 << 20}, here()).sum();
    return std::isnan(sum.item<float>()) ? 0 : 3;
  };
  const Settings shapes = {{env::kSimulateNumerics, "shapes"}};
  EXPECT_EQ(simulate("1x1:h100", read, shapes).code, 1);
  Settings with_nan = shapes;
  with_nan[env::kSimulateUnknownValues] = "nan";
  EXPECT_EQ(simulate("1x1:h100", read, with_nan).code, 0);
  EXPECT_EQ(simulate("1x1:h100", read, {{env::kSimulateUnknownValues, "nan"}}).code, 3);
}

// Whether a detector finds its mistake. The third, of drift, needs a model: see
// integration_tests/hardware.
TEST(Simulate, TurnsOffTheDetectorsThatAreNamedAndNoOthers) {
  at::Tensor kept;
  const auto leak = [&](int, char**) {
    kept = at::ones({1000}, here());
    return 0;
  };
  const auto race = [](int, char**) {
    const auto group = Runtime::current().new_group({.name = "world"});
    std::vector<at::Tensor> tensors{at::ones({4}, here())};
    const auto work = group->allreduce(tensors);
    tensors[0].add_(1);
    work->wait();
    return 0;
  };
  struct Row {
    const char* off;
    int leak, race;
  };
  for (const Row& row : {Row{"", 1, 1}, Row{"leaks", 0, 1}, Row{"races", 1, 0}, Row{"drift", 1, 1},
                         Row{"races,leaks", 0, 0}, Row{"drift,races", 1, 0}}) {
    const Settings settings = {{env::kSimulateNoDetect, row.off}};
    EXPECT_EQ(simulate("1x1:h100", leak, settings).code, row.leak) << row.off;
    kept.reset();
    EXPECT_EQ(simulate("1x2:h100", race, settings).code, row.race) << row.off;
  }
}

int ranks_that_run(const Settings& more) {
  std::atomic<int> ran = 0;
  Settings settings = {{env::kSimulateNumerics, "shapes"}, {env::kSimulateFold, "true"}};
  settings.insert(more.begin(), more.end());
  const Outcome outcome = simulate(
      "2x4:h100",
      [&](int, char**) {
        ++ran;
        return 0;
      },
      settings);
  EXPECT_EQ(outcome.code, 0) << outcome.said;
  return ran.load();
}

TEST(Simulate, FoldsReplicasAndExecutesRank0Apart) {
  // Rank 0, one that stands for the other seven, and one that is compared with it.
  EXPECT_EQ(ranks_that_run({}), 3);
  // A configuration that is not used, or has no axis, changes nothing.
  EXPECT_EQ(ranks_that_run({{"PARALLELISM_CONFIG_PP_SIZE", "2"}}), 3);
  EXPECT_EQ(ranks_that_run({{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}}), 3);
}

TEST(Simulate, FoldsAlongTheMeshThatTheSettingsDescribe) {
  // A stage of a pipeline is not a replica of another one.
  EXPECT_GT(ranks_that_run({{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                            {"PARALLELISM_CONFIG_PP_SIZE", "4"},
                            {"PARALLELISM_CONFIG_TP_SIZE", "2"}}),
            3);
}

}  // namespace
}  // namespace accelerate
