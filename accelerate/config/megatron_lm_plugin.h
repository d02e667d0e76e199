/// Training in the manner of Megatron-LM: its settings, from the program or from the variables
/// MEGATRON_LM_*, and Megatron-LM's own arguments that follow from them.
///
///     MegatronLMPlugin plugin = resolve(
///         MegatronLMPlugin{.tp_degree = 2, .num_micro_batches = 4}, environment);
///     plugin.set_training_args(micro_batch_size, dp_degree);
///     plugin.megatron_lm_default_args["global_batch_size"];
///
/// A field that is given takes precedence over its variable, which is MEGATRON_LM_ and the field's
/// name in capitals; where there is a variable, the comment says what an absent field becomes.
/// Fields that no comment mentions are Megatron-LM's arguments of the same name. resolve() reads
/// the variables and checks everything. The member functions are for a resolved plugin.
///
/// Units:   lengths are tokens; train_samples and the other numbers of samples count sequences.
/// Errors:  c10::ValueError naming the field or variable, what it has and what it may have. What
///          throws leaves the plugin as it was.
/// Threads: values.
/// Mirrors: accelerate utils/dataclasses.py, MegatronLMPlugin.
/// Differs: context_parallel_size is 1 where nobody says otherwise, degrees are at least 1, and an
///          unknown key of other_megatron_args is an error.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/fields.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

class AbstractTrainStep;
class MegatronDataset;

/// Whether a parameter is one of some kind, by its name in the model and its values.
using MegatronParameterCondition =
    std::function<bool(const std::string& name, const at::Tensor& parameter)>;

/// Makes the part of a model that one stage of a pipeline has; the first stage processes the
/// inputs, the last one gives the outputs.
using MegatronModelProvider =
    std::function<std::shared_ptr<torch::nn::Module>(bool pre_process, bool post_process)>;

/// The tensors of a batch by name.
using MegatronBatch = std::map<std::string, at::Tensor>;

/// The loss of a micro-batch, a single number, and what is reported of it.
struct MegatronLoss {
  at::Tensor loss;
  std::map<std::string, at::Tensor> reported = {};
};

struct MegatronLMPlugin {
  // ---- Degrees.

  /// 1
  std::optional<int64_t> tp_degree = std::nullopt;
  /// 1
  std::optional<int64_t> pp_degree = std::nullopt;
  /// false
  std::optional<bool> use_custom_fsdp = std::nullopt;
  /// false
  std::optional<bool> no_load_optim = std::nullopt;
  /// Ends of documents are left out of the loss: false.
  std::optional<bool> eod_mask_loss = std::nullopt;
  /// false
  std::optional<bool> overlap_cpu_optimizer_d2h_h2d = std::nullopt;
  /// false
  std::optional<bool> no_save_optim = std::nullopt;
  /// The optimizer and its state are on the host: false.
  std::optional<bool> optimizer_cpu_offload = std::nullopt;
  /// false
  std::optional<bool> use_precision_aware_optimizer = std::nullopt;
  /// Layers of the last stage. Absent: the layers are divided evenly.
  std::optional<int64_t> decoder_last_pipeline_num_layers = std::nullopt;

  /// "full" or "selective": full.
  std::optional<std::string> recompute_granularity = std::nullopt;
  /// "uniform" or "block": uniform.
  std::optional<std::string> recompute_method = std::nullopt;
  /// 1
  std::optional<int64_t> recompute_num_layers = std::nullopt;
  /// Attention by one fused operator: true.
  std::optional<bool> attention_backend = std::nullopt;
  /// 1
  std::optional<int64_t> expert_model_parallel_size = std::nullopt;
  /// 1
  std::optional<int64_t> context_parallel_size = std::nullopt;
  /// 0
  std::optional<double> attention_dropout = std::nullopt;
  /// 0
  std::optional<double> hidden_dropout = std::nullopt;
  /// true
  std::optional<bool> attention_softmax_in_fp32 = std::nullopt;
  /// 1 or tp_degree: 1. Whether ranks along tp divide experts is MixtureOptions::divides_along_tp,
  /// with which other_megatron_args and a tp_degree here have to agree.
  std::optional<int64_t> expert_tensor_parallel_size = std::nullopt;
  /// The loss is divided by the number of tokens of all ranks: true.
  std::optional<bool> calculate_per_token_loss = std::nullopt;
  /// true
  std::optional<bool> use_rotary_position_embeddings = std::nullopt;

  /// Parts of a batch that a step runs through one after another: 1.
  std::optional<int64_t> num_micro_batches = std::nullopt;
  /// The largest norm of gradients: 1; 0: any.
  std::optional<double> gradient_clipping = std::nullopt;
  /// Activations between divided layers are sharded along the sequence: false.
  std::optional<bool> sequence_parallelism = std::nullopt;
  /// Intermediate results are computed again in the backward pass: false.
  std::optional<bool> recompute_activations = std::nullopt;
  /// The data-parallel ranks divide the optimizer's state, and parameters and gradients between
  /// their uses: false.
  std::optional<bool> use_distributed_optimizer = std::nullopt;

  // ---- Without variables.

  /// The first stage of the decoder.
  std::optional<int64_t> pipeline_model_parallel_split_rank = std::nullopt;
  std::optional<int64_t> num_layers_per_virtual_pipeline_stage = std::nullopt;
  /// The smallest batch size of several loaders counts, else the largest one.
  bool is_train_batch_min = true;

  std::optional<int64_t> train_iters = std::nullopt;
  std::optional<int64_t> train_samples = std::nullopt;
  /// "constant", "linear" or "cosine".
  std::string weight_decay_incr_style = "constant";
  std::optional<double> start_weight_decay = std::nullopt;
  std::optional<double> end_weight_decay = std::nullopt;
  /// "constant", "linear", "cosine" or "inverse-square-root".
  std::string lr_decay_style = "linear";
  std::optional<int64_t> lr_decay_iters = std::nullopt;
  std::optional<int64_t> lr_decay_samples = std::nullopt;
  std::optional<int64_t> lr_warmup_iters = std::nullopt;
  std::optional<int64_t> lr_warmup_samples = std::nullopt;
  /// A share of the decay, from 0 to 1.
  std::optional<double> lr_warmup_fraction = std::nullopt;
  double min_lr = 0;

  /// Samples that training, validation and test have used before, at most three numbers. Resolved:
  /// three, of which those that were not given are 0.
  std::optional<std::vector<int64_t>> consumed_samples = std::nullopt;
  /// Parameters without weight decay. Empty: biases and those with one dim.
  MegatronParameterCondition no_wd_decay_cond = nullptr;
  /// Parameters whose learning rate is times lr_mult.
  MegatronParameterCondition scale_lr_cond = nullptr;
  double lr_mult = 1.0;
  /// Whether batches come from files of tokens (accelerate/megatron/indexed_dataset.h).
  bool megatron_dataset_flag = false;
  std::optional<int64_t> seq_length = std::nullopt;
  std::optional<int64_t> encoder_seq_length = std::nullopt;
  std::optional<int64_t> decoder_seq_length = std::nullopt;
  std::optional<std::string> tensorboard_dir = std::nullopt;
  /// With tensorboard_dir: everything is logged that can be.
  bool set_all_logging_options = false;
  int64_t eval_iters = 100;
  int64_t eval_interval = 1000;
  bool return_logits = false;

  /// Makes the train step, instead of the one of the model's kind; gets Megatron-LM's arguments and
  /// the kwargs below.
  std::function<std::shared_ptr<AbstractTrainStep>(const nlohmann::ordered_json& args,
                                                   const nlohmann::ordered_json& kwargs)>
      custom_train_step_class = nullptr;
  std::optional<nlohmann::ordered_json> custom_train_step_kwargs = std::nullopt;
  MegatronModelProvider custom_model_provider_function = nullptr;
  /// Makes the parts of the model that this rank has; needs custom_model_provider_function.
  std::function<std::vector<std::shared_ptr<torch::nn::Module>>(
      const MegatronModelProvider& provider)>
      custom_prepare_model_function = nullptr;
  /// Makes the datasets of training, validation and test, for as many samples of each.
  std::function<std::array<std::shared_ptr<MegatronDataset>, 3>(
      const std::array<int64_t, 3>& num_samples)>
      custom_megatron_datasets_provider_function = nullptr;
  /// What a train step takes of a batch, in its order.
  std::function<std::vector<at::Tensor>(const MegatronBatch& batch)> custom_get_batch_function =
      nullptr;
  /// Gets what the train step has for it, and the model's output last.
  std::function<MegatronLoss(const std::vector<at::Tensor>& inputs)> custom_loss_function = nullptr;

  /// Arguments of Megatron-LM by their names there, which win over those that follow from the
  /// fields; the fields stay as they are. accelerate/config/megatron_arguments.h has the keys.
  std::optional<nlohmann::ordered_json> other_megatron_args = std::nullopt;

  // ---- Of a resolved plugin.

  /// "local" with a pipeline, a distributed optimizer or bf16, else "torch".
  std::string ddp_impl = "torch";
  /// Nothing before set_training_args.
  std::optional<int64_t> data_parallel_size = std::nullopt;
  std::optional<int64_t> micro_batch_size = std::nullopt;
  std::optional<int64_t> global_batch_size = std::nullopt;
  /// Megatron-LM's arguments by name, an object. Functions are the text "function".
  nlohmann::ordered_json megatron_lm_default_args = nullptr;

  /// "fp16" and "bf16" as arguments; other precisions are none.
  void set_mixed_precision(const std::string& mixed_precision);
  /// `micro_batch` is one rank's, in samples. Errors: also for numbers below 1.
  void set_training_args(int64_t micro_batch, int64_t dp_degree);
  /// `class_name` is one with "adam" or "sgd" in it, in any case; `defaults` are its options by
  /// their names in PyTorch. Errors: also for an optimizer or options that Megatron-LM lacks.
  void set_optimizer_type(const std::string& class_name, const nlohmann::json& defaults);
  /// What a MegatronLMDummyScheduler has: steps of all data-parallel ranks together. Where
  /// train_iters or lr_warmup_iters is absent it becomes their share. Errors: where it is absent
  /// and `total_num_steps` as well, or set_training_args was not called.
  void set_scheduler_args(std::optional<int64_t> total_num_steps, int64_t warmup_num_steps);
  /// All arguments that begin with "log_" and are truth values.
  void set_tensorboard_logging_options();
};

ACCELERATE_FIELDS(MegatronLMPlugin, tp_degree, pp_degree, use_custom_fsdp, no_load_optim,
                  eod_mask_loss, overlap_cpu_optimizer_d2h_h2d, no_save_optim,
                  optimizer_cpu_offload, use_precision_aware_optimizer,
                  decoder_last_pipeline_num_layers, recompute_granularity, recompute_method,
                  recompute_num_layers, attention_backend, expert_model_parallel_size,
                  context_parallel_size, attention_dropout, hidden_dropout,
                  attention_softmax_in_fp32, expert_tensor_parallel_size, calculate_per_token_loss,
                  use_rotary_position_embeddings, num_micro_batches, gradient_clipping,
                  sequence_parallelism, recompute_activations, use_distributed_optimizer,
                  pipeline_model_parallel_split_rank, num_layers_per_virtual_pipeline_stage,
                  is_train_batch_min, train_iters, train_samples, weight_decay_incr_style,
                  start_weight_decay, end_weight_decay, lr_decay_style, lr_decay_iters,
                  lr_decay_samples, lr_warmup_iters, lr_warmup_samples, lr_warmup_fraction, min_lr,
                  consumed_samples, no_wd_decay_cond, scale_lr_cond, lr_mult, megatron_dataset_flag,
                  seq_length, encoder_seq_length, decoder_seq_length, tensorboard_dir,
                  set_all_logging_options, eval_iters, eval_interval, return_logits,
                  custom_train_step_class, custom_train_step_kwargs, custom_model_provider_function,
                  custom_prepare_model_function, custom_megatron_datasets_provider_function,
                  custom_get_batch_function, custom_loss_function, other_megatron_args)

/// The plugin with the values of the variables where it has none, checked, and with its arguments.
/// Local.
MegatronLMPlugin resolve(MegatronLMPlugin plugin, const Environment& environment);

/// The mesh that the resolved plugin's arguments ask for: pp, tp, cp, and ep among the others,
/// which are replicas. They are shards of the model instead with use_distributed_optimizer, and
/// where sequences or experts are divided. Every size is given.
/// Errors: c10::ValueError for degrees that do not divide `num_ranks`, naming the nearest number of
///         ranks that they divide; for sequence shards without tp, and an
///         expert_tensor_parallel_size other than 1 and tp; and for degrees that do not go together
///         (accelerate/docs/layouts.md), naming the nearest layout.
ParallelismOptions parallelism_of(const MegatronLMPlugin& plugin, int64_t num_ranks);

}  // namespace accelerate
