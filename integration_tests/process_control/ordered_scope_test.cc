// main_process_first and local_main_process_first: who goes first, and what an exception does.
#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

// How a test enters the scope.
struct Way {
  const char* name;
  bool local;
  bool run;
};

constexpr Way kWays[] = {{"main_process_first", false, false},
                         {"main_process_first", false, true},
                         {"local_main_process_first", true, false},
                         {"local_main_process_first", true, true}};

template <typename Body>
void enter(const Way& way, const Accelerator& accelerator, const Body& body) {
  if (way.run && way.local) return accelerator.local_main_process_first(body);
  if (way.run) return accelerator.main_process_first(body);
  if (way.local) {
    auto scope = accelerator.local_main_process_first();
    return body();
  }
  auto scope = accelerator.main_process_first();
  body();
}

TOPOLOGY_SUITE(OrderedScope, .also = {"2x3"});

TEST_P(OrderedScope, FirstRanksAreThroughBeforeOthersEnter) {
  for (const Way& way : kWays) {
    for (const uint64_t seed : simulator::kSeeds) {
      Cluster cluster = make_cluster({.seed = seed});
      const auto ranks = static_cast<size_t>(world_size());
      std::vector<int> through;
      std::vector<int> entered_early;
      int inside_at_end = 0;
      cluster.run_on_every_rank([&](Rank& rank) {
        Accelerator accelerator;
        const bool first = way.local ? accelerator.is_local_main_process() : rank.index() == 0;
        const auto firsts = static_cast<size_t>(way.local ? cluster.spec().num_nodes : 1);
        enter(way, accelerator, [&] {
          if (!first && through.size() < firsts) entered_early.push_back(rank.index());
          rank.runtime().sleep_for(absl::Milliseconds(10 * (1 + rank.index())));
          through.push_back(rank.index());
        });
        if (through.size() < ranks) ++inside_at_end;
      });
      EXPECT_TRUE(entered_early.empty());
      EXPECT_EQ(inside_at_end, 0) << "the scope ends when all are through";
      EXPECT_EQ(through.size(), ranks);
    }
  }
}

TEST_P(OrderedScope, GivesBackWhatTheBodyReturns) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    EXPECT_EQ(accelerator.main_process_first([&] { return rank.index() + 40; }), rank.index() + 40);
    EXPECT_EQ(*accelerator.local_main_process_first([] { return std::make_unique<int>(3); }), 3);
  });
}

// The text of each rank's error, by rank; all catch theirs and go on together afterwards.
std::map<int, std::string> errors_when(const Way& way, const std::vector<int>& culprits,
                                       uint64_t seed) {
  std::map<int, std::string> errors;
  Cluster cluster = simulator::TopologyTest::make_cluster({.seed = seed});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    try {
      enter(way, accelerator, [&] {
        if (std::ranges::count(culprits, rank.index()) > 0) {
          throw std::runtime_error(absl::StrCat("disk full on ", rank.index()));
        }
      });
    } catch (const c10::DistBackendError& error) {
      errors[rank.index()] = error.what_without_backtrace();
    } catch (const std::runtime_error& error) {
      errors[rank.index()] = error.what();
    }
    accelerator.wait_for_everyone();
    const at::Tensor one = at::ones({1}, at::device(accelerator.device()));
    EXPECT_EQ(accelerator.reduce(one).item<float>(), accelerator.num_processes())
        << "ranks stay in step";
  });
  return errors;
}

TEST_P(OrderedScope, AnExceptionReachesEveryRankAndNamesItsOwn) {
  for (const Way& way : kWays) {
    for (int culprit = 0; culprit < world_size(); ++culprit) {
      for (const uint64_t seed : simulator::kSeeds) {
        const std::map<int, std::string> errors = errors_when(way, {culprit}, seed);
        for (int rank = 0; rank < world_size(); ++rank) {
          ASSERT_TRUE(errors.contains(rank)) << way.name << " " << rank << " of " << culprit;
          if (rank == culprit) {
            EXPECT_EQ(errors.at(rank), absl::StrCat("disk full on ", culprit));
          } else if (way.run) {
            EXPECT_EQ(errors.at(rank), absl::StrCat("rank ", culprit, " left ", way.name,
                                                    " by an error: disk full on ", culprit));
          } else {
            EXPECT_EQ(errors.at(rank),
                      absl::StrCat("rank ", culprit, " left ", way.name, " by an exception"));
          }
        }
      }
    }
  }
}

TOPOLOGY_SUITE(SeveralExceptions, .also = {"1x3"}, .min_ranks = 2);

TEST_P(SeveralExceptions, LeaveEachRankItsOwn) {
  for (const Way& way : kWays) {
    // Rank 1 and the last one.
    const int last = world_size() - 1;
    const std::map<int, std::string> errors = errors_when(way, {1, last}, 5);
    for (int rank = 0; rank <= last; ++rank) {
      const std::string own = absl::StrCat("disk full on ", rank);
      EXPECT_THAT(errors.at(rank), HasSubstr(rank == 1 || rank == last ? own : "rank 1 left"));
    }
  }
}

TEST_P(OrderedScope, ScopesNestAndFollowEachOther) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    for (int i = 0; i < 3; ++i) {
      auto outer = accelerator.main_process_first();
    }
    const at::Tensor one = at::ones({1}, at::device(accelerator.device()));
    EXPECT_EQ(accelerator.reduce(one).item<float>(), accelerator.num_processes());
  });
}

TEST_P(SeveralExceptions, NameARankThatNeverComes) {
  Cluster cluster = make_cluster();
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      Accelerator accelerator;
      if (rank.index() == 1) return;
      auto scope = accelerator.main_process_first();
    });
    FAIL() << "no error";
  } catch (const ClusterError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  }
}

// One shape: a rank that is alone.
TEST(OneRank, NeedsNobody) {
  Cluster("1x1").run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    {
      auto scope = accelerator.main_process_first();
    }
    EXPECT_THROW(accelerator.local_main_process_first([] { throw std::runtime_error("own"); }),
                 std::runtime_error);
  });
}

}  // namespace
}  // namespace accelerate
