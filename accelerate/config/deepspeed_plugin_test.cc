#include "accelerate/config/deepspeed_plugin.h"

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "absl/strings/escaping.h"
#include "accelerate/base/json_text.h"
#include "accelerate/config/deepspeed_auto.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/config/hf_deepspeed_config.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/recorded_warnings.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::ordered_json;
using Variables = std::vector<std::pair<const char*, const char*>>;

Environment with(const Variables& variables) {
  Environment environment;
  for (const auto& [name, value] : variables) environment.set(name, value);
  return environment;
}

DeepSpeedPlugin resolved(const DeepSpeedPlugin& plugin, const Variables& variables = {}) {
  HostFiles files;
  return resolve(plugin, with(variables), files);
}

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

const Json kConfig = Json::parse(R"({
  "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR",
                "params": {"total_num_steps": "auto", "warmup_min_lr": "auto",
                           "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
                        "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                        "stage3_param_persistence_threshold": "auto"},
  "gradient_accumulation_steps": 2, "gradient_clipping": "auto",
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})");

// ---- One row per field: by the program, by its variable, by the configuration.

struct FieldCase {
  const char* name;
  DeepSpeedPlugin given;
  Variables variables;
  const char* key;
  Json expected;
};

class DeepSpeedField : public ::testing::TestWithParam<FieldCase> {};

TEST_P(DeepSpeedField, ReachesTheConfiguration) {
  const FieldCase& row = GetParam();
  EXPECT_EQ(resolved(row.given).get_value(row.key), row.expected);
  EXPECT_NE(resolved({}).get_value(row.key), row.expected) << "the default would do";
  if (!row.variables.empty()) {
    EXPECT_EQ(resolved({}, row.variables).get_value(row.key), row.expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DeepSpeedField,
    ::testing::Values(
        FieldCase{"config",
                  {.hf_ds_config = Json{{"zero_optimization", {{"stage", 1}}}}},
                  {},
                  "zero_optimization.stage",
                  1},
        FieldCase{"accumulation",
                  {.gradient_accumulation_steps = 4},
                  {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"}},
                  "gradient_accumulation_steps",
                  4},
        FieldCase{"clipping",
                  {.gradient_clipping = 0.5},
                  {{"ACCELERATE_GRADIENT_CLIPPING", "0.5"}},
                  "gradient_clipping",
                  0.5},
        FieldCase{"no_clipping",
                  {.gradient_clipping = 0.0},
                  {{"ACCELERATE_GRADIENT_CLIPPING", "0"}},
                  "gradient_clipping",
                  nullptr},
        FieldCase{"stage",
                  {.zero_stage = 3},
                  {{"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"}},
                  "zero_optimization.stage",
                  3},
        FieldCase{"optimizer_device",
                  {.offload_optimizer_device = "cpu"},
                  {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu"}},
                  "zero_optimization.offload_optimizer.device",
                  "cpu"},
        FieldCase{"param_device",
                  {.offload_param_device = "cpu"},
                  {{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu"}},
                  "zero_optimization.offload_param.device",
                  "cpu"},
        FieldCase{"optimizer_path",
                  {.offload_optimizer_device = "nvme", .offload_optimizer_nvme_path = "/fast"},
                  {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"},
                   {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "/fast"}},
                  "zero_optimization.offload_optimizer.nvme_path",
                  "/fast"},
        FieldCase{"param_path",
                  {.offload_param_device = "nvme", .offload_param_nvme_path = "/fast"},
                  {{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "nvme"},
                   {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "/fast"}},
                  "zero_optimization.offload_param.nvme_path",
                  "/fast"},
        FieldCase{"save_16bit",
                  {.zero3_save_16bit_model = true},
                  {{"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "yes"}},
                  "zero_optimization.stage3_gather_16bit_weights_on_model_save",
                  true},
        FieldCase{"msamp",
                  {.enable_msamp = true},
                  {{"ACCELERATE_FP8_BACKEND", "msamp"}},
                  "msamp.enabled",
                  true},
        FieldCase{"msamp_level",
                  {.enable_msamp = true, .msamp_opt_level = "O2"},
                  {{"ACCELERATE_FP8_BACKEND", "MSAMP"}, {"ACCELERATE_FP8_OPT_LEVEL", "O2"}},
                  "msamp.opt_level",
                  "O2"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(DeepSpeedPlugin, Zero3InitFollowsTheStage) {
  EXPECT_FALSE(resolved({}).is_zero3_init_enabled());
  EXPECT_TRUE(resolved({.zero_stage = 3}).is_zero3_init_enabled());
  EXPECT_FALSE(resolved({.zero_stage = 3}, {{"ACCELERATE_DEEPSPEED_ZERO3_INIT", "no"}})
                   .is_zero3_init_enabled());
  RecordedWarnings warnings;
  EXPECT_FALSE(resolved({.zero3_init_flag = true}).is_zero3_init_enabled());
  EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("only applicable for ZeRO Stage 3")));
}

TEST(DeepSpeedPlugin, TakesAConfigurationInEveryForm) {
  const std::string text = R"({"zero_optimization": {"stage": 1}})";
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/ds.json";
  HostFiles files;
  ASSERT_TRUE(write_file(files, path, text).ok());
  for (const Json& source :
       {Json(Json::parse(text)), Json(text), Json(path), Json(absl::WebSafeBase64Escape(text)),
        Json(absl::Base64Escape(text))}) {
    const DeepSpeedPlugin plugin = resolved({.hf_ds_config = source});
    EXPECT_EQ(*plugin.zero_stage, 1) << source;
    EXPECT_EQ(plugin.get_value("gradient_accumulation_steps"), 1);
  }
  EXPECT_EQ(*resolved({}, {{"ACCELERATE_DEEPSPEED_CONFIG_FILE", path.c_str()}}).zero_stage, 1);
  ASSERT_TRUE(write_file(files, path, "{bad").ok());
  EXPECT_THAT(error_of([&] { resolved({.hf_ds_config = path}); }),
              AllOf(HasSubstr(path), HasSubstr("it is not JSON")));
  ASSERT_TRUE(write_file(files, path, R"({"a": 1, "a": 2})").ok());
  EXPECT_THAT(error_of([&] { resolved({.hf_ds_config = path}); }), HasSubstr("it has \"a\" twice"));
  EXPECT_THAT(error_of([] { resolved({.hf_ds_config = "/no/such.json"}); }),
              HasSubstr("Expected a string path to an existing deepspeed config"));
  EXPECT_THAT(error_of([] { resolved({.hf_ds_config = Json::array({1})}); }),
              HasSubstr("[1], which is not an object"));
  EXPECT_THAT(error_of([] { resolved({.hf_ds_config = Json::object()}); }),
              HasSubstr("Please specify the ZeRO optimization config"));
}

// Python's json writes numbers beyond all others so, and HF Accelerate's configurations have one.
TEST(DeepSpeedPlugin, ReadsInfinitiesAsPythonWritesThem) {
  const std::string text = R"({"zero_optimization": {"stage": 2, "x": [-Infinity, 1]},
                               "steps_per_print": Infinity, "note": "\" Infinity, -Infinity\\"})";
  const double infinity = std::numeric_limits<double>::infinity();
  HostFiles files;
  for (const Json& source : {Json(text), Json(absl::Base64Escape(text))}) {
    const HfDeepSpeedConfig config(source, &files);
    EXPECT_EQ(config.get_value("steps_per_print"), Json(infinity));
    EXPECT_EQ(config.get_value("zero_optimization.x"), Json::array({-infinity, 1}));
    EXPECT_EQ(config.get_value("note"), Json(R"(" Infinity, -Infinity\)"));
  }
  for (const char* wrong : {R"({"a": Infinityx})", R"({"a": - Infinity})", R"({"a": NaN})"}) {
    EXPECT_THAT(error_of([&] { resolved({.hf_ds_config = wrong}); }), HasSubstr("it is not JSON"))
        << wrong;
  }
}

TEST(DeepSpeedPlugin, RefusesFieldsThatMakeNoSense) {
  const auto error = [](const DeepSpeedPlugin& plugin, const Variables& variables = {}) {
    return error_of([&] { resolved(plugin, variables); });
  };
  EXPECT_THAT(error({.gradient_accumulation_steps = 0}), HasSubstr("at least 1, got 0"));
  EXPECT_THAT(error({.gradient_accumulation_steps = "two"}),
              HasSubstr("\"two\", which is neither"));
  EXPECT_THAT(error({}, {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2.0"}}), HasSubstr("\"2.0\""));
  EXPECT_THAT(error({.gradient_clipping = -1.0}), HasSubstr("gradient_clipping is -1"));
  EXPECT_THAT(error({.zero_stage = 4}), HasSubstr("zero_stage is 4"));
  EXPECT_THAT(error({.offload_param_device = "disk"}), HasSubstr("one of none, cpu, nvme"));
  EXPECT_THAT(error({.offload_param_device = "nvme"}), HasSubstr("offload_param_nvme_path"));
  EXPECT_THAT(error({.enable_msamp = true, .msamp_opt_level = "O3"}), HasSubstr("O3"));
  EXPECT_THAT(error({.zero_stage = 3, .enable_msamp = true}), HasSubstr("not supported for ZeRO"));
  EXPECT_THAT(error({.hf_ds_config = Json{{"zero_optimization", {{"stage", "two"}}}}}),
              HasSubstr("\"zero_optimization.stage\" is \"two\""));
  EXPECT_THAT(error({.hf_ds_config = kConfig}, {{"ACCELERATE_CONFIG_DS_FIELDS",
                                                 "zero3_init_flag,zero_stage,mixed_precision"}}),
              HasSubstr("has zero_stage, mixed_precision; remove them there"));
}

TEST(DeepSpeedPlugin, FillsAutoAndListsAllMismatchesAtOnce) {
  DeepSpeedPlugin plugin = resolved({.hf_ds_config = Json{{"zero_optimization", {{"stage", 2}}},
                                                          {"fp16", {{"enabled", true}}},
                                                          {"train_batch_size", 32},
                                                          {"gradient_clipping", "auto"},
                                                          {"bf16", {{"enabled", "auto"}}}}});
  const Json before = plugin.deepspeed_config();
  const std::string error = error_of([&] {
    plugin.deepspeed_config_process(
        {{"fp16.enabled", false}, {"train_batch_size", 64}, {"gradient_clipping", 1.0}});
  });
  EXPECT_THAT(error, AllOf(HasSubstr("`bf16.enabled` not found in kwargs"),
                           HasSubstr("- ds fp16.enabled=True vs arg fp16.enabled=False"),
                           HasSubstr("- ds train_batch_size=32 vs arg train_batch_size=64")));
  EXPECT_EQ(plugin.deepspeed_config(), before);
  plugin.deepspeed_config_process({{"fp16.enabled", 1},
                                   {"train_batch_size", 32.0},
                                   {"bf16.enabled", false},
                                   {"gradient_clipping", 1.0}});
  EXPECT_EQ(plugin.get_value("gradient_clipping"), 1.0);
  EXPECT_FALSE(plugin.is_auto("bf16.enabled"));
  EXPECT_EQ(plugin.get_value("no.such.key", 7), 7);
}

TEST(DeepSpeedPlugin, AddsThePrecisionWhereTheConfigurationDoesNotSayIt) {
  DeepSpeedPlugin plugin = resolved({});
  plugin.set_mixed_precision("bf16");
  EXPECT_EQ(plugin.get_value("bf16.enabled"), true);
  EXPECT_EQ(plugin.get_value("fp16.enabled"), false);
  const Json before = plugin.deepspeed_config();
  EXPECT_THAT(error_of([&] { plugin.set_mixed_precision("fp16"); }),
              HasSubstr("cannot be set to `fp16` when `bf16` is set"));
  EXPECT_EQ(plugin.deepspeed_config(), before);
  EXPECT_THAT(error_of([&] { plugin.set_mixed_precision("int8"); }), HasSubstr("int8"));
}

TEST(DeepSpeedPlugin, KnowsBf16ByItsOldName) {
  const Json on = {{"enabled", true}}, off = {{"enabled", false}};
  const auto plugin = [](Json blocks) {
    blocks["zero_optimization"] = {{"stage", 2}};
    return DeepSpeedPlugin{.hf_ds_config = std::move(blocks)};
  };
  DeepSpeedPlugin old = resolved(plugin({{"bfloat16", on}}));
  old.set_mixed_precision("no");
  EXPECT_EQ(old.get_value("bf16.enabled"), true);
  EXPECT_EQ(old.get_value("bfloat16"), nullptr);
  EXPECT_EQ(error_of([&] { resolved(plugin({{"bfloat16", on}, {"bf16", on}})); }), "");
  EXPECT_THAT(error_of([&] { resolved(plugin({{"bfloat16", on}, {"bf16", off}})); }),
              HasSubstr("bfloat16 and bf16 are two names of one setting, but they are {"));
}

TEST(DeepSpeedPlugin, ConstructionKnowsNoBatches) {
  DeepSpeedPlugin plugin = resolved({.zero_stage = 3});
  plugin.set_deepspeed_weakref();
  EXPECT_EQ(plugin.dschf->get_value("train_micro_batch_size_per_gpu"), 1);
  EXPECT_EQ(plugin.dschf->get_value("train_batch_size"), nullptr);
  EXPECT_EQ(plugin.get_value("train_batch_size"), "auto");
  {
    const auto scope = plugin.zero3_init_context_manager(/*enable=*/false);
    EXPECT_FALSE(plugin.is_zero3_init_enabled());
  }
  EXPECT_TRUE(plugin.is_zero3_init_enabled());
  EXPECT_THAT(error_of([&] { plugin.select(); }), HasSubstr("select_deepspeed_plugin"));
}

TEST(DeepSpeedPlugin, LooksLayersOfExpertsUp) {
  const torch::nn::Linear model(2, 2);
  DeepSpeedPlugin plugin = resolved({});
  EXPECT_THAT(plugin.set_moe_leaf_modules(*model, with({})), IsEmpty());
  EXPECT_THAT(error_of([&] {
                plugin.set_moe_leaf_modules(
                    *model, with({{"ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "Experts"}}));
              }),
              HasSubstr("'Experts'"));
  plugin.transformer_moe_cls_names = "Linear";
  EXPECT_THAT(plugin.set_moe_leaf_modules(*model, with({})), ElementsAre("Linear"));
}

// ---- What prepare fills in.

struct Described : torch::nn::Module, ModelStructure {
  std::vector<int64_t> hidden_sizes() const override { return {8, 64, 16}; }
};

TEST(DeepSpeedAuto, FillsSizesNumbersAndBatchesIn) {
  DeepSpeedPlugin plugin = resolved({.hf_ds_config = kConfig});
  plugin.set_mixed_precision("bf16");
  const DummyOptim optimizer(std::vector<at::Tensor>{}, {.lr = 5e-5, .weight_decay = 1e-4});
  const DummyScheduler scheduler(optimizer, {.total_num_steps = 1000, .warmup_num_steps = 10});
  const Described model;
  HostFiles files;
  const DeepSpeedCompletion completion =
      complete(plugin, {.num_processes = 3,
                        .gradient_accumulation_steps = 1,
                        .batch_sizes = {16, 8},
                        .hidden_sizes = hidden_sizes_of(plugin, model, files),
                        .has_optimizer = true,
                        .has_scheduler = true,
                        .dummy_optimizer = &optimizer,
                        .dummy_scheduler = &scheduler});
  EXPECT_EQ(completion.gradient_accumulation_steps, 2);
  EXPECT_THAT(completion.notes,
              ElementsAre(HasSubstr("`is_train_batch_min` (here True) will decide the "
                                    "`train_batch_size` (8)."),
                          HasSubstr("Using DeepSpeed's value")));
  const std::vector<std::pair<const char*, Json>> expected = {
      {"train_micro_batch_size_per_gpu", 8},
      {"train_batch_size", 48},
      {"gradient_clipping", 1.0},
      {"optimizer.params.lr", 5e-5},
      {"optimizer.params.weight_decay", 1e-4},
      {"scheduler.params.warmup_min_lr", 0},
      {"scheduler.params.warmup_max_lr", 5e-5},
      {"scheduler.params.warmup_num_steps", 10},
      {"scheduler.params.total_num_steps", 334},
      {"zero_optimization.reduce_bucket_size", 64 * 64},
      {"zero_optimization.stage3_prefetch_bucket_size", 3686},
      {"zero_optimization.stage3_param_persistence_threshold", 640}};
  for (const auto& [key, value] : expected) EXPECT_EQ(plugin.get_value(key), value) << key;
}

// Ranks that share the data, batches that are split among them, and the larger of the loaders.
TEST(DeepSpeedAuto, CountsSharesOfTheDataAndPartsOfBatches) {
  const DummyOptim optimizer(std::vector<at::Tensor>{});
  const DummyScheduler scheduler(optimizer, {.total_num_steps = 1000});
  const auto value = [&](bool split_batches, bool takes_smallest, int64_t ranks_per_share,
                         const char* key) {
    DeepSpeedPlugin plugin =
        resolved({.hf_ds_config = kConfig, .is_train_batch_min = takes_smallest});
    plugin.set_mixed_precision("no");
    complete(plugin, {.num_processes = 8,
                      .ranks_per_share = ranks_per_share,
                      .split_batches = split_batches,
                      .batch_sizes = {64, 32},
                      .hidden_sizes = {8},
                      .has_optimizer = true,
                      .has_scheduler = true,
                      .dummy_optimizer = &optimizer,
                      .dummy_scheduler = &scheduler});
    return plugin.get_value(key);
  };
  constexpr char kMicro[] = "train_micro_batch_size_per_gpu";
  constexpr char kWhole[] = "train_batch_size";
  constexpr char kTotal[] = "scheduler.params.total_num_steps";
  EXPECT_EQ(value(false, true, 1, kMicro), 32);
  EXPECT_EQ(value(false, false, 1, kMicro), 64);
  EXPECT_EQ(value(true, true, 1, kMicro), 4);
  EXPECT_EQ(value(true, false, 1, kMicro), 8);
  // Two backward passes a step, by the shares.
  EXPECT_EQ(value(false, true, 1, kWhole), 32 * 2 * 8);
  EXPECT_EQ(value(false, true, 2, kWhole), 32 * 2 * 4);
  EXPECT_EQ(value(true, true, 2, kWhole), 4 * 2 * 4);
  EXPECT_EQ(value(false, true, 1, kTotal), 125);
  EXPECT_EQ(value(true, true, 1, kTotal), 1000) << "a step of all ranks counts once already";
}

TEST(DeepSpeedPlugin, TellsWhichBatchesCountWhereTheyDiffer) {
  const auto notes_of = [](const std::vector<std::optional<int64_t>>& sizes, bool smallest) {
    DeepSpeedPlugin plugin = resolved({.zero_stage = 2, .is_train_batch_min = smallest});
    plugin.set_mixed_precision("no");
    return complete(plugin, {.batch_sizes = sizes, .has_optimizer = true}).notes;
  };
  EXPECT_THAT(notes_of({8}, true), ElementsAre());
  EXPECT_THAT(notes_of({8, 8, 8}, true), ElementsAre());
  EXPECT_THAT(notes_of({8, 8, 16}, true), ElementsAre(HasSubstr("(here True) will decide")));
  EXPECT_THAT(notes_of({8, 8, 4}, false), ElementsAre(HasSubstr("(here False) will decide")));
}

TEST(DeepSpeedAuto, WarmsUpForAtLeastOneStep) {
  const DummyOptim optimizer(std::vector<at::Tensor>{});
  for (const auto& [given, expected] : {std::pair{0, 1}, {1, 1}, {2, 2}}) {
    DeepSpeedPlugin plugin = resolved({.hf_ds_config = kConfig});
    plugin.set_mixed_precision("no");
    const DummyScheduler scheduler(optimizer, {.total_num_steps = 1000, .warmup_num_steps = given});
    const Described model;
    HostFiles files;
    complete(plugin, {.batch_sizes = {16},
                      .hidden_sizes = hidden_sizes_of(plugin, model, files),
                      .has_optimizer = true,
                      .has_scheduler = true,
                      .dummy_optimizer = &optimizer,
                      .dummy_scheduler = &scheduler});
    EXPECT_EQ(plugin.get_value("scheduler.params.warmup_num_steps"), expected);
  }
}

TEST(DeepSpeedAuto, SaysWhatContradictsWhat) {
  const DummyOptim optimizer(std::vector<at::Tensor>{});
  const DummyScheduler scheduler(optimizer);
  const Json plain = {{"zero_optimization", {{"stage", 2}}}};
  const auto error = [](const Json& config, const DeepSpeedFacts& facts) {
    DeepSpeedPlugin plugin = resolved({.hf_ds_config = config});
    plugin.set_mixed_precision("no");
    const Json before = plugin.deepspeed_config();
    const std::string text = error_of([&] { complete(plugin, facts); });
    EXPECT_EQ(plugin.deepspeed_config(), before) << text;
    return text;
  };
  EXPECT_THAT(error(kConfig, {}), HasSubstr("at least one of training or evaluation dataloaders"));
  EXPECT_THAT(error(kConfig, {.batch_sizes = {std::nullopt}}), HasSubstr("`None` as batch size"));
  EXPECT_THAT(error(kConfig, {.num_processes = 4, .split_batches = true, .batch_sizes = {2}}),
              HasSubstr("split_batches"));
  EXPECT_THAT(error(kConfig, {.batch_sizes = {4}, .has_optimizer = true}),
              HasSubstr("an optimizer in the config file and in the code"));
  EXPECT_THAT(error(kConfig, {.batch_sizes = {4}, .has_scheduler = true}),
              HasSubstr("a scheduler in the config file and in the code"));
  EXPECT_THAT(error(plain, {.has_optimizer = true, .dummy_optimizer = &optimizer}),
              HasSubstr("without specifying an optimizer"));
  EXPECT_THAT(error(plain, {.has_scheduler = true, .dummy_scheduler = &scheduler}),
              HasSubstr("lr_scheduler_callable"));
  Json only_optimizer = plain;
  only_optimizer["optimizer"] = {{"type", "Adam"}};
  EXPECT_THAT(error(only_optimizer,
                    {.has_optimizer = true, .has_scheduler = true, .dummy_optimizer = &optimizer}),
              HasSubstr("You can only specify `accelerate.utils.DummyScheduler`"));
  EXPECT_THAT(error(kConfig, {.batch_sizes = {4}}),
              AllOf(HasSubstr("zero_optimization.reduce_bucket_size"),
                    HasSubstr("stage3_param_persistence_threshold"), HasSubstr("hidden_sizes()")));
  Json contradictory = plain;
  contradictory.update({{"train_batch_size", 100}, {"train_micro_batch_size_per_gpu", 5}});
  EXPECT_THAT(error(contradictory, {.num_processes = 2}),
              HasSubstr("train_batch_size is 100, but train_micro_batch_size_per_gpu 5 * "
                        "gradient_accumulation_steps 1 * 2 shares of the data is 10"));
  contradictory.erase("train_micro_batch_size_per_gpu");
  EXPECT_THAT(error(contradictory, {.num_processes = 3}), HasSubstr("not a multiple"));
}

TEST(DeepSpeedAuto, FindsHiddenSizesWhereTheyAre) {
  EXPECT_THAT(hidden_sizes_of(Json{{"hidden_size", 8}}), ElementsAre(8));
  EXPECT_THAT(hidden_sizes_of(Json{{"hidden_sizes", {8, 16}}}), ElementsAre(8, 16));
  EXPECT_THAT(hidden_sizes_of(Json{{"text_config", {{"hidden_size", 4}}}}), ElementsAre(4));
  EXPECT_THAT(hidden_sizes_of(Json::object()), IsEmpty());
  const TemporaryFolder folder;
  HostFiles files;
  const std::string path = folder.path() + "/config.json";
  ASSERT_TRUE(write_file(files, path, R"({"hidden_size": 32})").ok());
  const Described model;
  EXPECT_THAT(hidden_sizes_of({.hidden_size = path}, model, files), ElementsAre(32));
  // Python writes infinities as words.
  ASSERT_TRUE(write_file(files, path, R"({"hidden_size": 48, "a": [Infinity, -Infinity]})").ok());
  EXPECT_THAT(hidden_sizes_of({.hidden_size = path}, model, files), ElementsAre(48));
  EXPECT_THAT(hidden_sizes_of({.hidden_size = 5}, model, files), ElementsAre(5));
  EXPECT_THAT(error_of([&] { hidden_sizes_of({.hidden_size = "/none"}, model, files); }),
              HasSubstr("/none"));
}

}  // namespace
}  // namespace accelerate
