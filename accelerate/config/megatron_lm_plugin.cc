#include "accelerate/config/megatron_lm_plugin.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <initializer_list>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/json_text.h"
#include "accelerate/config/megatron_arguments.h"
#include "accelerate/config/option_fields.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using Plugin = MegatronLMPlugin;

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

// Whole numbers that may be 0; others are at least 1.
constexpr absl::string_view kFromZero[] = {"pipeline_model_parallel_split_rank", "lr_warmup_iters",
                                           "lr_warmup_samples", "eval_iters"};
// Parts of a whole; other numbers are at least 0.
constexpr absl::string_view kFractions[] = {"attention_dropout", "hidden_dropout",
                                            "lr_warmup_fraction"};

void check_numbers(const Plugin& plugin) {
  visit_fields(plugin, []<typename Field>(const char* name, const Field& value) {
    using Value = typename internal::Unwrapped<Field>::Type;
    const absl::string_view field = name;
    if constexpr (std::same_as<Value, int64_t>) {
      check_at_least(name, value, std::ranges::count(kFromZero, field) > 0 ? 0 : 1);
    } else if constexpr (std::same_as<Value, double>) {
      const bool is_fraction = std::ranges::count(kFractions, field) > 0;
      const auto check_number = is_fraction ? check_fraction : check_not_negative;
      check_number(name, value);
    }
  });
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

// Fields that are arguments once set_scheduler_args has been called.
constexpr absl::string_view kOfSchedule[] = {
    "train_iters",      "train_samples",     "weight_decay_incr_style", "start_weight_decay",
    "end_weight_decay", "lr_decay_style",    "lr_decay_iters",          "lr_decay_samples",
    "lr_warmup_iters",  "lr_warmup_samples", "lr_warmup_fraction",      "min_lr",
};
// And those that a model, a logger or nobody makes arguments.
constexpr absl::string_view kOfOthers[] = {
    "seq_length",    "encoder_seq_length", "decoder_seq_length",
    "return_logits", "tensorboard_dir",    "recompute_activations",
};

bool is_of_schedule(absl::string_view field) { return std::ranges::count(kOfSchedule, field) > 0; }

bool is_of_plugin(absl::string_view field) {
  return !is_of_schedule(field) && std::ranges::count(kOfOthers, field) == 0;
}

// The arguments that are fields, of the fields that are wanted.
Json arguments_of(const Plugin& plugin, bool (*is_wanted)(absl::string_view field)) {
  Json args = Json::object();
  for (const MegatronArgument& argument : megatron_arguments()) {
    const absl::string_view wanted = megatron_field(argument.name);
    if (!is_wanted(wanted)) continue;
    visit_fields(plugin, [&]<typename Field>(const char* name, const Field& value) {
      if (wanted != name) return;
      using Value = typename internal::Unwrapped<Field>::Type;
      if constexpr (std::same_as<Field, MegatronParameterCondition>) {
        args[argument.name] = value ? Json("function") : Json();
      } else if constexpr (!internal::kIsFunctionField<Field> && !std::same_as<Value, Json>) {
        args[argument.name] = internal::to_json_value(value);
      }
    });
  }
  return args;
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
  megatron_lm_default_args.update(arguments_of(*this, &is_of_schedule));
}

void MegatronLMPlugin::set_tensorboard_logging_options() {
  for (const char* flag : megatron_logging_flags()) megatron_lm_default_args[flag] = true;
}

MegatronLMPlugin resolve(MegatronLMPlugin plugin, const Environment& environment) {
  fill_fields(plugin, options::Section::kMegatron, environment);
  check(plugin);
  plugin.ddp_impl = *plugin.pp_degree > 1 || *plugin.use_distributed_optimizer ? "local" : "torch";
  if (plugin.consumed_samples) plugin.consumed_samples->resize(3, 0);
  plugin.megatron_lm_default_args = arguments_of(plugin, &is_of_plugin);
  plugin.megatron_lm_default_args["DDP_impl"] = plugin.ddp_impl;
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
