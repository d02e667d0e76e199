// Each kind of fault at each of its sites, in a whole cluster: it is reported by its words. The
// shape has two nodes, so that one can be lost and cut off, and devices, so that all sites exist.
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"
#include "simulator/core/run_log.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/faults/fault_run.h"
#include "simulator/faults/kinds.h"
#include "simulator/faults/rules.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr char kShape[] = "2x2:h100";
constexpr int kRanks = 4;
constexpr int kRounds = 4;

void check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

// Comes to every kind of site once and more in each round, and tells of a step.
void rounds(Rank& rank) {
  Runtime& runtime = rank.runtime();
  const at::TensorOptions here(runtime.device());
  const auto group = runtime.new_group({.name = "all"});
  const auto store = runtime.store();
  const int next = (rank.index() + 1) % kRanks;
  const int previous = (rank.index() + kRanks - 1) % kRanks;
  at::Tensor sum = at::zeros({8, 8}, here);
  int64_t batches = 0;
  for (int round = 0; round < kRounds && runtime.record_batch(); ++round) {
    ++batches;
    std::vector<at::Tensor> product{at::mm(at::ones({8, 8}, here), at::ones({8, 8}, here))};
    group->allreduce(product)->wait();
    std::vector<at::Tensor> out{product[0].clone()};
    std::vector<at::Tensor> in{at::zeros({8, 8}, here)};
    const auto send = [&] { group->send(out, next, 0)->wait(); };
    const auto receive = [&] { group->recv(in, previous, 0)->wait(); };
    if (rank.index() % 2 == 0) {
      send();
      receive();
    } else {
      receive();
      send();
    }
    sum.add_(in[0]);
    store->set(absl::StrCat(round, "/", rank.index()), std::string("here"));
    store->get(absl::StrCat(round, "/", next));
    const std::string path = absl::StrCat("/sim/", rank.index(), "_", round);
    check(write_file(runtime.files(), path, "these bytes"));
    const absl::StatusOr<std::string> read = read_file(runtime.files(), path);
    check(read.status());
    if (*read != "these bytes") throw std::runtime_error("the file has other bytes");
    runtime.new_group({.name = absl::StrCat("round", round)});
    runtime.synchronize_device();
    runtime.record_step();
  }
  rank.report("sum", sum);
  rank.report("batches", static_cast<double>(batches));
  rank.report("seconds", absl::ToDoubleSeconds(runtime.now() - absl::FromUnixSeconds(1577836800)));
}

// A run of it under a plan.
struct Outcome {
  std::string failure;  // empty: it succeeded
  std::vector<RankFailure> failures;
  std::vector<FaultOutcome> faults;
  std::vector<SiteCounts> sites;
  absl::Duration elapsed;
  std::vector<at::Tensor> sums;
  std::vector<at::Tensor> batches;
  std::vector<at::Tensor> seconds;
};

Outcome run(const std::string& plan, ClusterOptions options = {}) {
  options.seed = 3;
  if (options.node_disks.empty()) options.disk = std::make_shared<SimDisk>();
  options.faults = FaultRules::parse(plan).value();
  Cluster cluster(kShape, std::move(options));
  Outcome outcome;
  try {
    cluster.run_on_every_rank(rounds);
    outcome.sums = cluster.reports("sum");
    outcome.batches = cluster.reports("batches");
    outcome.seconds = cluster.reports("seconds");
  } catch (const ClusterError& error) {
    outcome.failure = error.what();
    outcome.failures = error.failures();
  }
  outcome.faults = cluster.fault_outcomes();
  outcome.sites = cluster.sites();
  outcome.elapsed = cluster.elapsed();
  return outcome;
}

const Outcome& without_faults() {
  static const auto& outcome = *new Outcome(run("", {.count_sites = true}));
  return outcome;
}

// Each rule had an effect; a fault that touches nothing shows nothing.
void expect_touched(const Outcome& outcome, const std::string& plan) {
  ASSERT_FALSE(outcome.faults.empty()) << plan;
  for (const FaultOutcome& fault : outcome.faults) {
    EXPECT_GT(fault.fired, 0) << plan << "\n" << fault.to_string();
    EXPECT_GT(fault.touched, 0) << plan << "\n" << fault.to_string();
  }
}

TEST(Faults, ChangeNothingWithoutRules) {
  const Outcome plain = run("");
  EXPECT_EQ(plain.failure, "");
  EXPECT_THAT(plain.faults, IsEmpty());
  EXPECT_THAT(plain.sites, IsEmpty());
  EXPECT_EQ(plain.elapsed, without_faults().elapsed);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(at::equal(plain.sums[rank], without_faults().sums[rank]));
  }
  for (const Site site : accelerate::values<Site>()) {
    EXPECT_GE(without_faults().sites[1].of(site), kRounds) << accelerate::to_string(site);
  }
  EXPECT_EQ(without_faults().sites[1].steps, kRounds);
}

// What a run leaves behind.
struct Written {
  std::string summary;
  std::string timeline;
  std::shared_ptr<RunLog> log = std::make_shared<RunLog>();
};

Written written(FaultRules plan, bool logs) {
  Written result;
  ClusterOptions options{.seed = 3, .disk = std::make_shared<SimDisk>()};
  options.repeat_command = "again";
  options.report_directory = ::testing::TempDir() + "/report_under_a_plan";
  options.faults = std::move(plan);
  if (logs) options.log = result.log;
  const std::string folder = options.report_directory;
  Cluster cluster(kShape, std::move(options));
  cluster.run_on_every_rank(rounds);
  HostFiles files;
  result.summary = read_file(files, folder + "/summary.json").value();
  result.timeline = read_file(files, folder + "/trace.json").value();
  return result;
}

TEST(Faults, LeaveReportsAndLogsAsTheyAreWhereAPlanIsEmpty) {
  const Written plain = written({}, /*logs=*/false);
  const Written logged = written({}, /*logs=*/true);
  EXPECT_EQ(logged.summary, plain.summary);
  EXPECT_EQ(logged.timeline, plain.timeline);
  EXPECT_FALSE(logged.log->entries().empty());
  const FaultRules empty = FaultRules::parse("# nothing goes wrong\n").value();
  for (const bool logs : {false, true}) {
    const Written under = written(empty, logs);
    EXPECT_EQ(under.summary, plain.summary);
    EXPECT_EQ(under.timeline, plain.timeline);
    if (logs) {
      EXPECT_EQ(under.log->to_string(), logged.log->to_string());
    }
  }
  // Nor does a rule that is for other clusters change anything, but for its own line.
  const FaultRules others = FaultRules::parse("rank 1 at step 1: crash if world >= 5").value();
  const auto without_plan = [](const Written& each) {
    auto summary = nlohmann::ordered_json::parse(each.summary);
    summary.erase("faults");
    return summary;
  };
  const Written under = written(others, /*logs=*/true);
  EXPECT_NE(under.summary, plain.summary);
  EXPECT_EQ(without_plan(under), without_plan(plain));
  EXPECT_EQ(under.timeline, plain.timeline);
  EXPECT_EQ(under.log->entries(), logged.log->entries());
}

TEST(Faults, KillARankAtEverySite) {
  for (const Site site : accelerate::values<Site>()) {
    const std::string at = absl::StrCat(accelerate::to_string(site), "#1");
    const std::string plan = absl::StrCat("rank 1 at ", at, ": crash(SIGBUS)");
    const Outcome outcome = run(plan);
    EXPECT_THAT(outcome.failure,
                AllOf(HasSubstr(absl::StrCat("rank 1 failed: rank 1 died of SIGBUS at ", at)),
                      HasSubstr(absl::StrCat("by the fault \"", plan, "\""))));
    expect_touched(outcome, plan);
  }
}

TEST(Faults, KillARankAtOtherPoints) {
  for (const auto& [plan, words] : std::vector<std::pair<std::string, std::string>>{
           {"rank 1 at start: crash", "rank 1 was killed at start"},
           {"rank 1 at step 2: crash", "rank 1 was killed at step 2"},
           {"rank 1 at time 10us: crash", "rank 1 was killed at "},
           {"rank 1 every 3 steps: crash", "rank 1 was killed at step 3"},
           {"rank 1 with 1.0 at batch: crash", "rank 1 was killed at batch#0"},
           {"a = rank 0 at step 1: delay(1us); rank 1 after a: crash", "rank 1 was killed at "},
           {"group \"round1\" at group#0: crash", "was killed at group#2 (round1)"},
           {"cluster at step 1: crash", "was killed at step 1"}}) {
    const Outcome outcome = run(plan);
    EXPECT_THAT(outcome.failure, HasSubstr(words)) << plan;
    expect_touched(outcome, plan);
  }
}

TEST(Faults, LetARankHangAtEverySite) {
  for (const Site site : accelerate::values<Site>()) {
    if (site == Site::kFree) continue;
    const std::string at = absl::StrCat(accelerate::to_string(site), "#1");
    const std::string plan = absl::StrCat("rank 1 at ", at, ": hang");
    const Outcome outcome = run(plan);
    EXPECT_THAT(outcome.failure, HasSubstr(absl::StrCat("rank 1 failed: rank 1 hung at ", at)))
        << plan;
    expect_touched(outcome, plan);
  }
}

TEST(Faults, DelayARankAtEverySite) {
  for (const Site site : accelerate::values<Site>()) {
    if (site == Site::kFree) continue;
    for (const char* what : {"delay(1s)", "hang for 1s"}) {
      const std::string plan =
          absl::StrCat("rank 1 at ", accelerate::to_string(site), "#1: ", what);
      const Outcome outcome = run(plan);
      EXPECT_EQ(outcome.failure, "") << plan;
      EXPECT_GE(outcome.elapsed, absl::Seconds(1)) << plan;
      EXPECT_LT(outcome.elapsed, without_faults().elapsed + absl::Seconds(1.1)) << plan;
      expect_touched(outcome, plan);
    }
  }
}

// Kinds that any site can have.
struct Row {
  const char* where;
  const char* what;
  const char* fails = "";  // what the failure says; empty: the run succeeds
};
constexpr Row kRows[] = {{"rank 1", "terminate(1us)",
                          "rank 1 failed: rank 1 was ended after a notice of 1us by the fault"},
                         {"rank 1", "slow(0.5)"},
                         {"rank 1", "shrink(1GiB)"},
                         {"rank 1", "skew(1s)"},
                         {"node 1", "lost", "was lost with its node at "},
                         {"node 1", "partition for 1s"},
                         {"link nic of node 1", "slow(0.25)"},
                         {"link nic of node 1", "down for 1s"},
                         {"link nic of node 1", "flap(1ms) for 1s"},
                         {"link nic of node 1", "one_way for 1s"}};

TEST(Faults, StrikeAtEverySiteAndSayWhere) {
  for (const Row& row : kRows) {
    for (const Site site : accelerate::values<Site>()) {
      const std::string at = absl::StrCat("at ", accelerate::to_string(site), "#");
      const std::string plan = absl::StrCat(row.where, " ", at, "1: ", row.what);
      if (!FaultRules::parse(plan).ok()) {
        EXPECT_EQ(site, Site::kFree) << plan << ": who releases memory must not wait";
        continue;
      }
      const Outcome outcome = run(plan);
      expect_touched(outcome, plan);
      EXPECT_THAT(outcome.faults.at(0).struck.at(0), HasSubstr(at)) << plan;
      if (*row.fails == '\0') {
        EXPECT_EQ(outcome.failure, "") << plan;
      } else {
        EXPECT_THAT(outcome.failure,
                    AllOf(HasSubstr(row.fails), HasSubstr(absl::StrCat("by the fault \"", plan))));
      }
    }
  }
}

TEST(Faults, ChangeValuesWithoutAWord) {
  for (const char* plan : {"rank 1 at op#1 of aten::mm: flip(output, bit 30, element 0)",
                           "rank 1 at op#1 of aten::mm: flip(input, bit 30, element 0)",
                           "rank 1 at collective#1: flip(result, bit 30, element 0)",
                           "rank 1 at collective#1: flip(input, bit 30, element 0)",
                           "rank 1 at send#1: flip(input, bit 30, element 0)",
                           "rank 1 at recv#1: flip(result, bit 30, element 0)",
                           "rank 1 at op#1 of aten::mm: nan(output)",
                           "rank 1 at collective#1 of \"all_reduce *\": nan(result)",
                           "rank 1 at recv#1: nan(result, element 63)"}) {
    const Outcome outcome = run(plan);
    EXPECT_EQ(outcome.failure, "") << plan;
    expect_touched(outcome, plan);
    bool differs = false;
    for (int rank = 0; rank < kRanks; ++rank) {
      differs |= !at::equal(outcome.sums[rank], without_faults().sums[rank]);
    }
    EXPECT_TRUE(differs) << plan;
    EXPECT_EQ(outcome.elapsed, without_faults().elapsed) << plan;
  }
}

TEST(Faults, TakeMemory) {
  const Outcome outcome = run("rank 1 at alloc#3: out_of_memory");
  EXPECT_THAT(outcome.failure, AllOf(HasSubstr("rank 1 failed: "), HasSubstr("out of memory")));
  expect_touched(outcome, "out_of_memory");
  // An h100 has 80 GiB.
  ClusterOptions options = {.numerics = Numerics::kShapes,
                            .faults = FaultRules::parse("rank 0 at start: shrink(70GiB)").value()};
  Cluster cluster("1x2:h100", options);
  cluster.run_on_every_rank([](Rank& rank) {
    const auto allocate = [&] {
      return at::empty({int64_t{20} << 30},
                       at::TensorOptions(rank.runtime().device()).dtype(at::kByte));
    };
    if (rank.index() == 0) {
      EXPECT_THROW(allocate(), c10::OutOfMemoryError);
    } else {
      EXPECT_TRUE(allocate().defined());
    }
  });
  EXPECT_EQ(cluster.fault_outcomes().at(0).touched, 1);
}

TEST(Faults, EndAProgramInItsOwnCode) {
  for (const char* point : {"start", "step 2", "batch#2"}) {
    const std::string exits = absl::StrCat("rank 1 at ", point, ": exit(3)");
    EXPECT_THAT(run(exits).failure,
                HasSubstr(absl::StrCat("rank 1 failed: rank 1 exited with code 3 at ", point)));
    const std::string throws = absl::StrCat("rank 1 at ", point, ": exception(\"no more\")");
    EXPECT_THAT(run(throws).failure,
                HasSubstr(absl::StrCat("rank 1 failed: no more (rank 1 at ", point)));
  }
  const Outcome fails = run("rank 1 at batch#2: fail");
  EXPECT_THAT(fails.failure, HasSubstr("rank 1 failed: the loader failed (rank 1 at batch#2"));
  const Outcome ends = run("cluster at batch#2: short");
  EXPECT_EQ(ends.failure, "");
  for (const at::Tensor& batches : ends.batches) EXPECT_EQ(batches.item<double>(), 2);
  expect_touched(ends, "short");
  EXPECT_GE(run("rank 1 at batch#2: stall(1s)").elapsed, absl::Seconds(1));
  EXPECT_GE(run("rank 1 at start: slow_start(20s)").elapsed, absl::Seconds(20));
}

TEST(Faults, GiveNoticeBeforeTheEnd) {
  const Outcome outcome = run("rank 1 at step 1: terminate(1us)");
  EXPECT_THAT(outcome.failure, HasSubstr("rank 1 failed: rank 1 was ended after a notice of 1us"));
  ClusterOptions options = {.faults = FaultRules::parse("node 0 at start: terminate(1m)").value()};
  Cluster cluster(kShape, options);
  cluster.run_on_every_rank([](Rank& rank) {
    const std::optional<absl::Time> end = rank.runtime().termination();
    EXPECT_EQ(end.has_value(), rank.index() < 2);
    if (end) {
      EXPECT_EQ(*end - rank.runtime().now(), absl::Minutes(1));
    }
  });
}

TEST(Faults, SlowRanks) {
  const Outcome rank = run("rank 1 at start: slow(0.01)");
  EXPECT_EQ(rank.failure, "");
  EXPECT_GT(rank.elapsed, without_faults().elapsed + absl::Milliseconds(1));
  expect_touched(rank, "slow");
  for (int each = 0; each < kRanks; ++each) {
    EXPECT_TRUE(at::equal(rank.sums[each], without_faults().sums[each]));
  }
}

TEST(Faults, TakeANodeAway) {
  const Outcome lost = run("node 1 at step 2: lost");
  EXPECT_THAT(lost.failure, HasSubstr("was lost with its node"));
  int dead = 0;
  for (const RankFailure& failure : lost.failures) {
    if (!absl::StartsWith(failure.message,
                          absl::StrCat("rank ", failure.rank, " was lost with its node")))
      continue;
    EXPECT_GE(failure.rank, 2);
    ++dead;
  }
  EXPECT_EQ(dead, 2);
  // A run is one life of a job: the node's return is told, and changes nothing else.
  const Outcome returns = run("node 1 at step 2: lost for 30s");
  EXPECT_THAT(returns.failure, HasSubstr("was lost with its node, which is back for the job's next "
                                         "life after 30s, at step 2"));
  EXPECT_EQ(returns.elapsed, lost.elapsed);
  const Outcome rack = run("node 0-1 at step 2: lost");
  EXPECT_THAT(rack.failures, SizeIs(kRanks));
}

TEST(Faults, CutNodesOff) {
  for (const char* part : {"", "(data)", "(store)"}) {
    const std::string plan = absl::StrCat("node 1 at step 1: partition", part, " for 10s");
    const Outcome outcome = run(plan);
    EXPECT_EQ(outcome.failure, "") << plan;
    EXPECT_GE(outcome.elapsed, absl::Seconds(10)) << plan;
    expect_touched(outcome, plan);
  }
  EXPECT_THAT(run("node 1 at step 1: partition(data)").failure,
              HasSubstr("waiting for ranks behind the partition, by the fault"));
}

TEST(Faults, SilenceAndEndTheStore) {
  for (const char* when : {"at store#5", "at step 1", "at time 10us", "at start"}) {
    const std::string silent = absl::StrCat("store ", when, ": silent for 40s");
    const Outcome outcome = run(silent);
    EXPECT_EQ(outcome.failure, "") << silent;
    EXPECT_GE(outcome.elapsed, absl::Seconds(40)) << silent;
    expect_touched(outcome, silent);
    const std::string gone = absl::StrCat("store ", when, ": gone");
    EXPECT_THAT(run(gone).failure, HasSubstr("lost the connection to the store by the fault"));
  }
  EXPECT_THAT(run("store at store#5: silent").failure, HasSubstr("waiting for the silent store"));
  EXPECT_GE(run("store every 2 stores: delay(1s)").elapsed, absl::Seconds(1));
}

TEST(Faults, SetClocksWrong) {
  const Outcome outcome = run("node 1 at start: skew(-5s)");
  EXPECT_EQ(outcome.failure, "");
  const double right = outcome.seconds[0].item<double>();
  EXPECT_NEAR(outcome.seconds[3].item<double>(), right - 5, 0.1);
  EXPECT_NEAR(outcome.seconds[1].item<double>(), right, 0.1);
}

TEST(Faults, StrikeDisksByNode) {
  const auto two_disks = [] {
    return ClusterOptions{.node_disks = {std::make_shared<SimDisk>(), std::make_shared<SimDisk>()}};
  };
  const Outcome power = run("disk of node 1 at file#3: power_loss", two_disks());
  EXPECT_THAT(power.failure, HasSubstr("the machine died by a file fault"));
  for (const RankFailure& failure : power.failures) {
    if (!absl::StartsWith(failure.message, "the machine died")) continue;
    EXPECT_GE(failure.rank, 2);
  }
  expect_touched(power, "power_loss");
  for (const char* kind : {"full", "io_error"}) {
    const Outcome outcome = run(absl::StrCat("disk of node 1 at step 1: ", kind), two_disks());
    EXPECT_THAT(outcome.failure, HasSubstr(kind == std::string("full") ? "no space left on the disk"
                                                                       : "input/output error"));
    EXPECT_GE(outcome.failures.at(0).rank, 2);
    expect_touched(outcome, kind);
  }
  EXPECT_THAT(run("disk at file#3: torn").failure, HasSubstr("the machine died by a file fault"));
  const Outcome flipped = run("rank 2 every 1 file: bit_flip");
  EXPECT_THAT(flipped.failure, HasSubstr("rank 2 failed: the file has other bytes"));
  expect_touched(flipped, "bit_flip");
}

TEST(Faults, ChangeTheSpeedOfLinks) {
  for (const char* kind : {"slow(0.25)", "down for 1s", "flap(1ms) for 1s"}) {
    for (const char* link :
         {"nic of node 0", "nic of rank 1", "between node 0 and node 1", "node-link of rank 2"}) {
      const Outcome outcome = run(absl::StrCat("link ", link, " at collective#1: ", kind));
      EXPECT_EQ(outcome.failure, "") << link << " " << kind;
      expect_touched(outcome, kind);
    }
  }
}

TEST(Faults, NameTheRulesThatDidNotFire) {
  const Outcome outcome = run("rank 1 at collective#1000: crash");
  EXPECT_EQ(outcome.failure, "");
  ASSERT_THAT(outcome.faults, SizeIs(1));
  EXPECT_THAT(outcome.faults[0].unfired,
              HasSubstr(absl::StrCat("rank 1 came to collective ", kRounds, " times")));
}

TEST(Faults, MustStrikeWhereATestSaysSo) {
  const auto failure = [](const std::string& plan) {
    return run(plan, {.faults_must_strike = true}).failure;
  };
  EXPECT_EQ(failure("rank 1 at step 1: delay(1us)"), "");
  EXPECT_EQ(failure("rank 1 at step 1: crash if world >= 5"), "") << "it is for other clusters";
  EXPECT_THAT(failure("rank 1 at step 1: delay(1us); rank 1 at step 9: crash"),
              AllOf(StartsWith("a fault of the plan had no effect: \"rank 1 at step 9: crash\" did "
                               "not fire: rank 1 made 4 steps"),
                    HasSubstr("repeat with: ")));
  EXPECT_THAT(failure("rank 1 at op#0 of aten::mm: flip(gradient)"),
              AllOf(StartsWith("a fault of the plan had no effect"), HasSubstr("touched nothing")));
}

TEST(Faults, RefuseWhatTheClusterDoesNotHave) {
  for (const char* plan :
       {"rank 4 at start: crash", "node 2 at start: lost", "rank pp=0 at start: crash",
        "link nic 9 of node 0 at step 3: slow(0.25)"}) {
    EXPECT_THROW(run(plan), c10::ValueError) << plan;
  }
}

}  // namespace
}  // namespace accelerate::simulator
