#include "accelerate/config/megatron_arguments.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace accelerate {
namespace {

using enum MegatronArgumentForm;

constexpr MegatronArgumentUse kUsed = MegatronArgumentUse::kUsed;
constexpr MegatronArgumentUse kWithoutEffect = MegatronArgumentUse::kWithoutEffect;

// Why arguments have no effect, where it is not that they choose kernels, overlaps or messages.
constexpr char kCausal[] = "models hide later tokens by themselves";
constexpr char kInMemory[] = "orders of samples are in memory, and files are read as all others";
constexpr char kGroups[] = "the Accelerator makes the groups of ranks";
constexpr char kNoGarbage[] = "no memory waits for a collector";
constexpr char kTokens[] = "data are tokens already";
constexpr char kNoScores[] = "fused attention keeps no scores that are computed again";
constexpr char kProgramsOwn[] = "the program makes the model";
constexpr char kProgramsLogs[] = "the program says what it logs";

constexpr MegatronArgument kArguments[] = {
    {"DDP_impl", kUsed, kText},
    {"adam_beta1", kUsed, kNumber},
    {"adam_beta2", kUsed, kNumber},
    {"adam_eps", kUsed, kNumber},
    {"add_bias_linear", kUsed, kOff, "disable-bias-linear"},
    {"add_qkv_bias", kUsed, kOn},
    {"apply_rope_fusion", kWithoutEffect, kOff, "no-rope-fusion"},
    {"async_tensor_model_parallel_allreduce", kWithoutEffect, kOff,
     "no-async-tensor-model-parallel-allreduce"},
    {"attention_backend", kWithoutEffect, kText},
    {"attention_dropout", kUsed, kNumber},
    {"attention_softmax_in_fp32", kUsed, kOn},
    {"barrier_with_L1_time", kWithoutEffect, kOff, "no-barrier-with-level-1-timing"},
    {"bf16", kUsed, kOn},
    {"bias_dropout_fusion", kWithoutEffect, kOff, "no-bias-dropout-fusion"},
    {"bias_gelu_fusion", kWithoutEffect, kOff, "no-bias-gelu-fusion"},
    {"bias_swiglu_fusion", kWithoutEffect, kOff, "no-bias-swiglu-fusion"},
    {"calculate_per_token_loss", kUsed, kOn},
    {"check_for_nan_in_loss_and_grad", kUsed, kOff, "no-check-for-nan-in-loss-and-grad"},
    {"clip_grad", kUsed, kNumber},
    {"consumed_samples", kUsed, kNoFlag},
    {"context_parallel_size", kUsed, kInteger},
    {"create_attention_mask_in_dataloader", kWithoutEffect, kOff,
     "no-create-attention-mask-in-dataloader", kCausal},
    {"cross_entropy_loss_fusion", kWithoutEffect, kOn},
    {"data_cache_path", kWithoutEffect, kText, nullptr, kInMemory},
    {"data_impl", kWithoutEffect, kText, nullptr, kInMemory},
    {"data_parallel_size", kUsed, kNoFlag},
    {"data_path", kUsed, kTexts},
    {"decoder_last_pipeline_num_layers", kUsed, kInteger},
    {"decoder_seq_length", kUsed, kInteger},
    {"distributed_backend", kWithoutEffect, kText, nullptr, kGroups},
    {"distributed_timeout_minutes", kWithoutEffect, kInteger, nullptr, kGroups},
    {"empty_unused_memory_level", kWithoutEffect, kInteger},
    {"encoder_seq_length", kUsed, kInteger},
    {"end_weight_decay", kUsed, kNumber},
    {"eod_mask_loss", kUsed, kOn},
    {"eos_token_id", kUsed, kNoFlag},
    {"eval_interval", kUsed, kInteger},
    {"eval_iters", kUsed, kInteger},
    {"expert_model_parallel_size", kUsed, kInteger},
    {"expert_tensor_parallel_size", kUsed, kInteger},
    {"ffn_hidden_size", kUsed, kInteger},
    {"fp16", kUsed, kOn},
    {"fsdp_double_buffer", kWithoutEffect, kOn},
    {"fsdp_manual_registration", kWithoutEffect, kOn},
    {"global_batch_size", kUsed, kInteger},
    {"gradient_accumulation_fusion", kWithoutEffect, kOff, "no-gradient-accumulation-fusion"},
    {"group_query_attention", kUsed, kOn},
    {"hidden_dropout", kUsed, kNumber},
    {"hidden_size", kUsed, kInteger},
    {"init_method_std", kUsed, kNumber},
    {"init_model_with_meta_device", kWithoutEffect, kOn, nullptr, kProgramsOwn},
    {"kv_channels", kUsed, kInteger},
    {"log_interval", kUsed, kInteger},
    {"log_learning_rate_to_tensorboard", kUsed, kNoFlag},
    {"log_loss_scale_to_tensorboard", kUsed, kOff, "no-log-loss-scale-to-tensorboard"},
    {"log_memory_to_tensorboard", kUsed, kOn},
    {"log_num_zeros_in_grad", kUsed, kOn},
    {"log_params_norm", kUsed, kOn},
    {"log_throughput", kUsed, kOn},
    {"log_timers_to_tensorboard", kUsed, kOn},
    {"log_validation_ppl_to_tensorboard", kUsed, kOn},
    {"log_world_size_to_tensorboard", kUsed, kOn},
    {"logging_level", kWithoutEffect, kInteger, nullptr, kProgramsLogs},
    {"lr", kUsed, kNumber},
    {"lr_decay_iters", kUsed, kInteger},
    {"lr_decay_samples", kUsed, kInteger},
    {"lr_decay_style", kUsed, kText},
    {"lr_mult", kUsed, kNoFlag},
    {"lr_warmup_fraction", kUsed, kNumber},
    {"lr_warmup_init", kUsed, kNumber},
    {"lr_warmup_iters", kUsed, kInteger},
    {"lr_warmup_samples", kUsed, kInteger},
    {"make_vocab_size_divisible_by", kUsed, kInteger},
    {"manual_gc", kWithoutEffect, kOn, nullptr, kNoGarbage},
    {"manual_gc_interval", kWithoutEffect, kInteger, nullptr, kNoGarbage},
    {"masked_softmax_fusion", kWithoutEffect, kOff, "no-masked-softmax-fusion"},
    {"max_position_embeddings", kUsed, kInteger},
    {"megatron_dataset_flag", kUsed, kNoFlag},
    {"merge_file", kWithoutEffect, kText, nullptr, kTokens},
    {"micro_batch_size", kUsed, kInteger},
    {"min_lr", kUsed, kNumber},
    {"mmap_bin_files", kWithoutEffect, kOff, "no-mmap-bin-files", kInMemory},
    {"model_return_dict", kUsed, kNoFlag},
    {"model_type_name", kUsed, kNoFlag},
    {"moe_flex_dispatcher_backend", kWithoutEffect, kText},
    {"moe_grouped_gemm", kWithoutEffect, kOn},
    {"moe_permute_fusion", kWithoutEffect, kOn},
    {"moe_token_dispatcher_type", kWithoutEffect, kText},
    {"nccl_ub", kWithoutEffect, kOn, "use-nccl-ub"},
    {"no_load_optim", kUsed, kOn},
    {"no_save_optim", kUsed, kOn},
    {"no_wd_decay_cond", kUsed, kNoFlag},
    {"norm_epsilon", kUsed, kNumber},
    {"normalization", kUsed, kText},
    {"num_attention_heads", kUsed, kInteger},
    {"num_labels", kUsed, kNoFlag},
    {"num_layers", kUsed, kInteger},
    {"num_layers_per_virtual_pipeline_stage", kUsed, kInteger},
    {"num_micro_batches", kUsed, kNoFlag},
    {"num_query_groups", kUsed, kInteger},
    {"num_workers", kUsed, kInteger},
    {"optimizer", kUsed, kText},
    {"optimizer_cpu_offload", kUsed, kOn},
    {"orig_vocab_size", kUsed, kNoFlag},
    {"overlap_cpu_optimizer_d2h_h2d", kWithoutEffect, kOn},
    {"overlap_grad_reduce", kWithoutEffect, kOn},
    {"overlap_p2p_comm", kWithoutEffect, kOff, "no-overlap-p2p-communication"},
    {"overlap_param_gather", kWithoutEffect, kOn},
    {"padded_vocab_size", kUsed, kNoFlag},
    {"persist_layer_norm", kWithoutEffect, kOff, "no-persist-layer-norm"},
    {"pipeline_model_parallel_size", kUsed, kInteger},
    {"pipeline_model_parallel_split_rank", kUsed, kInteger},
    {"position_embedding_type", kUsed, kText},
    {"pretraining_flag", kUsed, kNoFlag},
    {"qk_layernorm", kUsed, kOn},
    {"recompute_activations", kWithoutEffect, kOn, nullptr, kNoScores},
    {"recompute_granularity", kUsed, kText},
    {"recompute_method", kUsed, kText},
    {"recompute_num_layers", kUsed, kInteger},
    {"reset_attention_mask", kUsed, kOn},
    {"reset_position_ids", kUsed, kOn},
    {"return_logits", kUsed, kNoFlag},
    {"rotary_base", kUsed, kInteger},
    {"rotary_percent", kUsed, kNumber},
    {"scale_lr_cond", kUsed, kNoFlag},
    {"seed", kUsed, kInteger},
    {"seq_length", kUsed, kInteger},
    {"sequence_parallel", kUsed, kOn},
    {"sgd_momentum", kUsed, kNumber},
    {"split", kUsed, kText},
    {"start_weight_decay", kUsed, kNumber},
    {"swiglu", kUsed, kOn},
    {"tensor_model_parallel_size", kUsed, kInteger},
    {"tensorboard_dir", kUsed, kText},
    {"tensorboard_log_interval", kUsed, kInteger},
    {"tokenizer_model", kWithoutEffect, kText, nullptr, kTokens},
    {"tokenizer_type", kWithoutEffect, kText, nullptr, kTokens},
    {"tp_comm_overlap", kWithoutEffect, kOn},
    {"train_iters", kUsed, kInteger},
    {"train_samples", kUsed, kInteger},
    {"transformer_impl", kWithoutEffect, kText},
    {"untie_embeddings_and_output_weights", kUsed, kOn},
    {"use_cpu_initialization", kWithoutEffect, kOn, nullptr, kProgramsOwn},
    {"use_custom_fsdp", kUsed, kOn},
    {"use_distributed_optimizer", kUsed, kOn},
    {"use_flash_attn", kWithoutEffect, kOn},
    {"use_mcore_models", kWithoutEffect, kOn, nullptr, kProgramsOwn},
    {"use_precision_aware_optimizer", kUsed, kOn},
    {"use_rotary_position_embeddings", kUsed, kOn},
    {"use_tokenizer_model_from_checkpoint_args", kWithoutEffect, kOff,
     "no-use-tokenizer-model-from-checkpoint-args", kTokens},
    {"vocab_file", kUsed, kText},
    {"vocab_size", kUsed, kInteger},
    {"weight_decay", kUsed, kNumber},
    {"weight_decay_incr_style", kUsed, kText},
};

}  // namespace

absl::Span<const MegatronArgument> megatron_arguments() { return kArguments; }

const MegatronArgument* find_megatron_argument(absl::string_view name) {
  const auto* const found = std::ranges::find_if(
      kArguments, [&](const MegatronArgument& each) { return name == each.name; });
  return found == std::end(kArguments) ? nullptr : found;
}

const MegatronArgument* find_megatron_flag(absl::string_view flag) {
  const auto* const found = std::ranges::find_if(kArguments, [&](const MegatronArgument& each) {
    if (each.form == kNoFlag) return false;
    const std::string own =
        each.flag != nullptr ? each.flag : absl::StrReplaceAll(each.name, {{"_", "-"}});
    return flag == absl::StrCat("--", own);
  });
  return found == std::end(kArguments) ? nullptr : found;
}

absl::string_view megatron_field(absl::string_view argument) {
  constexpr std::pair<absl::string_view, absl::string_view> kOtherNames[] = {
      {"tensor_model_parallel_size", "tp_degree"},
      {"pipeline_model_parallel_size", "pp_degree"},
      {"clip_grad", "gradient_clipping"},
      {"sequence_parallel", "sequence_parallelism"}};
  for (const auto& [name, field] : kOtherNames) {
    if (argument == name) return field;
  }
  return argument;
}

std::vector<IdleMegatronArgument> check_megatron_arguments(const nlohmann::ordered_json& arguments,
                                                           const char* who) {
  TORCH_CHECK_VALUE(arguments.is_object(), who, ": expected an object of names and values");
  std::vector<std::string> unknown;
  std::vector<IdleMegatronArgument> idle;
  for (const auto& [name, value] : arguments.items()) {
    const MegatronArgument* argument = find_megatron_argument(name);
    if (argument == nullptr) {
      unknown.push_back(name);
    } else if (argument->use == kWithoutEffect) {
      idle.push_back({name, argument->why});
    }
  }
  TORCH_CHECK_VALUE(unknown.empty(), who, ": nothing here reads ", absl::StrJoin(unknown, ", "),
                    "; leave them out, because the run would differ from what they ask for");
  return idle;
}

std::string text_of(const std::vector<IdleMegatronArgument>& idle) {
  using Reason = std::pair<std::string, std::vector<std::string>>;
  std::vector<Reason> reasons;  // with the names
  for (const IdleMegatronArgument& each : idle) {
    auto found = std::ranges::find(reasons, each.why, &Reason::first);
    if (found == reasons.end()) found = reasons.insert(found, Reason(each.why, {}));
    found->second.push_back(each.name);
  }
  return absl::StrJoin(reasons, "; ", [](std::string* out, const Reason& reason) {
    absl::StrAppend(out, absl::StrJoin(reason.second, ", "),
                    reason.second.size() == 1 ? " has" : " have", " no effect: ", reason.first);
  });
}

std::vector<const char*> megatron_logging_flags() {
  std::vector<const char*> flags;
  for (const MegatronArgument& each : kArguments) {
    if (each.form != kInteger && absl::StartsWith(each.name, "log_")) flags.push_back(each.name);
  }
  return flags;
}

}  // namespace accelerate
