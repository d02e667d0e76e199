// What time-outs cost, and what ranks notice of those that have ended.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/dumps/dump_folder.h"
#include "simulator/cluster/cluster.h"
#include "simulator/core/run_log.h"
#include "simulator/faults/rules.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kLimit = absl::Minutes(10);

struct Outcome {
  std::vector<RankFailure> failures;
  std::string text;
  absl::Duration elapsed;
};

Outcome run(TimeOuts time_outs, Semantics semantics, const std::function<void(Rank&)>& body,
            const std::string& plan = "", const std::string& spec = "1x3") {
  ClusterOptions options{.seed = 5, .time_outs = time_outs, .semantics = semantics};
  options.faults = FaultRules::parse(plan).value();
  Cluster cluster(spec, options);
  Outcome outcome;
  try {
    cluster.run_on_every_rank(body);
  } catch (const ClusterError& error) {
    outcome.failures = error.failures();
    outcome.text = error.what();
  }
  outcome.elapsed = cluster.elapsed();
  return outcome;
}

// All ranks but the last sum, once in each step.
void sums(Rank& rank, int steps) {
  const auto group = rank.runtime().new_group({.name = "all", .timeout = kLimit});
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> tensors{at::ones({2}, at::TensorOptions(rank.runtime().device()))};
    group->allreduce(tensors)->wait();
    rank.runtime().record_step();
  }
}

void last_rank_leaves(Rank& rank) { sums(rank, rank.index() == 2 ? 1 : 2); }

void three_steps(Rank& rank) { sums(rank, 3); }

std::string without_times(const std::string& text) {
  return std::regex_replace(text, std::regex("virtual time [0-9a-z.]+"), "virtual time");
}

// What ranks waited for. How far each of them has come depends on whether the rank that hangs is
// ended before the others tell.
std::string stall_of(const std::string& text) {
  return without_times(text.substr(0, text.find("\ngroup \"")));
}

TEST(TimeOuts, WaitEqualsDiagnoseButForTheTime) {
  for (const Semantics semantics : {Semantics::kAny, Semantics::kNccl}) {
    const Outcome diagnosed = run(TimeOuts::kDiagnose, semantics, last_rank_leaves);
    const Outcome waited = run(TimeOuts::kWait, semantics, last_rank_leaves);
    ASSERT_EQ(diagnosed.failures.size(), 2U);
    ASSERT_EQ(waited.failures.size(), 2U);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(waited.failures[i].rank, diagnosed.failures[i].rank);
      EXPECT_EQ(without_times(waited.failures[i].message),
                without_times(diagnosed.failures[i].message));
    }
    EXPECT_THAT(waited.text, HasSubstr("no rank can make progress at virtual time 10m"));
    EXPECT_EQ(diagnosed.elapsed, absl::ZeroDuration());
    EXPECT_EQ(waited.elapsed, kLimit);
  }
}

// No library notices a hang before the time-out.
TEST(TimeOuts, WaitEqualsDiagnoseButForTheTimeWhereARankHangs) {
  for (const Semantics semantics : accelerate::values<Semantics>()) {
    const std::string plan = "rank 1 at step 2: hang";
    const Outcome diagnosed = run(TimeOuts::kDiagnose, semantics, three_steps, plan);
    const Outcome waited = run(TimeOuts::kWait, semantics, three_steps, plan);
    EXPECT_EQ(diagnosed.elapsed, absl::ZeroDuration());
    EXPECT_EQ(waited.elapsed, kLimit);
    // Where mpirun ends the job, a rank is ended before it tells.
    if (semantics == Semantics::kMpi) continue;
    ASSERT_EQ(diagnosed.failures.size(), 3U);
    ASSERT_EQ(waited.failures.size(), 3U);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(waited.failures[i].rank, diagnosed.failures[i].rank);
      EXPECT_EQ(stall_of(waited.failures[i].message), stall_of(diagnosed.failures[i].message));
    }
  }
}

// What libraries notice of ranks that have ended belongs to time-outs that are waited for.
TEST(TimeOuts, DiagnoseTellsTheSameOfEveryLibrary) {
  const auto late_sum = [](Rank& rank) {
    const auto group = rank.runtime().new_group({.name = "all", .timeout = kLimit});
    if (rank.index() == 2) return;
    rank.runtime().sleep_for(absl::Seconds(1));
    std::vector<at::Tensor> tensors{at::ones({2})};
    group->allreduce(tensors)->wait();
  };
  const Outcome any = run(TimeOuts::kDiagnose, Semantics::kAny, late_sum);
  ASSERT_EQ(any.failures.size(), 2U);
  EXPECT_THAT(any.text, HasSubstr("no rank can make progress at virtual time 1s"));
  for (const Semantics semantics : accelerate::values<Semantics>()) {
    const Outcome outcome = run(TimeOuts::kDiagnose, semantics, late_sum);
    EXPECT_EQ(outcome.text, any.text);
    ASSERT_EQ(outcome.failures.size(), 2U);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(outcome.failures[i].message, any.failures[i].message);
    EXPECT_EQ(outcome.elapsed, absl::Seconds(1));
  }
}

TEST(TimeOuts, WaitCostsExactlyTheTimeOutOnDevicesAsWell) {
  const Outcome diagnosed =
      run(TimeOuts::kDiagnose, Semantics::kNccl, last_rank_leaves, "", "1x3:h100");
  const Outcome waited = run(TimeOuts::kWait, Semantics::kNccl, last_rank_leaves, "", "1x3:h100");
  EXPECT_LT(diagnosed.elapsed, absl::Seconds(1));
  EXPECT_GE(waited.elapsed, kLimit);
  EXPECT_LT(waited.elapsed, kLimit + absl::Seconds(1));
}

TEST(TimeOuts, AStoreWaitsForItsOwn) {
  const auto body = [](Rank& rank) { rank.runtime().store()->wait({"never"}); };
  const Outcome diagnosed = run(TimeOuts::kDiagnose, Semantics::kAny, body);
  const Outcome waited = run(TimeOuts::kWait, Semantics::kAny, body);
  EXPECT_EQ(diagnosed.elapsed, absl::ZeroDuration());
  EXPECT_GE(waited.elapsed, absl::Minutes(1));
  EXPECT_THAT(waited.text, HasSubstr("in store wait for \"never\""));
}

TEST(TimeOuts, ARunWithoutAStallIsTheSame) {
  const Outcome diagnosed = run(TimeOuts::kDiagnose, Semantics::kAny, three_steps, "", "1x3:h100");
  const Outcome waited = run(TimeOuts::kWait, Semantics::kGloo, three_steps, "", "1x3:h100");
  EXPECT_EQ(waited.text, "");
  EXPECT_EQ(waited.elapsed, diagnosed.elapsed);
}

TEST(TimeOuts, GlooNoticesAtOnceThatARankHasEnded) {
  const Outcome died =
      run(TimeOuts::kWait, Semantics::kGloo, three_steps, "rank 1 at step 2: crash");
  EXPECT_THAT(died.text, HasSubstr("rank 1 was killed at step 2"));
  ASSERT_EQ(died.failures.size(), 3U);
  EXPECT_EQ(died.failures[0].rank, 1);
  EXPECT_THAT(died.failures[1].message,
              AllOf(HasSubstr("the connection to rank 1 was closed: rank 1 failed"),
                    HasSubstr("in all_reduce")));
  EXPECT_EQ(died.elapsed, absl::ZeroDuration());
  const Outcome left = run(TimeOuts::kWait, Semantics::kGloo, last_rank_leaves);
  EXPECT_THAT(left.text, HasSubstr("the connection to rank 2 was closed: rank 2 ended normally"));
}

TEST(TimeOuts, GlooNoticesThatTheOtherEndOfAMessageHasEnded) {
  for (const bool sends : {false, true}) {
    const Outcome left = run(TimeOuts::kWait, Semantics::kGloo, [sends](Rank& rank) {
      const auto group = rank.runtime().new_group({.name = "all", .timeout = kLimit});
      if (rank.index() != 1) return;
      std::vector<at::Tensor> tensors{at::ones({2})};
      (sends ? group->send(tensors, 2, 0) : group->recv(tensors, 2, 0))->wait();
    });
    ASSERT_EQ(left.failures.size(), 1U) << left.text;
    EXPECT_EQ(left.failures[0].rank, 1);
    EXPECT_THAT(
        left.failures[0].message,
        AllOf(HasSubstr("the connection to rank 2 was closed: rank 2 ended normally"),
              HasSubstr(sends ? "waiting for rank 2 to receive" : "waiting for rank 2 to send")));
    EXPECT_EQ(left.elapsed, absl::ZeroDuration());
  }
}

// The rank that notices it goes on at that time.
TEST(TimeOuts, AClosedConnectionIsNoticedWhenItsRankEnds) {
  const Outcome left = run(
      TimeOuts::kWait, Semantics::kGloo,
      [](Rank& rank) {
        const auto group = rank.runtime().new_group({.name = "all", .timeout = kLimit});
        const absl::Time start = rank.runtime().now();
        if (rank.index() == 1) return rank.runtime().sleep_for(absl::Seconds(3));
        std::vector<at::Tensor> tensors{at::ones({2})};
        EXPECT_THROW(group->allreduce(tensors)->wait(), c10::DistBackendError);
        EXPECT_EQ(rank.runtime().now() - start, absl::Seconds(3));
      },
      "", "1x2");
  EXPECT_EQ(left.text, "");
}

// Whichever of them runs first then, and also the one that calls later.
TEST(TimeOuts, AClosedConnectionIsNoticedByEachRankAtItsOwnTime) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Cluster cluster("1x4",
                    {.seed = seed, .time_outs = TimeOuts::kWait, .semantics = Semantics::kGloo});
    cluster.run_on_every_rank([](Rank& rank) {
      Runtime& runtime = rank.runtime();
      const auto group = runtime.new_group({.name = "all", .timeout = kLimit});
      const absl::Time start = runtime.now();
      constexpr int kEnds = 3;
      if (rank.index() == 1) return runtime.sleep_for(absl::Seconds(kEnds));
      constexpr int kCalls[] = {0, kEnds, 1, 5};
      runtime.sleep_for(absl::Seconds(kCalls[rank.index()]));
      std::vector<at::Tensor> tensors{at::ones({2})};
      EXPECT_THROW(group->allreduce(tensors)->wait(), c10::DistBackendError);
      EXPECT_EQ(runtime.now() - start, absl::Seconds(std::max(kCalls[rank.index()], kEnds)))
          << rank.index();
    });
    EXPECT_EQ(cluster.elapsed(), absl::Seconds(5));
  }
}

// It takes the ranks along that have waited for less long.
TEST(TimeOuts, ATimeOutEndsTheWaitsOfAGroupAtItsTime) {
  const Outcome left = run(TimeOuts::kWait, Semantics::kNccl, [](Rank& rank) {
    Runtime& runtime = rank.runtime();
    const auto group = runtime.new_group({.name = "all", .timeout = kLimit});
    const absl::Time start = runtime.now();
    if (rank.index() == 2) return;
    runtime.sleep_for(absl::Seconds(5 * rank.index()));
    std::vector<at::Tensor> tensors{at::ones({2})};
    EXPECT_THROW(group->allreduce(tensors)->wait(), c10::DistBackendError);
    EXPECT_EQ(runtime.now() - start, kLimit) << rank.index();
  });
  EXPECT_EQ(left.text, "");
  EXPECT_EQ(left.elapsed, kLimit);
}

TEST(TimeOuts, NcclNoticesADeathByItsTimeOutAlone) {
  const Outcome died =
      run(TimeOuts::kWait, Semantics::kNccl, three_steps, "rank 1 at step 2: crash");
  EXPECT_EQ(died.failures.at(0).rank, 1);
  EXPECT_THAT(died.failures.at(1).message, HasSubstr("waiting for rank 1"));
  EXPECT_EQ(died.elapsed, kLimit);
}

TEST(TimeOuts, MpiEndsTheJobWhenARankFails) {
  const Outcome died =
      run(TimeOuts::kWait, Semantics::kMpi, three_steps, "rank 1 at step 2: crash");
  ASSERT_EQ(died.failures.size(), 3U);
  EXPECT_EQ(died.failures[0].rank, 1);
  EXPECT_EQ(died.failures[1].message, "rank 0 was ended by mpirun, because rank 1 failed");
  EXPECT_LT(died.elapsed, absl::Seconds(1));
}

// Whichever rank comes to its time-out first tells it, and mpirun ends the others.
TEST(TimeOuts, MpiNamesTheRankThatTellsBeforeThoseThatAreEnded) {
  std::set<int> tell;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ClusterOptions options{
        .seed = seed, .time_outs = TimeOuts::kWait, .semantics = Semantics::kMpi};
    options.faults = FaultRules::parse("rank 1 at step 2: hang").value();
    Cluster cluster("1x3", options);
    try {
      cluster.run_on_every_rank(three_steps);
      ADD_FAILURE() << "the run did not fail";
    } catch (const ClusterError& error) {
      const std::vector<RankFailure>& failures = error.failures();
      ASSERT_EQ(failures.size(), 3U);
      const int first = failures[0].rank;
      tell.insert(first);
      EXPECT_THAT(failures[0].message, HasSubstr("no rank can make progress"));
      for (int i = 1; i < 3; ++i) {
        EXPECT_EQ(failures[i].message,
                  absl::StrCat("rank ", failures[i].rank, " was ended by mpirun, because rank ",
                               first, " failed"));
      }
      EXPECT_THAT(error.what(), StartsWith(absl::StrCat("rank ", first, " failed: ")));
    }
  }
  EXPECT_GT(tell.size(), 1U) << "one that is not the first of all must have told";
}

// The last rank leaves before the second sum.
std::function<void(Rank&)> sums_over(const std::string& backend) {
  return [backend](Rank& rank) {
    const auto group =
        rank.runtime().new_group({.name = "all", .timeout = kLimit, .backend = backend});
    for (int sum = 0; sum < (rank.index() == 2 ? 1 : 2); ++sum) {
      std::vector<at::Tensor> tensors{at::ones({2}, at::TensorOptions(rank.runtime().device()))};
      group->allreduce(tensors)->wait();
    }
  };
}

TEST(TimeOuts, AGroupBehavesAsTheLibraryThatItNames) {
  for (const char* const backend : {"gloo", "cpu:gloo,cuda:nccl"}) {
    const Outcome left = run(TimeOuts::kWait, Semantics::kNccl, sums_over(backend));
    EXPECT_THAT(left.text, HasSubstr("the connection to rank 2 was closed")) << backend;
    EXPECT_EQ(left.elapsed, absl::ZeroDuration());
  }
  for (const char* const backend : {"nccl", "mpi"}) {
    const Outcome left = run(TimeOuts::kWait, Semantics::kGloo, sums_over(backend));
    // mpirun ends all ranks but the one that tells.
    EXPECT_THAT(left.failures.at(0).message, HasSubstr("no rank can make progress"))
        << backend << ": " << left.text;
    EXPECT_EQ(left.elapsed, kLimit);
  }
  const Outcome died =
      run(TimeOuts::kWait, Semantics::kAny, sums_over("mpi"), "rank 1 at collective#1: crash");
  EXPECT_THAT(died.text, HasSubstr("rank 1 was killed at collective#1"));
  EXPECT_LT(died.elapsed, absl::Seconds(1));
}

TEST(TimeOuts, AGroupOfDevicesBehavesAsTheLibraryThatItNamesForThem) {
  for (const char* const backend : {"cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"}) {
    const Outcome left = run(TimeOuts::kWait, Semantics::kGloo, sums_over(backend), "", "1x3:h100");
    EXPECT_THAT(left.text,
                AllOf(HasSubstr("no rank can make progress"), Not(HasSubstr("was closed"))))
        << backend;
    EXPECT_GE(left.elapsed, kLimit);
  }
}

TEST(TimeOuts, AGroupOfAnotherLibraryIsRefused) {
  const auto error = [](const std::function<std::string(int)>& backend) {
    return run(TimeOuts::kDiagnose, Semantics::kAny,
               [&](Rank& rank) { sums_over(backend(rank.index()))(rank); })
        .text;
  };
  EXPECT_THAT(error([](int) { return "xccl"; }),
              HasSubstr("a simulated group behaves as gloo, nccl or mpi do, not as \"xccl\""));
  EXPECT_THAT(error([](int rank) { return rank == 0 ? "gloo" : "nccl"; }),
              HasSubstr("because they name different backends"));
}

// A rank that hangs keeps its connections.
TEST(TimeOuts, AHangIsNoticedByTheTimeOutWithAllOfThem) {
  for (const Semantics semantics : {Semantics::kGloo, Semantics::kNccl}) {
    const Outcome hung = run(TimeOuts::kWait, semantics, three_steps, "rank 1 at step 2: hang");
    EXPECT_THAT(hung.text, HasSubstr("rank 1 hung at step 2"));
    EXPECT_EQ(hung.elapsed, kLimit);
  }
}

// What catches a time-out goes on at its time.
TEST(TimeOuts, AProgramMayCatchThem) {
  const Outcome outcome = run(TimeOuts::kWait, Semantics::kNccl, [](Rank& rank) {
    if (rank.index() == 2) return;
    const auto pair =
        rank.runtime().new_group({.ranks = {0, 1}, .name = "pair", .timeout = absl::Minutes(1)});
    std::vector<at::Tensor> tensors{at::ones({2})};
    if (rank.index() == 1) {
      EXPECT_THROW(pair->recv(tensors, 0, 0)->wait(), c10::DistBackendError);
    } else {
      EXPECT_THROW(rank.runtime().store()->wait({"never"}, std::chrono::minutes(2)),
                   c10::DistStoreError);
    }
  });
  EXPECT_THAT(outcome.text, Not(HasSubstr("failed")));
  EXPECT_EQ(outcome.elapsed, absl::Minutes(2));
}

// Every failure leaves what its ranks did, which tells the same.
TEST(Dumps, TellWhatTheFailureTells) {
  const std::string folder = ::testing::TempDir() + "/cluster_failure";
  Cluster cluster("1x3", {.seed = 5, .dump_folder = folder});
  EXPECT_THROW(cluster.run_on_every_rank(last_rank_leaves), ClusterError);
  for (const std::string& from : {folder, folder + "/flight_recorder"}) {
    const auto dumps = read_dumps(from);
    ASSERT_TRUE(dumps.ok()) << dumps.status();
    ASSERT_EQ(dumps->size(), 3U);
    // A Flight Recorder does not know how a rank ended.
    EXPECT_THAT(dumps_report(*dumps),
                AllOf(ContainsRegex("behind: rank 2: (ended normally, )?1 operation behind"),
                      HasSubstr("all_reduce #1")));
  }
}

TEST(Dumps, HaveMoreOperationsThanReportsShow) {
  const std::string folder = ::testing::TempDir() + "/long_failure";
  Cluster cluster("1x2", {.seed = 5, .dump_folder = folder});
  EXPECT_THROW(cluster.run_on_every_rank([](Rank& rank) { sums(rank, 300 - rank.index()); }),
               ClusterError);
  const auto dumps = read_dumps(folder);
  ASSERT_TRUE(dumps.ok()) << dumps.status();
  ASSERT_EQ(dumps->size(), 2U);
  EXPECT_EQ(dumps->at(0).history.operations.size(), 300U);
  EXPECT_EQ(dumps->at(1).history.operations.size(), 299U);
}

// The log is written before the failure is told.
TEST(Dumps, HaveTheLogOfARunThatWroteOne) {
  const std::string folder = ::testing::TempDir() + "/logged_failure";
  const std::string log = ::testing::TempDir() + "/logged_failure.log";
  Cluster cluster("1x3", {.seed = 5, .log_file = log, .dump_folder = folder});
  EXPECT_THROW(cluster.run_on_every_rank(last_rank_leaves), ClusterError);
  const auto copy = RunLog::read(folder + "/run.log");
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->header("seed"), "5");
  EXPECT_EQ(copy->entries(), RunLog::read(log).value().entries());
  EXPECT_FALSE(copy->entries().empty());
  EXPECT_THAT(run_lines(folder), HasSubstr("follows: " + folder + "/run.log"));
}

TEST(Dumps, HaveTheLogOfTheLatestFailure) {
  const std::string folder = ::testing::TempDir() + "/failed_again";
  const std::string log = ::testing::TempDir() + "/failed_again.log";
  for (const uint64_t seed : {5, 6}) {
    Cluster cluster("1x3", {.seed = seed, .log_file = log, .dump_folder = folder});
    EXPECT_THROW(cluster.run_on_every_rank(last_rank_leaves), ClusterError);
    const auto copy = RunLog::read(folder + "/run.log");
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ(copy->header("seed"), absl::StrCat(seed));
    EXPECT_EQ(copy->entries(), RunLog::read(log).value().entries());
  }
}

TEST(Dumps, HaveTheKeysOfTheStoreAndTheirSizes) {
  const std::string folder = ::testing::TempDir() + "/failure_with_store";
  Cluster cluster("1x3", {.seed = 5, .dump_folder = folder});
  const auto body = [](Rank& rank) {
    rank.runtime().store()->set(absl::StrCat("ready/", rank.index()), std::string("here"));
    rank.runtime().store()->set("no text \xff", std::string());
    last_rank_leaves(rank);
  };
  EXPECT_THROW(cluster.run_on_every_rank(body), ClusterError);
  std::ifstream file(folder + "/store.json");
  const auto store = nlohmann::json::parse(file);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(store.at(absl::StrCat("ready/", rank)), 4);
  EXPECT_EQ(store.at("no text \xef\xbf\xbd"), 0);
}

TEST(Faults, AreInTheTraceWhereTheyStruck) {
  ClusterOptions options{.seed = 5, .record = true};
  options.faults = FaultRules::parse("rank 1 at step 2: delay(3s)").value();
  Cluster cluster("1x3", options);
  cluster.run_on_every_rank(three_steps);
  const Trace& trace = cluster.trace();
  ASSERT_EQ(trace.strikes.size(), 1U);
  EXPECT_EQ(trace.strikes[0].rank, 1);
  EXPECT_EQ(trace.names[trace.strikes[0].rule], options.faults.rules[0].to_string());
}

// A link that is down for longer than the time-out fails what crosses it.
TEST(TimeOuts, ALinkThatComesBackTooLateIsTooLate) {
  const Outcome outcome =
      run(TimeOuts::kWait, Semantics::kNccl, three_steps,
          "link nic of node 0 at time 0: down for 1h", "2x1:h100,nics=1,efficiency=ideal");
  EXPECT_THAT(outcome.text, HasSubstr("no rank can make progress"));
  EXPECT_LT(outcome.elapsed, kLimit + absl::Seconds(1));
}

// Ranks may give a group other time-outs.
TEST(TimeOuts, ALinkThatComesBackMustDoSoBeforeTheFirstTimeOut) {
  const Outcome outcome = run(
      TimeOuts::kWait, Semantics::kNccl,
      [](Rank& rank) {
        const auto group = rank.runtime().new_group(
            {.name = "all", .timeout = rank.index() == 0 ? kLimit : absl::Hours(2)});
        std::vector<at::Tensor> tensors{at::ones({2}, at::TensorOptions(rank.runtime().device()))};
        group->allreduce(tensors)->wait();
      },
      "link nic of node 0 at time 0: down for 1h", "2x1:h100,nics=1,efficiency=ideal");
  EXPECT_THAT(outcome.text, HasSubstr("no rank can make progress"));
  EXPECT_GE(outcome.elapsed, kLimit);
}

}  // namespace
}  // namespace accelerate::simulator
