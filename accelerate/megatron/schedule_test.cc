#include "accelerate/megatron/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// 1,000 iterations of 8 samples, of which 100 are warmup.
Json args(const Json& others = Json::object()) {
  Json args = {{"lr", 0.01},
               {"min_lr", 0.001},
               {"weight_decay", 0.1},
               {"train_iters", 1000},
               {"lr_warmup_iters", 100},
               {"global_batch_size", 8},
               {"train_samples", nullptr}};
  args.update(others);
  return args;
}

std::string problem(const Json& others) {
  return value_error_of([&] { megatron_schedule(args(others)); });
}

// The rate at an iteration by the formula of its style, for which 1 stands for the end.
double expected_lr(const std::string& style, int64_t iteration) {
  if (iteration <= 100) return 0.01 * static_cast<double>(iteration) / 100;
  const double share = static_cast<double>(iteration - 100) / 900;
  if (style == "constant") return 0.01;
  if (style == "linear") return 0.01 - 0.009 * share;
  if (style == "cosine") return 0.001 + 0.009 * std::pow(std::cos(std::acos(-1.0) * share / 2), 2);
  return std::max(0.001, 0.01 * std::sqrt(100 / static_cast<double>(iteration)));
}

TEST(MegatronSchedule, RatesFollowTheirFormulas) {
  for (const char* style : {"constant", "linear", "cosine", "inverse-square-root"}) {
    const MegatronSchedule schedule = megatron_schedule(args({{"lr_decay_style", style}}));
    for (int64_t i = 0; i <= 1000; ++i) {
      EXPECT_NEAR(megatron_lr(schedule, 8 * i), expected_lr(style, i), 1e-15) << style << " " << i;
    }
    EXPECT_EQ(megatron_lr(schedule, 8001), std::string(style) == "constant" ? 0.01 : 0.001);
  }
}

TEST(MegatronSchedule, WeightDecayFollowsItsFormula) {
  const Json ends = {{"start_weight_decay", 0.01}, {"end_weight_decay", 0.1}};
  for (const char* style : {"linear", "cosine"}) {
    Json others = ends;
    others["weight_decay_incr_style"] = style;
    const MegatronSchedule schedule = megatron_schedule(args(others));
    for (int64_t i = 0; i <= 1000; ++i) {
      const double share = static_cast<double>(i) / 1000;
      const double reached = std::string(style) == "linear"
                                 ? share
                                 : std::pow(std::sin(std::acos(-1.0) * share / 2), 2);
      EXPECT_NEAR(megatron_weight_decay(schedule, 8 * i), 0.01 + 0.09 * reached, 1e-15) << i;
    }
    EXPECT_EQ(megatron_weight_decay(schedule, 8001), 0.1);
  }
  EXPECT_EQ(megatron_weight_decay(megatron_schedule(args()), 3), 0.1);
}

TEST(MegatronSchedule, LengthsMayCountSamples) {
  const MegatronSchedule by_samples = megatron_schedule(args({{"train_iters", nullptr},
                                                              {"lr_warmup_iters", 0},
                                                              {"train_samples", 8000},
                                                              {"lr_warmup_samples", 800}}));
  EXPECT_EQ(by_samples, megatron_schedule(args()));
  EXPECT_EQ(megatron_schedule(args({{"lr_warmup_iters", 0}, {"lr_warmup_fraction", 0.1}})),
            megatron_schedule(args()));
  const MegatronSchedule shorter = megatron_schedule(args({{"lr_decay_iters", 500}}));
  EXPECT_EQ(shorter.lr_decay_steps, 4000);
  EXPECT_EQ(shorter.wd_incr_steps, 8000) << "the weight decay changes until the training's end";
  EXPECT_EQ(megatron_lr(shorter, 4001), 0.001);
  EXPECT_EQ(megatron_lr(shorter, 8000), 0.001);
  const MegatronSchedule both = megatron_schedule(args({{"lr_decay_iters", 500},
                                                        {"weight_decay_incr_style", "linear"},
                                                        {"start_weight_decay", 0.0},
                                                        {"end_weight_decay", 0.4}}));
  EXPECT_NEAR(megatron_weight_decay(both, 6000), 0.3, 1e-15);
}

TEST(MegatronSchedule, WithoutAWarmupBeginsAtTheRateOfItsArguments) {
  for (const char* style : {"constant", "linear", "cosine", "inverse-square-root"}) {
    const MegatronSchedule schedule = megatron_schedule(
        args({{"lr_warmup_iters", 0}, {"lr_warmup_init", 0.005}, {"lr_decay_style", style}}));
    EXPECT_NEAR(megatron_lr(schedule, 0), 0.01, 1e-15) << style;
  }
  const MegatronSchedule root =
      megatron_schedule(args({{"lr_warmup_iters", 0}, {"lr_decay_style", "inverse-square-root"}}));
  EXPECT_NEAR(megatron_lr(root, 4), 0.005, 1e-15);
  EXPECT_NEAR(megatron_lr(root, 25), 0.002, 1e-15);
}

TEST(MegatronSchedule, GoesDownToZeroWithoutALeastRate) {
  const MegatronSchedule schedule = megatron_schedule(args({{"min_lr", nullptr}}));
  EXPECT_NEAR(megatron_lr(schedule, 800 + 3600), 0.005, 1e-15);
  EXPECT_EQ(megatron_lr(schedule, 8001), 0);
}

TEST(MegatronSchedule, AWarmupBeginsWithItsOwnRate) {
  const MegatronSchedule schedule = megatron_schedule(args({{"lr_warmup_init", 0.002}}));
  EXPECT_EQ(megatron_lr(schedule, 0), 0.002);
  EXPECT_NEAR(megatron_lr(schedule, 400), 0.006, 1e-15);
  EXPECT_NEAR(megatron_lr(schedule, 800), 0.01, 1e-15);
}

TEST(MegatronSchedule, AWarmupByItsShareNeedNotBeWhole) {
  const MegatronSchedule schedule =
      megatron_schedule(args({{"lr_warmup_iters", 0}, {"lr_warmup_fraction", 0.0003}}));
  EXPECT_NEAR(schedule.lr_warmup_steps, 2.4, 1e-12);
  EXPECT_NEAR(megatron_lr(schedule, 2), 0.01 * 2 / 2.4, 1e-15);
  EXPECT_NEAR(megatron_lr(schedule, 8), 0.001 + 0.009 * (1 - (8 - 2.4) / (8000 - 2.4)), 1e-15);
}

TEST(MegatronSchedule, NamesWhatDoesNotGoTogether) {
  EXPECT_THAT(problem({{"train_iters", nullptr}}), HasSubstr("\"train_samples\""));
  EXPECT_THAT(problem({{"train_samples", 3}}), HasSubstr("\"train_iters\" and \"train_samples\""));
  EXPECT_THAT(problem({{"lr_warmup_fraction", 0.1}}), HasSubstr("lr_warmup_fraction"));
  EXPECT_THAT(problem({{"lr_warmup_iters", 1000}}), HasSubstr("must be shorter"));
  EXPECT_THAT(problem({{"min_lr", 1.0}}), HasSubstr("min_lr=1"));
  EXPECT_THAT(problem({{"lr_decay_style", "steps"}}), HasSubstr("\"steps\""));
  EXPECT_THAT(problem({{"start_weight_decay", 0.1}}), HasSubstr("leave start_weight_decay"));
  EXPECT_THAT(problem({{"weight_decay_incr_style", "linear"}}), HasSubstr("start_weight_decay"));
  EXPECT_THAT(problem({{"lr", "high"}}), HasSubstr("\"lr\" is \"high\""));
  EXPECT_THAT(problem({{"min_lr", -0.5}}), HasSubstr("min_lr=-0.5"));
  EXPECT_THAT(problem({{"lr_warmup_init", 0.5}}), HasSubstr("lr_warmup_init=0.5"));
  EXPECT_THAT(problem({{"lr_warmup_iters", -1}}), HasSubstr("must be shorter"));
  EXPECT_THAT(problem({{"global_batch_size", nullptr}}), HasSubstr("\"global_batch_size\""));
  for (const char* other : {"lr_decay_samples", "lr_warmup_samples"}) {
    EXPECT_THAT(problem({{other, 8}}), HasSubstr(other));
  }
  EXPECT_THAT(problem({{"weight_decay_incr_style", "inverse-square-root"}}),
              HasSubstr("is constant, linear or cosine"));
  const auto ends = [](double start, double end) {
    return Json{{"weight_decay_incr_style", "cosine"},
                {"start_weight_decay", start},
                {"end_weight_decay", end}};
  };
  EXPECT_THAT(problem(ends(0.2, 0.1)), HasSubstr("that is not below it"));
  EXPECT_THAT(problem(ends(-0.1, 0.1)), HasSubstr("of at least 0"));
  EXPECT_EQ(problem(ends(0.1, 0.1)), "no error");
}

}  // namespace
}  // namespace accelerate
