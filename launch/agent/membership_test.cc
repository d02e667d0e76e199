#include "launch/agent/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace accelerate::launcher::agent {
namespace {

using ::testing::HasSubstr;

using Kind = Order::Kind;

// A run whose time is the test's.
class TimedRun {
 public:
  explicit TimedRun(const MembershipRules& rules) : membership_(rules, now_) {}

  absl::Status admit(int member, std::optional<int> node_rank = std::nullopt) {
    return membership_.admit(member, {.host = "h" + std::to_string(member),
                                      .address = "a" + std::to_string(member),
                                      .processes = 2,
                                      .node_rank = node_rank});
  }
  void come(int member, std::optional<int> node_rank = std::nullopt) {
    ASSERT_TRUE(admit(member, node_rank).ok());
    membership_.ready(member, static_cast<uint16_t>(100 + member));
  }
  void back(int member) { membership_.ready(member, static_cast<uint16_t>(200 + member)); }
  Membership& rules() { return membership_; }
  void pass(absl::Duration duration) { now_ += absl::ToChronoNanoseconds(duration); }

  // How long until time alone makes a difference; nothing if it never does.
  std::optional<absl::Duration> time_left() const {
    const std::optional<Membership::TimePoint> deadline = membership_.deadline();
    if (!deadline) return std::nullopt;
    return absl::FromChrono(*deadline - now_);
  }

  // The last order to each member since the last call.
  std::map<int, Order> orders() {
    std::map<int, Order> last;
    for (auto& [member, order] : membership_.advance(now_)) last[member] = order;
    return last;
  }

 private:
  Membership::TimePoint now_{};
  Membership membership_;
};

MembershipRules elastic(int min, int max, int max_restarts = 0) {
  return {.min_nodes = min, .max_nodes = max, .max_restarts = max_restarts};
}

MembershipRules fixed(int nodes, int max_restarts = 0) {
  return {
      .min_nodes = nodes, .max_nodes = nodes, .fixed_ranks = true, .max_restarts = max_restarts};
}

TEST(Membership, StartsWhenAllAreThereInTheOrderOfTheirRanks) {
  TimedRun run(fixed(2));
  run.come(7, 1);
  EXPECT_TRUE(run.orders().empty());
  run.come(3, 0);
  std::map<int, Order> orders = run.orders();
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_EQ(orders[3].kind, Kind::kStart);
  EXPECT_EQ(orders[3].round.first_rank, 0);
  EXPECT_EQ(orders[7].round.first_rank, 2);
  EXPECT_EQ(orders[7].round.group_rank, 1);
  EXPECT_EQ(orders[7].round.world_size, 4);
  EXPECT_EQ(orders[7].round.master_addr, "a3");
  EXPECT_EQ(orders[7].round.master_port, 103);
}

// Connections may shake hands in another order than that in which they were made.
TEST(Membership, RanksMachinesInTheOrderOfTheirComing) {
  TimedRun run(elastic(2, 2));
  run.come(7);
  run.come(3);
  std::map<int, Order> orders = run.orders();
  EXPECT_EQ(orders[7].round.group_rank, 0);
  EXPECT_EQ(orders[3].round.group_rank, 1);
  EXPECT_EQ(orders[3].round.first_rank, 2);
  EXPECT_EQ(orders[3].round.master_addr, "a7");
  EXPECT_EQ(orders[3].round.master_port, 107);
}

TEST(Membership, RefusesARankThatIsTakenOrOutOfRange) {
  TimedRun run(fixed(2));
  run.come(0, 0);
  EXPECT_THAT(std::string(run.admit(1, 0).message()), HasSubstr("h0's already"));
  EXPECT_FALSE(run.admit(1, 2).ok());
  EXPECT_FALSE(run.admit(1, std::nullopt).ok());
}

TEST(Membership, GivesTheLastCall) {
  TimedRun run(elastic(1, 3));
  run.come(0);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(29));
  run.come(1);
  EXPECT_EQ(run.orders().count(0), 0u);
  run.pass(absl::Seconds(1));
  EXPECT_EQ(run.orders()[0].round.world_size, 4);
}

TEST(Membership, GivesTheLastCallAnewAfterThereWereTooFew) {
  TimedRun run(elastic(2, 3));
  run.come(0);
  run.come(1);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(29));
  run.rules().lost(1, {.text = "h1 was lost"});
  EXPECT_EQ(run.orders()[0].kind, Kind::kNotice);
  run.pass(absl::Seconds(29));
  run.come(2);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(29));
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(1));
  EXPECT_EQ(run.orders()[2].round.world_size, 4);
}

// A loop that waits for events wakes at these times, and at no others.
TEST(Membership, SaysWhenTimeAloneMatters) {
  TimedRun run(elastic(2, 3));
  EXPECT_EQ(run.time_left(), absl::Seconds(5)) << "until it says that it waits";
  run.pass(absl::Seconds(5));
  run.orders();
  EXPECT_EQ(run.time_left(), absl::Seconds(595)) << "until it gives up";
  run.come(0);
  run.come(1);
  run.orders();
  EXPECT_EQ(run.time_left(), absl::Seconds(30)) << "the last call";
  run.pass(absl::Seconds(30));
  EXPECT_EQ(run.orders()[0].kind, Kind::kStart);
  EXPECT_EQ(run.time_left(), std::nullopt);
  run.come(2);
  run.orders();
  EXPECT_EQ(run.time_left(), absl::Milliseconds(100)) << "others may come with it";
  run.pass(absl::Milliseconds(100));
  EXPECT_EQ(run.orders()[0].kind, Kind::kStop);
  EXPECT_EQ(run.time_left(), std::nullopt);
}

TEST(Membership, AFailureUsesUpARestart) {
  TimedRun run(elastic(2, 2, 1));
  run.come(0);
  run.come(1);
  run.orders();
  run.rules().failed(1, {.exit_code = 3, .text = "rank 2 failed"});
  std::map<int, Order> orders = run.orders();
  EXPECT_EQ(orders[0].kind, Kind::kStop);
  EXPECT_EQ(orders[1].text, "rank 2 failed");
  run.back(0);
  EXPECT_TRUE(run.orders().empty());
  run.back(1);
  orders = run.orders();
  EXPECT_EQ(orders[0].kind, Kind::kStart);
  EXPECT_EQ(orders[0].round.restarts, 1);
  EXPECT_EQ(orders[0].round.number, 1);
  EXPECT_EQ(orders[1].round.master_port, 200);
  run.rules().failed(0, {.exit_code = 5, .text = "rank 0 failed"});
  // Its ranks fail as well because those of the other did: the first one counts.
  run.rules().failed(1, {.exit_code = 6, .text = "rank 2 failed"});
  run.orders();
  run.back(0);
  run.back(1);
  orders = run.orders();
  EXPECT_EQ(orders[1].kind, Kind::kEnd);
  EXPECT_EQ(orders[1].exit_code, 5);
  EXPECT_TRUE(run.rules().is_over());
}

TEST(Membership, ALossUsesUpNoneEvenIfRanksFailForIt) {
  TimedRun run(elastic(1, 2));
  run.come(0);
  run.come(1);
  run.orders();
  run.rules().failed(0, {.exit_code = 1, .text = "connection reset"});
  EXPECT_EQ(run.orders()[0].kind, Kind::kStop);
  run.rules().lost(1, {.text = "h1 was lost"});
  run.back(0);
  std::map<int, Order> orders = run.orders();
  EXPECT_EQ(orders[0].kind, Kind::kStart);
  EXPECT_EQ(orders[0].round.world_size, 2);
  EXPECT_EQ(orders[0].round.restarts, 0);
}

TEST(Membership, ALossEndsAStaticRun) {
  TimedRun run(fixed(2, 3));
  run.come(0, 0);
  run.come(1, 1);
  run.orders();
  run.rules().lost(1, {.exit_code = 130, .text = "h1 left"});
  const std::map<int, Order> orders = run.orders();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders.at(0).kind, Kind::kEnd);
  EXPECT_EQ(orders.at(0).exit_code, 130);
}

TEST(Membership, WaitsForEnoughMachinesAfterALoss) {
  TimedRun run(elastic(2, 2));
  run.come(0);
  run.come(1);
  run.orders();
  run.rules().lost(0, {.text = "gone"});
  EXPECT_EQ(run.orders()[1].kind, Kind::kStop);
  run.back(1);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(599));
  EXPECT_EQ(run.orders()[1].kind, Kind::kNotice);
  run.come(2);
  std::map<int, Order> orders = run.orders();
  EXPECT_EQ(orders[1].round.group_rank, 0);
  EXPECT_EQ(orders[2].round.group_rank, 1);
  // The store of the machine that is gone went with it.
  EXPECT_EQ(orders[2].round.master_addr, "a1");
  EXPECT_EQ(orders[2].round.master_port, 201);
}

TEST(Membership, GivesEachRoundItsOwnTimeToForm) {
  TimedRun run(elastic(2, 2));
  run.come(0);
  run.come(1);
  run.orders();
  run.pass(absl::Hours(5));
  run.rules().lost(1, {.text = "h1 was lost"});
  run.orders();
  run.back(0);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(599));
  EXPECT_EQ(run.orders()[0].kind, Kind::kNotice);
  run.pass(absl::Seconds(1));
  EXPECT_EQ(run.orders()[0].kind, Kind::kEnd);
}

TEST(Membership, SaysOnceARoundForWhomItWaits) {
  TimedRun run(elastic(2, 2));
  run.come(0);
  run.pass(absl::Milliseconds(4999));
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Milliseconds(1));
  EXPECT_EQ(run.orders()[0].text, "waiting for machines: 1 of 2 machines came: h0; 1 missing");
  run.pass(absl::Minutes(1));
  EXPECT_TRUE(run.orders().empty()) << "it was said";
  run.come(1);
  run.orders();
  run.rules().lost(1, {.text = "h1 was lost"});
  run.orders();
  run.back(0);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(5));
  EXPECT_EQ(run.orders()[0].kind, Kind::kNotice) << "of this round it was not";
}

TEST(Membership, GivesUpWhenTooFewCome) {
  TimedRun run(fixed(3));
  run.come(0, 0);
  run.come(1, 2);
  run.pass(absl::Seconds(600));
  const Order end = run.orders()[0];
  EXPECT_EQ(end.kind, Kind::kEnd);
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.text, HasSubstr("2 of 3 machines came: h0 (machine_rank 0), h1 (machine_rank 2); "
                                  "missing: machine_rank 1"));
}

TEST(Membership, TakesNewcomersInTogether) {
  TimedRun run(elastic(1, 3));
  run.come(0);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(30));
  EXPECT_EQ(run.orders()[0].kind, Kind::kStart);
  run.come(1);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Milliseconds(50));
  run.come(2);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Milliseconds(50));
  EXPECT_THAT(run.orders()[0].text, HasSubstr("h1, h2 joined"));
  run.back(0);
  EXPECT_EQ(run.orders()[2].round.world_size, 6);
}

TEST(Membership, ANewcomerThatLeavesAgainStopsNothing) {
  TimedRun run(elastic(1, 3));
  run.come(0);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(30));
  EXPECT_EQ(run.orders()[0].kind, Kind::kStart);
  run.come(1);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Milliseconds(50));
  run.rules().lost(1, {.text = "h1 was lost"});
  EXPECT_TRUE(run.orders().empty());
  EXPECT_EQ(run.time_left(), std::nullopt);
  run.pass(absl::Seconds(1));
  run.come(2);
  EXPECT_TRUE(run.orders().empty()) << "it is the first of those who come now";
  run.pass(absl::Milliseconds(100));
  EXPECT_THAT(run.orders()[0].text, HasSubstr("h2 joined"));
}

TEST(Membership, DoesNotStartAnewForOneWhoIsLate) {
  TimedRun run(elastic(2, 3));
  run.come(0);
  run.come(1);
  EXPECT_TRUE(run.orders().empty());
  run.pass(absl::Seconds(30));
  EXPECT_EQ(run.orders().size(), 2u);
  run.rules().done(0);
  run.come(2);
  run.pass(absl::Seconds(1));
  EXPECT_TRUE(run.orders().empty());
  run.rules().done(1);
  std::map<int, Order> orders = run.orders();
  for (int member : {0, 1, 2}) {
    EXPECT_EQ(orders[member].kind, Kind::kEnd);
    EXPECT_EQ(orders[member].exit_code, 0);
  }
  EXPECT_FALSE(run.admit(3).ok());
}

TEST(Membership, AMachineThatIsDoneTakesPartInTheRestart) {
  TimedRun run(elastic(2, 2, 1));
  run.come(0);
  run.come(1);
  run.orders();
  run.rules().done(0);
  run.rules().failed(1, {.exit_code = 3, .text = "x"});
  EXPECT_EQ(run.orders()[0].kind, Kind::kStop);
  run.back(0);
  run.back(1);
  EXPECT_EQ(run.orders()[0].kind, Kind::kStart);
  run.rules().done(1);
  EXPECT_TRUE(run.orders().empty());
}

TEST(Membership, WaitsForAMachineThatCalledItselfReadyDuringItsRound) {
  TimedRun run(elastic(2, 2, 1));
  run.come(0);
  run.come(1);
  run.orders();
  run.back(0);
  run.rules().failed(1, {.exit_code = 3, .text = "rank 2 failed"});
  EXPECT_EQ(run.orders()[0].kind, Kind::kStop);
  run.back(1);
  EXPECT_TRUE(run.orders().empty()) << "the ranks of 0 still run";
  run.back(0);
  EXPECT_EQ(run.orders()[0].kind, Kind::kStart);
}

TEST(Membership, IgnoresWhatMakesNoSense) {
  TimedRun run(elastic(1, 1));
  run.rules().ready(9, 1);
  run.rules().failed(9, {});
  run.rules().done(9);
  run.rules().lost(9, {});
  run.come(0);
  EXPECT_EQ(run.orders()[0].kind, Kind::kStart);
  // Ready while its ranks run, then done twice.
  run.back(0);
  EXPECT_TRUE(run.orders().empty());
  run.rules().done(0);
  EXPECT_EQ(run.orders()[0].exit_code, 0);
  run.rules().done(0);
  run.rules().failed(0, {});
  EXPECT_TRUE(run.orders().empty());
}

}  // namespace
}  // namespace accelerate::launcher::agent
