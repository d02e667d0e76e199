#include "accelerate/comm/watch/operation_log.h"

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using c10d::OpType;
using ::testing::AllOf;
using ::testing::HasSubstr;

const OperationFailure kFailure{
    .reason = "rank 0: timed out", .group = "world", .ranks = {0, 1, 2, 3}};

CollectiveFingerprint call_of(OpType op, int64_t elements = 4) {
  CollectiveFingerprint call;
  call.op = op;
  if (op != OpType::BARRIER) call.add(at::ones({elements}));
  return call;
}

// A rank that made the world group and did these operations in it.
OperationLog& log_with(OperationLog& log, const std::vector<OpType>& done) {
  const int world = log.add_group("world");
  log.group_is_made(world);
  for (OpType op : done) {
    CollectiveFingerprint call = call_of(op);
    log.set_state(log.enter(world, call), OperationState::kDone);
  }
  return log;
}

TEST(OperationReport, SaysWhoIsBehindAndByHowMany) {
  OperationLog log0(0), log1(1), log2(2);
  log_with(log0, {OpType::BARRIER, OpType::BARRIER});
  CollectiveFingerprint call = call_of(OpType::ALLREDUCE);
  log0.set_state(log0.enter(0, call), OperationState::kWaiting);
  log_with(log1, {OpType::BARRIER});
  log_with(log2, {OpType::BARRIER, OpType::BARRIER});
  log2.end("ended its program");
  const std::string report =
      operation_report(kFailure, {log2.snapshot(), log0.snapshot(), log1.snapshot()});
  EXPECT_EQ(report,
            "rank 0: timed out\n"
            "group \"world\", by rank:\n"
            "  rank 0: waits in all_reduce #2 (Float[4])\n"
            "  rank 1: 2 operations behind, its last was barrier #0, done\n"
            "  rank 2: ended its program, 1 operation behind, its last was barrier #1, done\n"
            "  rank 3: did not answer (gone or unreachable)\n"
            "last calls:\n"
            "  ranks 0-2: barrier #0, done\n"
            "  ranks 0, 2: barrier #1, done\n"
            "  rank 0: all_reduce #2 (Float[4]), waits");
}

TEST(LastCall, NamesTheOperationItsGroupAndItsState) {
  OperationLog log(0);
  EXPECT_EQ(last_call(log.snapshot()), "");
  log_with(log, {OpType::BARRIER});
  EXPECT_EQ(last_call(log.snapshot()), "barrier #0 of group \"world\", done");
  CollectiveFingerprint call = call_of(OpType::ALLREDUCE);
  log.set_state(log.enter(0, call), OperationState::kWaiting);
  EXPECT_EQ(last_call(log.snapshot()), "all_reduce #1 (Float[4]) of group \"world\", waits");
}

TEST(OperationReport, FindsTheFirstCallThatDiffers) {
  OperationLog log0(0), log1(1);
  log_with(log0, {OpType::BARRIER, OpType::BARRIER, OpType::ALLREDUCE});
  log_with(log1, {OpType::BARRIER, OpType::ALLREDUCE, OpType::BARRIER});
  EXPECT_THAT(operation_report(kFailure, {log0.snapshot(), log1.snapshot()}),
              HasSubstr("collective mismatch in call #1 of group \"world\": operation barrier "
                        "against all_reduce\n  rank 0: barrier #1\n  rank 1: all_reduce #1"));
}

// In dumps, which have more operations than ranks send to each other.
TEST(OperationReport, FindsADifferenceOfLongAgo) {
  OperationLog log0(0), log1(1);
  std::vector<OpType> calls(1000, OpType::BARRIER);
  log_with(log0, calls);
  calls[3] = OpType::ALLREDUCE;
  log_with(log1, calls);
  const std::string report = operation_report(
      kFailure, {log0.snapshot(OperationLog::kCapacity), log1.snapshot(OperationLog::kCapacity)});
  EXPECT_THAT(report, HasSubstr("collective mismatch in call #3 of group \"world\""));
}

TEST(OperationReport, SaysWhereARankIsInstead) {
  OperationLog log0(0), log1(1), log2(2);
  log_with(log0, {OpType::BARRIER});
  log_with(log1, {});
  const int other = log1.add_group("other");
  log1.group_is_made(other);
  CollectiveFingerprint call = call_of(OpType::BROADCAST);
  log1.set_state(log1.enter(other, call), OperationState::kWaiting);
  log2.add_group("third");
  EXPECT_THAT(
      operation_report(kFailure, {log0.snapshot(), log1.snapshot(), log2.snapshot()}),
      AllOf(HasSubstr("rank 1: 1 operation behind, entered no operation; it is in broadcast #0 "
                      "(Float[4]) of group \"other\""),
            HasSubstr("rank 2: never made this group; it is making group \"third\"")));
}

// A rank that waits in the first operation of one of two groups, both of which it has made.
OperationHistory waiting_in(int rank, int group, OpType op) {
  OperationLog log(rank);
  for (const char* name : {"tp", "dp"}) log.group_is_made(log.add_group(name));
  CollectiveFingerprint call = call_of(op);
  log.set_state(log.enter(group, call), OperationState::kWaiting);
  return log.snapshot();
}

TEST(CrossedGroups, AreTwoRanksThatWaitForEachOther) {
  const OperationHistory rank3 = waiting_in(3, /*group=*/0, OpType::ALLREDUCE);
  const OperationHistory rank1 = waiting_in(1, /*group=*/1, OpType::BARRIER);
  const std::string expected =
      "ranks 1 and 3 entered groups in different orders: rank 1 waits in barrier #0 of group "
      "\"dp\", and rank 3 in all_reduce #0 (Float[4]) of group \"tp\"";
  EXPECT_EQ(crossed_groups({rank3, waiting_in(2, 0, OpType::ALLREDUCE), rank1}),
            "ranks 1 and 2 entered groups in different orders: rank 1 waits in barrier #0 of group "
            "\"dp\", and rank 2 in all_reduce #0 (Float[4]) of group \"tp\"");
  EXPECT_EQ(crossed_groups({rank3, rank1}), expected);
  EXPECT_THAT(operation_report({.reason = "rank 3: timed out", .group = "tp", .ranks = {1, 3}},
                               {rank3, rank1}),
              HasSubstr("\n" + expected));
}

TEST(CrossedGroups, AreNotRanksOfWhichOneIsLate) {
  const OperationHistory rank0 = waiting_in(0, /*group=*/0, OpType::ALLREDUCE);
  EXPECT_EQ(crossed_groups({rank0, waiting_in(1, 0, OpType::ALLREDUCE)}), "");
  // It computes something.
  OperationHistory other = waiting_in(1, /*group=*/1, OpType::BARRIER);
  other.operations.back().state = OperationState::kDone;
  EXPECT_EQ(crossed_groups({rank0, other}), "");
  // It is in a group of other ranks.
  other = waiting_in(1, /*group=*/1, OpType::BARRIER);
  other.groups[1].name = "dp of others";
  EXPECT_EQ(crossed_groups({rank0, other}), "");
  // It has been where the first one is.
  other = waiting_in(1, /*group=*/1, OpType::BARRIER);
  other.groups[0].collectives = 1;
  EXPECT_EQ(crossed_groups({rank0, other}), "");
}

// As many as PyTorch's Flight Recorder.
TEST(OperationLog, KeepsTwoThousandAndDropsTheFirstForTheNext) {
  OperationLog log(0);
  log_with(log, std::vector<OpType>(2000, OpType::BARRIER));
  OperationHistory history = log.snapshot(OperationLog::kCapacity);
  ASSERT_EQ(history.operations.size(), 2000U);
  EXPECT_EQ(history.operations.front().fingerprint.sequence, 0U);
  CollectiveFingerprint one_more = call_of(OpType::ALLREDUCE);
  log.enter(0, one_more);
  history = log.snapshot(OperationLog::kCapacity);
  ASSERT_EQ(history.operations.size(), 2000U);
  EXPECT_EQ(history.operations.front().fingerprint.to_string(), "barrier #1");
  EXPECT_EQ(history.operations.back().fingerprint.to_string(), "all_reduce #2000 (Float[4])");
}

TEST(OperationLog, TellsOtherRanksOfTheLastAlone) {
  OperationLog log(0);
  log_with(log, std::vector<OpType>(100, OpType::BARRIER));
  EXPECT_EQ(log.snapshot(OperationLog::kCapacity).operations.size(), 100U);
  const OperationHistory shared = log.snapshot();
  ASSERT_EQ(shared.operations.size(), 64U);
  EXPECT_EQ(shared.operations.front().fingerprint.sequence, 36U);
  EXPECT_EQ(log.snapshot(/*most=*/1).operations.at(0).fingerprint.sequence, 99U);
  EXPECT_EQ(log.snapshot(/*most=*/0).operations.size(), 0U);
}

TEST(OperationLog, KeepsCallsOfWhichNoTwoAreAlike) {
  constexpr int64_t kCalls = 2 * static_cast<int64_t>(OperationLog::kCapacity) + 7;
  OperationLog log(0);
  log_with(log, {});
  for (int64_t elements = 0; elements < kCalls; ++elements) {
    CollectiveFingerprint call = call_of(OpType::ALLREDUCE, elements);
    log.set_state(log.enter(0, call), OperationState::kDone);
  }
  const OperationHistory history = log.snapshot(OperationLog::kCapacity);
  ASSERT_EQ(history.operations.size(), OperationLog::kCapacity);
  int64_t elements = kCalls - static_cast<int64_t>(OperationLog::kCapacity);
  for (const OperationRecord& record : history.operations) {
    EXPECT_EQ(record.fingerprint.sequence, static_cast<uint64_t>(elements));
    ASSERT_EQ(record.fingerprint.sizes.size(), 1U);
    EXPECT_EQ(record.fingerprint.sizes[0], elements++);
    EXPECT_EQ(record.state, OperationState::kDone);
  }
}

TEST(OperationLog, ForgetsTheOldestAndCountsOn) {
  OperationLog log(0);
  log_with(log, std::vector<OpType>(OperationLog::kCapacity + 10, OpType::BARRIER));
  const OperationHistory history = log.snapshot(OperationLog::kCapacity);
  ASSERT_EQ(history.operations.size(), OperationLog::kCapacity);
  EXPECT_EQ(history.operations.front().fingerprint.sequence, 10);
  EXPECT_EQ(history.groups[0].collectives, OperationLog::kCapacity + 10);
  log.set_state(0, OperationState::kFailed);  // The entry is gone: a newer operation has the slot.
  EXPECT_EQ(log.snapshot(OperationLog::kCapacity).operations.front().state, OperationState::kDone);
  EXPECT_EQ(log.describe(0), "an operation long ago");
}

TEST(OperationLog, DoesNotCountWhatWasRefused) {
  OperationLog log(0);
  log_with(log, {OpType::BARRIER});
  CollectiveFingerprint wrong = call_of(OpType::ALLREDUCE);
  log.refuse(log.enter(0, wrong));
  CollectiveFingerprint right = call_of(OpType::ALLREDUCE);
  log.enter(0, right);
  EXPECT_EQ(right.sequence, 1);
}

TEST(OperationLog, RemembersAsManyAsItHolds) {
  OperationLog log(0);
  log_with(log, std::vector<OpType>(OperationLog::kCapacity, OpType::BARRIER));
  EXPECT_EQ(log.describe(0), "barrier #0");
  CollectiveFingerprint one_more = call_of(OpType::BARRIER);
  log.enter(0, one_more);
  EXPECT_EQ(log.describe(0), "an operation long ago");
  EXPECT_EQ(log.describe(1), "barrier #1");
}

// Two ranks alone know a message, so no rank is behind by it.
TEST(OperationLog, CountsCollectivesAlone) {
  OperationLog log(0);
  log_with(log, {OpType::BARRIER});
  CollectiveFingerprint message = call_of(OpType::SEND);
  log.enter(0, message);
  CollectiveFingerprint wrong = call_of(OpType::RECV);
  log.refuse(log.enter(0, wrong));
  EXPECT_EQ(log.snapshot().groups[0].collectives, 1);
  CollectiveFingerprint next = call_of(OpType::ALLREDUCE);
  log.enter(0, next);
  EXPECT_EQ(next.sequence, 1);
}

TEST(OperationReport, ShowsTheLastFiveCallsAndNoMessages) {
  OperationLog log0(0), log1(1);
  for (OperationLog* log : {&log0, &log1}) {
    log_with(*log, std::vector<OpType>(7, OpType::BARRIER));
    CollectiveFingerprint message = call_of(OpType::SEND);
    log->set_state(log->enter(0, message), OperationState::kDone);
  }
  OperationFailure failure = kFailure;
  failure.ranks = {0, 1};
  const std::string report = operation_report(failure, {log0.snapshot(), log1.snapshot()});
  EXPECT_EQ(report.substr(report.find("\nlast calls:")),
            "\nlast calls:\n"
            "  ranks 0-1: barrier #2, done\n"
            "  ranks 0-1: barrier #3, done\n"
            "  ranks 0-1: barrier #4, done\n"
            "  ranks 0-1: barrier #5, done\n"
            "  ranks 0-1: barrier #6, done");
}

TEST(OperationHistory, Travels) {
  OperationLog log(2);
  log_with(log, {OpType::BARRIER, OpType::ALLREDUCE});
  log.end("ended its program");
  const OperationHistory sent = log.snapshot();
  OperationHistory received;
  internal::read_fields(to_dict(sent), "a rank's operation history", received);
  EXPECT_EQ(to_dict(received), to_dict(sent));
  EXPECT_EQ(operation_report(kFailure, {received}), operation_report(kFailure, {sent}));
}

TEST(CollectiveFingerprint, HashesAlikeWhereNothingDiffers) {
  const CollectiveFingerprint call = call_of(OpType::ALLREDUCE);
  EXPECT_EQ(call.hash(), call_of(OpType::ALLREDUCE).hash());
  EXPECT_NE(call.hash(), call_of(OpType::ALLREDUCE, 5).hash());
  EXPECT_NE(call.hash(), call_of(OpType::BROADCAST).hash());
  CollectiveFingerprint loose = call_of(OpType::ALLTOALL, 4);
  CollectiveFingerprint other = call_of(OpType::ALLTOALL, 5);
  loose.shapes_may_differ = other.shapes_may_differ = true;
  EXPECT_EQ(loose.hash(), other.hash());
  EXPECT_FALSE(loose.difference(other));
  CollectiveFingerprint later = call;
  later.sequence = 1;
  EXPECT_NE(call.hash(), later.hash());
  EXPECT_EQ(call.difference(later), "call #0 against #1");
}

}  // namespace
}  // namespace accelerate
