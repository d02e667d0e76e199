#include "accelerate/comm/watch/call_table.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using c10d::OpType;

CollectiveFingerprint sum_of(int64_t elements) {
  CollectiveFingerprint call(OpType::ALLREDUCE);
  call.add(at::ones({elements}));
  return call;
}

TEST(CallTable, GivesBackAllButTheSequence) {
  CollectiveFingerprint call(OpType::ALLTOALL);
  call.reduce_op = c10d::ReduceOp::PREMUL_SUM;
  call.root = 5;
  call.peer = 1023;
  call.tag = -7;
  call.shapes_may_differ = true;
  call.purpose = "gradients of \"wte\"";
  call.add(at::ones({2, 0, 70000}));
  call.add(at::ones({}, at::kBFloat16));
  call.add(at::ones({64}, at::kLong));
  CollectiveFingerprint nothing;
  CallTable table;
  const CallTable::Index first = table.add(call);
  const CallTable::Index second = table.add(nothing);
  EXPECT_EQ(to_dict(table[first]), to_dict(call));
  EXPECT_EQ(to_dict(table[second]), to_dict(nothing));
  call.sequence = 9;
  EXPECT_EQ(table.add(call), first);
  EXPECT_EQ(call.sequence, 9U);
  EXPECT_EQ(table[first].sequence, 0U);
}

TEST(CallTable, KeepsEachCallOnceWhileItIsInUse) {
  CallTable table;
  EXPECT_EQ(table.size(), 0U);
  CollectiveFingerprint one = sum_of(1);
  CollectiveFingerprint two = sum_of(2);
  const CallTable::Index first = table.add(one);
  EXPECT_EQ(table.add(one), first);
  EXPECT_NE(table.add(two), first);
  EXPECT_EQ(table.size(), 2U);
  table.release(first);
  EXPECT_EQ(table.size(), 2U) << "it has another use";
  table.release(first);
  EXPECT_EQ(table.size(), 1U);
}

TEST(CallTable, TellsMessagesApart) {
  CallTable table;
  CollectiveFingerprint message(OpType::SEND);
  message.peer = 1;
  const CallTable::Index first = table.add(message);
  message.tag = 3;
  EXPECT_NE(table.add(message), first);
  message.tag = -1;
  message.peer = 2;
  EXPECT_NE(table.add(message), first);
  EXPECT_EQ(table.size(), 3U);
}

// More than one chain, and rows that others take.
TEST(CallTable, GrowsWithTheCallsThatAreInUseAndNotWithThoseThatWere) {
  constexpr int64_t kInUse = 100;
  CallTable table;
  std::vector<CallTable::Index> rows;
  for (int64_t number = 0; number < 10 * kInUse; ++number) {
    CollectiveFingerprint call = sum_of(number);
    rows.push_back(table.add(call));
    if (number >= kInUse) table.release(rows[number - kInUse]);
  }
  EXPECT_EQ(table.size(), static_cast<size_t>(kInUse));
  EXPECT_EQ(table.rows(), static_cast<size_t>(kInUse) + 1);
  for (int64_t number = 9 * kInUse; number < 10 * kInUse; ++number) {
    CollectiveFingerprint call = sum_of(number);
    EXPECT_EQ(to_dict(table[rows[number]]), to_dict(call));
    EXPECT_EQ(table.add(call), rows[number]);
  }
}

}  // namespace
}  // namespace accelerate
