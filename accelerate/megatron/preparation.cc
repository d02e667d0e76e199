#include "accelerate/megatron/preparation.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/json_text.h"
#include "accelerate/config/megatron_arguments.h"

namespace accelerate {
namespace {

int64_t micro_batch_size_of(const MegatronLMPlugin& plugin, const MegatronObjects& objects) {
  if (plugin.megatron_dataset_flag) {
    TORCH_CHECK_VALUE(objects.dummy_loader,
                      "When you do not pass the dataloader parameter, the `data_parallel_size`, "
                      "`micro_batch_size`, and `global_batch_size` megatron parameters will not be "
                      "updated.");
    const auto& args = objects.dummy_loader->dataset_args;
    const auto size = args.find("micro_batch_size");
    TORCH_CHECK_VALUE(size != args.end() && size->is_number_integer(),
                      "MegatronLMDummyDataLoader: its arguments have no \"micro_batch_size\" that "
                      "is a whole number");
    return size->get<int64_t>();
  }
  const std::vector<int64_t>& sizes = objects.batch_sizes;
  TORCH_CHECK_VALUE(!sizes.empty(),
                    "You must specify a training or evaluation dataloader in "
                    "`accelerate.prepare()` when using Megatron-LM.");
  return plugin.is_train_batch_min ? *std::ranges::min_element(sizes)
                                   : *std::ranges::max_element(sizes);
}

// Arguments of the program that fields or objects have replaced, or that are read as fields.
void check_other_args(const MegatronLMPlugin& plugin) {
  if (!plugin.other_megatron_args) return;
  nlohmann::ordered_json decided = plugin.megatron_lm_default_args;
  decided["num_micro_batches"] = *plugin.num_micro_batches;
  decided["lr_mult"] = plugin.lr_mult;
  decided["megatron_dataset_flag"] = plugin.megatron_dataset_flag;
  decided["consumed_samples"] = nullptr;
  if (plugin.consumed_samples) decided["consumed_samples"] = *plugin.consumed_samples;
  std::vector<std::string> contradictions;
  for (const auto& [name, value] : plugin.other_megatron_args->items()) {
    const MegatronArgument* const argument = find_megatron_argument(name);
    if (argument == nullptr || argument->use != MegatronArgumentUse::kUsed) continue;
    const auto found = decided.find(name);
    if (value.is_null() || found == decided.end() || *found == value) continue;
    contradictions.push_back(
        absl::StrCat(name, "=", json_text(value), ", which is ", json_text(*found)));
  }
  TORCH_CHECK_VALUE(contradictions.empty(), "other_megatron_args has ",
                    absl::StrJoin(contradictions, ", and "),
                    " by the plug-in's fields or by the objects that are prepared; set the fields, "
                    "or leave them out of other_megatron_args");
}

}  // namespace

void set_prepared_args(MegatronLMPlugin& plugin, const MegatronObjects& objects,
                       int64_t num_ranks) {
  TORCH_CHECK_VALUE(objects.models_before + (objects.model ? 1 : 0) <= 1,
                    "You can't use same `Accelerator()` instance with multiple models when using "
                    "Megatron-LM");
  MegatronLMPlugin prepared = plugin;
  const int64_t micro_batch = micro_batch_size_of(prepared, objects);
  const ParallelismOptions mesh = parallelism_of(prepared, num_ranks);
  prepared.set_training_args(micro_batch, *mesh.dp_replicate_size * *mesh.dp_shard_size);
  if (objects.model) set_network_size_args(prepared, *objects.model, objects.batch);
  if (objects.optimizer) {
    prepared.set_optimizer_type(objects.optimizer->class_name, objects.optimizer->defaults);
  }
  TORCH_CHECK_VALUE(!objects.has_other_scheduler,
                    "You can't use a custom scheduler with Megatron-LM. Please use the "
                    "`accelerate.utils.MegatronLMDummyScheduler` instead.");
  if (objects.scheduler) {
    prepared.set_scheduler_args(objects.scheduler->total_num_steps,
                                objects.scheduler->warmup_num_steps);
  }
  check_other_args(prepared);
  plugin = std::move(prepared);
}

int64_t megatron_batch_size(const MegatronLMPlugin& plugin) {
  return *plugin.micro_batch_size * *plugin.num_micro_batches;
}

}  // namespace accelerate
