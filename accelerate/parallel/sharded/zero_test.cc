#include "accelerate/parallel/sharded/options.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/config/zero_config.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

// Experts, of which ranks may reach different ones. What is in such a group is in no other.
TEST(ZeroShardingOptions, GatherLeafModulesAsAWhole) {
  ZeroConfig config = stage(3);
  config.leaf_module_classes = {"Linear"};
  config.param_persistence_threshold = 100;
  const ShardingOptions options = options_of(config);
  ASSERT_EQ(options.groups.size(), 2u);
  EXPECT_EQ(options.groups[0].name, "0");
  EXPECT_THAT(options.groups[0].parameters, ElementsAre("0.weight", "0.bias"));
  EXPECT_THAT(options.groups[1].parameters, ElementsAre("1.weight", "1.bias"));
  for (const ShardingGroup& group : options.groups) EXPECT_TRUE(group.gradients_differ);
  config.leaf_module_classes = {"Linear", "Experts"};
  EXPECT_THAT(value_error_of([&] { options_of(config); }),
              HasSubstr("the model has no module of class Experts"));
}

// A parameter that is small stays, and its group's gradients are those of all ranks.
TEST(ZeroShardingOptions, KeepSmallParametersUntilTheyChange) {
  ZeroConfig config = stage(3);
  config.param_persistence_threshold = 100;
  const ShardingOptions options = options_of(config);
  ASSERT_EQ(options.groups.size(), 1u);
  EXPECT_FALSE(options.groups[0].reshard_after_forward);
  EXPECT_FALSE(options.groups[0].reshard_after_backward);
  EXPECT_FALSE(options.groups[0].gradients_differ);
}

// ---- Disks.

ZeroConfig on_disks(int64_t number) {
  ZeroConfig config = stage(number);
  config.aio = {.block_size = 4096, .queue_depth = 3, .thread_count = 5};
  config.offload_optimizer = {.device = OffloadDevice::kNvme,
                              .nvme_path = "/optimizer",
                              .buffer_count = 7,
                              .pin_memory = true,
                              .pipeline_write = true};
  config.offload_param = {.device = OffloadDevice::kNvme,
                          .nvme_path = "/rows",
                          .buffer_count = 6,
                          .buffer_size = 1000,
                          .max_in_cpu = 50};
  return config;
}

TEST(ZeroShardingOptions, HaveTheOptimizersDiskInAllStages) {
  for (const int64_t number : {1, 2, 3}) {
    const ShardingOptions options = options_of(on_disks(number));
    ASSERT_TRUE(options.shards_on_disk.has_value()) << number;
    const SwapOptions& disk = *options.shards_on_disk;
    EXPECT_EQ(disk.folder, "/optimizer");
    EXPECT_EQ(disk.buffer_count, 7);
    EXPECT_EQ(disk.buffer_bytes, 0);
    EXPECT_EQ(disk.block_bytes, 4096);
    EXPECT_EQ(disk.blocks_in_flight, 15);
    EXPECT_TRUE(disk.pin_memory);
    EXPECT_FALSE(disk.pipeline_read);
    EXPECT_TRUE(disk.pipeline_write);
    ZeroConfig reads = on_disks(number);
    reads.offload_optimizer.pipeline_read = true;
    reads.offload_optimizer.pipeline_write = false;
    EXPECT_TRUE(options_of(reads).shards_on_disk->pipeline_read);
    EXPECT_FALSE(options_of(reads).shards_on_disk->pipeline_write);
    ZeroConfig on_host = on_disks(number);
    on_host.offload_optimizer.device = OffloadDevice::kCpu;
    EXPECT_FALSE(options_of(on_host).shards_on_disk.has_value());
  }
}

TEST(ZeroShardingOptions, HaveTheParametersDiskInStage3) {
  for (const bool half : {false, true}) {
    ZeroConfig config = on_disks(3);
    config.bf16.enabled = half;
    const ShardingOptions options = options_of(config);
    ASSERT_TRUE(options.rows_on_disk.has_value());
    EXPECT_EQ(options.rows_on_disk->folder, "/rows");
    EXPECT_EQ(options.rows_on_disk->buffer_count, 6);
    EXPECT_EQ(options.rows_on_disk->buffer_bytes, half ? 2000 : 4000) << "of 1000 elements";
    EXPECT_EQ(options.rows_on_disk->block_bytes, 4096);
    EXPECT_EQ(options.rows_on_disk->blocks_in_flight, 15);
    EXPECT_FALSE(options.rows_on_disk->pin_memory);
    EXPECT_EQ(options.rows_on_host, 50);
    config.offload_param.pin_memory = true;
    EXPECT_TRUE(options_of(config).rows_on_disk->pin_memory);
    config.offload_param.device = OffloadDevice::kCpu;
    EXPECT_FALSE(options_of(config).rows_on_disk.has_value());
  }
  EXPECT_FALSE(options_of(on_disks(2)).rows_on_disk.has_value());
}

TEST(ZeroShardingOptions, HaveThreadsForTheBlocksThatAreUnderWay) {
  const auto blocks = [](int64_t depth, int64_t threads) {
    ZeroConfig config = on_disks(1);
    config.aio.queue_depth = depth;
    config.aio.thread_count = threads;
    return options_of(config).shards_on_disk->blocks_in_flight;
  };
  EXPECT_EQ(blocks(1, 1), 1);
  EXPECT_EQ(blocks(9, 7), 63);
  EXPECT_EQ(blocks(8, 8), 64);
  EXPECT_EQ(blocks(13, 5), 64);
  EXPECT_EQ(blocks(int64_t{1} << 40, int64_t{1} << 40), 64);
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

// Gradients add up in bf16, but not in fp16, whose sums would lose what losses are scaled for.
TEST(ZeroShardingOptions, HaveTheDtypesOfTheConfiguration) {
  for (const int64_t number : {1, 2, 3}) {
    ZeroConfig config = stage(number);
    EXPECT_EQ(options_of(config).param_dtype, std::nullopt);
    EXPECT_EQ(options_of(config).gradient_dtype, std::nullopt);
    EXPECT_EQ(options_of(config).reduce_dtype, std::nullopt);
    EXPECT_EQ(zero_precision(config).input_dtype, std::nullopt);
    config.communication_data_type = torch::kFloat;
    config.bf16.enabled = true;
    EXPECT_EQ(options_of(config).param_dtype, torch::kBFloat16);
    EXPECT_EQ(options_of(config).gradient_dtype, torch::kBFloat16);
    EXPECT_EQ(options_of(config).reduce_dtype, torch::kFloat);
    EXPECT_EQ(zero_precision(config).input_dtype, torch::kBFloat16);
    EXPECT_EQ(zero_precision(config).buffer_dtype, torch::kBFloat16);
    EXPECT_EQ(zero_precision(config).output_dtype, std::nullopt);
    config.bf16.enabled = false;
    config.fp16.enabled = true;
    EXPECT_EQ(options_of(config).param_dtype, torch::kHalf);
    EXPECT_EQ(options_of(config).gradient_dtype, std::nullopt);
    EXPECT_EQ(zero_precision(config).input_dtype, torch::kHalf);
  }
}

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
