#include "launch/settings/validate.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "launch/settings/settings.h"

namespace accelerate::launcher::settings {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Settings with_pipeline(const TypedFlags& options) {
  TypedFlags typed = {{"use_parallelism_config", {"true"}}};
  for (const auto& [name, value] : options) {
    typed[absl::StrCat("parallelism_config_pp_", name)] = value;
  }
  return *Settings::resolve(typed, nullptr, {});
}

std::string text_of(const TypedFlags& options) { return *pipeline_text(with_pipeline(options)); }

std::string error_of(const TypedFlags& options) {
  return std::string(pipeline_text(with_pipeline(options)).status().message());
}

TEST(PipelineText, DrawsTheScheduleWithItsBubble) {
  const std::string text = text_of({{"size", {"4"}}, {"micro_batches", {"8"}}});
  EXPECT_THAT(text, StartsWith("pipeline 1f1b, where a backward pass takes the time of two forward "
                               "passes:\n4 ranks, 4 stages, 8 micro-batches: bubble 27.3 %\n"));
  EXPECT_THAT(text, HasSubstr("rank 0 (bubble 27.3 %, 4 in flight): F0 F1 F2 F3"));
  EXPECT_THAT(text_of({{"size", {"4"}}, {"schedule", {"zb_h1"}}, {"micro_batches", {"8"}}}),
              HasSubstr("4 stages, 8 micro-batches: bubble 11.1 %\n"));
}

TEST(PipelineText, SaysWhatARankKeepsWhereStagesSaySo) {
  EXPECT_THAT(text_of({{"size", {"2"}}, {"micro_batches", {"4"}}, {"stage_bytes", {"1GiB"}}}),
              AllOf(HasSubstr("2 in flight, 2.00 GiB): F0"), HasSubstr("1 in flight, 1.00 GiB)")));
  EXPECT_THAT(text_of({{"size", {"2"}}, {"stage_bytes", {"1GiB,512MiB"}}}),
              HasSubstr("512.00 MiB"));
}

TEST(PipelineText, IsEmptyWithoutStages) {
  EXPECT_EQ(text_of({}), "");
  EXPECT_EQ(text_of({{"micro_batches", {"8"}}}), "");
  const TypedFlags unused = {{"parallelism_config_pp_size", {"4"}}};
  EXPECT_EQ(*pipeline_text(*Settings::resolve(unused, nullptr, {})), "");
}

TEST(CheckPipeline, NamesWhatWorks) {
  EXPECT_EQ(error_of({{"size", {"2"}}}), "");
  EXPECT_THAT(
      error_of({{"size", {"2"}},
                {"schedule", {"interleaved"}},
                {"stages_per_rank", {"2"}},
                {"micro_batches", {"5"}}}),
      AllOf(StartsWith("--parallelism_config_pp_schedule=interleaved: "), HasSubstr("4 or 6")));
  EXPECT_THAT(error_of({{"size", {"2"}}, {"stages_per_rank", {"2"}}}),
              HasSubstr("has 1 stage a rank, but got 2"));
  EXPECT_THAT(error_of({{"size", {"3"}}, {"split_points", {"blocks.1"}}}),
              AllOf(StartsWith("--parallelism_config_pp_split_points=blocks.1: "),
                    HasSubstr("there are 3 stages, which begin at 2 parts")));
  EXPECT_EQ(error_of({{"size", {"3"}}, {"split_points", {"blocks.1,head"}}}), "");
  EXPECT_THAT(error_of({{"size", {"3"}}, {"split_points", {"blocks.1,blocks.2,head"}}}),
              HasSubstr("there are 3 stages, which begin at 2 parts"));
  EXPECT_THAT(error_of({{"size", {"3"}}, {"stage_bytes", {"1GiB,2"}}}),
              HasSubstr("expected sizes with a unit"));
  EXPECT_THAT(error_of({{"size", {"3"}}, {"stage_bytes", {"1GiB,2GiB"}}}),
              HasSubstr("one for each of 3 stages"));
}

}  // namespace
}  // namespace accelerate::launcher::settings
