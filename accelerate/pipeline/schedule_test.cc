#include "accelerate/pipeline/schedule.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/pipeline/schedule_text.h"

namespace accelerate::pipeline {
namespace {

using enum ScheduleKind;
using testing::ElementsAre;
using testing::HasSubstr;

// A line for each rank.
std::string table(ScheduleKind kind, const PipelineShape& shape) {
  const absl::StatusOr<Schedule> schedule = make_schedule(kind, shape);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return schedule.ok() ? schedule_table(*schedule) : "";
}

std::string refusal(ScheduleKind kind, const PipelineShape& shape) {
  const absl::StatusOr<Schedule> schedule = make_schedule(kind, shape);
  EXPECT_FALSE(schedule.ok());
  EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(schedule.status().message());
}

TEST(MakeSchedule, GpipeHasAllForwardPassesBeforeTheFirstBackwardPass) {
  EXPECT_EQ(table(kGpipe, {.ranks = 2, .micro_batches = 3}),
            "0F0 0F1 0F2 0B0 0B1 0B2\n"
            "1F0 1F1 1F2 1B0 1B1 1B2\n");
}

TEST(MakeSchedule, OneForwardOneBackwardRunsWithFewerMicroBatchesThanRanks) {
  EXPECT_EQ(table(k1f1b, {.ranks = 3, .micro_batches = 4}),
            "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
            "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
            "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
  EXPECT_EQ(table(k1f1b, {.ranks = 4, .micro_batches = 1}), "0F0 0B0\n1F0 1B0\n2F0 2B0\n3F0 3B0\n");
}

TEST(MakeSchedule, InterleavedTakesGroupsOfMicroBatchesThroughItsStages) {
  EXPECT_EQ(table(kInterleaved, {.ranks = 2, .stages_per_rank = 2, .micro_batches = 4}),
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3\n");
}

// One group, as they are more than the ranks and less than twice as many.
TEST(MakeSchedule, InterleavedTakesThreeMicroBatchesOnTwoRanks) {
  EXPECT_EQ(table(kInterleaved, {.ranks = 2, .stages_per_rank = 2, .micro_batches = 3}),
            "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2\n"
            "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2\n");
}

TEST(MakeSchedule, LoopedBreadthFirstFinishesAStageBeforeTheNextOne) {
  EXPECT_EQ(table(kLoopedBreadthFirst, {.ranks = 2, .stages_per_rank = 2, .micro_batches = 2}),
            "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n"
            "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1\n");
  EXPECT_EQ(table(kLoopedBreadthFirst, {.ranks = 3, .micro_batches = 5}),
            table(kGpipe, {.ranks = 3, .micro_batches = 5}));
}

TEST(MakeSchedule, ZeroBubbleH1PutsWeightGradientsOff) {
  EXPECT_EQ(table(kZeroBubbleH1, {.ranks = 4, .micro_batches = 4}),
            "0F0 0F1 0F2 0F3 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3\n"
            "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1I2 1W1 1I3 1W2 1W3\n"
            "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2I3 2W1 2W2 2W3\n"
            "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3W1 3W2 3W3\n");
}

TEST(MakeSchedule, ZeroBubbleVHasTheLastStageOnTheFirstRank) {
  EXPECT_EQ(table(kZeroBubbleV, {.ranks = 2, .stages_per_rank = 2, .micro_batches = 3}),
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2\n"
            "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2\n");
  const absl::StatusOr<Schedule> schedule =
      make_schedule(kZeroBubbleV, {.ranks = 3, .stages_per_rank = 2, .micro_batches = 1});
  EXPECT_THAT(stage_ranks(schedule.value()), ElementsAre(0, 1, 2, 2, 1, 0));
}

// The hash of the tables of all shapes. Those of interleaved are 276 lists, which were compared
// with torch.distributed.pipelining's; those of zb_v are its lists without empty places.
struct RecordedTables {
  ScheduleKind kind;
  int stages_per_rank;
  std::vector<int> ranks;
  // Numbers of micro-batches: as they are, and as multiples of the ranks.
  std::vector<int> micro_batches;
  std::vector<int> multiples;
  const char* sha256;
};

std::string tables(const RecordedTables& recorded, int most_stages) {
  std::string text;
  for (const int ranks : recorded.ranks) {
    std::vector<int> counts = recorded.micro_batches;
    for (const int multiple : recorded.multiples) counts.push_back(multiple * ranks);
    for (const int count : counts) {
      for (int stages = recorded.stages_per_rank; stages <= most_stages; ++stages) {
        absl::StrAppend(&text, table(recorded.kind, {ranks, stages, count}));
      }
    }
  }
  return text;
}

TEST(MakeSchedule, InterleavedIsPytorchsOrderInAllRecordedLists) {
  const RecordedTables recorded = {
      kInterleaved,    2,
      {2, 3, 4, 6, 8}, {},
      {1, 2, 3, 4},    "83cd7f2a98992177a691d035bd1d721c2e87471d4aa85b36740ee27b65623346"};
  const std::string text = tables(recorded, 4);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 276);
  EXPECT_EQ(sha256(text), recorded.sha256);
}

TEST(MakeSchedule, OtherOrdersAreTheRecordedOnes) {
  const std::vector<RecordedTables> all = {
      {kGpipe,
       1,
       {1, 2, 3, 4, 6, 8},
       {1, 3},
       {1, 2},
       "eff8d04c92e4782a9188b22bfd7c4fe1597a4016674cd4532ced99618e9dec89"},
      {k1f1b,
       1,
       {1, 2, 3, 4, 6, 8},
       {1, 3},
       {1, 2},
       "a1a48a1d390060b34285c9acf523b73025afaa454bd0f57939cfa917d8d80de8"},
      {kZeroBubbleV,
       2,
       {1, 2, 3, 4, 6, 8},
       {1, 3},
       {1, 2, 4},
       "38a64fd2edf105333aa1a79f6d0a1136f3c33dfba5f24f73d37033e3211b63b9"},
  };
  for (const RecordedTables& each : all) {
    EXPECT_EQ(sha256(tables(each, each.stages_per_rank)), each.sha256) << to_string(each.kind);
  }
  std::string text;
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    for (const int count : {ranks, ranks + 1, 2 * ranks, 4 * ranks}) {
      text += table(kZeroBubbleH1, {.ranks = ranks, .micro_batches = count});
    }
  }
  EXPECT_EQ(sha256(text), "d6b3aa540c45073bb2d7be1273bc6799f7830d25ebbd8f90ff0d941c24f5f3df");
}

// So a stage adds its gradients in one order, whatever the schedule.
TEST(MakeSchedule, BackwardPassesOfAStageAreInTheOrderOfMicroBatches) {
  for (const ScheduleKind kind : values<ScheduleKind>()) {
    const int stages = kind == kGpipe || kind == k1f1b || kind == kZeroBubbleH1 ? 1 : 2;
    for (const int count : {1, 3, 4, 8, 16}) {
      const absl::StatusOr<Schedule> schedule = make_schedule(kind, {4, stages, count});
      ASSERT_TRUE(schedule.ok()) << schedule.status();
      std::map<std::pair<int, Pass>, int> next;
      for (const std::vector<Action>& actions : schedule->ranks) {
        for (const auto& [pass, stage, micro_batch] : actions) {
          const int expected = next[{stage, pass}]++;
          EXPECT_EQ(micro_batch, expected) << to_string(kind);
        }
      }
    }
  }
}

TEST(MakeSchedule, NamesTheNearestNumbersOfMicroBatchesThatDivide) {
  EXPECT_EQ(refusal(kInterleaved, {.ranks = 2, .stages_per_rank = 2, .micro_batches = 5}),
            "the pipeline schedule interleaved cannot divide 5 micro-batches into 2 equal groups, "
            "with 2 ranks; it can divide 4 or 6");
  EXPECT_THAT(refusal(kInterleaved, {.ranks = 4, .stages_per_rank = 2, .micro_batches = 13}),
              HasSubstr("it can divide 12 or 15"));
  for (const int count : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16}) {
    EXPECT_TRUE(make_schedule(kInterleaved, {4, 2, count}).ok()) << count;
  }
  for (const int count : {9, 11, 13, 14}) {
    EXPECT_FALSE(make_schedule(kInterleaved, {4, 2, count}).ok()) << count;
  }
}

TEST(MakeSchedule, NamesTheKindThatHasSoManyStagesARank) {
  EXPECT_EQ(refusal(kGpipe, {2, 2, 4}),
            "the pipeline schedule gpipe has 1 stage a rank, but got 2; looped_bfs has several");
  EXPECT_THAT(refusal(k1f1b, {2, 3, 4}), HasSubstr("but got 3; interleaved has several"));
  EXPECT_THAT(refusal(kInterleaved, {2, 1, 4}),
              HasSubstr("interleaved has 2 stages or more a rank, but got 1; 1f1b has 1"));
  EXPECT_THAT(refusal(kZeroBubbleH1, {2, 2, 4}), HasSubstr("zb_v has 2"));
  EXPECT_THAT(refusal(kZeroBubbleV, {2, 1, 4}),
              HasSubstr("zb_v has 2 stages a rank, but got 1; zb_h1 has 1"));
  EXPECT_THAT(refusal(kZeroBubbleV, {2, 3, 4}), HasSubstr("but got 3"));
}

TEST(MakeSchedule, RefusesSizesBelowOneAndThoseThatNoMemoryHolds) {
  EXPECT_EQ(refusal(k1f1b, {0, 1, 4}), "a pipeline has at least 1 rank, but got 0");
  EXPECT_EQ(refusal(k1f1b, {2, -1, 4}), "a pipeline has at least 1 stage a rank, but got -1");
  EXPECT_EQ(refusal(k1f1b, {2, 1, 0}), "a pipeline has at least 1 micro-batch, but got 0");
  EXPECT_THAT(refusal(k1f1b, {4, 1, 2'000'000'000}),
              HasSubstr("at most 833333 micro-batches, but got 2000000000"));
  EXPECT_THAT(refusal(kInterleaved, {2'000'000'000, 2'000'000'000, 1}), HasSubstr("at most 0"));
}

TEST(MakeSchedule, ForwardPassesKeepTheirOrder) {
  const absl::StatusOr<Schedule> schedule =
      make_schedule(kInterleaved, {.ranks = 2, .stages_per_rank = 2, .micro_batches = 4});
  ASSERT_TRUE(schedule.ok());
  const Schedule forward = forward_passes(*schedule);
  EXPECT_EQ(schedule_table(forward),
            "0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3\n"
            "1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3\n");
  EXPECT_EQ(forward.stages, 4);
  EXPECT_EQ(forward.micro_batches, 4);
}

TEST(ParseScheduleKind, ReadsEveryKindInAnyCaseAndProposesNames) {
  for (const ScheduleKind kind : values<ScheduleKind>()) {
    EXPECT_EQ(parse_schedule_kind(to_string(kind)).value(), kind);
  }
  EXPECT_EQ(parse_schedule_kind("1F1B").value(), k1f1b);
  EXPECT_THAT(std::string(parse_schedule_kind("zb_h2").status().message()),
              HasSubstr("\"zb_h2\" is not a pipeline schedule; did you mean \"zb_h1\""));
}

}  // namespace
}  // namespace accelerate::pipeline
