// What `accelerate plan` tells of layouts is what the simulator tells of the whole model, and the
// layouts that do not fit have the reason. The figures are of the clusters that are named.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/number_text.h"
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

// The small model's, or that of a cluster and a model which ci/layouts.sh names.
PlanRequest request_with_order() {
  const char* const model = std::getenv("ACCELERATE_PLANNED_MODEL");
  const char* const cluster = std::getenv("ACCELERATE_PLANNED_CLUSTER");
  if (model == nullptr || cluster == nullptr) return small_request();
  return request_of({{"model", model}, {"cluster", cluster}});
}

TEST(LayoutPlan, HasTheOrderOfTheExecutedSteps) {
  const PlanRequest request = request_with_order();
  const std::vector<PlannedLayout> layouts = plan(request);
  ASSERT_EQ(layouts.size(), layout_choices(request).size());
  std::vector<double> executed;
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(layouts[i].fits) << layouts[i].why;
    const PlannedLayout exact = exactly(request, layouts[i].choice);
    ASSERT_TRUE(exact.fits) << exact.why;
    executed.push_back(exact.step_seconds);
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

// Cuts along pp, tp and dp_shard divide all; those of sequences divide rows where there are shards,
// and experts are whole along ep.
TEST(LayoutPlan, CountsTheStatesOfARank) {
  const auto why = [](const PlanRequest& request, const accelerate::RankLayout& ranks) {
    const PlannedLayout layout = planned(request, {.ranks = ranks});
    EXPECT_FALSE(layout.fits) << layout.choice.text();
    return layout.why;
  };
  const auto told = [](double elements) {
    return HasSubstr("parameters, gradients and moments are " +
                     accelerate::binary_byte_text(static_cast<int64_t>(16 * elements)) + " of ");
  };
  const PlanRequest layers =
      request_of({{"model", "llama-70b"}, {"cluster", "2x8:h100"}, {"batch_size", 16}});
  const auto all = static_cast<double>(parameter_count(layers.config));
  EXPECT_THAT(why(layers, {.dp_replicate = 8, .tp = 2}), told(all / 2));
  EXPECT_THAT(why(layers, {.pp = 2, .dp_replicate = 8}), told(all / 2));
  EXPECT_THAT(why(layers, {.dp_replicate = 8, .sp = 2}), told(all));
  EXPECT_THAT(why(layers, {.dp_replicate = 2, .dp_shard = 2, .cp = 4}), told(all / 8));
  EXPECT_THAT(why(layers, {.dp_replicate = 2, .dp_shard = 2, .sp = 4}), told(all / 8));
  const PlanRequest experts = request_of(
      {{"model", "llama-70b"}, {"cluster", "2x8:h100"}, {"batch_size", 16}, {"experts", 8}});
  const lm::Config& config = experts.config;
  const double in_experts = 3.0 * static_cast<double>(config.layers * config.hidden) *
                            static_cast<double>(config.experts * config.expert_intermediate);
  const double others = static_cast<double>(parameter_count(config)) - in_experts;
  ASSERT_GT(in_experts, others);
  EXPECT_THAT(why(experts, {.dp_replicate = 4, .dp_shard = 4, .experts = true}),
              told((others + in_experts) / 4));
  EXPECT_THAT(why(experts, {.dp_replicate = 4, .dp_shard = 4, .ep = 2, .experts = true}),
              told(others / 4 + in_experts / 2));
  EXPECT_THAT(why(experts, {.dp_replicate = 2, .dp_shard = 4, .tp = 2, .ep = 2, .experts = true}),
              told(others / 8 + in_experts / 4));
}

// One sequence cannot be divided among shares, so that layouts with two of them do not fit.
TEST(LayoutPlan, HasWhatFitsFirst) {
  const PlanRequest request = request_of(
      {{"model", "llama-tiny"}, {"cluster", "1x2:h100"}, {"layers", 2}, {"batch_size", 1}});
  const std::vector<PlannedLayout> layouts = plan(request);
  std::vector<std::string> fit, others, expected;
  for (const PlannedLayout& layout : layouts) {
    if (!layout.fits) {
      others.push_back(layout.choice.text());
      continue;
    }
    EXPECT_TRUE(others.empty()) << layout.choice.text();
    EXPECT_GT(layout.choice.ranks.tp, 1);
    fit.push_back(layout.choice.text());
  }
  EXPECT_EQ(fit.size(), 4) << "tp 2, with and without sequence shards and recomputation";
  for (size_t i = 1; i < fit.size(); ++i) {
    EXPECT_LE(layouts[i - 1].step_seconds, layouts[i].step_seconds);
  }
  for (const LayoutChoice& choice : layout_choices(request)) {
    if (choice.ranks.tp == 1) expected.push_back(choice.text());
  }
  EXPECT_EQ(others, expected) << "in the order of the choices";
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
  EXPECT_EQ(rows[0]["fits"], true);
  EXPECT_EQ(rows[0]["step_seconds"], 0.25);
  EXPECT_EQ(rows[0]["tokens_per_second"], 32768);
  EXPECT_EQ(rows[0]["mfu"], 0.5);
  EXPECT_EQ(rows[0]["peak_memory"], int64_t{3} << 30);
  EXPECT_EQ(rows[0]["activations"], int64_t{1} << 30);
  EXPECT_EQ(rows[0]["memory"], int64_t{80} << 30);
  EXPECT_EQ(rows[1]["fits"], false);
  EXPECT_EQ(rows[1]["why"], "it is too dear");
}

TEST(PlanRequests, HaveWhatTheyAreGiven) {
  const PlanRequest request = request_of({{"model", "llama-tiny"},
                                          {"cluster", "1x4:h100"},
                                          {"batch_size", 24},
                                          {"micro_batch_size", 3},
                                          {"mixed_precision", "no"},
                                          {"exact", true},
                                          {"layers", 6},
                                          {"sequence_length", 64},
                                          {"experts", 8},
                                          {"most_pp", 4},
                                          {"most_cp", 2},
                                          {"most_sp", 3},
                                          {"skew", 2.5}});
  EXPECT_EQ(request.cluster, "1x4:h100");
  EXPECT_EQ(request.batch_size, 24);
  EXPECT_EQ(request.micro_batch_size, 3);
  EXPECT_EQ(request.mixed_precision, "no");
  EXPECT_TRUE(request.is_exact);
  EXPECT_EQ(request.config.layers, 6);
  EXPECT_EQ(request.config.sequence_length, 64);
  EXPECT_EQ(request.config.experts, 8);
  EXPECT_EQ(request.most_pp, 4);
  EXPECT_EQ(request.most_cp, 2);
  EXPECT_EQ(request.most_sp, 3);
  EXPECT_EQ(request.skew, 2.5);
  const PlanRequest usual = request_of({{"model", "llama-tiny"}, {"cluster", "1x4:h100"}});
  EXPECT_EQ(usual.batch_size, 0);
  EXPECT_EQ(usual.micro_batch_size, 1);
  EXPECT_EQ(usual.mixed_precision, "bf16");
  EXPECT_FALSE(usual.is_exact);
  EXPECT_EQ(usual.most_pp * usual.most_cp * usual.most_sp, 1);
  EXPECT_FALSE(usual.skew.has_value());
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
