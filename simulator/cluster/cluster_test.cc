#include "simulator/cluster/cluster.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

Group world(Rank& rank) { return rank.runtime().new_group({.name = "world"}); }

c10::intrusive_ptr<c10d::Work> all_reduce(const Group& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return group->allreduce(tensors);
}

// The error of a failing run; the test fails if the run succeeds.
std::string failure_of(Cluster& cluster, const std::function<void(Rank&)>& body,
                       std::vector<RankFailure>* failures = nullptr) {
  try {
    cluster.run_on_every_rank(body);
  } catch (const ClusterError& error) {
    if (failures != nullptr) *failures = error.failures();
    return error.what();
  }
  ADD_FAILURE() << "the run did not fail";
  return "";
}

TEST(Cluster, SumsOverAllRanks) {
  Cluster cluster("2x4", {.seed = 3});
  cluster.run_on_every_rank([](Rank& rank) {
    at::Tensor value = at::full({3}, rank.index());
    all_reduce(world(rank), value)->wait();
    rank.report("sum", value);
  });
  for (const at::Tensor& sum : cluster.reports("sum")) EXPECT_EQ(sum[0].item<float>(), 28);
}

TEST(Cluster, GivesEachRankItsPlace) {
  Cluster cluster("2x3");
  cluster.run_on_every_rank([](Rank& rank) {
    EXPECT_EQ(&Runtime::current(), &rank.runtime());
    const Topology& topology = rank.runtime().topology();
    EXPECT_EQ(topology.rank, rank.index());
    EXPECT_EQ(topology.node_rank, rank.index() / 3);
    EXPECT_EQ(topology.local_rank, rank.index() % 3);
    EXPECT_EQ(rank.runtime().environment().get("WORLD_SIZE"), "6");
  });
}

TEST(Cluster, GivesEachRankItsOwnGenerator) {
  Cluster cluster("1x3", {.seed = 11});
  auto draw = [](Rank& rank) {
    at::manual_seed(rank.index() == 2 ? 5 : 4);
    at::Tensor first = at::rand({4});
    rank.runtime().sleep_for(absl::Seconds(1));  // The others draw in between.
    rank.report("drawn", at::stack({first, at::rand({4})}));
  };
  cluster.run_on_every_rank(draw);
  auto drawn = cluster.reports("drawn");
  EXPECT_TRUE(at::equal(drawn[0], drawn[1]));
  EXPECT_FALSE(at::equal(drawn[0], drawn[2]));
}

TEST(Cluster, KeepsVirtualTime) {
  Cluster cluster("1x2");
  cluster.run_on_every_rank([](Rank& rank) {
    const absl::Time start = rank.runtime().now();
    rank.runtime().sleep_for(absl::Hours(24) * (rank.index() + 1));
    EXPECT_EQ(rank.runtime().now() - start, absl::Hours(24) * (rank.index() + 1));
  });
  EXPECT_EQ(cluster.elapsed(), absl::Hours(48));
}

TEST(Cluster, KeepsSubgroupsApart) {
  Cluster cluster("2x2", {.seed = 9});
  cluster.run_on_every_rank([](Rank& rank) {
    const int index = rank.index();
    Group pair =
        rank.runtime().new_group({.ranks = index < 2 ? std::vector{0, 1} : std::vector{2, 3}});
    Group stripe =
        rank.runtime().new_group({.ranks = index % 2 ? std::vector{1, 3} : std::vector{0, 2}});
    at::Tensor in_pair = at::full({1}, index);
    at::Tensor in_stripe = at::full({1}, index);
    auto first = all_reduce(pair, in_pair);
    auto second = all_reduce(stripe, in_stripe);
    second->wait();
    first->wait();
    EXPECT_EQ(in_pair.item<float>(), index < 2 ? 1 : 5);
    EXPECT_EQ(in_stripe.item<float>(), index % 2 ? 4 : 2);
  });
}

TEST(Cluster, ReportsTheSameStallOnEveryRankAndForEverySeed) {
  std::string report;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Cluster cluster("1x4", {.seed = seed});
    std::vector<RankFailure> failures;
    std::string what = failure_of(
        cluster,
        [](Rank& rank) {
          Group group = world(rank);
          all_reduce(group, at::ones({4}))->wait();
          if (rank.index() == 2) return;  // Skips the second one.
          all_reduce(group, at::ones({4}))->wait();
        },
        &failures);
    EXPECT_THAT(what,
                AllOf(HasSubstr("no rank can make progress"),
                      HasSubstr("ranks 0-1, 3: in all_reduce #1 (sum, Float[4]) of group "
                                "\"world\", waiting for rank 2"),
                      HasSubstr("rank 2: ended normally"), HasSubstr("also failed: ranks 1, 3"),
                      HasSubstr("ACCELERATE_TEST_SEED=" + std::to_string(seed))));
    ASSERT_EQ(failures.size(), 3);
    for (const RankFailure& failure : failures) EXPECT_EQ(failure.message, failures[0].message);
    // Except for the seed in the headline, the report does not depend on the schedule.
    const std::string body = failures[0].message.substr(failures[0].message.find(": no rank"));
    if (seed == 0) report = body;
    EXPECT_EQ(body, report);
  }
}

// One report for all: made by each of them, it would copy every rank's log a thousand times.
TEST(Cluster, ReportsAStallOfAThousandRanks) {
  Cluster cluster("128x8", {.seed = 1});
  std::vector<RankFailure> failures;
  const std::string what = failure_of(
      cluster,
      [](Rank& rank) {
        const Group group = world(rank);
        if (rank.index() != 700) all_reduce(group, at::ones({4}))->wait();
      },
      &failures);
  EXPECT_THAT(what, AllOf(HasSubstr("ranks 0-699, 701-1023: in all_reduce #0 (sum, Float[4]) of "
                                    "group \"world\", waiting for rank 700"),
                          HasSubstr("rank 700: ended normally"),
                          HasSubstr("rank 700: ended normally, 1 operation behind")));
  ASSERT_EQ(failures.size(), 1023);
  for (const RankFailure& failure : failures) EXPECT_EQ(failure.message, failures[0].message);
}

TEST(Cluster, ReportsAMismatchOnEveryRank) {
  Cluster cluster("1x3", {.seed = 1});
  std::vector<RankFailure> failures;
  std::string what = failure_of(
      cluster,
      [](Rank& rank) { all_reduce(world(rank), at::ones({rank.index() == 1 ? 5 : 4}))->wait(); },
      &failures);
  EXPECT_THAT(what, AllOf(HasSubstr("collective mismatch in call #0 of group \"world\""),
                          HasSubstr("shape Float[4] against Float[5]"),
                          HasSubstr("ranks 0, 2: all_reduce #0 (sum, Float[4])"),
                          HasSubstr("rank 1: all_reduce #0 (sum, Float[5])")));
  EXPECT_EQ(failures.size(), 3);
}

// Gloo and NCCL would deliver bytes that mean something else, or wait for more for ever.
TEST(Cluster, ReportsAMessageThatDoesNotFit) {
  struct Case {
    int64_t count;
    at::ScalarType dtype;
    const char* expected;
  };
  for (const Case& each :
       {Case{4, at::kInt, "expected 4 of Int"}, Case{5, at::kFloat, "expected 5 of Float"}}) {
    for (const char* spec : {"1x2", "1x2:h100"}) {
      for (const bool from_anyone : {false, true}) {
        Cluster cluster(spec, {.seed = 4});
        std::vector<RankFailure> failures;
        const std::string what = failure_of(
            cluster,
            [&](Rank& rank) {
              Group group = world(rank);
              const auto options = at::TensorOptions(rank.runtime().device());
              if (rank.index() == 0) {
                std::vector<at::Tensor> sent{at::ones({4}, options)};
                group->send(sent, 1, 3)->wait();
                return;
              }
              std::vector<at::Tensor> received{at::zeros({each.count}, options.dtype(each.dtype))};
              auto work =
                  from_anyone ? group->recvAnysource(received, 3) : group->recv(received, 0, 3);
              work->wait();
            },
            &failures);
        EXPECT_THAT(what, AllOf(HasSubstr("message mismatch in group \"world\""),
                                HasSubstr("sent 4 elements of Float"), HasSubstr(each.expected),
                                HasSubstr("rank 0: send to 1, tag 3"), HasSubstr("rank 1: recv")))
            << spec;
        EXPECT_EQ(failures.size(), 2) << spec;
      }
    }
  }
}

TEST(Cluster, NamesTheRankThatThrewFirst) {
  Cluster cluster("2x2", {.seed = 5});
  std::vector<RankFailure> failures;
  std::string what = failure_of(
      cluster,
      [](Rank& rank) {
        Group group = world(rank);
        if (rank.index() == 3) throw std::runtime_error("out of patience");
        group->barrier()->wait();
      },
      &failures);
  EXPECT_THAT(what, AllOf(HasSubstr("rank 3 failed: out of patience"),
                          HasSubstr("also failed: ranks 0-2")));
  ASSERT_EQ(failures.size(), 4);
  EXPECT_THAT(failures[1].message, HasSubstr("rank 3: failed: out of patience"));
}

TEST(Cluster, NoticesACollectiveThatNobodyWaitedFor) {
  Cluster cluster("1x2");
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           Group group = world(rank);
                           if (rank.index() == 0) all_reduce(group, at::ones({2}));
                         }),
              HasSubstr("never completed: rank 0 left in all_reduce #0"));
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) { all_reduce(world(rank), at::ones({rank.index() + 1})); }),
              HasSubstr("collective mismatch"));
}

TEST(Cluster, FailsEverythingLaterInAFailedGroupAtOnce) {
  Cluster cluster("1x2");
  cluster.run_on_every_rank([](Rank& rank) {
    Group group = world(rank);
    EXPECT_THROW(all_reduce(group, at::ones({rank.index() + 1}))->wait(), c10::DistBackendError);
    EXPECT_THROW(all_reduce(group, at::ones({1})), c10::DistBackendError);
    // A new group works, also under the same name.
    at::Tensor value = at::ones({1});
    all_reduce(world(rank), value)->wait();
    EXPECT_EQ(value.item<float>(), 2);
  });
}

TEST(Cluster, TimesOutInVirtualTimeNamingWhoIsMissing) {
  Cluster cluster("1x3");
  std::string what = failure_of(cluster, [](Rank& rank) {
    Group group = rank.runtime().new_group({.name = "world", .timeout = absl::Seconds(30)});
    if (rank.index() == 1) rank.runtime().sleep_for(absl::Minutes(2));
    all_reduce(group, at::ones({1}))->wait();
  });
  EXPECT_THAT(what, AllOf(HasSubstr("timed out after 30s"), HasSubstr("waiting for rank 1")));
  EXPECT_EQ(cluster.elapsed(), absl::Minutes(2));
}

TEST(Cluster, SharesAStore) {
  Cluster cluster("1x3", {.seed = 2});
  cluster.run_on_every_rank([](Rank& rank) {
    auto store = rank.runtime().store();
    if (rank.index() == 2) store->set("greeting", "hello");
    EXPECT_EQ(store->get_to_str("greeting"), "hello");
    store->add("count", rank.index());
    if (store->add("arrived", 1) == 3) store->set("all", "1");
    store->wait({"all"});
    EXPECT_EQ(store->add("count", 0), 3);
    EXPECT_THROW(store->wait({"never"}, std::chrono::milliseconds(100)), c10::DistStoreError);
  });
  EXPECT_EQ(cluster.elapsed(), absl::Milliseconds(100));
}

TEST(Cluster, ReportsAStoreWaitThatNobodyCanEnd) {
  Cluster cluster("1x2");
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           if (rank.index() == 0) rank.runtime().store()->get("missing");
                         }),
              HasSubstr("rank 0: in store wait for \"missing\""));
}

TEST(Cluster, NoticesAMessageThatNobodyTook) {
  Cluster cluster("1x2");
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           Group group = world(rank);
                           std::vector<at::Tensor> tensors{at::ones({1})};
                           if (rank.index() == 0) group->send(tensors, 1, 4);
                         }),
              HasSubstr("rank 0 left in send to 1, tag 4 (Float[1])"));
}

// The waiting list of a key must not wake a rank that has given up on the key.
TEST(Cluster, SleepsItsFullTimeAfterAStoreTimeOut) {
  Cluster cluster("1x2");
  cluster.run_on_every_rank([](Rank& rank) {
    auto store = rank.runtime().store();
    if (rank.index() == 1) {
      rank.runtime().sleep_for(absl::Seconds(5));
      store->set("late", "1");
      return;
    }
    EXPECT_THROW(store->wait({"late"}, std::chrono::seconds(1)), c10::DistStoreError);
    const absl::Time start = rank.runtime().now();
    rank.runtime().sleep_for(absl::Seconds(100));
    EXPECT_EQ(rank.runtime().now() - start, absl::Seconds(100));
  });
}

// Before the wait a program may write nowhere in a result, and nowhere in an input.
TEST(Cluster, FindsWhatIsWrittenAnywhereInTensorsOfACollective) {
  for (const at::ScalarType dtype : {at::kByte, at::kLong, at::kHalf, at::kBFloat16, at::kFloat,
                                     at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    for (const int64_t place : {0, 2, 4}) {
      Cluster cluster("1x2", {.seed = 8});
      EXPECT_THAT(failure_of(cluster,
                             [&](Rank& rank) {
                               const at::Tensor value = at::ones({5}, dtype);
                               const auto work = all_reduce(world(rank), value);
                               if (rank.index() == 1) value[place].fill_(3);
                               work->wait();
                             }),
                  HasSubstr("rank 1 wrote to the result of all_reduce #0"))
          << dtype << " " << place;
      EXPECT_THAT(failure_of(cluster,
                             [&](Rank& rank) {
                               at::Tensor own = at::ones({5}, dtype), all = at::ones({10}, dtype);
                               const auto work = world(rank)->_allgather_base(all, own);
                               if (rank.index() == 0) own[place].fill_(3);
                               work->wait();
                             }),
                  HasSubstr("rank 0 changed the input of all_gather"))
          << dtype << " " << place;
    }
  }
}

TEST(Cluster, ResultsOfEveryFloatingDtypeReadAsNanUntilTheWait) {
  Cluster cluster("1x2");
  cluster.run_on_every_rank([](Rank& rank) {
    const Group group = world(rank);
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble,
                                       at::kComplexFloat, at::kComplexDouble}) {
      const at::Tensor value = at::ones({3}, dtype);
      const auto work = all_reduce(group, value);
      EXPECT_TRUE(value.isnan().all().item<bool>()) << dtype;
      work->wait();
      EXPECT_TRUE(value.eq(2).all().item<bool>()) << dtype;
    }
  });
}

// As c10d's backends, which copy the list before they reduce it.
TEST(Cluster, ReducesAndScattersIntoAnotherRanksPartOfTheInput) {
  for (const char* spec : {"1x3", "1x3:h100"}) {
    for (const bool detect_races : {false, true}) {
      Cluster cluster(spec, {.seed = 2, .detect_races = detect_races});
      cluster.run_on_every_rank([&](Rank& rank) {
        std::vector<std::vector<at::Tensor>> inputs(1);
        for (int part = 0; part < 3; ++part) {
          inputs[0].push_back(at::full({4}, 10.0 * (rank.index() + 1) + part,
                                       at::TensorOptions(rank.runtime().device())));
        }
        std::vector<at::Tensor> outputs{inputs[0][(rank.index() + 1) % 3]};
        world(rank)->reduce_scatter(outputs, inputs)->wait();
        const at::Tensor sum = outputs[0].cpu();
        EXPECT_TRUE(sum.eq(60 + 3 * rank.index()).all().item<bool>()) << spec << " " << sum;
      });
    }
  }
}

TEST(Cluster, LetsARankPollUntilOthersHaveCome) {
  Cluster cluster("1x3", {.seed = 6});
  cluster.run_on_every_rank([](Rank& rank) {
    at::Tensor value = at::ones({1});
    auto store = rank.runtime().store();
    if (rank.index() == 2) rank.runtime().sleep_for(absl::Seconds(1));
    auto work = all_reduce(world(rank), value);
    while (!work->isCompleted()) {
    }
    EXPECT_EQ(value.item<float>(), 3);
    if (rank.index() == 2) store->set("done", "1");
    while (!store->check({"done"})) {
    }
  });
}

TEST(Cluster, TimesOutARankThatPollsForOneThatNeverComes) {
  Cluster cluster("1x2");
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           Group group = rank.runtime().new_group(
                               {.name = "world", .timeout = absl::Seconds(10)});
                           if (rank.index() == 1) return;
                           auto work = all_reduce(group, at::ones({1}));
                           while (!work->isCompleted()) {
                           }
                           EXPECT_NE(work->exception(), nullptr);
                           work->wait();
                         }),
              AllOf(HasSubstr("timed out after 10s"), HasSubstr("waiting for rank 1")));
}

TEST(Cluster, FailsAGroupThatARankAborts) {
  Cluster cluster("1x2");
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           Group group = world(rank);
                           if (rank.index() == 0) return all_reduce(group, at::ones({1}))->abort();
                           all_reduce(group, at::ones({1}))->wait();
                         }),
              HasSubstr("aborted by rank 0"));
}

// Real backends use the memory order of elements, not the shape.
TEST(Cluster, MovesMemoryWhateverItsFormat) {
  Cluster cluster("1x2");
  cluster.run_on_every_rank([](Rank& rank) {
    Group group = world(rank);
    at::Tensor image =
        at::arange(24, at::kFloat).view({1, 2, 3, 4}).contiguous(at::MemoryFormat::ChannelsLast);
    std::vector<at::Tensor> tensors{rank.index() == 0 ? image : at::zeros({24})};
    (rank.index() == 0 ? group->send(tensors, 1, 0) : group->recv(tensors, 0, 0))->wait();
    if (rank.index() == 1) {
      EXPECT_TRUE(at::equal(tensors[0], image.as_strided({24}, {1})));
    }
  });
}

TEST(Cluster, RunsAloneInItsProcess) {
  Cluster cluster("1x1");
  cluster.run_on_every_rank([](Rank&) {
    Cluster inner("1x1");
    EXPECT_THROW(inner.run_on_every_rank([](Rank&) {}), c10::Error);
  });
}

TEST(Cluster, RefusesToUseWhatOutlivedTheRun) {
  Cluster cluster("1x1");
  Group group;
  c10::intrusive_ptr<c10d::Store> store;
  cluster.run_on_every_rank([&](Rank& rank) {
    group = world(rank);
    store = rank.runtime().store();
  });
  EXPECT_THROW(all_reduce(group, at::ones({1})), c10::Error);
  EXPECT_THROW(store->set("key", "value"), c10::Error);
}

TEST(Cluster, RefusesABadTopology) { EXPECT_THROW(Cluster("2y4"), c10::ValueError); }

TEST(Cluster, ReportsOnlyWhatWasReported) {
  Cluster cluster("1x2");
  cluster.run_on_every_rank([](Rank& rank) {
    if (rank.index() == 0) rank.report("loss", 1.5);
  });
  EXPECT_THROW(cluster.reports("loss"), c10::ValueError);
}

}  // namespace
}  // namespace accelerate::simulator
