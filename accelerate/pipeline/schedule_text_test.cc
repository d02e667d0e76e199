#include "accelerate/pipeline/schedule_text.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace accelerate::pipeline {
namespace {

using enum ScheduleKind;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

Schedule made(ScheduleKind kind, const PipelineShape& shape) {
  return make_schedule(kind, shape).value();
}

std::string drawing(const Schedule& schedule, const PipelineCosts& costs,
                    const ScheduleTextOptions& options = {}) {
  return schedule_text(schedule, schedule_times(schedule, costs).value(), options);
}

std::string error_of(absl::string_view text, absl::string_view name) {
  const absl::StatusOr<Schedule> schedule = parse_schedule(text, name);
  EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(schedule.status().message());
}

TEST(ScheduleText, DrawsAnActionAsWideAsItIsLong) {
  EXPECT_EQ(drawing(made(k1f1b, {.ranks = 2, .micro_batches = 3}), {.stages = {{7, 7, 7}}}),
            "2 ranks, 2 stages, 3 micro-batches: bubble 25.0 %\n"
            "rank 0 (bubble 25.0 %, 2 in flight): F0 F1 ..... B0    F2 B1    .. B2\n"
            "rank 1 (bubble 25.0 %, 1 in flight): .. F0 B0    F1 B1    F2 B2    .....\n");
}

TEST(ScheduleText, NamesTheStageWhereRanksHaveSeveral) {
  const Schedule schedule =
      made(kZeroBubbleV, {.ranks = 2, .stages_per_rank = 2, .micro_batches = 1});
  // Ten units of time, of which a rank computes in six.
  EXPECT_EQ(drawing(schedule, {.stages = {{1, 1, 1}}}),
            "2 ranks, 4 stages, 1 micro-batch: bubble 40.0 %\n"
            "rank 0 (bubble 40.0 %, 2 in flight): 0F0 ....... 3F0 3I0 3W0 ....... 0I0 0W0\n"
            "rank 1 (bubble 40.0 %, 2 in flight): ... 1F0 2F0 ....... 2I0 2W0 1I0 1W0 ...\n");
}

TEST(ScheduleText, HasTheBubbleAndWhatIsInFlightOfEachRank) {
  const std::string text =
      drawing(made(k1f1b, {.ranks = 4, .micro_batches = 8}), {.stages = {{1, 1, 1}}});
  EXPECT_THAT(text, StartsWith("4 ranks, 4 stages, 8 micro-batches: bubble 27.3 %\n"));
  for (const char* head : {"rank 0 (bubble 27.3 %, 4 in flight): F0 F1 F2 F3 ",
                           "rank 1 (bubble 27.3 %, 3 in flight): .. F0 F1 F2 ",
                           "rank 2 (bubble 27.3 %, 2 in flight): ..... F0 F1 ",
                           "rank 3 (bubble 27.3 %, 1 in flight): ........ F0 B0    F1 B1 "}) {
    EXPECT_THAT(text, HasSubstr(head));
  }
}

TEST(ScheduleText, SaysHowManyBytesARankKeeps) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const std::string text =
      drawing(made(kInterleaved, {.ranks = 2, .stages_per_rank = 2, .micro_batches = 4}),
              {.stages = {{1, 1, 1}}}, {.stage_bytes = {kGiB, kGiB, 2 * kGiB, kGiB / 2}});
  // 0F0 0F1 2F0 2F1 0F2 before the first backward pass.
  EXPECT_THAT(text, HasSubstr(", 5 in flight, 7.00 GiB): 0F0"));
  // 1F0 1F1 1F2, when the first two of stage 3 have had their backward passes.
  EXPECT_THAT(text, HasSubstr(", 3 in flight, 3.00 GiB): ... 1F0"));
}

TEST(ScheduleText, IsCutAtTheLastColumn) {
  const Schedule schedule = made(kGpipe, {.ranks = 2, .micro_batches = 100});
  const std::vector<std::string> lines = absl::StrSplit(
      drawing(schedule, {.stages = {{1, 1, 1}}}, {.columns = 60}), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3U);
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].size(), 60U);
    EXPECT_THAT(lines[i], EndsWith(" >"));
  }
  EXPECT_THAT(lines[1], HasSubstr(": F0  F1  F2"));
}

// A line of as many columns as there may be is whole, and one column less cuts it.
TEST(ScheduleText, IsWholeWhereItsLongestLineJustFits) {
  const Schedule schedule = made(k1f1b, {.ranks = 2, .micro_batches = 3});
  const PipelineCosts costs = {.stages = {{7, 7, 7}}};
  const std::string whole = drawing(schedule, costs);
  const std::vector<std::string> lines = absl::StrSplit(whole, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3U);
  ASSERT_GT(lines[2].size(), lines[1].size());
  const int columns = static_cast<int>(lines[2].size());
  EXPECT_EQ(drawing(schedule, costs, {.columns = columns}), whole);
  const std::string cut = drawing(schedule, costs, {.columns = columns - 1});
  EXPECT_THAT(cut, AllOf(HasSubstr(lines[1] + "\n"), EndsWith(" >\n")));
}

TEST(ScheduleText, OfOneRankIsInTheSingular) {
  const std::string text =
      drawing(made(kGpipe, {.ranks = 1, .micro_batches = 2}), {.stages = {{1, 1, 1}}});
  EXPECT_EQ(text,
            "1 rank, 1 stage, 2 micro-batches: bubble 0.0 %\n"
            "rank 0 (bubble 0.0 %, 2 in flight): F0 F1 B0    B1\n");
}

TEST(ScheduleText, NamesTheStageThatIsNotTheRanksNumber) {
  Schedule schedule = made(k1f1b, {.ranks = 2, .micro_batches = 1});
  std::swap(schedule.ranks[0], schedule.ranks[1]);
  EXPECT_THAT(drawing(schedule, {.stages = {{1, 1, 1}}}), HasSubstr(": ... 1F0 1B0"));
}

// However much longer one action is than another one, the text is not.
TEST(ScheduleText, IsSmallWhateverTheCosts) {
  const Schedule schedule = made(k1f1b, {.ranks = 2, .micro_batches = 3});
  const PipelineCosts costs = {.stages = {{1, 1'000'000'000'000, 0}, {5, 0, 0}}, .hop_ns = 1 << 20};
  EXPECT_LT(drawing(schedule, costs).size(), 500U);
  const std::string without_time = drawing(schedule, {.stages = {{0, 0, 0}}});
  EXPECT_THAT(without_time, HasSubstr("F0 F1 B0 F2 B1 B2\n"));
}

TEST(ParseSchedule, ReadsTheTableOfEverySchedule) {
  for (const ScheduleKind kind : values<ScheduleKind>()) {
    const int stages = kind == kGpipe || kind == k1f1b || kind == kZeroBubbleH1 ? 1 : 2;
    const Schedule schedule = made(kind, {4, stages, 8});
    const absl::StatusOr<Schedule> read = parse_schedule(schedule_table(schedule), "table.txt");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, schedule) << to_string(kind);
  }
}

TEST(ParseSchedule, AllFormsAreOneSchedule) {
  const Schedule expected = made(k1f1b, {.ranks = 2, .micro_batches = 2});
  const std::vector<std::pair<const char*, const char*>> forms = {
      {"s.txt", "# by hand\nF0 F1 B0 B1\n\n  F0 B0 F1 B1\n"},
      {"s.csv", "0F0,0F1,,,0B0,,0B1\r\n,1F0,1B0,1F1,1B1,,\r\n"},
      {"s.yaml", "ranks:\n  - F0 F1 B0 B1\n  - [1F0, 1B0, F1, 1B1]\n"},
      {"s.yml", "ranks: [F0 F1 B0 B1, 1F0 1B0 1F1 1B1]"},
      {"s.json", R"({"ranks": ["F0 F1 B0 B1", ["F0", "B0", "F1 B1"]]})"},
  };
  for (const auto& [name, text] : forms) {
    const absl::StatusOr<Schedule> read = parse_schedule(text, name);
    ASSERT_TRUE(read.ok()) << name << ": " << read.status();
    EXPECT_EQ(*read, expected) << name;
  }
}

TEST(ParseSchedule, SaysWhereATextIsNotAnAction) {
  EXPECT_EQ(error_of("F0 B0\n\nF0 X9\n", "mine.txt"),
            "mine.txt:3: expected an action such as 0F2 (stage, F, B, I or W, micro-batch), or F2 "
            "for the rank's own stage, found \"X9\"");
  for (const char* word : {"F", "0", "0F", "F-1", "-1F0", "F+1", "f0", "F0x", "0F0F",
                           "F99999999999", "99999999999F0", "."}) {
    EXPECT_THAT(error_of(word, "t"), StartsWith("t:1: expected an action")) << word;
  }
  EXPECT_THAT(error_of("ranks:\n  - F0 B0\n  - F0 Q\n", "s.yaml"),
              AllOf(StartsWith("s.yaml: expected an action"), HasSubstr("at \"/ranks/1\" (line 3)"),
                    HasSubstr("found \"F0 Q\"")));
}

TEST(ParseSchedule, SaysWhatADocumentLacks) {
  EXPECT_THAT(error_of("{}", "s.json"), AllOf(StartsWith("s.json: "), HasSubstr("/ranks")));
  EXPECT_THAT(error_of(R"({"ranks": [], "rank": 1})", "s.json"),
              HasSubstr("did you mean \"ranks\""));
  EXPECT_THAT(error_of("ranks: 3", "s.yaml"), HasSubstr("expected a list"));
  EXPECT_THAT(error_of("ranks: [3]", "s.yaml"), HasSubstr("the actions of a rank"));
  EXPECT_THAT(error_of("{", "s.json"), StartsWith("s.json: it is not JSON"));
  EXPECT_THAT(error_of("", "s.yaml"), StartsWith("s.yaml: "));
}

TEST(ParseSchedule, ChecksWhatItReads) {
  EXPECT_EQ(error_of("F0 F1 B0 B1\nF0 B0 F1", "mine.txt"),
            "mine.txt: the pipeline schedule: 1B1 is missing");
  EXPECT_THAT(error_of("ranks: [B0 F0]", "s.yaml"),
              HasSubstr("rank 0 waits before 0B0 for 0F0, which it has later"));
  EXPECT_THAT(error_of("F2147483647", "t"), HasSubstr("has 0F2147483647, but"));
  EXPECT_THAT(error_of("", "t"), HasSubstr("0 ranks"));
  EXPECT_THAT(error_of("ranks: [[]]", "s.yaml"), HasSubstr("micro-batches"));
}

}  // namespace
}  // namespace accelerate::pipeline
