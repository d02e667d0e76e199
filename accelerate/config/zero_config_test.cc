#include "accelerate/config/zero_config.h"

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/config/zero_keys.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/value_error.h"

namespace accelerate::internal {

void PrintTo(const ZeroKey& row, std::ostream* out) { *out << row.info.key; }

}  // namespace accelerate::internal

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using internal::ZeroKey;

// Puts a value under a dotted key, with blocks on the way.
void put(Json& config, const std::string& key, const Json& value) {
  Json* node = &config;
  for (const auto part : absl::StrSplit(key, '.')) node = &(*node)[std::string(part)];
  *node = value;
}

// A configuration in which the key may stand, and does not.
Json around(const ZeroKey& row) {
  const std::string& key = row.info.key;
  Json config = Json::object();
  if (key != "zero_optimization.stage") {
    put(config, "zero_optimization.stage", absl::StartsWith(key, "msamp") ? 2 : 3);
  }
  for (const char* block :
       {"zero_optimization.offload_optimizer", "zero_optimization.offload_param"}) {
    if (key == absl::StrCat(block, ".device"))
      put(config, absl::StrCat(block, ".nvme_path"), "/fast");
  }
  if (key == "optimizer.type" || key == "scheduler.type") return config;
  if (absl::StartsWith(key, "optimizer.")) {
    config["optimizer"]["type"] = row.types.empty() ? "Adam" : row.types.front();
  }
  if (absl::StartsWith(key, "scheduler.")) {
    config["scheduler"] = {{"type", row.types.empty() ? "WarmupLR" : row.types.front()}};
    if (row.types == std::vector<std::string>{"OneCycle"}) {
      config["scheduler"]["params"] = {{"cycle_min_lr", 0.001}, {"cycle_max_lr", 0.01}};
    }
  }
  return config;
}

// A value that the key does not have by itself.
Json another_value(const ZeroKey& row) {
  const std::string& type = row.info.type;
  const std::string& usual = row.info.default_value;
  const double number = std::atof(usual.c_str());
  const bool is_on = usual == "true" || usual == "in stage 3" ||
                     row.info.key == "zero_optimization.ignore_unused_parameters";
  if (type == "boolean") return !is_on;
  if (type == "whole number") return row.info.key == "zero_optimization.stage" ? 2 : number + 2;
  if (type == "number") return number >= 1 ? number / 2 : number + 0.25;
  if (type == "text") return "another";
  if (type == "list of texts") return Json::array({"Experts"});
  if (type == "list of two numbers") return Json::array({0.5, 0.75});
  if (type == "object") return Json{{"partition_activations", true}, {"autotp_size", 2}};
  // One of the texts in backquotes.
  const std::vector<std::string> parts = absl::StrSplit(type, '`');
  for (size_t i = parts.size() - 2; i < parts.size(); i -= 2) {
    if (parts[i] != usual) return parts[i];
  }
  ADD_FAILURE() << row.info.key << ": " << type;
  return nullptr;
}

class EachKey : public ::testing::TestWithParam<ZeroKey> {};

TEST_P(EachKey, ChangesSomethingOrIsRefusedOrIsSaidToHaveNoEffect) {
  const ZeroKey& row = GetParam();
  EXPECT_FALSE(row.info.what.empty());
  const Json without = around(row);
  Json with = without;
  put(with, row.info.key, another_value(row));
  switch (row.info.state) {
    case DeepSpeedKeyState::kHonoured:
      EXPECT_FALSE(zero_config(with) == zero_config(without)) << with;
      break;
    case DeepSpeedKeyState::kWithoutEffect:
      EXPECT_TRUE(zero_config(with) == zero_config(without)) << with;
      break;
    case DeepSpeedKeyState::kRefused:
      EXPECT_THAT(value_error_of([&] { zero_config(with); }),
                  AllOf(HasSubstr(absl::StrCat("- ", row.info.key, ": this version refuses")),
                        HasSubstr(row.info.what)));
      break;
  }
  const bool is_needed = absl::StartsWith(row.info.key, "scheduler.params.cycle_m") &&
                         absl::EndsWith(row.info.key, "_lr");
  if (is_needed) return;
  put(with, row.info.key, "auto");
  EXPECT_NO_THROW(zero_config(with, ZeroAuto::kAllowed));
  if (row.info.state == DeepSpeedKeyState::kHonoured) {
    EXPECT_THAT(value_error_of([&] { zero_config(with); }), HasSubstr("it is still \"auto\""));
    put(with, row.info.key, Json::array({nullptr}));
    EXPECT_THAT(value_error_of([&] { zero_config(with); }), HasSubstr("it is [null], not a "));
  }
  put(with, row.info.key, nullptr);
  EXPECT_TRUE(zero_config(with) == zero_config(without)) << with;
}

// What a refused key may say.
TEST(ZeroConfig, AcceptsWhatAsksForNothing) {
  for (const ZeroKey& row : internal::zero_keys()) {
    if (row.info.state != DeepSpeedKeyState::kRefused) continue;
    const bool is_true = row.info.key == "zero_optimization.ignore_unused_parameters";
    Json config = around(row);
    put(config, row.info.key,
        row.info.type == "boolean"        ? Json(is_true)
        : row.info.type == "whole number" ? Json(0)
        : row.info.type == "number"       ? Json(0)
        : row.info.type == "text"         ? Json("")
                                          : Json{{"enabled", false}});
    EXPECT_NO_THROW(zero_config(config)) << config;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EachKey, ::testing::ValuesIn(internal::zero_keys()),
                         [](const auto& info) {
                           std::string name = info.param.info.key;
                           std::ranges::replace(name, '.', '_');
                           return absl::StrCat(name, "_", info.index);
                         });

TEST(ZeroConfig, NamesTheNearestKeyAndListsAllProblems) {
  const Json config = Json::parse(R"({
    "train_bach_size": 8, "stage3_max_live_parameters": 5, "gradient_clipping": "much",
    "zero_optimization": {"stage": 5, "offload_optimiser": {"device": "cpu"},
                          "reduce_bucket_size": 0.5, "zero_quantized_weights": true},
    "fp16": 3, "optimizer": {"type": "Sgd2"}})");
  EXPECT_THAT(
      value_error_of([&] { zero_config(config); }),
      AllOf(HasSubstr("- train_bach_size: there is no such key; did you mean train_batch_size?"),
            HasSubstr("did you mean zero_optimization.stage3_max_live_parameters?"),
            HasSubstr("- gradient_clipping: it is \"much\", not a number"),
            HasSubstr("- zero_optimization.stage: it is 5, more than 3"),
            HasSubstr("- zero_optimization.offload_optimiser: there is no such key"),
            HasSubstr("- zero_optimization.reduce_bucket_size: it is 0.5, not a whole number"),
            HasSubstr("- zero_optimization.zero_quantized_weights: this version refuses true"),
            HasSubstr("- fp16: it is 3, not an object"),
            HasSubstr("- optimizer.type: it is \"Sgd2\"")));
  EXPECT_THAT(value_error_of([] { zero_config(Json::array()); }), HasSubstr("not an object"));
}

// DeepSpeed takes a setting by either name.
TEST(ZeroConfig, HasSettingsByTheirOtherNames) {
  for (const internal::ZeroName& each : internal::zero_names()) {
    SCOPED_TRACE(absl::StrCat(each.name, " for ", each.key));
    const auto row = std::ranges::find(internal::zero_keys(), each.key,
                                       [](const ZeroKey& row) { return row.info.key; });
    const bool is_block = row == internal::zero_keys().end();
    const Json value = is_block ? Json{{"enabled", true}} : another_value(*row);
    const Json base = {{"zero_optimization", {{"stage", 3}}}};
    Json own = base, other = base;
    put(own, each.key, each.value != nullptr ? Json("cpu") : value);
    put(other, each.name, each.value != nullptr ? Json(true) : value);
    Json same = other;
    const bool has_several = absl::EndsWith(each.name, "pin_memory");
    if (has_several) {
      EXPECT_TRUE(zero_config(other).offload_optimizer.pin_memory);
      EXPECT_TRUE(zero_config(other).offload_param.pin_memory);
    } else {
      EXPECT_TRUE(zero_config(other) == zero_config(own));
      EXPECT_THAT(use_one_name(same), ::testing::IsEmpty());
      EXPECT_EQ(same, own);
    }
    // Both names with one value are one setting, with two values an error that has both.
    put(other, each.key, each.value != nullptr ? Json("cpu") : value);
    EXPECT_NO_THROW(zero_config(other));
    put(other, each.key,
        is_block             ? Json{{"enabled", false}}
        : value.is_boolean() ? Json(!value.get<bool>())
        : value.is_number()  ? Json(value.get<int64_t>() + 1)
                             : Json("none"));
    EXPECT_THAT(value_error_of([&] { zero_config(other); }),
                HasSubstr(absl::StrCat(each.name, " and ", each.key,
                                       " are two names of one setting, but they are ")));
    // "auto" and null are for the key as well.
    if (each.value != nullptr || has_several) continue;
    Json automatic = base;
    put(automatic, each.name, is_block ? Json{{"enabled", "auto"}} : Json("auto"));
    EXPECT_NO_THROW(zero_config(automatic, ZeroAuto::kAllowed));
    put(automatic, each.name, nullptr);
    EXPECT_NO_THROW(zero_config(automatic));
  }
  EXPECT_EQ(zero_config(Json::parse(R"({"zero_optimization": {"stage": 3, "cpu_offload": false,
                                       "cpu_offload_params": false}})"))
                .offload_param.device,
            OffloadDevice::kNone);
}

// DeepSpeed checks the types of ZeRO's block, and takes texts and numbers that say what it wants.
TEST(ZeroConfig, TakesTextsInTheBlockOfZero) {
  const Json texts = Json::parse(R"({"communication_data_type": "FP32", "zero_optimization": {
      "stage": 3, "overlap_comm": "True", "reduce_bucket_size": "5000", "cpu_offload": "off",
      "stage3_gather_16bit_weights_on_model_save": "yes", "zero_quantized_weights": "false",
      "offload_optimizer": {"device": "cpu", "pin_memory": 1, "ratio": "0.5"}}})");
  const Json values = Json::parse(R"({"communication_data_type": "fp32", "zero_optimization": {
      "stage": 3, "reduce_bucket_size": 5000, "stage3_gather_16bit_weights_on_model_save": true,
      "offload_optimizer": {"device": "cpu", "pin_memory": true, "ratio": 0.5}}})");
  EXPECT_TRUE(zero_config(texts) == zero_config(values));
  for (const char* wrong :
       {R"({"fp16": {"enabled": "true"}})", R"({"gradient_clipping": "1.0"})",
        R"({"zero_optimization": {"stage": "3"}})",
        R"({"zero_optimization": {"reduce_bucket_size": "many"}})",
        R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": 2}}})"}) {
    EXPECT_THAT(value_error_of([&] { zero_config(Json::parse(wrong)); }), HasSubstr(", not a "))
        << wrong;
  }
}

TEST(ZeroConfig, IgnoresWhatDeepSpeedIgnores) {
  const Json config = Json::parse(R"({
    "_comment": "trains the large model", "_train_batch_size": 4, "//": {"stage": 1},
    "cuda_visible_devices": "0,1", "monitor_config": {"enabled": true}, "author": ["me"],
    "fp16": {"enabled": true, "opt_level": "O2"}, "bf16": {"loss_scale": 0},
    "aio": {"note": 1}, "zero_optimization": {"stage": 2}})");
  EXPECT_THAT(ignored_keys(config),
              ::testing::ElementsAre("_comment", "_train_batch_size", "//", "cuda_visible_devices",
                                     "monitor_config", "author", "fp16.opt_level",
                                     "bf16.loss_scale", "aio.note"));
  EXPECT_TRUE(zero_config(config) == zero_config(Json{{"fp16", {{"enabled", true}}},
                                                      {"zero_optimization", {{"stage", 2}}}}));
  // What was meant to be another key is an error, and so is what DeepSpeed checks.
  for (const char* wrong :
       {R"({"gradient_cliping": 1})", R"({"fp16": {"enable": true}})", R"({"stage": 3})",
        R"({"offload_optimizer": {"device": "cpu"}})", R"({"zero_optimization": {"_comment": ""}})",
        R"({"zero_optimization": {"zero_stage": 3}})", R"({"optimzer": {"type": "Adam"}})",
        R"({"optimizer": {"type": "Adam", "params": {"note": 1}}})",
        R"({"scheduler": {"type": "WarmupLR", "params": {"_comment": ""}}})"}) {
    EXPECT_THAT(value_error_of([&] { zero_config(Json::parse(wrong)); }),
                HasSubstr("there is no such key; did you mean "))
        << wrong;
  }
  EXPECT_THAT(
      value_error_of([] { zero_config(Json::parse(R"({"zero_optimisation": {"stage": 3}})")); }),
      HasSubstr("zero_optimisation: there is no such key; did you mean zero_optimization?"));
  EXPECT_THAT(ignored_keys(Json::parse(R"({"timers": {"throughput": {"enabled": true}},
                                          "use_data_before_expert_parallel": false})")),
              ::testing::ElementsAre("timers", "use_data_before_expert_parallel"));
}

TEST(ZeroConfig, RefusesWhatDoesNotGoTogether) {
  const auto error = [](const char* text) {
    return value_error_of([&] { zero_config(Json::parse(text)); });
  };
  EXPECT_THAT(error(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
              HasSubstr("computes in one of them"));
  EXPECT_THAT(error(R"({"zero_optimization": {"stage": 3}, "msamp": {"enabled": true}})"),
              HasSubstr("not supported for ZeRO Stage 3"));
  EXPECT_THAT(error(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"),
              HasSubstr("stage 0 divides no optimizer"));
  EXPECT_THAT(error(R"({"zero_optimization": {"stage": 2, "offload_optimizer":
                        {"device": "nvme", "nvme_path": "/fast"}}})"),
              HasSubstr("\"nvme\" needs stage 3"));
  EXPECT_THAT(error(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})"),
              HasSubstr("offload_param.nvme_path: it does not say in which folder"));
  EXPECT_THAT(error(R"({"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8}})"),
              HasSubstr("only stage 3"));
  EXPECT_THAT(error(R"({"optimizer": {"params": {"lr": 1}}})"), HasSubstr("type: it is missing"));
  EXPECT_THAT(error(R"({"optimizer": {"type": "Lion", "params": {"eps": 1}}})"),
              HasSubstr("Lion has no such parameter; Adam, AdamW, Adagrad, Lamb has"));
  EXPECT_THAT(error(R"({"scheduler": {"type": "OneCycle"}})"), HasSubstr("OneCycle needs it"));
}

TEST(ZeroConfig, HasDeepSpeedsDefaultsAndRules) {
  const ZeroConfig stage_3 = zero_config(Json::parse(R"({"zero_optimization": {"stage": 3}})"));
  EXPECT_EQ(stage_3.dtype(), std::nullopt);
  const ZeroConfig stage_2 = zero_config(Json::parse(
      R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"},
          "reduce_bucket_size": 2e8}, "bf16": {"enabled": true}})"));
  EXPECT_EQ(stage_2.reduce_bucket_size, 200'000'000);
  EXPECT_EQ(stage_2.dtype(), c10::kBFloat16);
  EXPECT_EQ(stage_2.offload_param.device, OffloadDevice::kNone)
      << "only stage 3 divides parameters";
}

// ---- Configurations as they are used.

constexpr const char* kUsed[] = {
    // Stages alone.
    R"({"zero_optimization": {"stage": 0}, "train_micro_batch_size_per_gpu": 1})",
    R"({"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}, "bf16": {"enabled": true},
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})",
    R"({"zero_optimization": {"stage": 2, "allgather_partitions": true,
        "allgather_bucket_size": 2e8, "overlap_comm": true, "reduce_scatter": true,
        "reduce_bucket_size": 2e8, "contiguous_gradients": true}, "gradient_clipping": 1.0,
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto", "wall_clock_breakdown": false})",
    R"({"zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true,
        "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": "auto"},
        "bf16": {"enabled": "auto"}, "steps_per_print": 2000, "gradient_clipping": "auto"})",
    // The optimizer on the host, with Hugging Face's blocks.
    R"({"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
        "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
        "weight_decay": "auto"}}, "scheduler": {"type": "WarmupLR", "params":
        {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu",
        "pin_memory": true}, "allgather_partitions": true, "allgather_bucket_size": 2e8,
        "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 2e8,
        "contiguous_gradients": true}, "gradient_accumulation_steps": "auto"})",
    R"({"bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": "auto",
        "weight_decay": "auto", "torch_adam": true, "adam_w_mode": true}}, "scheduler":
        {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_min_lr": "auto",
        "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}, "zero_optimization": {"stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": true}, "offload_param":
        {"device": "cpu", "pin_memory": true}, "overlap_comm": true, "contiguous_gradients": true,
        "sub_group_size": 0, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}})",
    // Both on disks.
    R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme",
        "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 4, "fast_init": false,
        "pipeline_read": true, "pipeline_write": true}, "offload_param": {"device": "nvme",
        "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 5, "buffer_size": 1e8,
        "max_in_cpu": 1e9}}, "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1,
        "single_submit": false, "overlap_events": true}, "train_micro_batch_size_per_gpu": 4})",
    R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "none"},
        "offload_optimizer": {"device": "none"}}, "train_batch_size": 256,
        "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4})",
    // Precisions.
    R"({"fp16": {"enabled": true, "auto_cast": false, "loss_scale": 0, "initial_scale_power": 32,
        "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
        "zero_optimization": {"stage": 1}})",
    R"({"fp16": {"enabled": true, "loss_scale": 128, "consecutive_hysteresis": true},
        "zero_optimization": {"stage": 2, "round_robin_gradients": true}})",
    R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "zero_optimization":
        {"stage": 2, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}},
        "communication_data_type": "fp32"})",
    R"({"bf16": {"enabled": true}, "communication_data_type": "bfp16", "prescale_gradients": true,
        "gradient_predivide_factor": 2.0, "zero_optimization": {"stage": 0}})",
    // Optimizers and schedules.
    R"({"optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8,
        "weight_decay": 3e-7}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0,
        "warmup_max_lr": 0.001, "warmup_num_steps": 1000}}, "zero_optimization": {"stage": 1},
        "train_batch_size": 16, "steps_per_print": 2000, "gradient_clipping": 1.0,
        "prescale_gradients": false, "wall_clock_breakdown": false})",
    R"({"optimizer": {"type": "Lamb", "params": {"lr": 0.003, "weight_decay": 0.01,
        "bias_correction": false, "max_coeff": 0.3, "min_coeff": 0.01}}, "scheduler":
        {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3,
        "cycle_first_step_size": 1000, "decay_step_size": 10, "decay_lr_rate": 0.1,
        "cycle_min_mom": 0.85, "cycle_max_mom": 0.99, "decay_mom_rate": 0}},
        "zero_optimization": {"stage": 0}})",
    R"({"optimizer": {"type": "Adagrad", "params": {"lr": 0.01, "eps": 1e-10}}, "scheduler":
        {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-4,
        "lr_range_test_step_size": 200, "lr_range_test_step_rate": 5,
        "lr_range_test_staircase": false}}, "zero_optimization": {"stage": 2}})",
    R"({"optimizer": {"type": "Lion", "params": {"lr": 1e-4, "betas": [0.9, 0.99],
        "weight_decay": 0.1}}, "scheduler": {"type": "WarmupCosineLR", "params":
        {"total_num_steps": 10000, "warmup_num_steps": 500, "warmup_min_ratio": 0.0,
        "cos_min_ratio": 0.1, "warmup_type": "linear"}}, "zero_optimization": {"stage": 3}})",
    // Old names, ZeRO++ and what goes with it.
    R"({"zero_optimization": {"stage": 2, "cpu_offload": true, "contiguous_gradients": true,
        "overlap_comm": true}, "zero_allow_untested_optimizer": true})",
    R"({"zero_optimization": {"stage": 3, "reduce_scatter": true, "zero_hpz_partition_size": 8,
        "zero_quantized_weights": false, "zero_quantized_gradients": false,
        "stage3_gather_fp16_weights_on_model_save": true}, "zero_force_ds_cpu_optimizer": false})",
    // Everything around training.
    R"({"zero_optimization": {"stage": 1}, "activation_checkpointing":
        {"partition_activations": false, "cpu_checkpointing": false,
        "contiguous_memory_optimization": false, "number_checkpoints": null,
        "synchronize_checkpoint_boundary": false, "profile": false}, "flops_profiler":
        {"enabled": false, "profile_step": 1, "module_depth": -1, "top_modules": 1,
        "detailed": true, "output_file": null}, "comms_logger": {"enabled": false},
        "tensorboard": {"enabled": true, "output_path": "logs", "job_name": "run"},
        "sparse_attention": {"enabled": false}, "dump_state": false, "memory_breakdown": false})",
    R"({"zero_optimization": {"stage": 3, "ignore_unused_parameters": true,
        "memory_efficient_linear": false, "leaf_module": {"classes": ["MixtralSparseMoeBlock"]}},
        "tensor_parallel": {"autotp_size": 1}, "data_types": {"grad_accum_dtype": null},
        "elasticity": {"enabled": false}, "autotuning": {"enabled": false}, "amp":
        {"enabled": false}, "bf16": {"enabled": true}, "checkpoint": {"load_universal": false}})",
};

TEST(ZeroConfig, KnowsTheKeysOfConfigurationsAsTheyAreUsed) {
  EXPECT_EQ(std::size(kUsed), 20U);
  for (const char* text : kUsed) {
    EXPECT_NO_THROW(zero_config(Json::parse(text), ZeroAuto::kAllowed)) << text;
  }
}

// The tables of the page: of the keys, and of their other names.
std::string keys_markdown() {
  std::string table =
      "| key | values | default | state | what it does, or why not |\n|---|---|---|---|---|\n";
  for (const ZeroKey& row : internal::zero_keys()) {
    const DeepSpeedKeyInfo& info = row.info;
    absl::StrAppend(&table, "| `", info.key, "` | ", info.type, " | ", info.default_value, " | ",
                    to_string(info.state), " | ", info.what, " |\n");
  }
  return table;
}

std::string names_markdown() {
  std::string table = "| name | stands for |\n|---|---|\n";
  for (const internal::ZeroName& each : internal::zero_names()) {
    absl::StrAppend(&table, "| `", each.name, "` | `", each.key, "`",
                    each.value != nullptr ? ": true is `cpu`, false is `none`" : "", " |\n");
  }
  return table;
}

TEST(ZeroConfig, IsInTheDocumentationAsItIs) {
  HostFiles files;
  const char* const path = std::getenv("ACCELERATE_DEEPSPEED_PAGE");
  ASSERT_NE(path, nullptr);
  const auto page = read_file(files, path);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, HasSubstr(keys_markdown()))
      << "put this into accelerate/docs/deepspeed_options.md:\n"
      << keys_markdown();
  EXPECT_THAT(*page, HasSubstr(names_markdown()))
      << "put this into accelerate/docs/deepspeed_options.md:\n"
      << names_markdown();
}

}  // namespace
}  // namespace accelerate
