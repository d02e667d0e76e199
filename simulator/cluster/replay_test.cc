// Logs of runs in whole clusters: a run follows its log to the bit, and a changed program stops at
// its first difference.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"
#include "simulator/core/run_log.h"
#include "simulator/faults/rules.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

// What the program does that a run of it should not do twice in different ways.
struct Change {
  int at_round = -1;
  std::string key;       // another one of the store
  bool value = false;    // another one in a sum
  bool skips = false;    // a call less
  bool another = false;  // another operator
  bool goes_on = false;  // one more operator, behind all else that the program does
};

void rounds(Rank& rank, const Change& change) {
  Runtime& runtime = rank.runtime();
  const auto group = runtime.new_group({.name = "all"});
  const auto store = runtime.store();
  double sum = 0;
  for (int round = 0; round < 4; ++round) {
    const bool changes = round == change.at_round && rank.index() == 1;
    std::string key = absl::StrCat("order/", round);
    if (changes && !change.key.empty()) key = change.key;
    // Who comes first depends on the schedule.
    const int64_t place = store->add(key, 1);
    at::Tensor value = at::full({2}, static_cast<double>(place * (rank.index() + 1)),
                                at::TensorOptions(runtime.device()));
    if (changes && change.value) value.add_(1);
    if (changes && change.another) value = value.mul(2).div(2);
    std::vector<at::Tensor> tensors{value};
    if (!(changes && change.skips)) group->allreduce(tensors)->wait();
    sum = 3 * sum + tensors[0].cpu()[0].item<double>();
    runtime.record_step();
  }
  rank.report("sum", sum);
  if (change.goes_on && rank.index() == 1) {
    at::ones({2}, at::TensorOptions(runtime.device())).add_(1);
  }
}

struct Outcome {
  std::string failure;
  std::string difference;
  std::vector<double> sums;
  std::shared_ptr<RunLog> log = std::make_shared<RunLog>();
};

Outcome run(uint64_t seed, const std::string& plan, std::shared_ptr<const RunLog> replay = nullptr,
            const Change& change = {}, const std::string& spec = "1x3", bool names_work = false) {
  Outcome outcome;
  ClusterOptions options{.seed = seed, .repeat_command = "again"};
  options.faults = FaultRules::parse(plan).value();
  options.log = outcome.log;
  options.replay = std::move(replay);
  options.log_names_work = names_work;
  Cluster cluster(spec, options);
  try {
    cluster.run_on_every_rank([&](Rank& rank) { rounds(rank, change); });
    for (const at::Tensor& each : cluster.reports("sum")) {
      outcome.sums.push_back(each.item<double>());
    }
  } catch (const ClusterError& error) {
    outcome.failure = error.what();
  }
  outcome.difference = cluster.log_difference();
  return outcome;
}

// As many as ci/faults.sh says, else some.
int num_failing_runs() {
  int runs = 0;
  const char* const given = std::getenv("ACCELERATE_REPLAYED_RUNS");
  return given != nullptr && absl::SimpleAtoi(given, &runs) ? runs : 40;
}

TEST(Replay, FollowsFailingRunsToTheBit) {
  const std::vector<std::string> plans = {"rank any with 0.1 at store: crash",
                                          "rank any with 0.1 at collective: crash",
                                          "rank 1 at step 2: hang", "store at store#7: gone"};
  int failed = 0;
  const int wanted = num_failing_runs();
  for (uint64_t seed = 0; failed < wanted; ++seed) {
    ASSERT_LT(seed, 5 * static_cast<uint64_t>(wanted));
    const std::string& plan = plans[seed % plans.size()];
    const Outcome first = run(seed, plan);
    if (first.failure.empty()) continue;
    ++failed;
    const Outcome second = run(seed, plan, first.log);
    EXPECT_EQ(second.difference, "") << plan;
    EXPECT_EQ(second.failure, first.failure) << plan;
    EXPECT_EQ(second.log->entries(), first.log->entries()) << plan;
  }
}

TEST(Replay, TheLogChangesNothing) {
  Cluster plain("1x3", {.seed = 4});
  plain.run_on_every_rank([](Rank& rank) { rounds(rank, {}); });
  const Outcome logged = run(4, "");
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(plain.reports("sum")[rank].item<double>(), logged.sums[rank]);
  }
}

// Nor does the log of a program that writes the machine's own files.
TEST(Replay, TheLogChangesNothingBesideFiles) {
  const auto places = [](uint64_t seed, std::shared_ptr<RunLog> log) {
    ClusterOptions options{.seed = seed};
    options.log = std::move(log);
    Cluster cluster("1x3", options);
    cluster.run_on_every_rank([](Rank& rank) {
      Runtime& runtime = rank.runtime();
      const std::string path = absl::StrCat(::testing::TempDir(), "/replayed_", rank.index());
      double sum = 0;
      for (int round = 0; round < 4; ++round) {
        EXPECT_TRUE(write_file(runtime.files(), path, "bytes").ok());
        sum = 4 * sum + static_cast<double>(runtime.store()->add("order", 1));
      }
      rank.report("sum", sum);
    });
    std::vector<double> sums;
    for (const at::Tensor& each : cluster.reports("sum")) sums.push_back(each.item<double>());
    return sums;
  };
  for (uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_EQ(places(seed, nullptr), places(seed, std::make_shared<RunLog>())) << seed;
  }
}

TEST(Replay, AChangedProgramStopsAtItsFirstDifference) {
  const Outcome first = run(4, "");
  ASSERT_EQ(first.failure, "");
  const Outcome other_key = run(4, "", first.log, {.at_round = 2, .key = "elsewhere"});
  EXPECT_THAT(other_key.failure, AllOf(HasSubstr("the run differs from its log: entry "),
                                       HasSubstr("the log has rank 1 at store add order/2"),
                                       HasSubstr("this run has rank 1 at store add elsewhere")));
  const Outcome skips = run(4, "", first.log, {.at_round = 1, .skips = true});
  EXPECT_THAT(skips.failure, HasSubstr("the log has rank 1 at collective all_reduce of all"));
  const Outcome value = run(4, "", first.log, {.at_round = 3, .value = true});
  EXPECT_THAT(value.failure, AllOf(HasSubstr("values of rank 1 at all_reduce of all"),
                                   HasSubstr("the run differs from its log")));
}

TEST(Replay, NamesTheOperatorIfToldTo) {
  const Outcome first = run(4, "", nullptr, {}, "1x3:h100", /*names_work=*/true);
  ASSERT_EQ(first.failure, "");
  const Outcome other =
      run(4, "", first.log, {.at_round = 1, .another = true}, "1x3:h100", /*names_work=*/true);
  EXPECT_THAT(other.failure,
              AllOf(HasSubstr("the run differs from its log"), HasSubstr("aten::mul")));
}

TEST(Replay, NoticesWhatAProgramDoesBehindItsLastSite) {
  for (const bool names_work : {false, true}) {
    const Outcome first = run(4, "", nullptr, {}, "1x3:h100", names_work);
    ASSERT_EQ(first.failure, "");
    EXPECT_EQ(run(4, "", first.log, {}, "1x3:h100", names_work).failure, "");
    const Outcome longer = run(4, "", first.log, {.goes_on = true}, "1x3:h100", names_work);
    EXPECT_THAT(longer.failure,
                AllOf(HasSubstr("the run differs from its log"), HasSubstr("rank 1")));
  }
}

TEST(Replay, RefusesTheLogOfAnotherRun) {
  const Outcome first = run(4, "");
  EXPECT_THROW(run(5, "", first.log), c10::ValueError);
  EXPECT_THROW(run(4, "rank 1 at step 2: crash", first.log), c10::ValueError);
  EXPECT_THROW(run(4, "", first.log, {}, "3x1"), c10::ValueError);
  try {
    run(5, "", first.log);
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the log is of another seed: \"4\", not \"5\""));
  }
}

TEST(Replay, RefusesTheLogOfOtherTimeOutsOrOfAnotherLibrary) {
  const auto follow = [](TimeOuts time_outs, Semantics semantics,
                         std::shared_ptr<const RunLog> replay) {
    auto log = std::make_shared<RunLog>();
    ClusterOptions options{.seed = 4, .time_outs = time_outs, .semantics = semantics};
    options.log = log;
    options.replay = std::move(replay);
    Cluster("1x3", options).run_on_every_rank([](Rank& rank) { rounds(rank, {}); });
    return log;
  };
  const auto log = follow(TimeOuts::kWait, Semantics::kGloo, nullptr);
  follow(TimeOuts::kWait, Semantics::kGloo, log);
  const auto refusal = [&](TimeOuts time_outs, Semantics semantics) {
    try {
      follow(time_outs, semantics, log);
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("it follows");
  };
  EXPECT_THAT(refusal(TimeOuts::kDiagnose, Semantics::kGloo),
              HasSubstr("the log is of another time-outs: \"wait\", not \"diagnose\""));
  EXPECT_THAT(refusal(TimeOuts::kWait, Semantics::kNccl),
              HasSubstr("the log is of another semantics: \"gloo\", not \"nccl\""));
}

}  // namespace
}  // namespace accelerate::simulator
