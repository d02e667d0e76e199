#include "accelerate/parallel/sharded/zero.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace nn = torch::nn;

ZeroConfig stage(int64_t number) { return {.stage = number, .param_persistence_threshold = 0}; }

// Parameters of 12, 4, 12 and 3 elements.
ShardingOptions options_of(const ZeroConfig& config, int64_t group_bytes = 100, int ranks = 4) {
  const nn::Sequential net{nn::Linear(3, 4), nn::Linear(4, 3)};
  return zero_sharding_options(*net, config, group_bytes, ranks);
}

std::vector<std::string> small_parameters(const ZeroConfig& config) {
  const ShardingOptions options = options_of(config);
  const auto group = std::ranges::find(options.groups, "small parameters", &ShardingGroup::name);
  return group == options.groups.end() ? std::vector<std::string>() : group->parameters;
}

// ---- Stage 3.

TEST(ZeroShardingOptions, GatherAheadInBothPassesOrInNone) {
  for (const int64_t elements : {0, 1, 50'000'000}) {
    ZeroConfig config = stage(3);
    config.prefetch_bucket_size = elements;
    const ShardingOptions options = options_of(config);
    EXPECT_EQ(options.gather_ahead, elements > 0) << elements;
    EXPECT_EQ(options.gather_ahead_in_backward,
              elements > 0 ? GatherAhead::kBeforeGradient : GatherAhead::kNever)
        << elements;
  }
}

TEST(ZeroShardingOptions, HaveTheLimitsOfWhatStays) {
  ZeroConfig config = stage(3);
  config.max_live_parameters = 7;
  config.max_reuse_distance = 5;
  const ShardingOptions options = options_of(config);
  EXPECT_EQ(options.max_live, 7);
  EXPECT_EQ(options.max_reuse_distance, 5);
  EXPECT_EQ(options.group_bytes, 100);
  EXPECT_FALSE(options.keeps_parameters);
}

TEST(ZeroShardingOptions, KeepSmallParametersBelowBothThresholds) {
  const auto names = [](int64_t of_each, int64_t of_all) {
    ZeroConfig config = stage(3);
    config.param_persistence_threshold = of_each;
    config.model_persistence_threshold = of_all;
    return small_parameters(config);
  };
  EXPECT_THAT(names(3, 100), IsEmpty());
  EXPECT_THAT(names(4, 100), ElementsAre("1.bias"));
  EXPECT_THAT(names(12, 100), ElementsAre("0.bias", "1.bias"));
  EXPECT_THAT(names(13, 100), ElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));
  EXPECT_THAT(names(12, 7), ElementsAre("0.bias", "1.bias"));
  EXPECT_THAT(names(12, 6), ElementsAre("0.bias"));
  // One that does not fit leaves room for a smaller one.
  EXPECT_THAT(names(13, 15), ElementsAre("0.weight", "1.bias"));
}

TEST(ZeroShardingOptions, KeepCastShardsWhereRowsAreOnTheDevice) {
  const auto keeps = [](bool half, OffloadDevice optimizer, OffloadDevice param) {
    ZeroConfig config = stage(3);
    config.bf16.enabled = half;
    config.offload_optimizer.device = optimizer;
    config.offload_param.device = param;
    return options_of(config).keeps_cast_shards;
  };
  constexpr auto kNone = OffloadDevice::kNone, kCpu = OffloadDevice::kCpu;
  EXPECT_FALSE(keeps(false, kNone, kNone));
  EXPECT_TRUE(keeps(true, kNone, kNone));
  EXPECT_TRUE(keeps(false, kCpu, kNone));
  EXPECT_TRUE(keeps(true, kCpu, kNone));
  EXPECT_FALSE(keeps(true, kNone, kCpu));
  EXPECT_FALSE(keeps(true, kCpu, kCpu));
}

// ---- Stages 1 and 2.

TEST(ZeroShardingOptions, ReduceInBucketsOfTheSizeAskedFor) {
  const auto bytes = [](int64_t elements, bool half) {
    ZeroConfig config = stage(2);
    config.reduce_bucket_size = elements;
    config.bf16.enabled = half;
    return options_of(config).group_bytes;
  };
  constexpr int64_t kMost = int64_t{32} << 20;
  EXPECT_EQ(bytes(0, false), 1);
  EXPECT_EQ(bytes(1, false), 4);
  EXPECT_EQ(bytes(1, true), 2);
  EXPECT_EQ(bytes(kMost / 4 - 1, false), kMost - 4);
  EXPECT_EQ(bytes(kMost / 4, false), kMost);
  EXPECT_EQ(bytes(kMost / 4 + 1, false), kMost);
  EXPECT_EQ(bytes(kMost / 4 + 1, true), kMost / 2 + 2);
}

TEST(ZeroShardingOptions, DivideMoreByTheirStage) {
  for (const int64_t number : {1, 2, 3}) {
    const ShardingOptions options = options_of(stage(number));
    EXPECT_EQ(options.keeps_parameters, number < 3) << number;
    EXPECT_EQ(options.reduces_each_pass, number >= 2) << number;
  }
}

// ---- All stages.

TEST(ZeroShardingOptions, DivideGradientsBeforeTheyAreSummed) {
  for (const int64_t number : {1, 2, 3}) {
    ZeroConfig config = stage(number);
    EXPECT_EQ(options_of(config).gradient_predivide_factor, 1);
    config.gradient_predivide_factor = 2;
    EXPECT_EQ(options_of(config).gradient_predivide_factor, 2);
    config.prescale_gradients = true;
    EXPECT_EQ(options_of(config, 100, /*ranks=*/8).gradient_predivide_factor, 8);
  }
}

TEST(ZeroShardingOptions, AreOnTheHostForEitherKindOfOffload) {
  for (const int64_t number : {1, 2, 3}) {
    ZeroConfig config = stage(number);
    EXPECT_FALSE(options_of(config).offload);
    config.offload_optimizer.device = OffloadDevice::kCpu;
    config.offload_optimizer.ratio = 0.25;
    EXPECT_TRUE(options_of(config).offload);
    EXPECT_EQ(options_of(config).part_on_device, 0.75);
    EXPECT_FALSE(options_of(config).pin_memory);
    config.offload_optimizer.pin_memory = true;
    EXPECT_TRUE(options_of(config).pin_memory);
    ZeroConfig parameters = stage(number);
    parameters.offload_param.device = OffloadDevice::kCpu;
    EXPECT_TRUE(options_of(parameters).offload);
    EXPECT_EQ(options_of(parameters).part_on_device, 0);
    parameters.offload_param.pin_memory = true;
    EXPECT_TRUE(options_of(parameters).pin_memory);
  }
}

}  // namespace
}  // namespace accelerate
