#include "integration_tests/golden/launch_env_flags.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <iterator>
#include <sstream>

namespace accelerate::golden {
namespace {

using enum FlagKind;
using enum FlagPlace;

// By name: kind, place and key in files, choices, default, variable of ranks.
constexpr LaunchFlag kFlags[] = {
    {"config_file", kText, kNowhere, nullptr, nullptr, nullptr, nullptr},
    {"module", kFlag, kNowhere, nullptr, nullptr, "false", nullptr},
    {"no_python", kFlag, kNowhere, nullptr, nullptr, "false", nullptr},
    {"main_training_function", kText, kTop, nullptr, nullptr, nullptr, nullptr},
    {"cpu", kFlag, kTop, "use_cpu", nullptr, "false", "ACCELERATE_USE_CPU"},
    {"multi_gpu", kFlag, kNowhere, nullptr, nullptr, "false", nullptr},
    {"mixed_precision", kText, kTop, nullptr, "no|fp16|bf16|fp8", "no",
     "ACCELERATE_MIXED_PRECISION"},
    {"num_processes", kInt, kTop, nullptr, nullptr, nullptr, "WORLD_SIZE"},
    {"num_cpu_threads_per_process", kInt, kNowhere, nullptr, nullptr, nullptr, "OMP_NUM_THREADS"},
    {"enable_cpu_affinity", kFlag, kTop, nullptr, nullptr, "false", "ACCELERATE_CPU_AFFINITY"},
    {"use_deepspeed", kFlag, kNowhere, nullptr, nullptr, "false", "ACCELERATE_USE_DEEPSPEED"},
    {"use_fsdp", kFlag, kNowhere, nullptr, nullptr, "false", "ACCELERATE_USE_FSDP"},
    {"use_parallelism_config", kFlag, kNowhere, nullptr, nullptr, "false",
     "ACCELERATE_USE_PARALLELISM_CONFIG"},
    {"use_megatron_lm", kFlag, kNowhere, nullptr, nullptr, "false", "ACCELERATE_USE_MEGATRON_LM"},
    {"gpu_ids", kText, kTop, nullptr, nullptr, nullptr, nullptr},
    {"compute_environment", kText, kTop, nullptr, "LOCAL_MACHINE|AMAZON_SAGEMAKER", "LOCAL_MACHINE",
     nullptr},
    {"distributed_type", kText, kTop, nullptr, nullptr, nullptr, nullptr},
    {"num_machines", kInt, kTop, nullptr, nullptr, nullptr, "GROUP_WORLD_SIZE"},
    {"same_network", kFlag, kTop, nullptr, nullptr, "false", nullptr},
    {"machine_rank", kInt, kTop, nullptr, nullptr, nullptr, "GROUP_RANK"},
    {"main_process_ip", kText, kTop, nullptr, nullptr, nullptr, "MASTER_ADDR"},
    {"main_process_port", kInt, kTop, nullptr, nullptr, nullptr, "MASTER_PORT"},
    {"rdzv_backend", kText, kTop, nullptr, nullptr, "static", nullptr},
    {"rdzv_conf", kText, kNowhere, nullptr, nullptr, nullptr, nullptr},
    {"mpirun_hostfile", kText, kMpirun, nullptr, nullptr, nullptr, nullptr},
    {"quiet", kFlag, kNowhere, nullptr, nullptr, "false", nullptr},
    {"tee", kText, kNowhere, nullptr, nullptr, "0", nullptr},
    {"log_dir", kText, kNowhere, nullptr, nullptr, nullptr, nullptr},
    {"role", kText, kNowhere, nullptr, nullptr, "default", nullptr},
    {"max_restarts", kInt, kNowhere, nullptr, nullptr, "0", nullptr},
    {"monitor_interval", kFloat, kNowhere, nullptr, nullptr, "0.1", nullptr},
    {"debug", kFlag, kTop, nullptr, nullptr, "false", "ACCELERATE_DEBUG_MODE"},
    {"dynamo_backend", kText, kDynamo, nullptr,
     "no|eager|aot_eager|inductor|aot_ts_nvfuser|nvprims_nvfuser|cudagraphs|ofi|fx2trt|onnxrt|"
     "tensorrt|aot_torchxla_trace_once|torhchxla_trace_once|tvm",
     "no", "ACCELERATE_DYNAMO_BACKEND"},
    {"dynamo_mode", kText, kDynamo, nullptr, "default|reduce-overhead|max-autotune", "default",
     "ACCELERATE_DYNAMO_MODE"},
    {"dynamo_use_fullgraph", kFlag, kDynamo, nullptr, nullptr, "false",
     "ACCELERATE_DYNAMO_USE_FULLGRAPH"},
    {"dynamo_use_dynamic", kFlag, kDynamo, nullptr, nullptr, "false",
     "ACCELERATE_DYNAMO_USE_DYNAMIC"},
    {"dynamo_use_regional_compilation", kFlag, kDynamo, nullptr, nullptr, "false",
     "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"},
    {"fp8_backend", kText, kFp8, nullptr, "ao|te|msamp", nullptr, "ACCELERATE_FP8_BACKEND"},
    {"fp8_use_autocast_during_eval", kFlag, kFp8, nullptr, nullptr, "false",
     "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL"},
    {"fp8_margin", kInt, kFp8, nullptr, nullptr, "0", "ACCELERATE_FP8_MARGIN"},
    {"fp8_interval", kInt, kFp8, nullptr, nullptr, "1", "ACCELERATE_FP8_INTERVAL"},
    {"fp8_format", kText, kFp8, nullptr, "HYBRID|E4M3|E5M2", "HYBRID", "ACCELERATE_FP8_FORMAT"},
    {"fp8_amax_history_len", kInt, kFp8, nullptr, nullptr, "1024",
     "ACCELERATE_FP8_AMAX_HISTORY_LEN"},
    {"fp8_amax_compute_algo", kText, kFp8, nullptr, "max|most_recent", "most_recent",
     "ACCELERATE_FP8_AMAX_COMPUTE_ALGO"},
    {"fp8_override_linear_precision", kBools, kFp8, nullptr, nullptr, "false,false,false", nullptr},
    {"fp8_opt_level", kText, kFp8, nullptr, "O1|O2", "O2", "ACCELERATE_FP8_OPT_LEVEL"},
    {"fp8_enable_fsdp_float8_all_gather", kBool, kFp8, nullptr, nullptr, "true",
     "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER"},
    {"fp8_pad_inner_dim", kBool, kFp8, nullptr, nullptr, "true", "ACCELERATE_FP8_PAD_INNER_DIM"},
    {"fsdp_version", kText, kFsdp, nullptr, "1|2", "1", "FSDP_VERSION"},
    {"fsdp_offload_params", kBool, kFsdp, nullptr, nullptr, "false", "FSDP_OFFLOAD_PARAMS"},
    {"fsdp_min_num_params", kInt, kFsdp, nullptr, nullptr, "100000000", "FSDP_MIN_NUM_PARAMS"},
    {"fsdp_sharding_strategy", kText, kFsdp, nullptr, nullptr, "FULL_SHARD",
     "FSDP_SHARDING_STRATEGY"},
    {"fsdp_reshard_after_forward", kText, kFsdp, nullptr, nullptr, "true",
     "FSDP_RESHARD_AFTER_FORWARD"},
    {"fsdp_auto_wrap_policy", kText, kFsdp, nullptr, nullptr, nullptr, "FSDP_AUTO_WRAP_POLICY"},
    {"fsdp_transformer_layer_cls_to_wrap", kText, kFsdp, nullptr, nullptr, nullptr,
     "FSDP_TRANSFORMER_CLS_TO_WRAP"},
    {"fsdp_backward_prefetch", kText, kFsdp, nullptr, nullptr, nullptr, "FSDP_BACKWARD_PREFETCH"},
    {"fsdp_state_dict_type", kText, kFsdp, nullptr, nullptr, nullptr, "FSDP_STATE_DICT_TYPE"},
    {"fsdp_forward_prefetch", kBool, kFsdp, nullptr, nullptr, "false", "FSDP_FORWARD_PREFETCH"},
    {"fsdp_use_orig_params", kBool, kFsdp, nullptr, nullptr, "true", "FSDP_USE_ORIG_PARAMS"},
    {"fsdp_cpu_ram_efficient_loading", kBool, kFsdp, nullptr, nullptr, "true",
     "FSDP_CPU_RAM_EFFICIENT_LOADING"},
    {"fsdp_sync_module_states", kBool, kFsdp, nullptr, nullptr, "true", "FSDP_SYNC_MODULE_STATES"},
    {"fsdp_activation_checkpointing", kBool, kFsdp, nullptr, nullptr, "false",
     "FSDP_ACTIVATION_CHECKPOINTING"},
    {"fsdp_activation_checkpointing_offload", kBool, kFsdp, nullptr, nullptr, "false",
     "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"},
    {"deepspeed_config_file", kText, kDeepSpeed, nullptr, nullptr, nullptr,
     "ACCELERATE_DEEPSPEED_CONFIG_FILE"},
    {"zero_stage", kInt, kDeepSpeed, nullptr, "0|1|2|3", nullptr,
     "ACCELERATE_DEEPSPEED_ZERO_STAGE"},
    {"offload_optimizer_device", kText, kDeepSpeed, nullptr, "none|cpu|nvme", nullptr,
     "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"},
    {"offload_param_device", kText, kDeepSpeed, nullptr, "none|cpu|nvme", nullptr,
     "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"},
    {"offload_optimizer_nvme_path", kText, kDeepSpeed, nullptr, nullptr, nullptr,
     "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"},
    {"offload_param_nvme_path", kText, kDeepSpeed, nullptr, nullptr, nullptr,
     "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"},
    {"gradient_accumulation_steps", kInt, kDeepSpeed, nullptr, nullptr, nullptr,
     "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
    {"gradient_clipping", kFloat, kDeepSpeed, nullptr, nullptr, nullptr,
     "ACCELERATE_GRADIENT_CLIPPING"},
    {"zero3_init_flag", kBool, kDeepSpeed, nullptr, nullptr, nullptr,
     "ACCELERATE_DEEPSPEED_ZERO3_INIT"},
    {"zero3_save_16bit_model", kBool, kDeepSpeed, nullptr, nullptr, nullptr,
     "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"},
    {"deepspeed_hostfile", kText, kDeepSpeed, nullptr, nullptr, nullptr, nullptr},
    {"deepspeed_exclusion_filter", kText, kDeepSpeed, nullptr, nullptr, nullptr, nullptr},
    {"deepspeed_inclusion_filter", kText, kDeepSpeed, nullptr, nullptr, nullptr, nullptr},
    {"deepspeed_multinode_launcher", kText, kDeepSpeed, nullptr,
     "pdsh|standard|openmpi|mvapich|mpich|nossh|slurm", nullptr, nullptr},
    {"deepspeed_moe_layer_cls_names", kText, kDeepSpeed, nullptr, nullptr, nullptr,
     "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"},
    {"parallelism_config_dp_replicate_size", kInt, kParallelism, nullptr, nullptr, "1",
     "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"},
    {"parallelism_config_dp_shard_size", kInt, kParallelism, nullptr, nullptr, "1",
     "PARALLELISM_CONFIG_DP_SHARD_SIZE"},
    {"parallelism_config_tp_size", kInt, kParallelism, nullptr, nullptr, "1",
     "PARALLELISM_CONFIG_TP_SIZE"},
    {"parallelism_config_cp_size", kInt, kParallelism, nullptr, nullptr, "1",
     "PARALLELISM_CONFIG_CP_SIZE"},
    {"parallelism_config_cp_backend", kText, kParallelism, nullptr, "torch", "torch",
     "PARALLELISM_CONFIG_CP_BACKEND"},
    {"parallelism_config_cp_comm_strategy", kText, kParallelism, nullptr, nullptr, "allgather",
     "PARALLELISM_CONFIG_CP_COMM_STRATEGY"},
    {"parallelism_config_sp_size", kInt, kParallelism, nullptr, nullptr, "1",
     "PARALLELISM_CONFIG_SP_SIZE"},
    {"parallelism_config_sp_backend", kText, kParallelism, nullptr, "deepspeed", "deepspeed",
     "PARALLELISM_CONFIG_SP_BACKEND"},
    {"parallelism_config_sp_seq_length", kText, kParallelism, nullptr, nullptr, nullptr,
     "PARALLELISM_CONFIG_SP_SEQ_LENGTH"},
    {"parallelism_config_sp_seq_length_is_variable", kBool, kParallelism, nullptr, nullptr, "true",
     "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"},
    {"parallelism_config_sp_attn_implementation", kText, kParallelism, nullptr, nullptr, "sdpa",
     "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION"},
    {"megatron_lm_tp_degree", kInt, kMegatron, nullptr, nullptr, "1", "MEGATRON_LM_TP_DEGREE"},
    {"megatron_lm_use_custom_fsdp", kBool, kMegatron, nullptr, nullptr, "false",
     "MEGATRON_LM_USE_CUSTOM_FSDP"},
    {"megatron_lm_no_load_optim", kBool, kMegatron, nullptr, nullptr, "false",
     "MEGATRON_LM_NO_LOAD_OPTIM"},
    {"megatron_lm_eod_mask_loss", kBool, kMegatron, nullptr, nullptr, "false",
     "MEGATRON_LM_EOD_MASK_LOSS"},
    {"megatron_lm_overlap_cpu_optimizer_d2h_h2d", kBool, kMegatron, nullptr, nullptr, "false",
     "MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D"},
    {"megatron_lm_no_save_optim", kBool, kMegatron, nullptr, nullptr, "false",
     "MEGATRON_LM_NO_SAVE_OPTIM"},
    {"megatron_lm_optimizer_cpu_offload", kBool, kMegatron, nullptr, nullptr, "false",
     "MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD"},
    {"megatron_lm_use_precision_aware_optimizer", kBool, kMegatron, nullptr, nullptr, "false",
     "MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER"},
    {"megatron_lm_decoder_last_pipeline_num_layers", kInt, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS"},
    {"megatron_lm_pp_degree", kInt, kMegatron, nullptr, nullptr, "1", "MEGATRON_LM_PP_DEGREE"},
    {"megatron_lm_num_micro_batches", kInt, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_NUM_MICRO_BATCHES"},
    {"megatron_lm_sequence_parallelism", kBool, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_SEQUENCE_PARALLELISM"},
    {"megatron_lm_recompute_activations", kBool, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_RECOMPUTE_ACTIVATIONS"},
    {"megatron_lm_use_distributed_optimizer", kBool, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER"},
    {"megatron_lm_gradient_clipping", kFloat, kMegatron, nullptr, nullptr, "1.0",
     "MEGATRON_LM_GRADIENT_CLIPPING"},
    {"megatron_lm_recompute_granularity", kText, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_RECOMPUTE_GRANULARITY"},
    {"megatron_lm_recompute_method", kText, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_RECOMPUTE_METHOD"},
    {"megatron_lm_recompute_num_layers", kInt, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_RECOMPUTE_NUM_LAYERS"},
    {"megatron_lm_attention_backend", kText, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_ATTENTION_BACKEND"},
    {"megatron_lm_expert_model_parallel_size", kInt, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE"},
    {"megatron_lm_context_parallel_size", kInt, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_CONTEXT_PARALLEL_SIZE"},
    {"megatron_lm_attention_dropout", kFloat, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_ATTENTION_DROPOUT"},
    {"megatron_lm_hidden_dropout", kFloat, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_HIDDEN_DROPOUT"},
    {"megatron_lm_attention_softmax_in_fp32", kBool, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32"},
    {"megatron_lm_expert_tensor_parallel_size", kInt, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE"},
    {"megatron_lm_calculate_per_token_loss", kBool, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS"},
    {"megatron_lm_use_rotary_position_embeddings", kBool, kMegatron, nullptr, nullptr, nullptr,
     "MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS"},
    {"tpu", kFlag, kNowhere, nullptr, nullptr, "false", nullptr},
    {"tpu_use_cluster", kFlag, kTop, nullptr, nullptr, "false", nullptr},
    {"tpu_use_sudo", kFlag, kTop, nullptr, nullptr, "false", nullptr},
    {"vm", kTexts, kTop, "tpu_vm", nullptr, nullptr, nullptr},
    {"env", kTexts, kTop, "tpu_env", nullptr, nullptr, nullptr},
    {"downcast_bf16", kFlag, kTop, nullptr, nullptr, "false", "XLA_DOWNCAST_BF16"},
    {"tpu_name", kText, kTop, nullptr, nullptr, nullptr, nullptr},
    {"tpu_zone", kText, kTop, nullptr, nullptr, nullptr, nullptr},
    {"command_file", kText, kTop, nullptr, nullptr, nullptr, nullptr},
    {"commands", kTexts, kTop, nullptr, nullptr, nullptr, nullptr},
    {"aws_access_key_id", kText, kNowhere, nullptr, nullptr, nullptr, "AWS_ACCESS_KEY_ID"},
    {"aws_secret_access_key", kText, kNowhere, nullptr, nullptr, nullptr, "AWS_SECRET_ACCESS_KEY"},
    {"ec2_instance_type", kText, kSageMaker, nullptr, nullptr, nullptr, nullptr},
    {"iam_role_name", kText, kSageMaker, nullptr, nullptr, nullptr, nullptr},
    {"image_uri", kText, kSageMaker, nullptr, nullptr, nullptr, nullptr},
    {"profile", kText, kSageMaker, nullptr, nullptr, nullptr, nullptr},
    {"region", kText, kSageMaker, nullptr, nullptr, "us-east-1", nullptr},
    {"base_job_name", kText, kSageMaker, nullptr, nullptr, nullptr, nullptr},
    {"pytorch_version", kText, kSageMaker, nullptr, nullptr, "1.10.2", nullptr},
    {"transformers_version", kText, kSageMaker, nullptr, nullptr, "4.17.0", nullptr},
    {"py_version", kText, kSageMaker, nullptr, nullptr, "py38", nullptr},
    {"sagemaker_inputs_file", kText, kSageMaker, nullptr, nullptr, nullptr, nullptr},
    {"sagemaker_metrics_file", kText, kSageMaker, nullptr, nullptr, nullptr, nullptr},
    {"additional_args", kText, kSageMaker, nullptr, nullptr, nullptr, nullptr},
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_one_of(const std::string& text, const std::string& list, char separator) {
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, separator);) {
    if (word == text) return true;
  }
  return false;
}

template <typename Number>
bool is_number(const std::string& text) {
  std::istringstream stream(text);
  Number number = 0;
  return static_cast<bool>(stream >> number) && (stream >> std::ws).eof();
}

bool are_three_truths(const std::string& text) {
  std::istringstream words(text);
  int count = 0;
  for (std::string word; std::getline(words, word, ',');) {
    word.erase(0, word.find_first_not_of(' '));
    word.erase(word.find_last_not_of(' ') + 1);
    if (truth_of(word) < 0) return false;
    ++count;
  }
  return count == 3;
}

}  // namespace

std::span<const LaunchFlag> launch_flags() { return kFlags; }

const LaunchFlag* find_launch_flag(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kFlags), std::end(kFlags),
                                         [&](const LaunchFlag& flag) { return name == flag.name; });
  return found == std::end(kFlags) ? nullptr : found;
}

TypedLaunchFlag parse_launch_flag(const std::string& word) {
  const size_t dashes = word.find_first_not_of('-');
  if (dashes == std::string::npos) return {};
  std::string name = word.substr(dashes);
  std::replace(name.begin(), name.end(), '-', '_');
  const bool is_negated = name == "no_tpu_cluster";
  if (name == "m") name = "module";
  if (name == "q") name = "quiet";
  if (name == "t") name = "tee";
  if (name == "tpu_cluster" || is_negated) name = "tpu_use_cluster";
  return {find_launch_flag(name), is_negated};
}

std::string key_prefix(FlagPlace place) {
  switch (place) {
    case kDynamo: return "dynamo_";
    case kFp8: return "fp8_";
    case kFsdp: return "fsdp_";
    case kMegatron: return "megatron_lm_";
    case kParallelism: return "parallelism_config_";
    default: return "";
  }
}

int truth_of(const std::string& text) {
  const std::string word = lower(text);
  if (is_one_of(word, "y yes t true on 1", ' ')) return 1;
  return is_one_of(word, "n no f false off 0", ' ') ? 0 : -1;
}

bool is_value_of(const LaunchFlag& flag, const std::string& text) {
  switch (flag.kind) {
    case kFlag:
    case kBool: return truth_of(text) >= 0;
    case kBools: return are_three_truths(text);
    case kInt:
      if (!is_number<int64_t>(text)) return false;
      break;
    case kFloat:
      if (!is_number<double>(text)) return false;
      break;
    case kText:
    case kTexts: break;
  }
  return flag.choices == nullptr || is_one_of(text, flag.choices, '|');
}

}  // namespace accelerate::golden
