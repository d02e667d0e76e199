#include "accelerate/config/megatron_lm_plugin.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/config/megatron_arguments.h"
#include "accelerate/options/options.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;
using Plugin = MegatronLMPlugin;
using Variables = std::vector<std::pair<std::string, std::string>>;

Plugin resolved(const Plugin& plugin, const Variables& variables = {}) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) {
    if (name.starts_with("MEGATRON_LM_")) environment.unset(name);
  }
  for (const auto& [name, value] : variables) environment.set(name, value);
  return resolve(plugin, environment);
}

std::string refused(const Plugin& plugin, const Variables& variables = {}) {
  return value_error_of([&] { resolved(plugin, variables); });
}

Json args(const Plugin& plugin) { return plugin.megatron_lm_default_args; }

TEST(MegatronLMPlugin, EveryRowOfTheTableFillsAField) {
  std::vector<std::string> without_a_field;
  for (const options::Option& row : options::all_options()) {
    if (row.section != options::Section::kMegatron) continue;
    bool is_there = false;
    const Plugin plugin;
    visit_fields(plugin, [&](const char* name, const auto& /*field*/) {
      is_there = is_there || options::find_field(options::Section::kMegatron, name) == &row;
    });
    if (!is_there) without_a_field.emplace_back(row.name);
  }
  EXPECT_THAT(without_a_field, IsEmpty());
}

TEST(MegatronLMPlugin, TakesVariablesWhereTheProgramSaysNothing) {
  const Variables variables = {{"MEGATRON_LM_TP_DEGREE", "4"},
                               {"MEGATRON_LM_SEQUENCE_PARALLELISM", "true"},
                               {"MEGATRON_LM_GRADIENT_CLIPPING", "0.5"},
                               {"MEGATRON_LM_RECOMPUTE_METHOD", "block"}};
  const Plugin by_variable = resolved({}, variables);
  EXPECT_EQ(args(by_variable)["tensor_model_parallel_size"], 4);
  EXPECT_EQ(args(by_variable)["sequence_parallel"], true);
  EXPECT_EQ(args(by_variable)["clip_grad"], 0.5);
  EXPECT_EQ(args(by_variable)["recompute_method"], "block");
  const Plugin by_program = resolved({.tp_degree = 2, .gradient_clipping = 3.0}, variables);
  EXPECT_EQ(args(by_program)["tensor_model_parallel_size"], 2);
  EXPECT_EQ(args(by_program)["clip_grad"], 3.0);
}

TEST(MegatronLMPlugin, NamesWhatIsOutOfRange) {
  EXPECT_THAT(refused({.tp_degree = 0}), HasSubstr("tp_degree is 0"));
  EXPECT_THAT(refused({}, {{"MEGATRON_LM_PP_DEGREE", "-1"}}), HasSubstr("pp_degree is -1"));
  EXPECT_THAT(refused({.hidden_dropout = 1.0}), HasSubstr("hidden_dropout is 1"));
  EXPECT_THAT(refused({.gradient_clipping = -1.0}), HasSubstr("gradient_clipping is -1"));
  EXPECT_THAT(refused({.recompute_granularity = "some"}),
              HasSubstr("recompute_granularity is \"some\", but it is one of full, selective"));
  EXPECT_THAT(refused({.lr_decay_style = "steps"}), HasSubstr("lr_decay_style is \"steps\""));
  EXPECT_THAT(refused({.consumed_samples = std::vector<int64_t>{1, 2, 3, 4}}),
              HasSubstr("consumed_samples has 4 numbers"));
  EXPECT_THAT(refused({.custom_train_step_kwargs = Json{{"a", 1}}}),
              HasSubstr("custom_train_step_kwargs"));
}

// Gives the field a value that no field of its type may have; false for other types.
bool spoil(std::optional<int64_t>& field) { return field.emplace(-1) != 0; }
bool spoil(std::optional<double>& field) { return field.emplace(-1) != 0; }
bool spoil(std::optional<std::string>& field) { return !field.emplace("something").empty(); }
bool spoil(int64_t& field) { return (field = -1) != 0; }
bool spoil(double& field) { return (field = -1) != 0; }
bool spoil(std::string& field) { return !(field = "something").empty(); }
template <typename T>
bool spoil(T& /*field*/) {
  return false;
}

TEST(MegatronLMPlugin, EachFieldOutOfRangeIsNamed) {
  std::vector<std::string> names;
  visit_fields(Plugin(),
               [&](const char* name, const auto& /*field*/) { names.emplace_back(name); });
  int spoilt = 0;
  for (const std::string& name : names) {
    if (name == "tensorboard_dir") continue;  // any folder
    Plugin plugin;
    bool is_spoilt = false;
    visit_fields(plugin, [&](const char* each, auto& field) {
      if (name == each) is_spoilt = spoil(field);
    });
    if (!is_spoilt) continue;
    EXPECT_THAT(refused(plugin), HasSubstr(name + " is ")) << name;
    ++spoilt;
  }
  EXPECT_GE(spoilt, 30) << "numbers and words";
}

TEST(MegatronLMPlugin, NamesFunctionsThatNeedAnother) {
  EXPECT_THAT(refused({.custom_prepare_model_function =
                           [](const MegatronModelProvider& /*provider*/) {
                             return std::vector<std::shared_ptr<torch::nn::Module>>();
                           }}),
              HasSubstr("custom_model_provider_function"));
}

TEST(MegatronLMPlugin, RefusesArgumentsThatNothingReads) {
  EXPECT_THAT(refused({.other_megatron_args = Json{{"use_flsh_attn", true}, {"num_expert", 4}}}),
              AllOf(HasSubstr("use_flsh_attn"), HasSubstr("num_expert")));
  EXPECT_THAT(refused({.other_megatron_args = Json::array()}), HasSubstr("expected an object"));
  const RecordedWarnings warnings;
  const Plugin plugin =
      resolved({.other_megatron_args = Json{{"clip_grad", 9.0}, {"use_flash_attn", true}}});
  EXPECT_EQ(args(plugin)["clip_grad"], 9.0);
  EXPECT_EQ(plugin.gradient_clipping, 1.0) << "the field stays";
  EXPECT_THAT(warnings.texts(),
              ElementsAre(AllOf(HasSubstr("use_flash_attn"), HasSubstr("no effect"))));
  resolved({.other_megatron_args =
                Json{{"manual_gc", true}, {"tp_comm_overlap", true}, {"manual_gc_interval", 5}}});
  EXPECT_THAT(warnings.texts().back(),
              HasSubstr("other_megatron_args: manual_gc, manual_gc_interval have no effect: no "
                        "memory waits for a collector; tp_comm_overlap has no effect: LibTorch"));
}

TEST(MegatronLMPlugin, EveryArgumentOfItsOwnIsKnown) {
  Plugin plugin = resolved({.tensorboard_dir = "/logs", .set_all_logging_options = true});
  plugin.set_mixed_precision("bf16");
  plugin.set_training_args(2, 4);
  plugin.set_optimizer_type(
      "AdamW", {{"betas", {0.9, 0.95}}, {"eps", 1e-8}, {"lr", 0.1}, {"weight_decay", 0.01}});
  plugin.set_scheduler_args(1000, 100);
  for (const auto& [name, value] : plugin.megatron_lm_default_args.items()) {
    EXPECT_NE(find_megatron_argument(name), nullptr) << name;
  }
}

TEST(MegatronLMPlugin, LogsEverythingWhereItIsTold) {
  Plugin plugin = resolved({.set_all_logging_options = true});
  EXPECT_FALSE(args(plugin).contains("log_params_norm")) << "there is no folder for it";
  plugin.set_tensorboard_logging_options();
  EXPECT_EQ(args(plugin)["log_params_norm"], true);
  EXPECT_FALSE(args(plugin).contains("log_interval")) << "a number";
}

TEST(MegatronLMPlugin, ListsItsArgumentsInOrder) {
  std::vector<std::string> names;
  for (const MegatronArgument& each : megatron_arguments()) names.emplace_back(each.name);
  EXPECT_THAT(names, ::testing::WhenSorted(::testing::ElementsAreArray(names)));
}

TEST(MegatronLMPlugin, AFailedCallChangesNothing) {
  Plugin plugin = resolved({});
  const Json before = args(plugin);
  EXPECT_THAT(value_error_of([&] { plugin.set_optimizer_type("Adam", {{"lr", 0.1}}); }),
              HasSubstr("betas"));
  EXPECT_THAT(value_error_of([&] { plugin.set_optimizer_type("RMSprop", {{"lr", 0.1}}); }),
              HasSubstr("rmsprop"));
  EXPECT_THAT(value_error_of([&] { plugin.set_scheduler_args(100, 10); }),
              HasSubstr("data_parallel_size"));
  EXPECT_THAT(value_error_of([&] { plugin.set_scheduler_args(std::nullopt, 10); }),
              HasSubstr("total_num_steps"));
  EXPECT_EQ(args(plugin), before);
  EXPECT_EQ(plugin.train_iters, std::nullopt);
}

TEST(MegatronLMPlugin, DividesTheSchedulersStepsAmongTheRanks) {
  Plugin plugin = resolved({.train_samples = 999, .lr_warmup_samples = 9});
  plugin.set_training_args(2, 3);
  const RecordedWarnings warnings;
  plugin.set_scheduler_args(1000, 100);
  EXPECT_EQ(plugin.train_iters, 333);
  EXPECT_EQ(plugin.lr_warmup_iters, 33);
  EXPECT_EQ(plugin.train_samples, std::nullopt);
  EXPECT_EQ(plugin.lr_warmup_samples, 0);
  EXPECT_THAT(warnings.texts(),
              ElementsAre(HasSubstr("`train_samples`"), HasSubstr("`lr_warmup_samples`")));
}

TEST(MegatronLMPlugin, DegreesAreAMesh) {
  const ParallelismOptions mesh = parallelism_of(
      resolved({.tp_degree = 2, .context_parallel_size = 2, .sequence_parallelism = true}), 8);
  EXPECT_EQ(mesh.tp_size, 2);
  EXPECT_EQ(mesh.cp_size, 2);
  EXPECT_EQ(mesh.dp_replicate_size, 1) << "replicas cannot divide sequences";
  EXPECT_EQ(mesh.dp_shard_size, 2);
  const ParallelismOptions staged = parallelism_of(resolved({.tp_degree = 2, .pp_degree = 2}), 8);
  EXPECT_EQ(staged.pp_size, 2);
  EXPECT_EQ(staged.dp_replicate_size, 2);
  EXPECT_EQ(staged.dp_shard_size, 1);
  const ParallelismOptions divided =
      parallelism_of(resolved({.tp_degree = 2, .use_distributed_optimizer = true}), 8);
  EXPECT_EQ(divided.dp_replicate_size, 1);
  EXPECT_EQ(divided.dp_shard_size, 4);
  const ParallelismOptions experts =
      parallelism_of(resolved({.tp_degree = 2, .expert_model_parallel_size = 2}), 8);
  EXPECT_EQ(experts.dp_shard_size, 4);
  EXPECT_EQ(experts.ep_size, 2);
  const ParallelismOptions experts_of_sequences =
      parallelism_of(resolved({.expert_model_parallel_size = 4, .context_parallel_size = 2}), 4);
  EXPECT_EQ(experts_of_sequences.dp_shard_size, 2);
  EXPECT_EQ(experts_of_sequences.ep_size, 4) << "ranks with parts of sequences divide experts, too";
  const ParallelismOptions staged_experts =
      parallelism_of(resolved({.pp_degree = 2, .expert_model_parallel_size = 2}), 8);
  EXPECT_EQ(staged_experts.pp_size, 2);
  EXPECT_EQ(staged_experts.dp_shard_size, 4);
  EXPECT_EQ(staged_experts.ep_size, 2);
  const ParallelismOptions staged_sequences =
      parallelism_of(resolved({.pp_degree = 2, .context_parallel_size = 2}), 8);
  EXPECT_EQ(staged_sequences.pp_size, 2);
  EXPECT_EQ(staged_sequences.cp_size, 2);
  EXPECT_EQ(staged_sequences.dp_shard_size, 2);
  const auto refusal = [](const Plugin& plugin, int64_t ranks) {
    return value_error_of([&] { parallelism_of(resolved(plugin), ranks); });
  };
  EXPECT_THAT(refusal({.tp_degree = 3}, 8), HasSubstr("nearest number that they divide is 9"));
  EXPECT_THAT(refusal({.tp_degree = 3}, 7), HasSubstr("nearest number that they divide is 6"));
  EXPECT_THAT(refusal({.tp_degree = 4}, 2), HasSubstr("nearest number that they divide is 4"));
  EXPECT_THAT(refusal({.pp_degree = 3}, 8), HasSubstr("nearest number that they divide is 9"));
  EXPECT_THAT(refusal({.sequence_parallelism = true}, 8), HasSubstr("tp_degree"));
  EXPECT_THAT(refusal({.expert_model_parallel_size = 3}, 8),
              AllOf(HasSubstr("ep_size=3"), HasSubstr("nearest layout")));
  EXPECT_THAT(refusal({.tp_degree = 4, .expert_tensor_parallel_size = 2}, 8),
              HasSubstr("set it to 1 or 4"));
}

}  // namespace
}  // namespace accelerate
