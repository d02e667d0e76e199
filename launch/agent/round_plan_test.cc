#include "launch/agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace accelerate::launcher::agent {

using supervise::RankStart;
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

Round second_of_two() {
  return {.number = 3,
          .group_rank = 1,
          .group_count = 2,
          .first_rank = 4,
          .world_size = 6,
          .master_addr = "10.0.0.1",
          .master_port = 4000,
          .restarts = 2};
}

TEST(RoundPlan, SaysToEachRankWhereItIs) {
  AgentOptions options = {.command = {"train", "-x"},
                          .environment = {{"MINE", "1"}, {"RANK", "99"}, {"GONE", std::nullopt}},
                          .processes_per_node = 2,
                          .max_restarts = 5,
                          .role = "trainer"};
  const std::vector<RankStart> ranks = plan_round(options, second_of_two(), 7, "");
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].rank, 4);
  EXPECT_THAT(ranks[0].plan.inherited_fds, IsEmpty()) << "the store is with rank 0 of the run";
  EXPECT_EQ(ranks[0].plan.environment.at("ACCELERATE_STORE_LISTEN_FD"), std::nullopt);
  EXPECT_EQ(ranks[1].rank, 5);
  EXPECT_EQ(ranks[1].local_rank, 1);
  EXPECT_THAT(ranks[1].plan.argv, ElementsAre("train", "-x"));
  EXPECT_EQ(process::to_text(ranks[1].plan),
            "argv: train -x\n"
            "set GROUP_RANK=1\n"
            "set GROUP_WORLD_SIZE=2\n"
            "set LOCAL_RANK=1\n"
            "set LOCAL_WORLD_SIZE=2\n"
            "set MASTER_ADDR=10.0.0.1\n"
            "set MASTER_PORT=4000\n"
            "set MINE=1\n"
            "set RANK=5\n"
            "set ROLE_NAME=trainer\n"
            "set ROLE_RANK=5\n"
            "set ROLE_WORLD_SIZE=6\n"
            "set TORCHELASTIC_MAX_RESTARTS=5\n"
            "set TORCHELASTIC_RESTART_COUNT=2\n"
            "set TORCHELASTIC_RUN_ID=none\n"
            "set TORCHELASTIC_USE_AGENT_STORE=False\n"
            "set WORLD_SIZE=6\n"
            "unset ACCELERATE_SIMULATE\n"
            "unset ACCELERATE_SIMULATE_FOLD\n"
            "unset ACCELERATE_SIMULATE_NUMERICS\n"
            "unset ACCELERATE_SIMULATE_SEED\n"
            "unset ACCELERATE_SIMULATE_UNKNOWN_VALUES\n"
            "unset ACCELERATE_STORE_LISTEN_FD\n"
            "unset GONE\n");
}

TEST(RoundPlan, GivesTheStoreToRankZeroOnly) {
  const AgentOptions options = {.command = {"train"}, .processes_per_node = 2};
  Round round = {.world_size = 2, .master_addr = "a", .master_port = 1};
  const std::vector<RankStart> ranks = plan_round(options, round, 7, "");
  EXPECT_THAT(ranks[0].plan.inherited_fds, ElementsAre(7));
  EXPECT_THAT(ranks[0].plan.environment.at("ACCELERATE_STORE_LISTEN_FD"),
              Optional(std::string("7")));
  EXPECT_THAT(ranks[1].plan.inherited_fds, IsEmpty());
}

TEST(RoundPlan, SendsStreamsWhereTheyShouldGo) {
  const AgentOptions options = {
      .command = {"train"},
      .processes_per_node = 2,
      .redirects = {.fallback = Streams::kNone, .by_local_rank = {{1, Streams::kBoth}}},
      .tee = {.fallback = Streams::kErr},
      .local_ranks_filter = {1}};
  const std::vector<RankStart> ranks = plan_round(options, second_of_two(), -1, "/logs");
  EXPECT_EQ(ranks[0].out.log_path, "");
  EXPECT_EQ(ranks[0].err.log_path, "/logs/attempt_3/4/stderr.log");
  EXPECT_FALSE(ranks[0].out.console);  // not among the ranks to show
  EXPECT_EQ(ranks[1].out.log_path, "/logs/attempt_3/5/stdout.log");
  EXPECT_FALSE(ranks[1].out.console);
  EXPECT_TRUE(ranks[1].err.console);
}

// Without --redirects and --tee a folder for logs gets everything, which the console shows as well.
TEST(RoundPlan, LogsEverythingUnlessToldWhat) {
  struct Case {
    AgentOptions options;
    bool shows_out, logs_out, shows_err, logs_err;
  };
  const auto all = [](Streams streams) { return StreamsByRank{.fallback = streams}; };
  const std::vector<Case> cases = {
      {{}, true, true, true, true},
      {{.redirects = all(Streams::kBoth)}, false, true, false, true},
      {{.redirects = all(Streams::kOut)}, false, true, true, false},
      {{.tee = all(Streams::kOut)}, true, true, true, false},
      {{.redirects = all(Streams::kBoth), .tee = all(Streams::kErr)}, false, true, true, true}};
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const bool has_folder : {true, false}) {
      AgentOptions options = cases[i].options;
      options.command = {"train"};
      options.processes_per_node = 1;
      const RankStart rank =
          plan_round(options, second_of_two(), -1, has_folder ? "/logs" : "").at(0);
      EXPECT_EQ(rank.out.console, cases[i].shows_out) << i;
      EXPECT_EQ(rank.err.console, cases[i].shows_err) << i;
      EXPECT_EQ(!rank.out.log_path.empty(), has_folder && cases[i].logs_out) << i;
      EXPECT_EQ(!rank.err.log_path.empty(), has_folder && cases[i].logs_err) << i;
    }
  }
}

}  // namespace
}  // namespace accelerate::launcher::agent
