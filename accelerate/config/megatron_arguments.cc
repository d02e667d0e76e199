#include "accelerate/config/megatron_arguments.h"

#include <algorithm>
#include <iterator>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

constexpr MegatronArgumentUse kUsed = MegatronArgumentUse::kUsed;
constexpr MegatronArgumentUse kWithoutEffect = MegatronArgumentUse::kWithoutEffect;

constexpr MegatronArgument kArguments[] = {
    {"DDP_impl", kUsed},
    {"adam_beta1", kUsed},
    {"adam_beta2", kUsed},
    {"adam_eps", kUsed},
    {"add_bias_linear", kUsed},
    {"add_qkv_bias", kUsed},
    {"apply_rope_fusion", kWithoutEffect},
    {"async_tensor_model_parallel_allreduce", kWithoutEffect},
    {"attention_backend", kWithoutEffect},
    {"attention_dropout", kUsed},
    {"attention_softmax_in_fp32", kUsed},
    {"barrier_with_L1_time", kWithoutEffect},
    {"bf16", kUsed},
    {"bias_dropout_fusion", kWithoutEffect},
    {"bias_gelu_fusion", kWithoutEffect},
    {"bias_swiglu_fusion", kWithoutEffect},
    {"calculate_per_token_loss", kUsed},
    {"check_for_nan_in_loss_and_grad", kUsed},
    {"clip_grad", kUsed},
    {"consumed_samples", kUsed},
    {"context_parallel_size", kUsed},
    {"data_parallel_size", kUsed},
    {"data_path", kUsed},
    {"decoder_last_pipeline_num_layers", kUsed},
    {"decoder_seq_length", kUsed},
    {"encoder_seq_length", kUsed},
    {"end_weight_decay", kUsed},
    {"eod_mask_loss", kUsed},
    {"eos_token_id", kUsed},
    {"eval_interval", kUsed},
    {"eval_iters", kUsed},
    {"expert_model_parallel_size", kUsed},
    {"expert_tensor_parallel_size", kUsed},
    {"ffn_hidden_size", kUsed},
    {"fp16", kUsed},
    {"global_batch_size", kUsed},
    {"gradient_accumulation_fusion", kWithoutEffect},
    {"group_query_attention", kUsed},
    {"hidden_dropout", kUsed},
    {"hidden_size", kUsed},
    {"init_method_std", kUsed},
    {"kv_channels", kUsed},
    {"log_interval", kUsed},
    {"log_learning_rate_to_tensorboard", kUsed},
    {"log_loss_scale_to_tensorboard", kUsed},
    {"log_memory_to_tensorboard", kUsed},
    {"log_num_zeros_in_grad", kUsed},
    {"log_params_norm", kUsed},
    {"log_throughput", kUsed},
    {"log_timers_to_tensorboard", kUsed},
    {"log_validation_ppl_to_tensorboard", kUsed},
    {"log_world_size_to_tensorboard", kUsed},
    {"lr", kUsed},
    {"lr_decay_iters", kUsed},
    {"lr_decay_samples", kUsed},
    {"lr_decay_style", kUsed},
    {"lr_mult", kUsed},
    {"lr_warmup_fraction", kUsed},
    {"lr_warmup_init", kUsed},
    {"lr_warmup_iters", kUsed},
    {"lr_warmup_samples", kUsed},
    {"make_vocab_size_divisible_by", kUsed},
    {"masked_softmax_fusion", kWithoutEffect},
    {"max_position_embeddings", kUsed},
    {"megatron_dataset_flag", kUsed},
    {"micro_batch_size", kUsed},
    {"min_lr", kUsed},
    {"mmap_bin_files", kWithoutEffect},
    {"model_return_dict", kUsed},
    {"model_type_name", kUsed},
    {"no_load_optim", kUsed},
    {"no_save_optim", kUsed},
    {"no_wd_decay_cond", kUsed},
    {"norm_epsilon", kUsed},
    {"normalization", kUsed},
    {"num_attention_heads", kUsed},
    {"num_labels", kUsed},
    {"num_layers", kUsed},
    {"num_layers_per_virtual_pipeline_stage", kUsed},
    {"num_micro_batches", kUsed},
    {"num_query_groups", kUsed},
    {"num_workers", kUsed},
    {"optimizer", kUsed},
    {"optimizer_cpu_offload", kUsed},
    {"orig_vocab_size", kUsed},
    {"overlap_cpu_optimizer_d2h_h2d", kWithoutEffect},
    {"overlap_grad_reduce", kWithoutEffect},
    {"overlap_p2p_comm", kWithoutEffect},
    {"overlap_param_gather", kWithoutEffect},
    {"padded_vocab_size", kUsed},
    {"persist_layer_norm", kWithoutEffect},
    {"pipeline_model_parallel_size", kUsed},
    {"pipeline_model_parallel_split_rank", kUsed},
    {"position_embedding_type", kUsed},
    {"pretraining_flag", kUsed},
    {"qk_layernorm", kUsed},
    {"recompute_granularity", kUsed},
    {"recompute_method", kUsed},
    {"recompute_num_layers", kUsed},
    {"reset_attention_mask", kUsed},
    {"reset_position_ids", kUsed},
    {"return_logits", kUsed},
    {"rotary_base", kUsed},
    {"rotary_percent", kUsed},
    {"scale_lr_cond", kUsed},
    {"seed", kUsed},
    {"seq_length", kUsed},
    {"sequence_parallel", kUsed},
    {"sgd_momentum", kUsed},
    {"split", kUsed},
    {"start_weight_decay", kUsed},
    {"swiglu", kUsed},
    {"tensor_model_parallel_size", kUsed},
    {"tensorboard_dir", kUsed},
    {"tensorboard_log_interval", kUsed},
    {"tokenizer_type", kWithoutEffect},
    {"train_iters", kUsed},
    {"train_samples", kUsed},
    {"transformer_impl", kWithoutEffect},
    {"untie_embeddings_and_output_weights", kUsed},
    {"use_cpu_initialization", kWithoutEffect},
    {"use_custom_fsdp", kUsed},
    {"use_distributed_optimizer", kUsed},
    {"use_flash_attn", kWithoutEffect},
    {"use_precision_aware_optimizer", kUsed},
    {"use_rotary_position_embeddings", kUsed},
    {"vocab_file", kUsed},
    {"vocab_size", kUsed},
    {"weight_decay", kUsed},
    {"weight_decay_incr_style", kUsed},
};

constexpr const char* kLoggingFlags[] = {
    "log_learning_rate_to_tensorboard",
    "log_loss_scale_to_tensorboard",
    "log_memory_to_tensorboard",
    "log_num_zeros_in_grad",
    "log_params_norm",
    "log_throughput",
    "log_timers_to_tensorboard",
    "log_validation_ppl_to_tensorboard",
    "log_world_size_to_tensorboard",
};

}  // namespace

absl::Span<const MegatronArgument> megatron_arguments() { return kArguments; }

const MegatronArgument* find_megatron_argument(absl::string_view name) {
  const auto* const found = std::ranges::find_if(
      kArguments, [&](const MegatronArgument& each) { return name == each.name; });
  return found == std::end(kArguments) ? nullptr : found;
}

std::vector<std::string> check_megatron_arguments(const nlohmann::ordered_json& arguments,
                                                  const char* who) {
  TORCH_CHECK_VALUE(arguments.is_object(), who, ": expected an object of names and values");
  std::vector<std::string> unknown;
  std::vector<std::string> idle;
  for (const auto& [name, value] : arguments.items()) {
    const MegatronArgument* argument = find_megatron_argument(name);
    if (argument == nullptr) {
      unknown.push_back(name);
    } else if (argument->use == kWithoutEffect) {
      idle.push_back(name);
    }
  }
  TORCH_CHECK_VALUE(unknown.empty(), who, ": nothing here reads ", absl::StrJoin(unknown, ", "),
                    "; leave them out, because the run would differ from what they ask for");
  return idle;
}

absl::Span<const char* const> megatron_logging_flags() { return kLoggingFlags; }

}  // namespace accelerate
