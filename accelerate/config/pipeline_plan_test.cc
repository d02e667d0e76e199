#include "accelerate/config/pipeline_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

TEST(PipelinePlan, OfVariablesIsWhatTheySay) {
  Environment environment;
  EXPECT_EQ(pipeline_plan_of(environment), PipelinePlan());
  environment.set("PARALLELISM_CONFIG_PP_SCHEDULE", "interleaved");
  environment.set("PARALLELISM_CONFIG_PP_STAGES_PER_RANK", "2");
  environment.set("PARALLELISM_CONFIG_PP_SPLIT_POINTS", "blocks.1,blocks.2,head");
  environment.set("PARALLELISM_CONFIG_PP_MICRO_BATCHES", "8");
  EXPECT_EQ(pipeline_plan_of(environment),
            (PipelinePlan{.schedule = pipeline::ScheduleKind::kInterleaved,
                          .stages_per_rank = 2,
                          .split_points = {"blocks.1", "blocks.2", "head"},
                          .micro_batches = 8}));
}

TEST(PipelinePlan, NamesTheVariableThatItCannotRead) {
  Environment environment;
  environment.set("PARALLELISM_CONFIG_PP_SCHEDULE", "2f2b");
  EXPECT_THAT(value_error_of([&] { pipeline_plan_of(environment); }),
              HasSubstr("PARALLELISM_CONFIG_PP_SCHEDULE"));
}

}  // namespace
}  // namespace accelerate
