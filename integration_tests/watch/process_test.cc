// Every collective method, called by one of two Gloo processes alone: both fail, and the error
// names the rank that did not join.
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/accelerate.h"
#include "integration_tests/watch/collective_calls.h"
#include "integration_tests/watch/processes.h"

namespace accelerate::watch_tests {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Ends a rank that hangs, so that the test fails.
constexpr unsigned kHangsAfterSeconds = 60;

// The text after "failed: " in a rank's own error message.
std::string error_of(const ProcessResult& result) {
  const std::string mark = " failed: ";
  const size_t at = result.output.find("accelerate: rank ");
  if (at == std::string::npos) return "";
  return result.output.substr(result.output.find(mark, at) + mark.size());
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

ProcessJob start(const std::string& call, Others others, int caller, bool debug) {
  const auto program = [&] {
    alarm(kHangsAfterSeconds);
    std::string name = "rank";
    char* arguments[] = {name.data(), nullptr};
    return accelerate::run(1, arguments, [&](int, char**) {
      run_rank(find_call(call), others, caller);
      return 0;
    });
  };
  return ProcessJob(2, program, {{"ACCELERATE_DEBUG_MODE", debug ? "1" : "0"}});
}

class CalledAlone : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string name() const { return std::get<0>(GetParam()); }
  int caller() const { return std::get<1>(GetParam()); }
  int other() const { return 1 - caller(); }
  std::vector<ProcessResult> run(Others others, bool debug) const {
    return start(name(), others, caller(), debug).wait();
  }
};

TEST_P(CalledAlone, NamesTheRankThatEndedItsProgram) {
  const std::vector<ProcessResult> results = run(Others::kEnd, /*debug=*/false);
  EXPECT_EQ(results[caller()].exit_code, 1) << results[caller()].output;
  EXPECT_THAT(error_of(results[caller()]), HasSubstr(rank_text(other()) + ": ended its program"));
}

TEST_P(CalledAlone, IsComparedInDebugModeBeforeItRuns) {
  if (!find_call(name()).comparable) return;
  const std::vector<ProcessResult> results = run(Others::kDiffer, /*debug=*/true);
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_THAT(error_of(result), AllOf(HasSubstr("collective mismatch in call #"),
                                        HasSubstr(rank_text(caller()) + ": "),
                                        HasSubstr(rank_text(other()) + ": all_gather #")));
  }
  EXPECT_EQ(error_of(results[0]), error_of(results[1]));
}

// These jobs spend their time waiting for a time-out, so several run at once.
TEST(RankThatComesLater, FailsAsWell) {
  constexpr size_t kAtOnce = 16;
  struct Running {
    std::string call;
    int caller;
    ProcessJob job;
  };
  std::deque<Running> running;
  auto finish_one = [&] {
    const std::vector<ProcessResult> results = running.front().job.wait();
    const int caller = running.front().caller;
    SCOPED_TRACE(running.front().call + " by " + rank_text(caller));
    for (const ProcessResult& result : results) {
      EXPECT_EQ(result.exit_code, 1) << result.output;
      EXPECT_THAT(error_of(result),
                  AllOf(HasSubstr(rank_text(caller) + ": "),
                        ContainsRegex(rank_text(1 - caller) +
                                      ": ([0-9]+ operations? behind|never made this group)")));
    }
    EXPECT_EQ(error_of(results[0]), error_of(results[1]));
    running.pop_front();
  };
  for (const CollectiveCall& call : collective_calls()) {
    for (int caller : {0, 1}) {
      if (running.size() == kAtOnce) finish_one();
      running.push_back(
          {call.name, caller, start(call.name, Others::kCompute, caller, /*debug=*/false)});
    }
  }
  while (!running.empty()) finish_one();
}

// The rank that no longer answers may be the one with the store.
TEST(FrozenRank, DoesNotFreezeTheOthers) {
  ProcessJob jobs[] = {start("gather", Others::kFreeze, 0, /*debug=*/false),
                       start("gather", Others::kFreeze, 1, /*debug=*/false)};
  for (int caller : {0, 1}) {
    const std::vector<ProcessResult> results = jobs[caller].wait();
    EXPECT_EQ(results[caller].exit_code, 1) << results[caller].output;
    EXPECT_THAT(error_of(results[caller]),
                AllOf(HasSubstr("failed"), HasSubstr(rank_text(1 - caller) + ": did not answer")));
  }
}

// ---- Without debug mode: what ranks exchange as nested values differs.

std::vector<ProcessResult> run_on(int ranks, const std::function<void(Accelerator&, int)>& body) {
  const auto program = [&] {
    alarm(kHangsAfterSeconds);
    std::string name = "rank";
    char* arguments[] = {name.data(), nullptr};
    return accelerate::run(1, arguments, [&](int, char**) {
      Accelerator accelerator;
      body(accelerator, accelerator.process_index());
      return 0;
    });
  };
  return ProcessJob(ranks, program).wait();
}

TEST(Differences, AreErrorsOnAllProcessesThatNameBoth) {
  for (const Difference& difference : differences()) {
    SCOPED_TRACE(difference.what);
    const std::vector<ProcessResult> results = run_on(3, [&](Accelerator& accelerator, int rank) {
      difference.call(accelerator, rank);
      accelerator.wait_for_everyone();
    });
    for (const ProcessResult& result : results) {
      EXPECT_EQ(result.exit_code, 1) << result.output;
      for (const std::string& text : difference.texts) EXPECT_THAT(result.output, HasSubstr(text));
    }
  }
}

TEST(GatherForMetrics, TakesOtherRowsOnEachProcess) {
  const std::vector<ProcessResult> results = run_on(3, [](Accelerator& accelerator, int rank) {
    using Named = std::map<std::string, torch::Tensor>;
    const auto gathered =
        accelerator.gather_for_metrics(Named{{"all", torch::full({2 - rank, 2}, 1.0 * rank)},
                                             {"some", torch::full({rank}, 1.0 * rank)}});
    TORCH_CHECK(gathered.at("all").equal(torch::tensor({{0.0, 0.0}, {0.0, 0.0}, {1.0, 1.0}})));
    TORCH_CHECK(gathered.at("some").equal(torch::tensor({1.0, 2.0, 2.0})));
  });
  for (const ProcessResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
}

// Gloo throws on a thread of its own where more arrives than a rank waits for.
TEST(MessageTooLong, IsReportedByTheRankThatItEnds) {
  for (int sender : {0, 1}) {
    SCOPED_TRACE(sender);
    const std::vector<ProcessResult> results = run_on(2, [&](Accelerator& accelerator, int rank) {
      std::vector<at::Tensor> values = {torch::ones({rank == sender ? 1000 : 4})};
      accelerator.state().group()->broadcast(values, {.rootRank = sender})->wait();
      accelerator.wait_for_everyone();
    });
    const int receiver = 1 - sender;
    EXPECT_EQ(results[receiver].exit_code, -1) << results[receiver].output;
    EXPECT_EQ(results[sender].exit_code, 1) << results[sender].output;
    for (const ProcessResult& result : results) {
      EXPECT_THAT(error_of(result),
                  AllOf(HasSubstr(rank_text(receiver) + ": an error that nothing caught: "),
                        HasSubstr("broadcast"), HasSubstr("Float[1000]"), HasSubstr("Float[4]")));
    }
  }
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const CollectiveCall& call : collective_calls()) names.push_back(call.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Gloo, CalledAlone,
                         ::testing::Combine(::testing::ValuesIn(names()), ::testing::Values(0, 1)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_by_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace accelerate::watch_tests
