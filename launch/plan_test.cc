#include "launch/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Rendezvous kRendezvous = {.port = 4711, .listen_fd = 7};

TEST(PlanRanks, GivesTheSocketToRankZeroOnly) {
  std::vector<ProcessPlan> plans =
      plan_ranks({.num_processes = 2, .command = {"train", "--lr", "1"}}, {}, kRendezvous);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(to_text(plans[0]),
            "argv: train --lr 1\n"
            "set ACCELERATE_STORE_LISTEN_FD=7\n"
            "set GROUP_RANK=0\n"
            "set LOCAL_RANK=0\n"
            "set LOCAL_WORLD_SIZE=2\n"
            "set MASTER_ADDR=127.0.0.1\n"
            "set MASTER_PORT=4711\n"
            "set OMP_NUM_THREADS=1\n"
            "set RANK=0\n"
            "set WORLD_SIZE=2\n"
            "unset ACCELERATE_SIMULATE\n"
            "unset ACCELERATE_SIMULATE_SEED\n"
            "keep fd 7\n");
  EXPECT_EQ(to_text(plans[1]),
            "argv: train --lr 1\n"
            "set GROUP_RANK=0\n"
            "set LOCAL_RANK=1\n"
            "set LOCAL_WORLD_SIZE=2\n"
            "set MASTER_ADDR=127.0.0.1\n"
            "set MASTER_PORT=4711\n"
            "set OMP_NUM_THREADS=1\n"
            "set RANK=1\n"
            "set WORLD_SIZE=2\n"
            "unset ACCELERATE_SIMULATE\n"
            "unset ACCELERATE_SIMULATE_SEED\n"
            "unset ACCELERATE_STORE_LISTEN_FD\n");
}

TEST(PlanRanks, LimitsThreadsOnlyWhenRanksShareAndNobodySaidOtherwise) {
  const LocalRun two = {.num_processes = 2, .command = {"train"}};
  const LocalRun one = {.num_processes = 1, .command = {"train"}};
  EXPECT_THAT(to_text(plan_ranks(two, {"OMP_NUM_THREADS="}, kRendezvous)[0]),
              HasSubstr("set OMP_NUM_THREADS=1\n"));
  EXPECT_THAT(to_text(plan_ranks(two, {"OMP_NUM_THREADS=8"}, kRendezvous)[0]),
              Not(HasSubstr("OMP_NUM_THREADS")));
  EXPECT_THAT(to_text(plan_ranks(two, {"OMP_NUM_THREADS_X=8"}, kRendezvous)[0]),
              HasSubstr("set OMP_NUM_THREADS=1\n"));
  EXPECT_THAT(to_text(plan_ranks(one, {}, kRendezvous)[0]), Not(HasSubstr("OMP_NUM_THREADS")));
}

TEST(PlanSimulation, RemovesWhatAnOuterRunSaidAboutRanks) {
  EXPECT_EQ(to_text(plan_simulation({.simulate = "2x4:h100",
                                     .simulate_seed = "9",
                                     .report = "out",
                                     .command = {"train", "x"}})),
            "argv: train x\n"
            "set ACCELERATE_SIMULATE=2x4:h100\n"
            "set ACCELERATE_SIMULATE_REPORT=out\n"
            "set ACCELERATE_SIMULATE_SEED=9\n"
            "unset ACCELERATE_STORE_LISTEN_FD\n"
            "unset GROUP_RANK\n"
            "unset LOCAL_RANK\n"
            "unset LOCAL_WORLD_SIZE\n"
            "unset MASTER_ADDR\n"
            "unset MASTER_PORT\n"
            "unset RANK\n"
            "unset WORLD_SIZE\n");
}

TEST(PlanSimulation, KeepsTheEnvironmentsSeedWhenNoneIsGiven) {
  EXPECT_THAT(to_text(plan_simulation({.simulate = "2x4", .command = {"train"}})),
              Not(HasSubstr("SEED")));
}

TEST(ApplyOverlay, ReplacesAddsAndRemoves) {
  EXPECT_THAT(apply_overlay({"A=1", "B=2", "A=3", "AB=4", "broken"},
                            {{"A", "9"}, {"B", std::nullopt}, {"C", "5"}}),
              ElementsAre("AB=4", "broken", "A=9", "C=5"));
}

}  // namespace
}  // namespace accelerate::launch
