#include "accelerate/pipeline/check.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/pipeline/schedule_text.h"

namespace accelerate::pipeline {
namespace {

using enum ScheduleKind;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Schedule made(ScheduleKind kind, const PipelineShape& shape) {
  return make_schedule(kind, shape).value();
}

std::string problem_of(const Schedule& schedule) {
  const absl::Status status = check_schedule(schedule);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// Two ranks and two micro-batches: 0F0 0F1 0B0 0B1, and 1F0 1B0 1F1 1B1.
Schedule small() { return made(k1f1b, {.ranks = 2, .micro_batches = 2}); }

TEST(CheckSchedule, PassesEveryScheduleThatIsMade) {
  for (const ScheduleKind kind : values<ScheduleKind>()) {
    int count = 0;
    for (const int ranks : {1, 2, 3, 4, 6, 8}) {
      for (const int stages : {1, 2, 3, 4}) {
        for (int micro_batches = 1; micro_batches <= 4 * ranks; ++micro_batches) {
          const absl::StatusOr<Schedule> schedule =
              make_schedule(kind, {ranks, stages, micro_batches});
          if (!schedule.ok()) continue;
          ++count;
          EXPECT_EQ(check_schedule(*schedule), absl::OkStatus());
          EXPECT_EQ(check_schedule(forward_passes(*schedule)), absl::OkStatus());
        }
      }
    }
    // At least each number of micro-batches with one number of stages.
    EXPECT_GE(count, 96) << to_string(kind);
  }
}

TEST(CheckSchedule, NamesAnActionThatIsMissing) {
  for (const ScheduleKind kind : {k1f1b, kZeroBubbleH1}) {
    const Schedule schedule = made(kind, {.ranks = 3, .micro_batches = 4});
    for (size_t rank = 0; rank < 3; ++rank) {
      for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
        Schedule without = schedule;
        without.ranks[rank].erase(without.ranks[rank].begin() + static_cast<ptrdiff_t>(i));
        EXPECT_EQ(problem_of(without),
                  "the pipeline schedule: " + action_text(schedule.ranks[rank][i]) + " is missing");
      }
    }
  }
}

TEST(CheckSchedule, NamesAnActionThatIsThereTwice) {
  Schedule schedule = small();
  schedule.ranks[1].push_back(schedule.ranks[1].front());
  EXPECT_EQ(problem_of(schedule), "the pipeline schedule: rank 1 has 1F0 twice");
  schedule = small();
  schedule.ranks[1].push_back(schedule.ranks[0].front());
  EXPECT_EQ(problem_of(schedule),
            "the pipeline schedule: stage 0 is on rank 0, which has 0F0, and on rank 1, which has "
            "0F0");
}

TEST(CheckSchedule, AStageIsOnOneRank) {
  Schedule schedule = small();
  schedule.ranks[1].push_back(schedule.ranks[0].back());
  schedule.ranks[0].pop_back();
  EXPECT_THAT(problem_of(schedule), HasSubstr("stage 0 is on rank 0"));
  EXPECT_THAT(problem_of(schedule), HasSubstr("on rank 1, which has 0B1"));
}

TEST(CheckSchedule, ABackwardPassIsWholeOrBothHalves) {
  Schedule schedule = small();
  Action& last = schedule.ranks[0].back();
  last.pass = Pass::kInputGradient;
  EXPECT_EQ(problem_of(schedule), "the pipeline schedule: 0W1 is missing");
  schedule.ranks[0].push_back({Pass::kWeightGradient, 0, 1});
  EXPECT_EQ(check_schedule(schedule), absl::OkStatus());
  schedule.ranks[0].push_back({Pass::kBackward, 0, 1});
  EXPECT_EQ(problem_of(schedule), "the pipeline schedule: there is 0B1, and a half of it");
}

TEST(CheckSchedule, NamesWhatIsOutOfRange) {
  Schedule schedule = small();
  schedule.ranks[1].push_back({Pass::kForward, 2, 0});
  EXPECT_EQ(problem_of(schedule), "the pipeline schedule: rank 1 has 2F0, but stages are 0 to 1");
  schedule.ranks[1].back() = {Pass::kForward, -1, 0};
  EXPECT_EQ(problem_of(schedule), "the pipeline schedule: rank 1 has -1F0, but stages are 0 to 1");
  schedule.ranks[1].back() = {Pass::kForward, 1, 2};
  EXPECT_EQ(problem_of(schedule),
            "the pipeline schedule: rank 1 has 1F2, but micro-batches are 0 to 1");
  schedule.ranks[1].back() = {Pass::kForward, 1, -1};
  EXPECT_EQ(problem_of(schedule),
            "the pipeline schedule: rank 1 has 1F-1, but micro-batches are 0 to 1");
  schedule = small();
  schedule.ranks.emplace_back();
  EXPECT_EQ(problem_of(schedule), "the pipeline schedule: rank 2 has no actions");
  schedule.ranks.clear();
  EXPECT_THAT(problem_of(schedule), HasSubstr("0 ranks, 2 stages and 2 micro-batches"));
  schedule = small();
  schedule.stages = 0;
  EXPECT_THAT(problem_of(schedule), HasSubstr("2 ranks, 0 stages and 2 micro-batches"));
  schedule = small();
  schedule.micro_batches = 0;
  EXPECT_THAT(problem_of(schedule), HasSubstr("2 stages and 0 micro-batches"));
}

// Nothing is allocated for what a table only says.
TEST(CheckSchedule, ManyStagesWithFewActionsAreRefusedAtOnce) {
  Schedule schedule = small();
  schedule.stages = 2'000'000'000;
  schedule.micro_batches = 2'000'000'000;
  EXPECT_EQ(problem_of(schedule), "the pipeline schedule: 0F2 is missing");
}

TEST(CheckSchedule, NamesAnActionBeforeTheOneThatItNeeds) {
  Schedule schedule = small();
  std::swap(schedule.ranks[1][0], schedule.ranks[1][1]);
  EXPECT_EQ(problem_of(schedule),
            "the pipeline schedule: rank 1 waits before 1B0 for 1F0, which it has later");
  schedule = made(kZeroBubbleH1, {.ranks = 2, .micro_batches = 2});
  ASSERT_EQ(schedule.ranks[0][3].pass, Pass::kWeightGradient);
  std::swap(schedule.ranks[0][2], schedule.ranks[0][3]);
  EXPECT_THAT(problem_of(schedule), HasSubstr("rank 0 waits before 0W0 for 0I0"));
}

TEST(CheckSchedule, NamesRanksThatWaitForEachOther) {
  Schedule schedule = small();
  // The first stage wants its first gradient before it gives the second input, and the last stage
  // wants both inputs first.
  schedule.ranks[0] = {{Pass::kForward, 0, 0},
                       {Pass::kBackward, 0, 0},
                       {Pass::kForward, 0, 1},
                       {Pass::kBackward, 0, 1}};
  EXPECT_EQ(check_schedule(schedule), absl::OkStatus());
  std::swap(schedule.ranks[1][1], schedule.ranks[1][2]);
  EXPECT_EQ(problem_of(schedule),
            "the pipeline schedule: ranks wait for each other: rank 0 waits before 0B0 for 1B0 of "
            "rank 1; rank 1 waits before 1F1 for 0F1 of rank 0");
}

// A rank outside of the circle is not blamed.
TEST(CheckSchedule, NamesTheCircleAlone) {
  Schedule schedule = made(k1f1b, {.ranks = 3, .micro_batches = 2});
  schedule.ranks[1] = {{Pass::kForward, 1, 0},
                       {Pass::kBackward, 1, 0},
                       {Pass::kForward, 1, 1},
                       {Pass::kBackward, 1, 1}};
  std::swap(schedule.ranks[2][1], schedule.ranks[2][2]);
  const std::string problem = problem_of(schedule);
  EXPECT_THAT(problem, AllOf(HasSubstr("rank 1 waits before 1B0 for 2B0"),
                             HasSubstr("rank 2 waits before 2F1 for 1F1")));
  EXPECT_EQ(problem.find("rank 0 waits"), problem.npos);
}

TEST(CausalOrder, HasEachActionBehindWhatItNeeds) {
  const Schedule schedule =
      made(kZeroBubbleV, {.ranks = 4, .stages_per_rank = 2, .micro_batches = 9});
  const std::vector<ActionPlace> order = causal_order(schedule).value();
  EXPECT_EQ(order.size(), 8U * 9 * 3);
  const ActionIndex index(schedule);
  std::vector<ActionPlace> before;
  for (const ActionPlace& place : order) {
    EXPECT_EQ(std::ranges::find(before, place), before.end());
    for (const ActionPlace& need : index.needs(action_at(schedule, place))) {
      EXPECT_NE(std::ranges::find(before, need), before.end());
    }
    before.push_back(place);
  }
}

TEST(MostInFlight, IsWhatTheSchedulesPromise) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int count : {1, 3, ranks, 2 * ranks, 4 * ranks}) {
      const std::vector<int64_t> gpipe =
          most_in_flight(made(kGpipe, {.ranks = ranks, .micro_batches = count}));
      EXPECT_THAT(gpipe, Each(count));
      EXPECT_EQ(gpipe.size(), static_cast<size_t>(ranks));
      EXPECT_THAT(most_in_flight(made(kZeroBubbleH1, {.ranks = ranks, .micro_batches = count})),
                  Each(std::min(ranks, count)));
      const std::vector<int64_t> one =
          most_in_flight(made(k1f1b, {.ranks = ranks, .micro_batches = count}));
      const std::vector<int64_t> v = most_in_flight(
          made(kZeroBubbleV, {.ranks = ranks, .stages_per_rank = 2, .micro_batches = count}));
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(one[static_cast<size_t>(rank)], std::min(count, ranks - rank));
        EXPECT_EQ(v[static_cast<size_t>(rank)],
                  std::min(2 * ranks, std::min(count, 2 * ranks - 1) + std::min(count, 1 + rank)));
      }
    }
  }
}

TEST(MostInFlight, OfInterleavedGrowsWithTheGroups) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int stages : {2, 3, 4}) {
      for (const int group : {ranks - 1, ranks, 2 * ranks - 1}) {
        // One group.
        const std::vector<int64_t> most =
            most_in_flight(made(kInterleaved, {ranks, stages, group}));
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(most[static_cast<size_t>(rank)],
                    std::min(group * stages, 2 * (ranks - rank - 1) + (stages - 1) * group + 1));
        }
      }
    }
  }
  EXPECT_THAT(most_in_flight(made(kInterleaved, {4, 2, 8})), ElementsAre(11, 9, 7, 5));
}

TEST(MostInFlight, AddsTheSizesOfStages) {
  const Schedule schedule = made(k1f1b, {.ranks = 3, .micro_batches = 4});
  EXPECT_THAT(most_in_flight(schedule, {10, 100, 1000}), ElementsAre(30, 200, 1000));
}

// The first half of a backward pass still leaves the second one what it needs.
TEST(MostInFlight, IsKeptUntilTheSecondHalf) {
  const Schedule schedule = made(kZeroBubbleH1, {.ranks = 2, .micro_batches = 3});
  EXPECT_EQ(action_text(schedule.ranks[1][1]), "1I0");
  EXPECT_EQ(action_text(schedule.ranks[1][2]), "1F1");
  EXPECT_THAT(most_in_flight(schedule, {10, 100}), ElementsAre(20, 200));
}

TEST(MostInFlight, WithoutBackwardPassesNothingIsKept) {
  EXPECT_THAT(most_in_flight(forward_passes(made(kGpipe, {.ranks = 2, .micro_batches = 8}))),
              ElementsAre(0, 0));
}

TEST(CheckInFlight, NamesTheRankAndTheActionBeyondTheLimit) {
  const Schedule schedule = made(kGpipe, {.ranks = 2, .micro_batches = 8});
  EXPECT_EQ(check_in_flight(schedule, 8), absl::OkStatus());
  EXPECT_EQ(std::string(check_in_flight(schedule, 7).message()),
            "the pipeline schedule: rank 0 keeps 8 for backward passes from 0F7 on, more than 7");
  const Schedule one = made(k1f1b, {.ranks = 2, .micro_batches = 8});
  EXPECT_EQ(check_in_flight(one, 100, {50, 100}), absl::OkStatus());
  EXPECT_THAT(std::string(check_in_flight(one, 100, {50, 101}).message()),
              HasSubstr("rank 1 keeps 101"));
  EXPECT_EQ(check_in_flight(forward_passes(one), 0), absl::OkStatus());
}

}  // namespace
}  // namespace accelerate::pipeline
