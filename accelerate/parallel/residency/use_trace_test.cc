// A step's uses are expected in the next step, and recorded anew where they differ.
#include "accelerate/parallel/residency/use_trace.h"

#include <initializer_list>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;

// The step's uses, and what is expected after each of them. Returns whether all were expected.
bool step(UseTrace& trace, std::initializer_list<int> uses, std::vector<int>* next = nullptr) {
  bool expected = true;
  trace.begin_step();
  for (const int group : uses) {
    expected = trace.use(group) && expected;
    if (next != nullptr) next->push_back(trace.next());
  }
  return expected;
}

TEST(UseTrace, ExpectsWhatTheFirstStepDid) {
  UseTrace trace;
  std::vector<int> next;
  EXPECT_TRUE(step(trace, {0, 1, 1, 0, 2}, &next));
  EXPECT_THAT(next, ElementsAre(-1, -1, -1, -1, -1));
  EXPECT_TRUE(trace.end());
  next.clear();
  EXPECT_TRUE(step(trace, {0, 0, 1, 0, 2, 2}, &next));
  EXPECT_THAT(next, ElementsAre(1, 1, 0, 2, -1, -1));
  EXPECT_FALSE(trace.end());
  EXPECT_THAT(trace.uses(), ElementsAre(0, 1, 0, 2));
}

TEST(UseTrace, RecordsAnewFromTheFirstDifferenceOn) {
  UseTrace trace;
  step(trace, {0, 1, 2});
  trace.end();
  std::vector<int> next;
  EXPECT_FALSE(step(trace, {0, 2, 1}, &next));
  EXPECT_THAT(next, ElementsAre(1, -1, -1));
  EXPECT_FALSE(trace.end());
  EXPECT_THAT(trace.uses(), ElementsAre(0, 2, 1));
  EXPECT_TRUE(step(trace, {0, 2, 1}));
}

TEST(UseTrace, RecordsWhatFollowsTheEnd) {
  UseTrace trace;
  step(trace, {0, 1});
  EXPECT_TRUE(trace.end());
  EXPECT_FALSE(trace.use(2));
  EXPECT_FALSE(trace.end());
  EXPECT_TRUE(step(trace, {0, 1, 2}));
  EXPECT_FALSE(trace.end());
}

TEST(UseTrace, KeepsWhatAStepThatEndsEarlyDidNotDo) {
  UseTrace trace;
  step(trace, {0, 1, 2});
  trace.end();
  EXPECT_TRUE(step(trace, {0, 1}));
  EXPECT_TRUE(step(trace, {0, 1, 2}));
  EXPECT_THAT(trace.uses(), ElementsAre(0, 1, 2));
}

TEST(UseTrace, HasNothingToCompareWithoutUses) {
  UseTrace trace;
  trace.begin_step();
  EXPECT_FALSE(trace.end());
  EXPECT_TRUE(trace.is_first());
  EXPECT_TRUE(step(trace, {3}));
  EXPECT_TRUE(trace.end());
  EXPECT_FALSE(trace.is_first());
}

TEST(UseTrace, KnowsWhetherItDepartedFromWhatRanksCompared) {
  UseTrace trace, same;
  for (UseTrace* each : {&trace, &same}) {
    for (int i = 0; i < 3; ++i) {
      step(*each, {0, 1, 2});
      each->end();
      EXPECT_FALSE(each->departed());
    }
  }
  EXPECT_EQ(trace.history(), same.history());
  step(trace, {0, 2, 1});
  EXPECT_TRUE(trace.departed());
  step(same, {0, 1, 2});
  // A rank that departed alone, and does again what the others do, has another history.
  for (UseTrace* each : {&trace, &same}) step(*each, {0, 1, 2});
  EXPECT_NE(trace.history(), same.history());
  for (UseTrace* each : {&trace, &same}) each->mark_compared();
  EXPECT_FALSE(trace.departed());
  EXPECT_EQ(trace.history(), same.history());
  trace.depart(7);
  EXPECT_TRUE(trace.departed());
  EXPECT_NE(trace.history(), same.history());
}

TEST(UseTrace, KnowsWhatComesBetweenTwoUsesOfAGroup) {
  UseTrace trace;
  trace.begin_step();
  for (const int group : {0, 1, 2, 1, 0}) trace.use(group);
  EXPECT_FALSE(trace.until_reuse(0)) << "it is being recorded";
  trace.end();
  trace.begin_step();
  trace.use(0);
  EXPECT_EQ(trace.until_reuse(0)->vec(), (std::vector<int>{1, 2, 1}));
  EXPECT_EQ(trace.until_reuse(1)->vec(), (std::vector<int>{2}));
  EXPECT_FALSE(trace.until_reuse(2));
  for (const int group : {1, 2, 1}) trace.use(group);
  EXPECT_FALSE(trace.until_reuse(1));
  EXPECT_FALSE(trace.until_reuse(0));
}

// As where several forward passes come before one backward pass.
TEST(UseTrace, DepartsWhereAStepEndsEarlyAtAnotherPlaceThanBefore) {
  UseTrace trace;
  for (int i = 0; i < 4; ++i) {
    step(trace, {0, 1});
    step(trace, {0, 1, 2});
    trace.end();
    EXPECT_EQ(trace.departed(), i < 2) << i;
    trace.mark_compared();
  }
  step(trace, {0});
  step(trace, {0, 1, 2});
  EXPECT_TRUE(trace.departed());
}

}  // namespace
}  // namespace accelerate
