#include "accelerate/config/megatron_arguments.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace accelerate {
namespace {

using enum MegatronArgumentForm;

constexpr MegatronArgumentUse kUsed = MegatronArgumentUse::kUsed;
constexpr MegatronArgumentUse kWithoutEffect = MegatronArgumentUse::kWithoutEffect;

// Names between spaces; a flag that does not follow from its name has a row of all_arguments().
struct Group {
  MegatronArgumentUse use;
  MegatronArgumentForm form;
  const char* names;
};
constexpr Group kGroups[] = {
    {kUsed, kNoFlag,
     "consumed_samples data_parallel_size eos_token_id log_learning_rate_to_tensorboard lr_mult "
     "megatron_dataset_flag model_return_dict model_type_name no_wd_decay_cond num_labels "
     "num_micro_batches orig_vocab_size padded_vocab_size pretraining_flag return_logits "
     "scale_lr_cond"},
    {kUsed, kOn,
     "add_qkv_bias attention_softmax_in_fp32 bf16 calculate_per_token_loss eod_mask_loss fp16 "
     "group_query_attention log_memory_to_tensorboard log_num_zeros_in_grad log_params_norm "
     "log_throughput log_timers_to_tensorboard log_validation_ppl_to_tensorboard "
     "log_world_size_to_tensorboard no_load_optim no_save_optim optimizer_cpu_offload "
     "qk_layernorm reset_attention_mask reset_position_ids sequence_parallel swiglu "
     "untie_embeddings_and_output_weights use_custom_fsdp use_distributed_optimizer "
     "use_precision_aware_optimizer use_rotary_position_embeddings"},
    {kUsed, kOff, "check_for_nan_in_loss_and_grad log_loss_scale_to_tensorboard"},
    {kUsed, kInteger,
     "context_parallel_size decoder_last_pipeline_num_layers decoder_seq_length "
     "encoder_seq_length eval_interval eval_iters expert_model_parallel_size "
     "expert_tensor_parallel_size ffn_hidden_size global_batch_size hidden_size kv_channels "
     "log_interval lr_decay_iters lr_decay_samples lr_warmup_iters lr_warmup_samples "
     "make_vocab_size_divisible_by max_position_embeddings micro_batch_size num_attention_heads "
     "num_layers num_layers_per_virtual_pipeline_stage num_query_groups num_workers "
     "pipeline_model_parallel_size pipeline_model_parallel_split_rank recompute_num_layers "
     "rotary_base seed seq_length tensor_model_parallel_size tensorboard_log_interval "
     "train_iters train_samples vocab_size"},
    {kUsed, kNumber,
     "adam_beta1 adam_beta2 adam_eps attention_dropout clip_grad end_weight_decay hidden_dropout "
     "init_method_std lr lr_warmup_fraction lr_warmup_init min_lr norm_epsilon rotary_percent "
     "sgd_momentum start_weight_decay weight_decay"},
    {kUsed, kText,
     "DDP_impl lr_decay_style normalization optimizer position_embedding_type "
     "recompute_granularity recompute_method split tensorboard_dir vocab_file "
     "weight_decay_incr_style"},
    {kUsed, kTexts, "data_path"},
    {kWithoutEffect, kOn,
     "cross_entropy_loss_fusion manual_gc moe_grouped_gemm moe_permute_fusion "
     "overlap_cpu_optimizer_d2h_h2d overlap_grad_reduce overlap_param_gather "
     "recompute_activations tp_comm_overlap use_cpu_initialization use_flash_attn "
     "use_mcore_models"},
    {kWithoutEffect, kOff,
     "async_tensor_model_parallel_allreduce bias_dropout_fusion bias_gelu_fusion "
     "bias_swiglu_fusion create_attention_mask_in_dataloader gradient_accumulation_fusion "
     "masked_softmax_fusion mmap_bin_files persist_layer_norm"},
    {kWithoutEffect, kInteger,
     "distributed_timeout_minutes empty_unused_memory_level manual_gc_interval"},
    {kWithoutEffect, kText,
     "attention_backend data_cache_path distributed_backend merge_file tokenizer_model "
     "tokenizer_type transformer_impl"},
};

std::vector<MegatronArgument> all_arguments() {
  std::vector<MegatronArgument> all = {
      {"add_bias_linear", kUsed, kOff, "disable-bias-linear"},
      {"apply_rope_fusion", kWithoutEffect, kOff, "no-rope-fusion"},
      {"barrier_with_L1_time", kWithoutEffect, kOff, "no-barrier-with-level-1-timing"},
      {"overlap_p2p_comm", kWithoutEffect, kOff, "no-overlap-p2p-communication"},
  };
  for (const Group& group : kGroups) {
    for (const absl::string_view name : absl::StrSplit(group.names, ' ')) {
      std::string flag = absl::StrReplaceAll(name, {{"_", "-"}});
      if (group.form == kOff) flag.insert(0, "no-");
      all.push_back({std::string(name), group.use, group.form, std::move(flag)});
    }
  }
  std::ranges::sort(all, {}, &MegatronArgument::name);
  return all;
}

}  // namespace

const std::vector<MegatronArgument>& megatron_arguments() {
  static const auto& kArguments = *new std::vector<MegatronArgument>(all_arguments());
  return kArguments;
}

const MegatronArgument* find_megatron_argument(absl::string_view name) {
  const auto& all = megatron_arguments();
  const auto found = std::ranges::find(all, name, &MegatronArgument::name);
  return found == all.end() ? nullptr : &*found;
}

const MegatronArgument* find_megatron_flag(absl::string_view flag) {
  const auto& all = megatron_arguments();
  const auto found = std::ranges::find_if(all, [&](const MegatronArgument& each) {
    return each.form != kNoFlag && flag == absl::StrCat("--", each.flag);
  });
  return found == all.end() ? nullptr : &*found;
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

std::vector<std::string> megatron_logging_flags() {
  std::vector<std::string> names;
  for (const MegatronArgument& each : megatron_arguments()) {
    if (each.name.starts_with("log_") && each.form != kInteger) names.push_back(each.name);
  }
  return names;
}

}  // namespace accelerate
