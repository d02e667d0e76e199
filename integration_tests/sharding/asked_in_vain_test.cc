// What plugins take because HF Accelerate's have it, and nothing follows: rank 0 says so once.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/testing/recorded_warnings.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::HasSubstr;
using ::testing::Not;

// The warnings of rank 0; those of the other rank have none of a field without an effect.
std::string warnings_of(const AcceleratorOptions& options) {
  std::vector<std::string> texts(2);
  Cluster("1x2").run_on_every_rank([&](Rank& rank) {
    const RecordedWarnings warnings;
    Accelerator accelerator(options);
    texts[rank.index()] = absl::StrJoin(warnings.texts(), "\n");
  });
  EXPECT_THAT(texts[1], Not(HasSubstr("has no effect")));
  return texts[0];
}

TEST(AskedInVain, FieldsOfFsdpAreNamed) {
  const auto warns = [](const FullyShardedDataParallelPlugin& plugin) {
    return warnings_of({.fsdp_plugin = plugin});
  };
  // The first two have what they would have anyway, and a prefetch is what forward passes do.
  EXPECT_THAT(warns({.optim_state_dict_config =
                         FullOptimStateDictConfig{.offload_to_cpu = true, .rank0_only = true},
                     .forward_prefetch = true}),
              Not(HasSubstr("has no effect")));
  EXPECT_THAT(warns({.fsdp_version = 2, .optim_state_dict_config = ShardedOptimStateDictConfig{}}),
              Not(HasSubstr("has no effect")));
  EXPECT_THAT(warns({.limit_all_gathers = false}),
              HasSubstr("fsdp_plugin: limit_all_gathers=false has no effect"));
  const std::vector<OptimStateDictConfig> others = {
      FullOptimStateDictConfig{.offload_to_cpu = true, .rank0_only = false},
      FullOptimStateDictConfig{.offload_to_cpu = false, .rank0_only = true},
      ShardedOptimStateDictConfig{.offload_to_cpu = false}};
  for (const OptimStateDictConfig& other : others) {
    EXPECT_THAT(warns({.optim_state_dict_config = other}),
                HasSubstr("fsdp_plugin: optim_state_dict_config has no effect"))
        << other.index();
  }
}

TEST(AskedInVain, TheFlagForTheConstructionOfModelsIsNamedInStageThree) {
  const auto warns = [](int64_t stage, std::optional<bool> flag) {
    return warnings_of(
        {.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = stage, .zero3_init_flag = flag}});
  };
  EXPECT_THAT(warns(3, false), HasSubstr("deepspeed_plugin: zero3_init_flag=false has no effect"));
  EXPECT_THAT(warns(3, true), Not(HasSubstr("has no effect")));
  EXPECT_THAT(warns(3, std::nullopt), Not(HasSubstr("has no effect")));
  EXPECT_THAT(warns(2, false), Not(HasSubstr("has no effect")));
}

}  // namespace
}  // namespace accelerate
