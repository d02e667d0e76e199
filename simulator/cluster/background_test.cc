// Background steps on simulated ranks.
#include <set>

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Task = std::unique_ptr<BackgroundTask>;

std::string failure_of(Cluster& cluster, const std::function<void(Rank&)>& body) {
  try {
    cluster.run_on_every_rank(body);
  } catch (const ClusterError& error) {
    return error.what();
  }
  return "";
}

// The training step, counted in collectives, at which each step of a task ran.
std::vector<int> moments(uint64_t seed) {
  std::vector<int> moments;
  Cluster cluster("1x2", {.seed = seed, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    auto group = rank.runtime().new_group({.name = "world"});
    int collective = 0;
    Task task;
    if (rank.index() == 0) {
      task = rank.runtime().start_background([&, steps = 0]() mutable {
        moments.push_back(collective);
        auto written = write_file(rank.runtime().files(), "/sim/file", std::to_string(steps));
        EXPECT_TRUE(written.ok());
        return ++steps == 5;
      });
    }
    for (; collective < 100; ++collective) {
      std::vector<at::Tensor> tensors{at::ones({1})};
      group->allreduce(tensors)->wait();
    }
    if (task) task->wait();
  });
  return moments;
}

TEST(Background, RunsAtMomentsDrawnFromTheSeed) {
  std::set<std::vector<int>> seen;
  int early = 0;
  int late = 0;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const std::vector<int> drawn = moments(seed);
    EXPECT_EQ(drawn.size(), 5);
    EXPECT_EQ(drawn, moments(seed)) << "seed " << seed;
    seen.insert(drawn);
    if (drawn.back() < 20) ++early;
    if (drawn.back() == 100) ++late;
  }
  EXPECT_GT(seen.size(), 18);
  EXPECT_GT(early, 0) << "done soon";
  EXPECT_GT(late, 0) << "done by wait()";
}

TEST(Background, DoesNotRunUntilSomethingIsAsked) {
  Cluster cluster("1x1");
  cluster.run_on_every_rank([](Rank& rank) {
    bool ran = false;
    Task task = rank.runtime().start_background([&] { return ran = true; });
    at::ones({4}).sum();
    EXPECT_FALSE(ran);
    task->wait();
    EXPECT_TRUE(ran);
    EXPECT_TRUE(task->is_done());
    task->wait();
  });
}

TEST(Background, LetsStepsOfSeveralRanksWaitForEachOther) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    auto disk = std::make_shared<SimDisk>();
    Cluster cluster("1x3", {.seed = seed, .disk = disk});
    cluster.run_on_every_rank([](Rank& rank) {
      Runtime& runtime = rank.runtime();
      Task task = runtime.start_background([&, wrote = false]() mutable {
        const std::string own = std::to_string(rank.index());
        if (!wrote) {
          EXPECT_TRUE(write_file(runtime.files(), "/sim/" + own, "part").ok());
          runtime.store()->set("wrote" + own, "1");
          wrote = true;
        }
        if (rank.index() != 0) return true;
        if (!runtime.store()->check({"wrote0", "wrote1", "wrote2"})) return false;
        EXPECT_TRUE(write_file(runtime.files(), "/sim/done", "all").ok());
        return true;
      });
      if (rank.index() == 2) runtime.sleep_for(absl::Seconds(20));
      task->wait();
    });
    EXPECT_THAT(*disk->list("/sim"), ElementsAre("0", "1", "2", "done"));
    EXPECT_LT(cluster.elapsed(), absl::Minutes(1));
  }
}

TEST(Background, NeverRunsAStepWithinAStep) {
  Cluster cluster("1x1", {.seed = 2, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank& rank) {
    Runtime& runtime = rank.runtime();
    int depth = 0;
    int steps = 0;
    auto step = [&] {
      EXPECT_EQ(++depth, 1);
      EXPECT_TRUE(write_file(runtime.files(), "/sim/file", "text").ok());
      runtime.store()->set("key", "value");
      runtime.now();
      --depth;
      return ++steps % 50 == 0;
    };
    Task first = runtime.start_background(step);
    Task second = runtime.start_background(step);
    for (int i = 0; i < 100; ++i) runtime.files().list("/sim").IgnoreError();
    first->wait();
    second->wait();
    EXPECT_GE(steps, 51);
  });
}

TEST(Background, ThrowsOnceWhatAStepThrew) {
  Cluster cluster("1x1");
  cluster.run_on_every_rank([](Rank& rank) {
    Task task =
        rank.runtime().start_background([]() -> bool { throw std::runtime_error("disk full"); });
    for (int i = 0; i < 1000; ++i) rank.runtime().now();
    EXPECT_TRUE(task->is_done());
    EXPECT_THROW(task->wait(), std::runtime_error);
    task->wait();
  });
}

TEST(Background, IsFinishedByItsDestructorAndByTheRanksEnd) {
  struct Keeper {
    Task task;
  };
  int steps = 0;
  Cluster cluster("1x1");
  cluster.run_on_every_rank([&](Rank& rank) {
    auto three = [&] { return ++steps % 3 == 0; };
    rank.runtime().start_background(three);
    EXPECT_EQ(steps, 3);
    rank.runtime().shared<Keeper>(
        [&] { return new Keeper{rank.runtime().start_background(three)}; });
  });
  EXPECT_EQ(steps, 6);
}

TEST(Background, IsFinishedWhereTheRankFails) {
  int steps = 0;
  Cluster cluster("1x1");
  EXPECT_THAT(failure_of(cluster,
                         [&](Rank& rank) {
                           Task task =
                               rank.runtime().start_background([&] { return ++steps == 3; });
                           throw std::runtime_error("its own");
                         }),
              HasSubstr("its own"));
  EXPECT_EQ(steps, 3);
}

TEST(Background, LetsWhoeverAsksAgainAndAgainComeToAnEnd) {
  Cluster cluster("1x2");
  cluster.run_on_every_rank([](Rank& rank) {
    Runtime& runtime = rank.runtime();
    if (rank.index() == 1) {
      runtime.sleep_for(absl::Seconds(2));
      runtime.store()->set("go", "1");
      return;
    }
    Task task = runtime.start_background([&] { return runtime.store()->check({"go"}); });
    while (!task->is_done()) {
    }
  });
}

// A step that waits for a rank that has ended fails with the report of a stall.
TEST(Background, EndsWhereTheOtherRankIsGone) {
  auto disk = std::make_shared<SimDisk>();
  Cluster cluster("1x2", {.disk = disk, .file_faults = {{.rank = 1, .operation = 2}}});
  const std::string what = failure_of(cluster, [](Rank& rank) {
    Runtime& runtime = rank.runtime();
    Task task = runtime.start_background([&, wrote = false]() mutable {
      if (!wrote) {
        wrote = true;
        const std::string own = std::to_string(rank.index());
        if (!write_file(runtime.files(), "/sim/" + own, "part").ok()) return false;
        runtime.store()->set(own, "1");
      }
      return runtime.store()->check({"0", "1"});
    });
    task->wait();
  });
  EXPECT_THAT(what, ::testing::AllOf(HasSubstr("rank 1 failed: rank 1 was killed by a file fault "
                                               "at its operation 2"),
                                     HasSubstr("also failed: rank 0")));
}

// The rank dies with its step: no other step runs, and the rank does not get far.
TEST(Background, DiesWithItsStep) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    auto disk = std::make_shared<SimDisk>();
    Cluster cluster("1x1", {.seed = seed, .disk = disk, .file_faults = {{.operation = 3}}});
    bool survived = false;
    int steps = 0;
    const std::string what = failure_of(cluster, [&](Rank& rank) {
      Task task = rank.runtime().start_background([&] {
        ++steps;
        return write_file(rank.runtime().files(), "/sim/file", "text").ok();
      });
      for (int i = 0; i < 2000; ++i) {
        rank.runtime().now();
        rank.runtime().store()->set("key", "value");
      }
      survived = true;
    });
    EXPECT_THAT(what, HasSubstr("rank 0 was killed by a file fault at its operation 3"));
    EXPECT_FALSE(survived);
    EXPECT_EQ(steps, 1);
  }
}

TEST(Background, LeavesTheRanksOwnRandomNumbersAlone) {
  auto drawn = [](bool background) {
    Cluster cluster("1x1", {.seed = 5});
    uint64_t bits = 0;
    cluster.run_on_every_rank([&](Rank& rank) {
      Task task;
      if (background) {
        task = rank.runtime().start_background([steps = 0]() mutable { return ++steps == 3; });
      }
      for (int i = 0; i < 50; ++i) rank.runtime().now();
      bits = rank.runtime().random_bits();
    });
    return bits;
  };
  EXPECT_EQ(drawn(true), drawn(false));
}

}  // namespace
}  // namespace accelerate::simulator
