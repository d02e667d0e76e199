#include "accelerate/config/megatron_lm_plugin.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/json_text.h"
#include "accelerate/config/megatron_arguments.h"
#include "accelerate/config/option_fields.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using Plugin = MegatronLMPlugin;

template <typename T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json json_of(const MegatronParameterCondition& condition) {
  return condition ? Json("function") : Json();
}

// ---- Checks.

void check_at_least(const char* name, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, name, " is ", value, ", but it is at least ", least);
}

void check_at_least(const char* name, const std::optional<int64_t>& value, int64_t least) {
  if (value) check_at_least(name, *value, least);
}

void check_one_of(const char* name, const std::string& value,
                  std::initializer_list<const char*> choices) {
  TORCH_CHECK_VALUE(std::ranges::find(choices, value) != choices.end(), name, " is \"", value,
                    "\", but it is one of ", absl::StrJoin(choices, ", "));
}

void check_fraction(const char* name, const std::optional<double>& value) {
  TORCH_CHECK_VALUE(!value || (*value >= 0 && *value < 1), name, " is ", *value,
                    ", but it is at least 0 and below 1");
}

void check_not_negative(const char* name, const std::optional<double>& value) {
  TORCH_CHECK_VALUE(!value || (*value >= 0 && std::isfinite(*value)), name, " is ", *value,
                    ", but it is a finite number of at least 0");
}

void check_samples(const Plugin& plugin) {
  if (!plugin.consumed_samples) return;
  const std::vector<int64_t>& samples = *plugin.consumed_samples;
  TORCH_CHECK_VALUE(!samples.empty() && samples.size() <= 3, "consumed_samples has ",
                    samples.size(),
                    " numbers, but there are at most three: of training, validation and test");
  for (const int64_t each : samples) check_at_least("consumed_samples", each, 0);
}

void check_numbers(const Plugin& plugin) {
  check_at_least("tp_degree", plugin.tp_degree, 1);
  check_at_least("pp_degree", plugin.pp_degree, 1);
  check_at_least("num_micro_batches", plugin.num_micro_batches, 1);
  check_at_least("expert_model_parallel_size", plugin.expert_model_parallel_size, 1);
  check_at_least("expert_tensor_parallel_size", plugin.expert_tensor_parallel_size, 1);
  check_at_least("context_parallel_size", plugin.context_parallel_size, 1);
  check_at_least("recompute_num_layers", plugin.recompute_num_layers, 1);
  check_at_least("decoder_last_pipeline_num_layers", plugin.decoder_last_pipeline_num_layers, 1);
  check_at_least("num_layers_per_virtual_pipeline_stage",
                 plugin.num_layers_per_virtual_pipeline_stage, 1);
  check_at_least("pipeline_model_parallel_split_rank", plugin.pipeline_model_parallel_split_rank,
                 0);
  check_at_least("train_iters", plugin.train_iters, 1);
  check_at_least("train_samples", plugin.train_samples, 1);
  check_at_least("lr_decay_iters", plugin.lr_decay_iters, 1);
  check_at_least("lr_decay_samples", plugin.lr_decay_samples, 1);
  check_at_least("lr_warmup_iters", plugin.lr_warmup_iters, 0);
  check_at_least("lr_warmup_samples", plugin.lr_warmup_samples, 0);
  check_at_least("seq_length", plugin.seq_length, 1);
  check_at_least("encoder_seq_length", plugin.encoder_seq_length, 1);
  check_at_least("decoder_seq_length", plugin.decoder_seq_length, 1);
  check_at_least("eval_iters", plugin.eval_iters, 0);
  check_at_least("eval_interval", plugin.eval_interval, 1);
  check_not_negative("gradient_clipping", plugin.gradient_clipping);
  check_not_negative("min_lr", plugin.min_lr);
  check_not_negative("lr_mult", plugin.lr_mult);
  check_not_negative("start_weight_decay", plugin.start_weight_decay);
  check_not_negative("end_weight_decay", plugin.end_weight_decay);
  check_fraction("attention_dropout", plugin.attention_dropout);
  check_fraction("hidden_dropout", plugin.hidden_dropout);
  check_fraction("lr_warmup_fraction", plugin.lr_warmup_fraction);
}

void check(const Plugin& plugin) {
  check_numbers(plugin);
  check_samples(plugin);
  check_one_of("recompute_granularity", *plugin.recompute_granularity, {"full", "selective"});
  check_one_of("recompute_method", *plugin.recompute_method, {"uniform", "block"});
  check_one_of("weight_decay_incr_style", plugin.weight_decay_incr_style,
               {"constant", "linear", "cosine"});
  check_one_of("lr_decay_style", plugin.lr_decay_style,
               {"constant", "linear", "cosine", "inverse-square-root"});
  TORCH_CHECK_VALUE(!plugin.custom_prepare_model_function || plugin.custom_model_provider_function,
                    "You must provide a `custom_model_provider_function` when using a "
                    "`custom_prepare_model_function`.");
  TORCH_CHECK_VALUE(!plugin.custom_train_step_kwargs || plugin.custom_train_step_class,
                    "custom_train_step_kwargs are those of a custom_train_step_class, but there is "
                    "none");
}

// ---- Arguments.

Json arguments_of(const Plugin& plugin) {
  return {
      {"tensor_model_parallel_size", *plugin.tp_degree},
      {"pipeline_model_parallel_size", *plugin.pp_degree},
      {"pipeline_model_parallel_split_rank", json_of(plugin.pipeline_model_parallel_split_rank)},
      {"num_layers_per_virtual_pipeline_stage",
       json_of(plugin.num_layers_per_virtual_pipeline_stage)},
      {"DDP_impl", plugin.ddp_impl},
      {"use_distributed_optimizer", *plugin.use_distributed_optimizer},
      {"sequence_parallel", *plugin.sequence_parallelism},
      {"clip_grad", *plugin.gradient_clipping},
      {"num_micro_batches", *plugin.num_micro_batches},
      {"consumed_samples", json_of(plugin.consumed_samples)},
      {"no_wd_decay_cond", json_of(plugin.no_wd_decay_cond)},
      {"scale_lr_cond", json_of(plugin.scale_lr_cond)},
      {"lr_mult", plugin.lr_mult},
      {"megatron_dataset_flag", plugin.megatron_dataset_flag},
      {"eval_iters", plugin.eval_iters},
      {"eval_interval", plugin.eval_interval},
      {"use_custom_fsdp", *plugin.use_custom_fsdp},
      {"no_load_optim", *plugin.no_load_optim},
      {"eod_mask_loss", *plugin.eod_mask_loss},
      {"no_save_optim", *plugin.no_save_optim},
      {"optimizer_cpu_offload", *plugin.optimizer_cpu_offload},
      {"overlap_cpu_optimizer_d2h_h2d", *plugin.overlap_cpu_optimizer_d2h_h2d},
      {"use_precision_aware_optimizer", *plugin.use_precision_aware_optimizer},
      {"decoder_last_pipeline_num_layers", json_of(plugin.decoder_last_pipeline_num_layers)},
      {"recompute_granularity", *plugin.recompute_granularity},
      {"recompute_method", *plugin.recompute_method},
      {"recompute_num_layers", *plugin.recompute_num_layers},
      {"attention_backend", *plugin.attention_backend},
      {"expert_model_parallel_size", *plugin.expert_model_parallel_size},
      {"context_parallel_size", *plugin.context_parallel_size},
      {"attention_dropout", *plugin.attention_dropout},
      {"hidden_dropout", *plugin.hidden_dropout},
      {"attention_softmax_in_fp32", *plugin.attention_softmax_in_fp32},
      {"expert_tensor_parallel_size", *plugin.expert_tensor_parallel_size},
      {"calculate_per_token_loss", *plugin.calculate_per_token_loss},
      {"use_rotary_position_embeddings", *plugin.use_rotary_position_embeddings},
  };
}

Json option_of(const std::string& class_name, const nlohmann::json& defaults, const char* name) {
  TORCH_CHECK_VALUE(defaults.contains(name), "Megatron-LM needs the optimizer's \"", name,
                    "\", but ", class_name, " has no \"", name, "\"");
  return defaults.at(name);
}

// The share of a data-parallel rank.
int64_t share_of(const Plugin& plugin, const char* name, int64_t steps) {
  TORCH_CHECK_VALUE(plugin.data_parallel_size, name,
                    " follows from the scheduler and the argument \"data_parallel_size\", which "
                    "is known once a loader is prepared; the arguments have no "
                    "\"data_parallel_size\"");
  check_at_least(name, steps, 0);
  return steps / *plugin.data_parallel_size;
}

int64_t degree(const Plugin& plugin, const char* argument) {
  const Json& args = plugin.megatron_lm_default_args;
  const auto found = args.find(argument);
  TORCH_CHECK_VALUE(found != args.end() && found->is_number_integer(), argument,
                    ": expected a whole number, got ",
                    found == args.end() ? "nothing" : json_text(*found));
  check_at_least(argument, found->get<int64_t>(), 1);
  return found->get<int64_t>();
}

bool is_true(const Json& args, const char* argument) {
  const auto found = args.find(argument);
  TORCH_CHECK_VALUE(found != args.end() && found->is_boolean(), argument,
                    ": expected a truth value, got ",
                    found == args.end() ? "nothing" : json_text(*found));
  return found->get<bool>();
}

}  // namespace

void MegatronLMPlugin::set_mixed_precision(const std::string& mixed_precision) {
  if (mixed_precision == "fp16") {
    megatron_lm_default_args["fp16"] = true;
  } else if (mixed_precision == "bf16") {
    megatron_lm_default_args["bf16"] = true;
    ddp_impl = "local";
    megatron_lm_default_args["DDP_impl"] = ddp_impl;
  }
}

void MegatronLMPlugin::set_training_args(int64_t micro_batch, int64_t dp_degree) {
  check_at_least("micro_batch_size", micro_batch, 1);
  check_at_least("data_parallel_size", dp_degree, 1);
  data_parallel_size = dp_degree;
  micro_batch_size = micro_batch;
  global_batch_size = dp_degree * micro_batch * *num_micro_batches;
  megatron_lm_default_args["data_parallel_size"] = *data_parallel_size;
  megatron_lm_default_args["micro_batch_size"] = *micro_batch_size;
  megatron_lm_default_args["global_batch_size"] = *global_batch_size;
}

void MegatronLMPlugin::set_optimizer_type(const std::string& class_name,
                                          const nlohmann::json& defaults) {
  const std::string name = absl::AsciiStrToLower(class_name);
  Json args = Json::object();
  if (absl::StrContains(name, "adam")) {
    const Json betas = option_of(class_name, defaults, "betas");
    TORCH_CHECK_VALUE(betas.is_array() && betas.size() == 2, class_name,
                      "'s betas: expected two numbers, got ", json_text(betas));
    args["optimizer"] = "adam";
    args["adam_beta1"] = betas[0];
    args["adam_beta2"] = betas[1];
    args["adam_eps"] = option_of(class_name, defaults, "eps");
  } else if (absl::StrContains(name, "sgd")) {
    args["optimizer"] = "sgd";
    args["sgd_momentum"] = option_of(class_name, defaults, "momentum");
  } else {
    TORCH_CHECK_VALUE(false, "Optimizer ", name,
                      " is not supported by Megatron-LM, which has Adam and SGD");
  }
  args["lr"] = option_of(class_name, defaults, "lr");
  args["weight_decay"] = option_of(class_name, defaults, "weight_decay");
  megatron_lm_default_args.update(args);
}

void MegatronLMPlugin::set_scheduler_args(std::optional<int64_t> total_num_steps,
                                          int64_t warmup_num_steps) {
  TORCH_CHECK_VALUE(train_iters || total_num_steps,
                    "MegatronLMDummyScheduler: total_num_steps is absent, but train_iters is, too; "
                    "give one of them");
  const int64_t iters =
      train_iters ? *train_iters : share_of(*this, "train_iters", *total_num_steps);
  const int64_t warmup =
      lr_warmup_iters ? *lr_warmup_iters : share_of(*this, "lr_warmup_iters", warmup_num_steps);
  if (!train_iters && train_samples) {
    train_samples.reset();
    TORCH_WARN(
        "Ignoring `train_samples` as `train_iters` based on scheduler is being used for training.");
  }
  if (!lr_warmup_iters) {
    if (lr_warmup_samples) {
      TORCH_WARN(
          "Ignoring `lr_warmup_samples` as `lr_warmup_iters` based on scheduler is being used for "
          "training.");
    }
    lr_warmup_samples = 0;
  }
  train_iters = iters;
  lr_warmup_iters = warmup;
  megatron_lm_default_args.update(Json{{"train_iters", json_of(train_iters)},
                                       {"lr_warmup_iters", json_of(lr_warmup_iters)},
                                       {"train_samples", json_of(train_samples)},
                                       {"lr_warmup_samples", json_of(lr_warmup_samples)},
                                       {"lr_decay_iters", json_of(lr_decay_iters)},
                                       {"lr_decay_samples", json_of(lr_decay_samples)},
                                       {"lr_warmup_fraction", json_of(lr_warmup_fraction)},
                                       {"lr_decay_style", lr_decay_style},
                                       {"weight_decay_incr_style", weight_decay_incr_style},
                                       {"start_weight_decay", json_of(start_weight_decay)},
                                       {"end_weight_decay", json_of(end_weight_decay)},
                                       {"min_lr", min_lr}});
}

void MegatronLMPlugin::set_tensorboard_logging_options() {
  for (const char* flag : megatron_logging_flags()) megatron_lm_default_args[flag] = true;
}

MegatronLMPlugin resolve(MegatronLMPlugin plugin, const Environment& environment) {
  fill_fields(plugin, options::Section::kMegatron, environment);
  check(plugin);
  plugin.ddp_impl = *plugin.pp_degree > 1 || *plugin.use_distributed_optimizer ? "local" : "torch";
  if (plugin.consumed_samples) plugin.consumed_samples->resize(3, 0);
  plugin.megatron_lm_default_args = arguments_of(plugin);
  if (plugin.tensorboard_dir) {
    plugin.megatron_lm_default_args["tensorboard_dir"] = *plugin.tensorboard_dir;
    if (plugin.set_all_logging_options) plugin.set_tensorboard_logging_options();
  }
  if (plugin.other_megatron_args) {
    const std::vector<IdleMegatronArgument> idle =
        check_megatron_arguments(*plugin.other_megatron_args, "other_megatron_args");
    plugin.megatron_lm_default_args.update(*plugin.other_megatron_args);
    if (!idle.empty()) TORCH_WARN("other_megatron_args: ", text_of(idle));
  }
  return plugin;
}

ParallelismOptions parallelism_of(const MegatronLMPlugin& plugin, int64_t num_ranks) {
  const int64_t tp = degree(plugin, "tensor_model_parallel_size");
  const int64_t cp = degree(plugin, "context_parallel_size");
  const int64_t pp = degree(plugin, "pipeline_model_parallel_size");
  const int64_t model = tp * cp * pp;
  const int64_t below = num_ranks / model * model;
  const int64_t nearest =
      below == 0 || below + model - num_ranks < num_ranks - below ? below + model : below;
  TORCH_CHECK_VALUE(num_ranks % model == 0, "tensor_model_parallel_size=", tp,
                    " times context_parallel_size=", cp, " times pipeline_model_parallel_size=", pp,
                    " does not divide the job's ", num_ranks,
                    " ranks; the nearest number that they divide is ", nearest);
  const bool has_sequence_shards = is_true(plugin.megatron_lm_default_args, "sequence_parallel");
  TORCH_CHECK_VALUE(!has_sequence_shards || tp > 1,
                    "sequence_parallelism shards activations over the ranks of tp_degree, which "
                    "is 1; set tp_degree, or leave sequence_parallelism out");
  const int64_t ep = degree(plugin, "expert_model_parallel_size");
  const int64_t etp = degree(plugin, "expert_tensor_parallel_size");
  TORCH_CHECK_VALUE(etp == 1 || etp == tp, "expert_tensor_parallel_size=", etp,
                    ", but ranks divide the inside of experts as tensor_model_parallel_size=", tp,
                    " says, or not at all; set it to 1 or ", tp);
  // Ranks that sequences, experts or the optimizer are divided among hold shards.
  const bool has_shards =
      cp > 1 || ep > 1 || is_true(plugin.megatron_lm_default_args, "use_distributed_optimizer");
  const int64_t data_ranks = num_ranks / model;
  const RankLayout layout = {.pp = pp,
                             .dp_replicate = has_shards ? 1 : data_ranks,
                             .dp_shard = has_shards ? data_ranks : 1,
                             .cp = cp,
                             .tp = tp,
                             .ep = ep,
                             .experts = ep > 1,
                             .sequence_shards = has_sequence_shards};
  check_layout(layout);
  return {.dp_replicate_size = layout.dp_replicate,
          .dp_shard_size = layout.dp_shard,
          .tp_size = tp,
          .cp_size = cp,
          .sp_size = 1,
          .pp_size = pp,
          .ep_size = ep};
}

}  // namespace accelerate
