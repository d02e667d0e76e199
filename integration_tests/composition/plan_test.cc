// What `accelerate plan` tells of layouts is what the simulator tells of the whole model, and the
// layouts that do not fit have the reason. The figures are of the clusters that are named.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/rank_layout.h"
#include "accelerate/examples/lm/layout_plan.h"

namespace lm {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Eight blocks; two to eight micro-steps.
PlanRequest small_request() {
  return request_of({{"model", "llama-125m"},
                     {"cluster", "1x4:h100"},
                     {"layers", 8},
                     {"sequence_length", 512},
                     {"batch_size", 8}});
}

PlannedLayout exactly(PlanRequest request, const LayoutChoice& choice) {
  request.is_exact = true;
  return planned(request, choice);
}

TEST(LayoutPlan, OfFewBlocksAndPassesIsThatOfAll) {
  const PlanRequest request = small_request();
  const std::vector<LayoutChoice> choices = layout_choices(request);
  EXPECT_EQ(choices.size(), 18) << "6 layouts and 3 with sequence shards, each with recomputation";
  for (const LayoutChoice& choice : choices) {
    SCOPED_TRACE(choice.text());
    const PlannedLayout told = planned(request, choice), exact = exactly(request, choice);
    ASSERT_TRUE(told.fits) << told.why;
    ASSERT_TRUE(exact.fits) << exact.why;
    // The device waits for the host in so small a model, more in some blocks than in others.
    EXPECT_NEAR(told.step_seconds, exact.step_seconds, 0.04 * exact.step_seconds);
    EXPECT_NEAR(told.mfu, exact.mfu, 0.04 * exact.mfu);
    const auto memory = static_cast<double>(exact.peak_memory);
    EXPECT_NEAR(static_cast<double>(told.peak_memory), memory, 0.03 * memory);
  }
}

// Stages, and parts of sequences, are among the choices where they are asked for.
TEST(LayoutPlan, OfStagesAndSequencesIsThatOfAll) {
  PlanRequest request = small_request();
  request.most_pp = request.most_cp = request.most_sp = 2;
  EXPECT_EQ(layout_choices(request).size(), 44)
      << "16 layouts and 6 with sequence shards, each with recomputation";
  for (const accelerate::RankLayout& ranks :
       std::vector<accelerate::RankLayout>{{.pp = 2, .tp = 2},
                                           {.pp = 2, .dp_shard = 2},
                                           {.dp_shard = 2, .cp = 2},
                                           {.dp_shard = 2, .sp = 2},
                                           {.pp = 2, .tp = 2, .sequence_shards = true}}) {
    const LayoutChoice choice{.ranks = ranks};
    SCOPED_TRACE(choice.text());
    const PlannedLayout told = planned(request, choice), exact = exactly(request, choice);
    ASSERT_TRUE(told.fits) << told.why;
    ASSERT_TRUE(exact.fits) << exact.why;
    EXPECT_NEAR(told.step_seconds, exact.step_seconds, 0.05 * exact.step_seconds);
    const auto memory = static_cast<double>(exact.peak_memory);
    EXPECT_NEAR(static_cast<double>(told.peak_memory), memory, 0.05 * memory);
  }
}

TEST(LayoutPlan, HasTheOrderOfTheExecutedSteps) {
  const PlanRequest request = small_request();
  const std::vector<PlannedLayout> layouts = plan(request);
  ASSERT_EQ(layouts.size(), 18);
  std::vector<double> executed;
  for (size_t i = 0; i < 3; ++i) {
    executed.push_back(exactly(request, layouts[i].choice).step_seconds);
    EXPECT_LE(layouts[i].step_seconds, layouts[i + 1].step_seconds);
  }
  // Layouts that take as long may stand in either order.
  EXPECT_LE(executed[0], 1.01 * executed[1]) << plan_text(layouts);
  EXPECT_LE(executed[1], 1.01 * executed[2]) << plan_text(layouts);
}

TEST(LayoutPlan, OfALargeModelHasTheMemoryOfItsStates) {
  const PlanRequest request = request_of({{"model", "llama-70b"}, {"cluster", "16x8:h100"}});
  const PlannedLayout divided =
      planned(request, {.ranks = {.dp_shard = 16, .tp = 8}, .recomputes = true});
  ASSERT_TRUE(divided.fits) << divided.why;
  const double states = 16.0 * static_cast<double>(parameter_count(request.config)) / 128;
  EXPECT_GT(static_cast<double>(divided.peak_memory), states);
  EXPECT_LT(static_cast<double>(divided.peak_memory), 4 * states);
  EXPECT_GT(divided.mfu, 0);
  EXPECT_LT(divided.mfu, 1);
  EXPECT_NEAR(divided.tokens_per_second * divided.step_seconds, 128 * 4096, 1);
}

TEST(LayoutPlan, DividesExperts) {
  const PlanRequest request =
      request_of({{"model", "llama-tiny"}, {"cluster", "1x4:h100"}, {"layers", 2}, {"experts", 8}});
  for (const LayoutChoice& choice : layout_choices(request)) {
    if (choice.ranks.ep == 1) continue;
    const PlannedLayout layout = planned(request, choice);
    EXPECT_TRUE(layout.fits) << choice.text() << ": " << layout.why;
  }
}

// The rank with the first expert has more tokens than the others, which wait for it.
TEST(LayoutPlan, TakesLongerWithASkew) {
  nlohmann::json request = {{"model", "llama-125m"},  {"cluster", "1x2:h100"}, {"layers", 2},
                            {"sequence_length", 512}, {"experts", 8},          {"batch_size", 8},
                            {"micro_batch_size", 4}};
  const LayoutChoice choice{.ranks = {.dp_shard = 2, .ep = 2, .experts = true}};
  const PlannedLayout balanced = planned(request_of(request), choice);
  request["skew"] = 4;
  const PlannedLayout skewed = planned(request_of(request), choice);
  ASSERT_TRUE(balanced.fits) << balanced.why;
  ASSERT_TRUE(skewed.fits) << skewed.why;
  EXPECT_GT(skewed.step_seconds, balanced.step_seconds);
}

TEST(LayoutPlan, SaysWhyALayoutDoesNotFit) {
  const PlanRequest request =
      request_of({{"model", "llama-70b"}, {"cluster", "2x8:h100"}, {"batch_size", 24}});
  const auto why = [&request](const accelerate::RankLayout& ranks) {
    const PlannedLayout layout = planned(request, {.ranks = ranks});
    EXPECT_FALSE(layout.fits) << layout.choice.text();
    return layout.why;
  };
  EXPECT_EQ(why({.dp_shard = 16}),
            "24 sequences are not a number of micro-batches of 1 for each of 16 shares");
  EXPECT_EQ(why({.tp = 16}), "tp crosses nodes of 8 ranks");
  EXPECT_THAT(why({.dp_replicate = 8, .tp = 2}),
              AllOf(HasSubstr("parameters, gradients and moments are "), HasSubstr(" GiB of ")));
  // 16 bytes for each of 69 billion parameters are 1.0 TiB, and 16 devices have 1.2 TiB.
  EXPECT_THAT(why({.dp_shard = 2, .tp = 8}), HasSubstr("needs "));
}

TEST(LayoutPlan, ListsWhatDoesNotFitLast) {
  const std::vector<PlannedLayout> layouts = {
      {.choice = {.ranks = {.dp_shard = 4}},
       .fits = true,
       .step_seconds = 0.25,
       .tokens_per_second = 32768,
       .mfu = 0.5,
       .peak_memory = int64_t{3} << 30,
       .activations = int64_t{1} << 30,
       .memory = int64_t{80} << 30},
      {.choice = {.ranks = {.tp = 4}, .recomputes = true}, .why = "it is too dear"}};
  EXPECT_EQ(plan_text(layouts),
            "layout                     step   tokens/s     MFU  peak memory\n"
            "dp_shard 4             250.0 ms      32768  50.0 %  3.00 GiB of 80.00 GiB\n"
            "do not fit:\n"
            "tp 4, computed again  it is too dear\n");
  const nlohmann::ordered_json rows = plan_json(layouts);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0]["layout"], "dp_shard 4");
  EXPECT_EQ(rows[0]["step_seconds"], 0.25);
  EXPECT_EQ(rows[0]["activations"], int64_t{1} << 30);
  EXPECT_EQ(rows[0]["memory"], int64_t{80} << 30);
  EXPECT_EQ(rows[1]["fits"], false);
  EXPECT_EQ(rows[1]["why"], "it is too dear");
}

TEST(PlanRequests, ThatCannotBeMetAreRefused) {
  EXPECT_THAT([] { request_of({{"model", "llama-3b"}, {"cluster", "1x1:h100"}}); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("there is no model \"llama-3b\""), HasSubstr("llama-70b"))));
  EXPECT_THAT([] { request_of({{"model", "70b"}, {"cluster", "1x1:h100"}}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("there is no model \"70b\"")));
  EXPECT_THAT([] { request_of({{"model", "llama-7b"}, {"cluster", "2x8"}}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("names no device")));
  EXPECT_THAT([] { request_of({{"model", "gpt-7b"}, {"cluster", "1x1:h100"}, {"experts", 4}}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("experts are for Llama's blocks")));
  EXPECT_THAT([] { request_of({{"model", "llama-7b"}, {"cluster", "1x1:h100"}, {"skew", 2}}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("give a number of experts as well")));
}

}  // namespace
}  // namespace lm
