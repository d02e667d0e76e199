// File faults in a whole cluster.
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/cleanup/cleanup.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// The error of a run; empty if it succeeds.
std::string failure_of(Cluster& cluster, const std::function<void(Rank&)>& body,
                       std::vector<RankFailure>* failures = nullptr) {
  try {
    cluster.run_on_every_rank(body);
  } catch (const ClusterError& error) {
    if (failures != nullptr) *failures = error.failures();
    return error.what();
  }
  return "";
}

void check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

// Each rank writes a file of its own, then a barrier, then rank 0 writes one for all.
void save(Rank& rank) {
  FileSystem& files = rank.runtime().files();
  auto group = rank.runtime().new_group({.name = "world"});
  const std::string own = "/sim/ckpt/rank" + std::to_string(rank.index());
  check(write_file(files, own, "part"));
  std::vector<at::Tensor> tensors{at::ones({1})};
  group->allreduce(tensors)->wait();
  if (rank.index() == 0) check(write_file(files, "/sim/ckpt/done", "all"));
  group->barrier()->wait();
}

std::string get(SimDisk& disk, const std::string& path) {
  const absl::StatusOr<std::string> contents = read_file(disk, path);
  return contents.ok() ? *contents : absl::StatusCodeToString(contents.status().code());
}

TEST(FileFaults, LeavesADiskToLaterRunsAndClusters) {
  auto disk = std::make_shared<SimDisk>();
  Cluster first("1x2", {.disk = disk});
  first.run_on_every_rank(save);
  EXPECT_THAT(*disk->list("/sim/ckpt"), ElementsAre("done", "rank0", "rank1"));
  EXPECT_GT(disk->operations(0), disk->operations(1));
  auto look = [](Rank& rank) {
    EXPECT_EQ(*read_file(rank.runtime().files(), "/sim/ckpt/done"), "all");
  };
  first.run_on_every_rank(look);
  EXPECT_EQ(disk->operations(0), 2);
  Cluster second("1x3", {.seed = 4, .disk = disk});
  second.run_on_every_rank(look);
}

TEST(FileFaults, SaysWhichRankWasKilledAndAtWhat) {
  auto disk = std::make_shared<SimDisk>();
  Cluster cluster("1x2", {.seed = 3,
                          .repeat_command = "repeat it",
                          .disk = disk,
                          .file_faults = {{.rank = 1, .operation = 5}}});
  std::vector<RankFailure> failures;
  const std::string what = failure_of(cluster, save, &failures);
  EXPECT_THAT(what, AllOf(HasSubstr("rank 1 was killed by a file fault at its operation 5: "),
                          HasSubstr(" /sim/ckpt/rank1"), HasSubstr("also failed: rank 0"),
                          HasSubstr("repeat it")));
  // The other rank lost its peer, and its error names the peer.
  ASSERT_THAT(failures, SizeIs(2));
  EXPECT_EQ(failures[1].rank, 0);
  EXPECT_THAT(failures[1].message, HasSubstr("rank 1: failed: rank 1 was killed by a file fault"));
  EXPECT_THAT(*disk->list("/sim/ckpt"), Not(::testing::Contains("done")));
  EXPECT_EQ(get(*disk, "/sim/ckpt/rank0"), "part");
  EXPECT_THAT(cluster.fired_file_faults(), SizeIs(1));
}

TEST(FileFaults, NamesTheFaultsInTheRepeatHint) {
  Cluster cluster("1x1", {.seed = 3,
                          .disk = std::make_shared<SimDisk>(),
                          .file_faults = {{.rank = 0, .operation = 1}}});
  const char* target = std::getenv("TEST_TARGET");
  const std::string what = failure_of(cluster, save);
  if (target == nullptr) {
    EXPECT_THAT(what, HasSubstr("simulator::Cluster(\"1x1\", {.seed = 3, .disk = disk, "
                                ".file_faults = {{.rank = 0, .operation = 1, .kind = "
                                "FileFaultKind::kRankDies}}})"));
  } else {
    EXPECT_THAT(what, HasSubstr(target));
  }
}

// Each run of the sweep must end, report the fault, and have done the operations that succeeded.
void sweep_one(uint64_t seed, const FileFault& fault, int* fired) {
  auto disk = std::make_shared<SimDisk>();
  Cluster cluster("1x2", {.seed = seed, .disk = disk, .file_faults = {fault}});
  const std::string what = failure_of(cluster, save);
  *fired += static_cast<int>(cluster.fired_file_faults().size());
  if (fault.kind != FileFaultKind::kDiskFull) {
    EXPECT_THAT(what, HasSubstr("by a file fault")) << fault.to_string();
  }
  const std::string done = get(*disk, "/sim/ckpt/done");
  EXPECT_THAT(done, ::testing::AnyOf("all", "NOT_FOUND")) << fault.to_string();
  if (what.empty()) {
    EXPECT_EQ(done, "all") << fault.to_string();
  }
  if (done != "all") return;
  EXPECT_EQ(get(*disk, "/sim/ckpt/rank0"), "part") << fault.to_string();
  EXPECT_EQ(get(*disk, "/sim/ckpt/rank1"), "part") << fault.to_string();
}

TEST(FileFaults, EndsEveryRunWhateverDiesWherever) {
  int runs = 0;
  int fired = 0;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    // The number of operations depends on the seed: the first rank makes the folder.
    auto sound = std::make_shared<SimDisk>();
    Cluster("1x2", {.seed = seed, .disk = sound}).run_on_every_rank(save);
    for (int rank = 0; rank < 2; ++rank) {
      for (int64_t operation = 0; operation < sound->operations(rank); ++operation) {
        for (FileFault fault : std::vector<FileFault>{
                 {.kind = FileFaultKind::kRankDies},
                 {.kind = FileFaultKind::kMachineDies},
                 {.kind = FileFaultKind::kMachineDies, .unsynced = Unsynced::kDrawn},
                 {.kind = FileFaultKind::kTornWrite, .unsynced = Unsynced::kKept},
                 {.kind = FileFaultKind::kDiskFull},
                 {.kind = FileFaultKind::kInputOutputError}}) {
          fault.rank = rank;
          fault.operation = operation;
          sweep_one(seed, fault, &fired);
          ++runs;
        }
      }
    }
  }
  EXPECT_GT(runs, 400);
  EXPECT_GT(fired, runs * 9 / 10);
  std::cout << runs << " runs, in " << fired << " of which the fault fired\n";
}

TEST(FileFaults, KillsAllRanksWithTheMachineEvenThoseThatWait) {
  auto disk = std::make_shared<SimDisk>();
  Cluster cluster(
      "1x3", {.disk = disk,
              .file_faults = {{.rank = 2, .operation = 0, .kind = FileFaultKind::kMachineDies}}});
  std::vector<RankFailure> failures;
  std::set<int> went_on;
  const std::string what = failure_of(
      cluster,
      [&](Rank& rank) {
        auto group = rank.runtime().new_group({.name = "world"});
        try {
          if (rank.index() == 0) group->barrier()->wait();
          if (rank.index() == 1) rank.runtime().store()->get("never");
          rank.runtime().sleep_for(absl::Seconds(1));
          check(rank.runtime().files().make_directories("/sim/lost"));
          went_on.insert(rank.index());
        } catch (...) {
        }
        // The rank stays dead, even if it catches the exception.
        EXPECT_THROW(rank.report("still", 1.0), RankKilled);
        EXPECT_THROW(rank.runtime().store()->set("still", "here"), RankKilled);
        EXPECT_THROW(group->barrier(), RankKilled);
        EXPECT_THROW(rank.runtime().new_group({.name = "again"}), RankKilled);
        EXPECT_THROW(rank.runtime().sleep_for(absl::Seconds(1)), RankKilled);
        EXPECT_TRUE(absl::IsAborted(write_file(rank.runtime().files(), "/sim/still", "here")));
        rank.runtime().now();
      },
      &failures);
  EXPECT_THAT(what, AllOf(HasSubstr("rank 2 failed: the machine died by a file fault at rank 2's "
                                    "operation 0: make_directories /sim/lost"),
                          HasSubstr("also failed: ranks 0-1")));
  EXPECT_THAT(failures, SizeIs(3));
  EXPECT_THAT(went_on, IsEmpty());
  EXPECT_THAT(*disk->list("/sim"), IsEmpty());
  EXPECT_LT(cluster.elapsed(), absl::Minutes(1));
}

TEST(FileFaults, StaysDeadThoughItsProgramEndsWell) {
  auto disk = std::make_shared<SimDisk>();
  Cluster cluster("1x2", {.disk = disk, .file_faults = {{.rank = 1, .operation = 0}}});
  std::vector<RankFailure> failures;
  const std::string what = failure_of(
      cluster,
      [](Rank& rank) {
        try {
          write_file(rank.runtime().files(), "/sim/" + std::to_string(rank.index()), "text")
              .IgnoreError();
        } catch (...) {
        }
      },
      &failures);
  EXPECT_THAT(what, HasSubstr("rank 1 was killed by a file fault"));
  EXPECT_THAT(failures, SizeIs(1));
  EXPECT_THAT(*disk->list("/sim"), ElementsAre("0"));
}

// Destructors clean up, for a rank that dies while its stack unwinds and for one that dies in a
// destructor.
TEST(FileFaults, LetsDestructorsOfTheDeadTryTheirFiles) {
  for (int64_t operation = 0; operation < 4; ++operation) {
    auto disk = std::make_shared<SimDisk>();
    Cluster cluster("1x1", {.disk = disk, .file_faults = {{.operation = operation}}});
    absl::Status cleaned;
    EXPECT_THAT(failure_of(cluster,
                           [&](Rank& rank) {
                             FileSystem& files = rank.runtime().files();
                             check(files.make_directories("/sim/a"));
                             {
                               const absl::Cleanup clean = [&] {
                                 cleaned = files.remove("/sim/a");
                                 rank.runtime().now();
                               };
                               check(files.sync_directory("/sim"));
                             }
                             check(files.sync_directory("/sim"));
                           }),
                HasSubstr("rank 0 was killed by a file fault at its operation " +
                          std::to_string(operation)));
    EXPECT_EQ(absl::IsAborted(cleaned), operation == 1 || operation == 2) << cleaned;
    EXPECT_EQ(*exists(*disk, "/sim/a"), operation == 1 || operation == 2);
  }
}

TEST(FileFaults, RepeatsARunByItsSeed) {
  auto run = [](uint64_t seed) {
    auto disk = std::make_shared<SimDisk>();
    Cluster cluster("1x3", {.seed = seed,
                            .repeat_command = "same",
                            .disk = disk,
                            .file_faults = {{.rank = 1,
                                             .operation = 9,
                                             .kind = FileFaultKind::kMachineDies,
                                             .unsynced = Unsynced::kDrawn}}});
    std::string story = failure_of(cluster, [](Rank& rank) {
      FileSystem& files = rank.runtime().files();
      for (int i = 0; i < 10; ++i) {
        const std::string path = "/sim/" + std::to_string(i) + "_" + std::to_string(rank.index());
        auto file = files.create(path);
        check(file.status());
        check((*file)->write_at(
            0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(path.data()), 4)));
      }
    });
    story.erase(story.find("simulated cluster"));  // names the seed
    for (const std::string& name : std::vector<std::string>(*disk->list("/sim"))) {
      story += name + "=" + get(*disk, "/sim/" + name) + "\n";
    }
    return story;
  };
  EXPECT_EQ(run(1), run(1));
  std::set<std::string> stories;
  for (uint64_t seed = 0; seed < 8; ++seed) stories.insert(run(seed));
  EXPECT_GT(stories.size(), 6);
}

TEST(FileFaults, DrawsTheOrderInWhichRanksReachTheDisk) {
  auto last_writer = [](uint64_t seed) {
    auto disk = std::make_shared<SimDisk>();
    Cluster cluster("1x3", {.seed = seed, .disk = disk});
    cluster.run_on_every_rank([](Rank& rank) {
      check(write_file(rank.runtime().files(), "/sim/file", std::to_string(rank.index())));
    });
    return get(*disk, "/sim/file");
  };
  std::set<std::string> writers;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    writers.insert(last_writer(seed));
    EXPECT_EQ(last_writer(seed), last_writer(seed));
  }
  EXPECT_THAT(writers, ElementsAre("0", "1", "2"));
}

TEST(FileFaults, TellsOfFaultsThatARankLivedThrough) {
  auto disk = std::make_shared<SimDisk>();
  ASSERT_TRUE(write_file(*disk, "/sim/file", "text").ok());
  Cluster cluster(
      "1x1", {.disk = disk, .file_faults = {{.operation = 1, .kind = FileFaultKind::kBitFlip}}});
  cluster.run_on_every_rank(
      [](Rank& rank) { EXPECT_NE(*read_file(rank.runtime().files(), "/sim/file"), "text"); });
  EXPECT_THAT(cluster.fired_file_faults(),
              ElementsAre(HasSubstr("at rank 0's operation 1: read_at /sim/file")));
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           if (*read_file(rank.runtime().files(), "/sim/file") != "text") {
                             throw std::runtime_error("checksum");
                           }
                         }),
              AllOf(HasSubstr("rank 0 failed: checksum"), HasSubstr("file faults: bit ")));
  // Later files of the same cluster, but for faults, are sound.
  EXPECT_EQ(get(*disk, "/sim/file"), "text");
}

TEST(FileFaults, RefusesFaultsThatCannotFire) {
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THROW(Cluster("1x2", {.disk = disk, .file_faults = {{.rank = 2}}}), c10::ValueError);
  EXPECT_THROW(Cluster("1x2", {.disk = disk, .file_faults = {{.operation = -1}}}), c10::ValueError);
  EXPECT_THROW(Cluster("1x2", {.file_faults = {{.rank = 1}}}), c10::ValueError);
}

}  // namespace
}  // namespace accelerate::simulator
