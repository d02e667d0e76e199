// Whose turn it is, without a cluster: collectives that are called and carried out by hand.
#include "simulator/c10d/call_order.h"

#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "simulator/c10d/operation.h"

namespace accelerate::simulator {
namespace {

using OperationPtr = std::shared_ptr<Operation>;

constexpr int kTasks = 5;
constexpr int kLate = 4;  // the task that does not come

// A collective of these tasks, which outlive it.
OperationPtr collective_of(const std::vector<int>& tasks, int64_t ready_ns = 0) {
  auto operation = std::make_shared<Operation>();
  operation->tasks = &tasks;
  operation->joined = static_cast<int>(tasks.size());
  operation->ready_ns = ready_ns;
  return operation;
}

class CallOrderTest : public ::testing::Test {
 protected:
  void call_by_all(const OperationPtr& operation) {
    for (const int task : *operation->tasks) order_.call(task, operation);
  }
  // The collective whose turn comes next, which has its time now.
  OperationPtr take() {
    OperationPtr next = order_.take_next();
    if (next != nullptr) order_.remove(next);
    return next;
  }
  // Each task but the late one waits for it.
  void begin_with_one_that_does_not_come() {
    for (int task = 0; task < kLate; ++task) order_.call(task, blocker_);
  }

  const std::vector<int> all_ = {0, 1, 2, 3, kLate};
  const std::vector<int> first_two_ = {0, 1}, last_two_ = {2, 3}, middle_two_ = {1, 2};
  const OperationPtr blocker_ = collective_of(all_);
  CallOrder order_{kTasks};
};

TEST_F(CallOrderTest, ACollectiveComesBehindThoseThatItsMembersCalledBefore) {
  const OperationPtr first = collective_of(first_two_, 100);
  const OperationPtr second = collective_of(middle_two_, 50);
  const OperationPtr third = collective_of(last_two_, 10);
  order_.call(1, first);
  call_by_all(second);
  order_.carried_out(second);
  call_by_all(third);
  order_.carried_out(third);
  EXPECT_EQ(take(), nullptr) << "task 0 has not called the first one";
  EXPECT_TRUE(order_.has_waiting());
  order_.call(0, first);
  order_.carried_out(first);
  EXPECT_EQ(take(), first);
  EXPECT_EQ(take(), second);
  EXPECT_EQ(take(), third);
  EXPECT_EQ(take(), nullptr);
  EXPECT_FALSE(order_.has_waiting());
  EXPECT_EQ(order_.next_ns(), INT64_MAX);
}

TEST_F(CallOrderTest, TheOneThatAHostAwaitsFirstGoesOutOfTurn) {
  begin_with_one_that_does_not_come();
  const OperationPtr early = collective_of(first_two_, 50);
  const OperationPtr awaited = collective_of(last_two_, 100);
  awaited->awaited_from_ns = 10;
  for (const OperationPtr& each : {early, awaited}) {
    call_by_all(each);
    order_.carried_out(each);
  }
  EXPECT_EQ(take(), nullptr);
  EXPECT_EQ(order_.next_ns(), 11) << "behind what happens at that time";
  EXPECT_EQ(order_.next_ready_ns(), 100);
  order_.admit_next_waiting();
  EXPECT_EQ(take(), awaited);
  EXPECT_EQ(order_.next_ns(), 51);
  order_.admit_next_waiting();
  EXPECT_EQ(take(), early);
  EXPECT_FALSE(order_.has_waiting());
}

// So that the order in which ranks run makes no difference.
TEST_F(CallOrderTest, OfTwoAtOneTimeTheEarlierCallOfTheLowestMemberGoesFirst) {
  begin_with_one_that_does_not_come();
  const std::vector<int> one_and_late = {1, kLate}, two_and_late = {2, kLate};
  const OperationPtr lower = collective_of(first_two_, 100);
  const OperationPtr higher = collective_of(last_two_, 100);
  // It is the second call of tasks 0 and 3, the third of task 2 and the fourth of task 1.
  for (int i = 0; i < 2; ++i) order_.call(1, collective_of(one_and_late));
  order_.call(2, collective_of(two_and_late));
  for (const OperationPtr& each : {higher, lower}) {
    call_by_all(each);
    order_.carried_out(each);
  }
  EXPECT_EQ(lower->number_of_call, 1);
  EXPECT_EQ(higher->number_of_call, 2);
  order_.admit_next_waiting();
  EXPECT_EQ(take(), lower);
  order_.admit_next_waiting();
  EXPECT_EQ(take(), higher);
}

TEST_F(CallOrderTest, AFailedCollectiveKeepsNothingWaiting) {
  begin_with_one_that_does_not_come();
  const OperationPtr behind = collective_of(last_two_, 100);
  call_by_all(behind);
  order_.carried_out(behind);
  EXPECT_EQ(order_.without_time(2), (std::vector<OperationPtr>{blocker_, behind}));
  order_.remove(blocker_);
  EXPECT_EQ(order_.without_time(2), std::vector<OperationPtr>{behind});
  EXPECT_EQ(take(), behind);
}

}  // namespace
}  // namespace accelerate::simulator
