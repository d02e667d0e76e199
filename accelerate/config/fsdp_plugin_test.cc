// What each field and each variable of a plugin resolves to. What they do to prepared models is in
// integration_tests/sharding/fsdp_plugin_test.cc.
#include "accelerate/config/fsdp_plugin.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Plugin = FullyShardedDataParallelPlugin;
using Variables = std::vector<std::pair<std::string, std::string>>;

Environment with(const Variables& variables) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) {
    if (name.starts_with("FSDP_")) environment.unset(name);
  }
  for (const auto& [name, value] : variables) environment.set(name, value);
  return environment;
}

Plugin resolved(const Plugin& plugin, const Variables& variables = {}) {
  const RecordedWarnings quiet;
  Environment environment = with(variables);
  return resolve(plugin, environment);
}

std::string refused(const Plugin& plugin, const Variables& variables = {}) {
  return value_error_of([&] { resolved(plugin, variables); });
}

// A variable, what it makes of the plugin, and what the program's own field makes of it beside the
// variable.
struct FieldCase {
  int64_t version;
  const char* variable;
  const char* value;
  const char* by_variable;
  std::function<void(Plugin&)> set;
  const char* by_program;
};

TEST(FsdpPlugin, TakesAFieldBeforeItsVariable) {
  const FieldCase cases[] = {
      {1, "FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP", "sharding_strategy=SHARD_GRAD_OP",
       [](Plugin& p) { p.sharding_strategy = ShardingStrategy::kNoShard; },
       "sharding_strategy=NO_SHARD"},
      {2, "FSDP_RESHARD_AFTER_FORWARD", "false", "reshard_after_forward=False",
       [](Plugin& p) { p.reshard_after_forward = true; }, "reshard_after_forward=True"},
      {1, "FSDP_BACKWARD_PREFETCH", "BACKWARD_POST", "backward_prefetch=BACKWARD_POST",
       [](Plugin& p) { p.backward_prefetch = BackwardPrefetch::kBackwardPre; },
       "backward_prefetch=BACKWARD_PRE"},
      {1, "FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP", "auto_wrap_policy=SIZE_BASED_WRAP",
       [](Plugin& p) { p.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap; },
       "auto_wrap_policy=TRANSFORMER_BASED_WRAP"},
      {1, "FSDP_OFFLOAD_PARAMS", "true", "cpu_offload=CPUOffload(offload_params=True)",
       [](Plugin& p) { p.cpu_offload = false; }, "cpu_offload=CPUOffload(offload_params=False)"},
      {2, "FSDP_OFFLOAD_PARAMS", "true", "cpu_offload=CPUOffloadPolicy(pin_memory=True)",
       [](Plugin& p) { p.cpu_offload = false; }, "cpu_offload=OffloadPolicy()"},
      {1, "FSDP_IGNORED_MODULES", "head.*", "ignored_modules=head.*",
       [](Plugin& p) { p.ignored_modules = "tail"; }, "ignored_modules=tail"},
      {1, "FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT", "state_dict_type=SHARDED_STATE_DICT",
       [](Plugin& p) { p.state_dict_type = StateDictType::kLocalStateDict; },
       "state_dict_type=LOCAL_STATE_DICT"},
      {2, "FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT", "state_dict_type=FULL_STATE_DICT",
       [](Plugin& p) { p.state_dict_type = StateDictType::kShardedStateDict; },
       "state_dict_type=SHARDED_STATE_DICT"},
      {1, "FSDP_USE_ORIG_PARAMS", "true", "use_orig_params=True",
       [](Plugin& p) { p.use_orig_params = false; }, "use_orig_params=False"},
      {1, "FSDP_SYNC_MODULE_STATES", "true", "sync_module_states=True",
       [](Plugin& p) { p.sync_module_states = false; }, "sync_module_states=False"},
      {1, "FSDP_FORWARD_PREFETCH", "true", "forward_prefetch=True",
       [](Plugin& p) { p.forward_prefetch = false; }, "forward_prefetch=False"},
      {2, "FSDP_ACTIVATION_CHECKPOINTING", "true", "activation_checkpointing=True",
       [](Plugin& p) { p.activation_checkpointing = false; }, "activation_checkpointing=False"},
      {2, "FSDP_CPU_RAM_EFFICIENT_LOADING", "true", "cpu_ram_efficient_loading=True",
       [](Plugin& p) { p.cpu_ram_efficient_loading = false; }, "cpu_ram_efficient_loading=False"},
  };
  for (const FieldCase& each : cases) {
    SCOPED_TRACE(each.variable);
    Plugin plugin = {.fsdp_version = each.version};
    EXPECT_THAT(to_text(resolved(plugin)), Not(HasSubstr(each.by_variable)));
    const Variables variables = {{each.variable, each.value}};
    EXPECT_THAT(to_text(resolved(plugin, variables)), HasSubstr(each.by_variable));
    each.set(plugin);
    EXPECT_THAT(to_text(resolved(plugin, variables)), HasSubstr(each.by_program));
    EXPECT_THAT(to_text(resolved(plugin, variables)), Not(HasSubstr(each.by_variable)));
  }
  EXPECT_EQ(resolved({}, {{"FSDP_VERSION", "2"}}).version(), 2);
  EXPECT_EQ(resolved({.fsdp_version = 1}, {{"FSDP_VERSION", "2"}}).version(), 1);
  EXPECT_EQ(resolved({}).version(), 1);
  for (const char* version : {"0", "3"}) {
    EXPECT_THAT(refused({}, {{"FSDP_VERSION", version}}), HasSubstr("there are 1 and 2 only"));
  }
}

TEST(FsdpPlugin, KnowsAStrategyByMemberNumberAndName) {
  const auto strategy = [](EnumChoice<ShardingStrategy> choice) {
    return resolved({.sharding_strategy = std::move(choice)}).strategy();
  };
  using enum ShardingStrategy;
  EXPECT_EQ(strategy(kShardGradOp), kShardGradOp);
  EXPECT_EQ(strategy(int64_t{1}), kFullShard);
  EXPECT_EQ(strategy(int64_t{5}), kHybridShardZero2);
  EXPECT_EQ(strategy("3"), kNoShard);
  EXPECT_EQ(strategy("hybrid_shard"), kHybridShard);
  EXPECT_EQ(strategy("_HYBRID_SHARD_ZERO2"), kHybridShardZero2);
  EXPECT_EQ(resolved({}).strategy(), kFullShard);
  for (const char* name : {"0", "6", "_FULL_SHARD", ""}) {
    EXPECT_THAT(refused({.sharding_strategy = name}), HasSubstr("is not a valid")) << name;
  }
  // Version 1 also takes it by the other name, which is the weaker one.
  EXPECT_EQ(resolved({.reshard_after_forward = "NO_SHARD"}).strategy(), kNoShard);
  EXPECT_EQ(
      resolved({.sharding_strategy = kShardGradOp, .reshard_after_forward = kNoShard}).strategy(),
      kShardGradOp);
  EXPECT_EQ(resolved({}, {{"FSDP_RESHARD_AFTER_FORWARD", "NO_SHARD"}}).strategy(), kNoShard);
  EXPECT_EQ(resolved({}, {{"FSDP_RESHARD_AFTER_FORWARD", "false"}}).strategy(), kFullShard);
  EXPECT_THAT(refused({.reshard_after_forward = true}), HasSubstr("not supported with FSDP1"));
}

TEST(FsdpPlugin, ReshardsAmongAllAmongSomeOrNotAtAll) {
  using Reshard = std::variant<bool, ShardingStrategy, int64_t, std::string>;
  // Whether it does, and among how many.
  const auto outcome = [](std::optional<Reshard> given, const char* variable = "") {
    const Plugin plugin = resolved({.fsdp_version = 2, .reshard_after_forward = std::move(given)},
                                   {{"FSDP_RESHARD_AFTER_FORWARD", variable}});
    return std::pair(plugin.reshards_after_forward(), plugin.ranks_after_forward().value_or(-1));
  };
  const auto all = std::pair(true, int64_t{-1}), none = std::pair(false, int64_t{-1});
  EXPECT_EQ(outcome(true), all);
  EXPECT_EQ(outcome(false), none);
  EXPECT_EQ(outcome(int64_t{1}), none) << "a number of ranks and not a truth value";
  EXPECT_EQ(outcome(int64_t{2}), std::pair(true, int64_t{2}));
  EXPECT_EQ(outcome("true"), all);
  EXPECT_EQ(outcome("8"), std::pair(true, int64_t{8}));
  for (const auto& [text, expected] :
       {std::pair("1", all), std::pair("0", none), std::pair("true", all), std::pair("false", none),
        std::pair("2", std::pair(true, int64_t{2}))}) {
    EXPECT_EQ(outcome(std::nullopt, text), expected) << text;
  }
  EXPECT_EQ(outcome(int64_t{4}, "false"), std::pair(true, int64_t{4}));
  EXPECT_THAT(refused({.fsdp_version = 2, .reshard_after_forward = int64_t{0}}),
              HasSubstr("at least one rank"));
  EXPECT_THAT(refused({.fsdp_version = 2, .reshard_after_forward = ShardingStrategy::kFullShard}),
              HasSubstr("not supported with FSDP2"));
  EXPECT_TRUE(resolved({.fsdp_version = 2}).reshards_after_forward());
  // The deprecated field stands for one or the other, unless this one is given.
  for (const auto& [strategy, reshards] :
       {std::pair("FULL_SHARD", true), std::pair("SHARD_GRAD_OP", false),
        std::pair("NO_SHARD", false), std::pair("HYBRID_SHARD", true),
        std::pair("HYBRID_SHARD_ZERO2", false)}) {
    EXPECT_EQ(resolved({.fsdp_version = 2, .sharding_strategy = strategy}).reshards_after_forward(),
              reshards)
        << strategy;
    EXPECT_TRUE(
        resolved({.fsdp_version = 2, .sharding_strategy = strategy, .reshard_after_forward = true})
            .reshards_after_forward());
  }
}

TEST(FsdpPlugin, OffloadsAndPinsAsItsStructSays) {
  const auto offload = [](const Plugin& plugin) {
    const Plugin p = resolved(plugin);
    return std::pair(p.offloads_parameters(), p.pins_memory());
  };
  EXPECT_EQ(offload({}), std::pair(false, false));
  EXPECT_EQ(offload({.cpu_offload = true}), std::pair(true, true));
  EXPECT_EQ(offload({.cpu_offload = CPUOffload{.offload_params = false}}), std::pair(false, false));
  EXPECT_EQ(offload({.fsdp_version = 2, .cpu_offload = true}), std::pair(true, true));
  EXPECT_EQ(offload({.fsdp_version = 2, .cpu_offload = CPUOffloadPolicy{.pin_memory = false}}),
            std::pair(true, false));
  EXPECT_EQ(offload({.fsdp_version = 2, .cpu_offload = OffloadPolicy()}), std::pair(false, false));
  EXPECT_THAT(refused({.cpu_offload = OffloadPolicy()}), HasSubstr("CPUOffload` in FSDP1"));
  EXPECT_THAT(refused({.fsdp_version = 2, .cpu_offload = CPUOffload()}),
              HasSubstr("OffloadPolicy` in FSDP2"));
}

TEST(FsdpPlugin, HasThePrecisionOfItsVersion) {
  const ShardPrecision first = resolved({.mixed_precision_policy = "bf16"}).precision();
  EXPECT_EQ(first, (ShardPrecision{.param_dtype = c10::kBFloat16,
                                   .reduce_dtype = c10::kBFloat16,
                                   .buffer_dtype = c10::kBFloat16}));
  const ShardPrecision second =
      resolved({.fsdp_version = 2, .mixed_precision_policy = "fp16"}).precision();
  EXPECT_EQ(second, (ShardPrecision{.param_dtype = c10::kHalf, .output_dtype = c10::kHalf}));
  EXPECT_EQ(resolved({}).precision(), ShardPrecision());
  EXPECT_EQ(resolved({.mixed_precision_policy = "fp8"}).precision(), first);
  EXPECT_THAT(refused({.mixed_precision_policy = "int8"}), HasSubstr("Must be one of ['fp8'"));
  // Either of version 1's flags casts the inputs.
  for (const bool forward : {false, true}) {
    for (const bool root : {false, true}) {
      EXPECT_EQ(
          resolved({.mixed_precision_policy = MixedPrecision{.cast_forward_inputs = forward,
                                                             .cast_root_forward_inputs = root}})
              .precision()
              .cast_inputs,
          forward || root);
    }
    EXPECT_EQ(
        resolved({.fsdp_version = 2,
                  .mixed_precision_policy = MixedPrecisionPolicy{.cast_forward_inputs = forward}})
            .precision()
            .cast_inputs,
        forward);
  }
  EXPECT_TRUE(resolved({.mixed_precision_policy = MixedPrecision{.keep_low_precision_grads = true}})
                  .precision()
                  .keep_low_precision_grads);
}

TEST(FsdpPlugin, KeepsAPrecisionThatItHasUnlessItIsToldOtherwise) {
  Plugin plugin = resolved({.mixed_precision_policy = "bf16"});
  plugin.set_mixed_precision("fp16");
  EXPECT_EQ(plugin.precision().param_dtype, c10::kBFloat16);
  plugin.set_mixed_precision("fp16", /*buffer_autocast=*/true, /*override=*/true);
  EXPECT_EQ(plugin.precision().param_dtype, c10::kHalf);
  EXPECT_EQ(plugin.precision().buffer_dtype, c10::kFloat);
  Plugin open = resolved({});
  open.set_mixed_precision("fp16");
  EXPECT_EQ(open.precision().reduce_dtype, c10::kHalf);
  EXPECT_EQ(open.precision().buffer_dtype, c10::kHalf);
}

TEST(FsdpPlugin, MayChangeTheFormOfItsState) {
  Plugin plugin = resolved({.fsdp_version = 2});
  EXPECT_EQ(plugin.state_type(), StateDictType::kShardedStateDict);
  EXPECT_EQ(state_dict_options(plugin), (StateDictOptions{.cpu_offload = true}));
  plugin.set_state_dict_type("full_state_dict");
  EXPECT_EQ(plugin.state_type(), StateDictType::kFullStateDict);
  EXPECT_TRUE(std::holds_alternative<ShardedStateDictConfig>(*plugin.state_dict_config))
      << "that of before stays";
  plugin.set_state_dict_type();
  EXPECT_EQ(plugin.state_type(), StateDictType::kFullStateDict) << "nothing asked, nothing changed";
  const Plugin full = resolved({.fsdp_version = 2, .state_dict_type = "FULL_STATE_DICT"});
  EXPECT_EQ(state_dict_options(full),
            (StateDictOptions{
                .full_state_dict = true, .cpu_offload = true, .broadcast_from_rank0 = true}));
  const Plugin everywhere = resolved({.fsdp_version = 2,
                                      .state_dict_type = "FULL_STATE_DICT",
                                      .state_dict_config = FullStateDictConfig()});
  EXPECT_EQ(state_dict_options(everywhere), (StateDictOptions{.full_state_dict = true}));
  EXPECT_EQ(state_dict_options(resolved({})), std::nullopt);
  EXPECT_EQ(resolved({}).state_type(), StateDictType::kFullStateDict);
  EXPECT_THAT(refused({.fsdp_version = 2, .state_dict_type = "LOCAL_STATE_DICT"}),
              HasSubstr("FSDP2 does not support LOCAL_STATE_DICT"));
}

TEST(FsdpPlugin, TellsWeightsFromRank0ByItsEnvironment) {
  const RecordedWarnings warnings;
  for (const int64_t version : {1, 2}) {
    Environment environment = with({{"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"}});
    EXPECT_FALSE(
        *resolve({.fsdp_version = version, .cpu_ram_efficient_loading = false}, environment)
             .cpu_ram_efficient_loading);
    EXPECT_EQ(environment.get("FSDP_CPU_RAM_EFFICIENT_LOADING"), "False");
    resolve({.fsdp_version = version, .cpu_ram_efficient_loading = true}, environment);
    EXPECT_EQ(environment.get("FSDP_CPU_RAM_EFFICIENT_LOADING"), "True");
  }
  EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("sync_module_states to True")));
  EXPECT_EQ(resolved({.cpu_ram_efficient_loading = true}).sync_module_states, true);
  EXPECT_EQ(resolved({.cpu_ram_efficient_loading = false}).sync_module_states, false);
}

TEST(FsdpPlugin, DropsWhatVersion2DoesWithout) {
  const RecordedWarnings warnings;
  Environment environment = with({{"FSDP_BACKWARD_PREFETCH", "BACKWARD_PRE"}});
  const Plugin plugin = resolve({.fsdp_version = 2,
                                 .use_orig_params = true,
                                 .sync_module_states = true,
                                 .forward_prefetch = false},
                                environment);
  EXPECT_FALSE(plugin.backward_prefetch || plugin.use_orig_params || plugin.sync_module_states ||
               plugin.forward_prefetch);
  ASSERT_EQ(warnings.texts().size(), 1u) << "all in one";
  for (const char* name : {"backward_prefetch", "use_orig_params", "sync_module_states"}) {
    EXPECT_THAT(warnings.texts()[0], HasSubstr(name));
  }
  EXPECT_THAT(refused({.fsdp_version = 2, .forward_prefetch = true}),
              HasSubstr("forward_prefetch is not yet implemented"));
}

TEST(FsdpPlugin, OffloadsInputsOnlyOfWhatIsComputedAgain) {
  const Plugin both = {.fsdp_version = 2,
                       .activation_checkpointing = true,
                       .activation_checkpointing_offload = true};
  EXPECT_EQ(resolved(both).activation_checkpointing_offload, true);
  EXPECT_THAT(refused({.fsdp_version = 2, .activation_checkpointing_offload = true}),
              HasSubstr("requires `activation_checkpointing=True`"));
  Plugin first = both;
  first.fsdp_version = 1;
  EXPECT_THAT(refused(first), HasSubstr("requires `fsdp_version=2`"));
  EXPECT_THAT(refused({.fsdp_version = 2}, {{"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "true"}}),
              HasSubstr("requires `activation_checkpointing=True`"));
}

TEST(FsdpPlugin, StaysAsItWasResolved) {
  const Plugin once = resolved({}, {{"FSDP_OFFLOAD_PARAMS", "true"}});
  EXPECT_EQ(to_text(resolved(once, {{"FSDP_BACKWARD_PREFETCH", "BACKWARD_PRE"},
                                    {"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"},
                                    {"FSDP_IGNORED_MODULES", "head"}})),
            to_text(once));
  EXPECT_THAT(value_error_of([] { Plugin().strategy(); }), HasSubstr("is not resolved"));
}

TEST(FsdpPlugin, FindsItsUnits) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  Plugin plugin = resolved({.auto_wrap_policy = "transformer_based_wrap"},
                           {{"FSDP_TRANSFORMER_CLS_TO_WRAP", "Linear,Sequential"}});
  EXPECT_THAT(*plugin.transformer_cls_names_to_wrap, ElementsAre("Linear", "Sequential"));
  EXPECT_NO_THROW(plugin.set_auto_wrap_policy(*model));
  plugin.transformer_cls_names_to_wrap = std::vector<std::string>{"Linear", "Block"};
  EXPECT_THAT(value_error_of([&] { plugin.set_auto_wrap_policy(*model); }),
              HasSubstr("Could not find the transformer layer class Block"));
  // The model says none.
  Plugin open = resolved({.auto_wrap_policy = "TRANSFORMER_BASED_WRAP"});
  open.set_auto_wrap_policy(*model);
  EXPECT_THAT(*open.transformer_cls_names_to_wrap, IsEmpty());
  // 0 parameters stand for no units; a number of them for a policy.
  for (const int64_t least : {0, 1}) {
    Plugin by_size =
        resolved({.auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap, .min_num_params = least});
    by_size.set_auto_wrap_policy(*model);
    EXPECT_EQ(by_size.auto_wrap_policy.has_value(), least > 0);
  }
  EXPECT_EQ(*resolved({.auto_wrap_policy = "SIZE_BASED_WRAP"}, {{"FSDP_MIN_NUM_PARAMS", "7"}})
                 .min_num_params,
            7);
  EXPECT_THAT(refused({.auto_wrap_policy = "SIZE_BASED_WRAP", .min_num_params = -1}),
              HasSubstr("less than 0"));
  EXPECT_FALSE(resolved({.auto_wrap_policy = "NO_WRAP"}).auto_wrap_policy.has_value());
  EXPECT_THAT(refused({.auto_wrap_policy = "WRAP"}), HasSubstr("Invalid auto wrap policy: WRAP"));
}

}  // namespace
}  // namespace accelerate
