#include "accelerate/config/deepspeed_auto.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMicroBatch[] = "train_micro_batch_size_per_gpu";
constexpr char kBatch[] = "train_batch_size";
constexpr char kSteps[] = "gradient_accumulation_steps";

// The samples of a rank's backward pass by the loaders.
int64_t micro_batch_of(const DeepSpeedPlugin& plugin, const DeepSpeedFacts& facts,
                       std::vector<std::string>& notes) {
  TORCH_CHECK_VALUE(
      !facts.batch_sizes.empty(),
      "When using DeepSpeed, `accelerate.prepare()` requires you to pass at least one "
      "of training or evaluation dataloaders with `batch_size` attribute returning an "
      "integer value or alternatively set an integer value in "
      "`train_micro_batch_size_per_gpu` in the deepspeed config file");
  std::vector<int64_t> sizes;
  for (const auto& size : facts.batch_sizes) {
    TORCH_CHECK_VALUE(size,
                      "At least one of the dataloaders passed to `accelerate.prepare()` has "
                      "`None` as batch size. Please set an integer value in "
                      "`train_micro_batch_size_per_gpu` in the deepspeed config file");
    sizes.push_back(facts.split_batches ? *size / facts.num_processes : *size);
  }
  const int64_t chosen =
      plugin.is_train_batch_min ? std::ranges::min(sizes) : std::ranges::max(sizes);
  TORCH_CHECK_VALUE(chosen >= 1, "split_batches: batches of ", chosen * facts.num_processes,
                    " samples or fewer cannot be split among ", facts.num_processes, " ranks");
  if (std::ranges::min(sizes) < std::ranges::max(sizes)) {
    notes.push_back(absl::StrCat(
        "Since you passed both train and evaluation dataloader, `is_train_batch_min` (here ",
        plugin.is_train_batch_min ? "True" : "False", ") will decide the `train_batch_size` (",
        chosen, ")."));
  }
  return chosen;
}

void check_objects(const DeepSpeedPlugin& plugin, const DeepSpeedFacts& facts) {
  const bool has_optimizer_block = plugin.deepspeed_config().contains("optimizer");
  const bool has_scheduler_block = plugin.deepspeed_config().contains("scheduler");
  const bool is_dummy_optimizer = facts.dummy_optimizer != nullptr;
  const bool is_dummy_scheduler = facts.dummy_scheduler != nullptr;
  TORCH_CHECK_VALUE(
      !facts.has_optimizer || is_dummy_optimizer || !has_optimizer_block,
      "You cannot specify an optimizer in the config file and in the code at the same "
      "time. Please remove the optimizer from the config file or create "
      "`accelerate.utils.DummyOptim` in the code.");
  TORCH_CHECK_VALUE(
      !is_dummy_optimizer || has_optimizer_block,
      "You cannot create a `DummyOptim` without specifying an optimizer in the config "
      "file.");
  TORCH_CHECK_VALUE(!facts.has_scheduler || is_dummy_scheduler || !has_scheduler_block,
                    "You cannot specify a scheduler in the config file and in the code at the same "
                    "time. Please remove the scheduler from the config file or create "
                    "`accelerate.utils.DummyScheduler` in the code.");
  TORCH_CHECK_VALUE(!is_dummy_scheduler || has_scheduler_block ||
                        facts.dummy_scheduler->lr_scheduler_callable != nullptr,
                    "Either specify a scheduler in the config file or pass in the "
                    "`lr_scheduler_callable` parameter when using "
                    "`accelerate.utils.DummyScheduler`.");
  TORCH_CHECK_VALUE(!is_dummy_optimizer || !facts.has_scheduler || is_dummy_scheduler,
                    "You can only specify `accelerate.utils.DummyScheduler` in the code when using "
                    "`accelerate.utils.DummyOptim`.");
}

void add_sizes(const DeepSpeedPlugin& plugin, const DeepSpeedFacts& facts,
               DeepSpeedValues& values) {
  constexpr const char* kReduce = "zero_optimization.reduce_bucket_size";
  constexpr const char* kPrefetch = "zero_optimization.stage3_prefetch_bucket_size";
  constexpr const char* kPersistence = "zero_optimization.stage3_param_persistence_threshold";
  std::vector<std::string> autos;
  for (const char* key : {kReduce, kPrefetch, kPersistence}) {
    if (plugin.is_auto(key)) autos.emplace_back(key);
  }
  if (autos.empty()) return;
  TORCH_CHECK_VALUE(
      !facts.hidden_sizes.empty(),
      "the model does not say the sizes of its hidden states, therefore it's not "
      "possible to automatically fill out the following `auto` entries in the "
      "DeepSpeed config file: ['",
      absl::StrJoin(autos, "', '"),
      "']. You can fix that by replacing `auto` values for these keys with an integer "
      "value of your choice, by the plugin's hidden_size, or by "
      "ModelStructure::hidden_sizes().");
  const int64_t hidden = std::ranges::max(facts.hidden_sizes);
  TORCH_CHECK_VALUE(hidden >= 1 && hidden <= int64_t{1} << 30,
                    "the size of the model's hidden "
                    "states is ",
                    hidden, ", which no model has");
  values[kReduce] = hidden * hidden;
  values[kPrefetch] =
      static_cast<int64_t>(0.9 * static_cast<double>(hidden) * static_cast<double>(hidden));
  values[kPersistence] = 10 * hidden;
}

void add_dummies(const DeepSpeedFacts& facts, DeepSpeedValues& values) {
  if (const DummyOptim* optimizer = facts.dummy_optimizer) {
    values["optimizer.params.lr"] = optimizer->lr;
    values["optimizer.params.weight_decay"] = optimizer->weight_decay;
  }
  const DummyScheduler* scheduler = facts.dummy_scheduler;
  if (scheduler == nullptr || scheduler->lr_scheduler_callable != nullptr) return;
  values["scheduler.params.warmup_min_lr"] = 0;
  values["scheduler.params.warmup_max_lr"] = scheduler->lr();
  // DeepSpeed divides by it.
  values["scheduler.params.warmup_num_steps"] = std::max<int64_t>(1, scheduler->warmup_num_steps);
  if (!scheduler->total_num_steps) return;
  const int64_t total = *scheduler->total_num_steps;
  values["scheduler.params.total_num_steps"] =
      facts.split_batches ? total : (total + facts.num_processes - 1) / facts.num_processes;
}

// Where the configuration has all of them, or the whole and one factor.
void check_batches(const ZeroConfig& zero, int64_t shares) {
  if (!zero.train_batch_size) return;
  const int64_t batch = *zero.train_batch_size;
  const int64_t others = zero.gradient_accumulation_steps.value_or(1) * shares;
  if (zero.train_micro_batch_size_per_gpu) {
    const int64_t micro = *zero.train_micro_batch_size_per_gpu;
    TORCH_CHECK_VALUE(batch == micro * others, "train_batch_size is ", batch,
                      ", but train_micro_batch_size_per_gpu ", micro,
                      " * gradient_accumulation_steps ",
                      zero.gradient_accumulation_steps.value_or(1), " * ", shares,
                      " shares of the data is ", micro * others, "; set one of them to \"auto\"");
    return;
  }
  TORCH_CHECK_VALUE(batch % others == 0, "train_batch_size is ", batch,
                    ", which is not a multiple of gradient_accumulation_steps ",
                    zero.gradient_accumulation_steps.value_or(1), " * ", shares,
                    " shares of the data");
}

}  // namespace

DeepSpeedCompletion complete(DeepSpeedPlugin& plugin, const DeepSpeedFacts& facts) {
  DeepSpeedCompletion completion;
  DeepSpeedPlugin filled = plugin;
  std::vector<std::string> mismatches;
  const int64_t shares = facts.num_processes / std::max<int64_t>(1, facts.ranks_per_share);
  Json micro_batch = filled.get_value(kMicroBatch);
  if (filled.is_auto(kMicroBatch)) micro_batch = micro_batch_of(filled, facts, completion.notes);
  filled.fill_match(kSteps, mismatches, {{kSteps, facts.gradient_accumulation_steps}},
                    /*must_match=*/false);
  const Json steps = filled.get_value(kSteps, 1);
  TORCH_CHECK_VALUE(steps.is_number() && steps.get<double>() >= 1 &&
                        steps.get<double>() == static_cast<double>(steps.get<int64_t>()),
                    kSteps, " is ", json_text(steps), ", not a whole number from 1 up");
  completion.gradient_accumulation_steps = steps.get<int64_t>();
  if (completion.gradient_accumulation_steps != facts.gradient_accumulation_steps) {
    completion.notes.push_back(
        absl::StrCat("Gradient accumulation steps mismatch: GradientAccumulationPlugin has ",
                     facts.gradient_accumulation_steps, ", DeepSpeed config has ",
                     completion.gradient_accumulation_steps, ". Using DeepSpeed's value."));
  }
  DeepSpeedValues values = {
      {"gradient_clipping", 1.0},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save", false},
  };
  if (micro_batch.is_number()) {
    values[kMicroBatch] = micro_batch;
    values[kBatch] = micro_batch.get<int64_t>() * completion.gradient_accumulation_steps * shares;
  }
  check_objects(filled, facts);
  if (facts.has_optimizer && facts.dummy_optimizer == nullptr) {
    filled.deepspeed_config()["zero_allow_untested_optimizer"] = true;
  }
  if (facts.has_model) {
    add_sizes(filled, facts, values);
    add_dummies(facts, values);
    filled.deepspeed_config_process(values, /*must_match=*/false);
    check_batches(zero_config(filled.deepspeed_config()), shares);
  }
  plugin = std::move(filled);
  return completion;
}

std::vector<int64_t> hidden_sizes_of(const Json& model_config) {
  TORCH_CHECK_VALUE(model_config.is_object(), "the model's configuration is ",
                    json_text(model_config), ", which is not an object");
  const auto size_of = [](const Json& value) {
    TORCH_CHECK_VALUE(value.is_number_integer(), "the model's configuration has the hidden size ",
                      json_text(value), ", which is not a whole number");
    return value.get<int64_t>();
  };
  const auto one = model_config.find("hidden_size");
  if (one != model_config.end()) return {size_of(*one)};
  const auto several = model_config.find("hidden_sizes");
  if (several != model_config.end() && several->is_array()) {
    std::vector<int64_t> sizes;
    for (const Json& each : *several) sizes.push_back(size_of(each));
    return sizes;
  }
  const auto text = model_config.find("text_config");
  return text != model_config.end() && text->is_object() ? hidden_sizes_of(*text)
                                                         : std::vector<int64_t>();
}

std::vector<int64_t> hidden_sizes_of(const DeepSpeedPlugin& plugin, const torch::nn::Module& model,
                                     FileSystem& files) {
  if (plugin.hidden_size) {
    if (const auto* size = std::get_if<int64_t>(&*plugin.hidden_size)) return {*size};
    const std::string& path = std::get<std::string>(*plugin.hidden_size);
    const auto text = read_file(files, path);
    TORCH_CHECK_VALUE(text.ok(), "hidden_size: ", path,
                      " cannot be read: ", text.status().message());
    const auto parsed = json_value(*text, {.name = path, .python_numbers = true});
    TORCH_CHECK_VALUE(parsed.ok(), "hidden_size: ", parsed.status().message());
    return hidden_sizes_of(*parsed);
  }
  const auto* structure = dynamic_cast<const ModelStructure*>(&model);
  return structure != nullptr ? structure->hidden_sizes() : std::vector<int64_t>();
}

}  // namespace accelerate
