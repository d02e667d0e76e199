#include "launch/settings/schema.h"

namespace accelerate::launch::settings {
namespace {

using enum ValueType;

// A row in the making: what most rows lack is not mentioned.
struct Row {
  Setting setting;

  constexpr operator Setting() const { return setting; }

  constexpr Row shortened(char letter) const {
    Row row = *this;
    row.setting.short_name = letter;
    return row;
  }
  constexpr Row spelt(const char* flag) const {
    Row row = *this;
    row.setting.flag = flag;
    return row;
  }
  constexpr Row negated_by(const char* flag) const {
    Row row = *this;
    row.setting.negated_flag = flag;
    return row;
  }
  constexpr Row or_else(const char* value) const {
    Row row = *this;
    row.setting.default_value = value;
    return row;
  }
  constexpr Row one_of(const char* choices) const {
    Row row = *this;
    row.setting.choices = choices;
    return row;
  }
  constexpr Row in_any_case() const {
    Row row = *this;
    row.setting.is_in_any_case = true;
    return row;
  }
  constexpr Row in(Section section, const char* key = nullptr) const {
    Row row = *this;
    row.setting.section = section;
    row.setting.key = key;
    return row;
  }
  constexpr Row in_sagemaker() const {
    Row row = *this;
    row.setting.in_sagemaker = true;
    return row;
  }
  // The variable's value is the launcher's default, and ranks get it.
  constexpr Row exchanged_by(const char* variable) const {
    Row row = *this;
    row.setting.variable = variable;
    return row;
  }
  constexpr Row written_to(const char* variable) const {
    Row row = exchanged_by(variable);
    row.setting.variable_is_read = false;
    return row;
  }
};

constexpr Row make_row(SettingOrigin origin, Group group, const char* name, ValueType type,
                       const char* help) {
  Row row;
  row.setting.name = name;
  row.setting.origin = origin;
  row.setting.type = type;
  row.setting.default_value = type == kFlag ? "false" : nullptr;
  row.setting.group = group;
  row.setting.help = help;
  return row;
}

constexpr Row peer(Group group, const char* name, ValueType type, const char* help) {
  return make_row(SettingOrigin::kPeer, group, name, type, help);
}
constexpr Row ours(Group group, const char* name, ValueType type, const char* help) {
  return make_row(SettingOrigin::kOurs, group, name, type, help);
}
constexpr Row file_only(Group group, const char* name, ValueType type, const char* help) {
  return make_row(SettingOrigin::kFileOnly, group, name, type, help);
}

// In the order of the groups.
constexpr Setting kRows[] = {
    peer(Group::kProgram, "config_file", kText, "YAML or JSON file to take settings from"),
    peer(Group::kProgram, "module", kFlag, "PROGRAM is a shared object to load").shortened('m'),
    peer(Group::kProgram, "no_python", kFlag,
         "has no effect: programs are always started as they are"),
    peer(Group::kProgram, "main_training_function", kText,
         "symbol to call in the shared object of --module")
        .in(Section::kTop),
    peer(Group::kRanks, "cpu", kFlag, "run on the CPU even where there are devices")
        .in(Section::kTop, "use_cpu")
        .in_sagemaker()
        .exchanged_by("ACCELERATE_USE_CPU"),
    peer(Group::kRanks, "multi_gpu", kFlag, "one rank per device; at least two ranks"),
    peer(Group::kRanks, "mixed_precision", kText, "data type of the computation")
        .or_else("no")
        .one_of("no|fp16|bf16|fp8")
        .in_any_case()
        .in(Section::kTop)
        .in_sagemaker()
        .exchanged_by("ACCELERATE_MIXED_PRECISION"),
    peer(Group::kRanks, "num_processes", kInt,
         "ranks over all machines; default: one per device, else 1")
        .in(Section::kTop)
        .written_to("WORLD_SIZE"),
    peer(Group::kRanks, "num_cpu_threads_per_process", kInt,
         "threads of a rank; default: see launching.md")
        .written_to("OMP_NUM_THREADS"),
    peer(Group::kRanks, "enable_cpu_affinity", kFlag, "bind each rank to the cores near its device")
        .in(Section::kTop)
        .in_sagemaker()
        .exchanged_by("ACCELERATE_CPU_AFFINITY"),
    peer(Group::kRanks, "use_deepspeed", kFlag,
         "shard optimizer, gradients and parameters in stages (ZeRO)")
        .exchanged_by("ACCELERATE_USE_DEEPSPEED"),
    peer(Group::kRanks, "use_fsdp", kFlag, "shard parameters (FSDP)")
        .exchanged_by("ACCELERATE_USE_FSDP"),
    peer(Group::kRanks, "use_parallelism_config", kFlag,
         "arrange the ranks in a mesh; needs --use_fsdp --fsdp_version 2")
        .exchanged_by("ACCELERATE_USE_PARALLELISM_CONFIG"),
    peer(Group::kRanks, "use_megatron_lm", kFlag,
         "tensor, pipeline and sequence parallelism in the manner of Megatron-LM")
        .exchanged_by("ACCELERATE_USE_MEGATRON_LM"),
    peer(Group::kRanks, "gpu_ids", kText, "devices of this machine, as in 0,2, or all")
        .in(Section::kTop)
        .in_sagemaker(),
    file_only(Group::kRanks, "compute_environment", kText, "where the run is")
        .or_else("LOCAL_MACHINE")
        .one_of("LOCAL_MACHINE|AMAZON_SAGEMAKER")
        .in(Section::kTop)
        .in_sagemaker(),
    file_only(Group::kRanks, "distributed_type", kText, "kind of the run")
        .in(Section::kTop)
        .in_sagemaker(),
    peer(Group::kMachines, "num_machines", kInt, "machines of the run")
        .in(Section::kTop)
        .in_sagemaker()
        .written_to("GROUP_WORLD_SIZE"),
    peer(Group::kMachines, "same_network", kFlag,
         "machines meet at main_process_ip:main_process_port itself")
        .in(Section::kTop),
    peer(Group::kMachines, "machine_rank", kInt, "number of this machine, from 0")
        .in(Section::kTop)
        .written_to("GROUP_RANK"),
    peer(Group::kMachines, "main_process_ip", kText, "name or address of machine 0")
        .in(Section::kTop)
        .written_to("MASTER_ADDR"),
    peer(Group::kMachines, "main_process_port", kInt,
         "port of machine 0; 0: any free one; default: 29500, on one machine any free one")
        .in(Section::kTop)
        .written_to("MASTER_PORT"),
    peer(Group::kMachines, "rdzv_backend", kText,
         "how machines meet: static, or c10d where they may come and go")
        .or_else("static")
        .in(Section::kTop),
    peer(Group::kMachines, "rdzv_conf", kText, "key=value,... of the rendezvous"),
    peer(Group::kMachines, "mpirun_hostfile", kText,
         "start with mpirun on the machines in this file")
        .in(Section::kMpirun),
    ours(Group::kMachines, "nnodes", kText,
         "machines that may take part, as MIN:MAX; with --rdzv_backend c10d"),
    ours(Group::kMachines, "rdzv_endpoint", kText,
         "HOST:PORT where machines meet; default: main_process_ip and main_process_port"),
    ours(Group::kMachines, "rdzv_id", kText,
         "name of the run; machines of different runs do not meet")
        .or_else("none"),
    ours(Group::kMachines, "local_addr", kText, "address of this machine as the others reach it"),
    ours(Group::kMachines, "slurm", kFlag,
         "start with srun; found by itself inside an allocation of several machines")
        .negated_by("no_slurm"),
    peer(Group::kLogs, "quiet", kFlag, "when the run fails, only pass on the exit code")
        .shortened('q'),
    peer(Group::kLogs, "tee", kText,
         "streams that go to the console as well as to files: 0 none, 1 out, 2 err, 3 both, or by "
         "rank as in 0:3,1:1")
        .shortened('t')
        .or_else("0"),
    peer(Group::kLogs, "log_dir", kText, "folder for the output of each rank"),
    peer(Group::kLogs, "role", kText, "name of this group of ranks in messages").or_else("default"),
    peer(Group::kLogs, "max_restarts", kInt, "how often to start the ranks anew after a failure")
        .or_else("0"),
    peer(Group::kLogs, "monitor_interval", kFloat, "seconds between looks at the ranks")
        .or_else("0.1"),
    peer(Group::kLogs, "debug", kFlag, "compare collectives between ranks before they run")
        .in(Section::kTop)
        .in_sagemaker()
        .exchanged_by("ACCELERATE_DEBUG_MODE"),
    ours(Group::kLogs, "redirects", kText, "streams that go to files only; as --tee").or_else("0"),
    ours(Group::kLogs, "local_ranks_filter", kText,
         "the only ranks of this machine whose output is shown, as in 0,1"),
    ours(Group::kLogs, "kill_grace", kInt, "seconds from asking ranks to stop to killing them"),
    ours(Group::kLogs, "no_preflight", kFlag, "skip the checks before the start"),
    ours(Group::kSimulation, "simulate", kText,
         "SPEC: run on a simulated cluster inside one process, for example 2x4 or 2x4:h100")
        .in(Section::kTop)
        .written_to("ACCELERATE_SIMULATE"),
    ours(Group::kSimulation, "simulate_seed", kText, "scheduler seed of the simulated run")
        .written_to("ACCELERATE_SIMULATE_SEED"),
    ours(Group::kSimulation, "report", kText,
         "DIR: where the simulated run writes report.html, trace.json and summary.json")
        .written_to("ACCELERATE_SIMULATE_REPORT"),
    ours(Group::kLook, "print_config", kFlag,
         "show every setting and where it came from; start nothing"),
    ours(Group::kLook, "dry_run", kFlag, "show what would be started; start nothing"),
    peer(Group::kCompile, "dynamo_backend", kText, "compiler of the model")
        .or_else("no")
        .one_of("no|eager|aot_eager|inductor|aot_ts_nvfuser|nvprims_nvfuser|cudagraphs|ofi|fx2trt|"
                "onnxrt|tensorrt|aot_torchxla_trace_once|torhchxla_trace_once|tvm")
        .in_any_case()
        .in(Section::kDynamo)
        .exchanged_by("ACCELERATE_DYNAMO_BACKEND"),
    peer(Group::kCompile, "dynamo_mode", kText, "what the compiler optimises for")
        .or_else("default")
        .one_of("default|reduce-overhead|max-autotune")
        .in(Section::kDynamo)
        .exchanged_by("ACCELERATE_DYNAMO_MODE"),
    peer(Group::kCompile, "dynamo_use_fullgraph", kFlag, "the model must compile into one graph")
        .in(Section::kDynamo)
        .exchanged_by("ACCELERATE_DYNAMO_USE_FULLGRAPH"),
    peer(Group::kCompile, "dynamo_use_dynamic", kFlag, "compile for sizes that change")
        .in(Section::kDynamo)
        .exchanged_by("ACCELERATE_DYNAMO_USE_DYNAMIC"),
    peer(Group::kCompile, "dynamo_use_regional_compilation", kFlag, "compile repeated blocks once")
        .in(Section::kDynamo)
        .exchanged_by("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"),
    peer(Group::kFp8, "fp8_backend", kText, "library of the 8-bit kernels")
        .one_of("ao|te|msamp")
        .in_any_case()
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_BACKEND"),
    peer(Group::kFp8, "fp8_use_autocast_during_eval", kFlag, "8 bits in evaluation too")
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL"),
    peer(Group::kFp8, "fp8_margin", kInt, "margin of the scaling factor")
        .or_else("0")
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_MARGIN"),
    peer(Group::kFp8, "fp8_interval", kInt, "steps between two scaling factors")
        .or_else("1")
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_INTERVAL"),
    peer(Group::kFp8, "fp8_format", kText, "number format")
        .or_else("HYBRID")
        .one_of("HYBRID|E4M3|E5M2")
        .in_any_case()
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_FORMAT"),
    peer(Group::kFp8, "fp8_amax_history_len", kInt,
         "steps that are looked back at for a scaling factor")
        .or_else("1024")
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_AMAX_HISTORY_LEN"),
    peer(Group::kFp8, "fp8_amax_compute_algo", kText, "how a scaling factor follows from them")
        .or_else("most_recent")
        .one_of("max|most_recent")
        .in_any_case()
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_AMAX_COMPUTE_ALGO"),
    peer(Group::kFp8, "fp8_override_linear_precision", kBools,
         "higher precision in forward, input gradient, weight gradient: three booleans")
        .or_else("false,false,false")
        .in(Section::kFp8),
    peer(Group::kFp8, "fp8_opt_level", kText, "which parts are in 8 bits")
        .or_else("O2")
        .one_of("O1|O2")
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_OPT_LEVEL"),
    peer(Group::kFp8, "fp8_enable_fsdp_float8_all_gather", kBool, "gather shards in 8 bits")
        .or_else("true")
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER"),
    peer(Group::kFp8, "fp8_pad_inner_dim", kBool, "pad matrices to sizes that the kernels take")
        .or_else("true")
        .in(Section::kFp8)
        .exchanged_by("ACCELERATE_FP8_PAD_INNER_DIM"),
    peer(Group::kFsdp, "fsdp_version", kText, "1 or 2")
        .or_else("1")
        .one_of("1|2")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_VERSION"),
    peer(Group::kFsdp, "fsdp_offload_params", kBool, "keep shards on the host")
        .or_else("false")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_OFFLOAD_PARAMS"),
    peer(Group::kFsdp, "fsdp_min_num_params", kInt, "smallest module that is wrapped by size")
        .or_else("100000000")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_MIN_NUM_PARAMS"),
    peer(Group::kFsdp, "fsdp_sharding_strategy", kText, "version 1: what is sharded")
        .or_else("FULL_SHARD")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_SHARDING_STRATEGY"),
    peer(Group::kFsdp, "fsdp_reshard_after_forward", kText,
         "version 2: true or false; version 1: a strategy")
        .or_else("true")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_RESHARD_AFTER_FORWARD"),
    peer(Group::kFsdp, "fsdp_auto_wrap_policy", kText, "which modules are wrapped")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_AUTO_WRAP_POLICY"),
    peer(Group::kFsdp, "fsdp_transformer_layer_cls_to_wrap", kText,
         "layers to wrap, separated by commas")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_TRANSFORMER_CLS_TO_WRAP"),
    peer(Group::kFsdp, "fsdp_backward_prefetch", kText,
         "version 1: when the next shards are fetched")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_BACKWARD_PREFETCH"),
    peer(Group::kFsdp, "fsdp_state_dict_type", kText, "how checkpoints are written")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_STATE_DICT_TYPE"),
    peer(Group::kFsdp, "fsdp_forward_prefetch", kBool,
         "version 1: fetch the next shards in the forward pass as well")
        .or_else("false")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_FORWARD_PREFETCH"),
    peer(Group::kFsdp, "fsdp_use_orig_params", kBool, "version 1: show the original parameters")
        .or_else("true")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_USE_ORIG_PARAMS"),
    peer(Group::kFsdp, "fsdp_cpu_ram_efficient_loading", kBool,
         "only rank 0 of a machine reads the weights")
        .or_else("true")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_CPU_RAM_EFFICIENT_LOADING"),
    peer(Group::kFsdp, "fsdp_sync_module_states", kBool, "version 1: take the weights of rank 0")
        .or_else("true")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_SYNC_MODULE_STATES"),
    peer(Group::kFsdp, "fsdp_activation_checkpointing", kBool,
         "recompute activations in the backward pass")
        .or_else("false")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_ACTIVATION_CHECKPOINTING"),
    ours(Group::kFsdp, "fsdp_ignored_modules", kText, "modules that are not sharded, as a pattern")
        .in(Section::kFsdp)
        .exchanged_by("FSDP_IGNORED_MODULES"),
    peer(Group::kDeepSpeed, "deepspeed_config_file", kText, "JSON file of the ZeRO engine")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_DEEPSPEED_CONFIG_FILE"),
    peer(Group::kDeepSpeed, "zero_stage", kInt,
         "what is sharded: 0 nothing, 1 optimizer, 2 and gradients, 3 and parameters")
        .one_of("0|1|2|3")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_DEEPSPEED_ZERO_STAGE"),
    peer(Group::kDeepSpeed, "offload_optimizer_device", kText,
         "where the optimizer keeps its state")
        .one_of("none|cpu|nvme")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"),
    peer(Group::kDeepSpeed, "offload_param_device", kText, "where parameters are kept; stage 3")
        .one_of("none|cpu|nvme")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"),
    peer(Group::kDeepSpeed, "offload_optimizer_nvme_path", kText,
         "folder for the optimizer state on nvme")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"),
    peer(Group::kDeepSpeed, "offload_param_nvme_path", kText, "folder for parameters on nvme")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"),
    peer(Group::kDeepSpeed, "gradient_accumulation_steps", kInt, "micro-batches of a step")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    peer(Group::kDeepSpeed, "gradient_clipping", kFloat, "largest norm of the gradients")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_GRADIENT_CLIPPING"),
    peer(Group::kDeepSpeed, "zero3_init_flag", kBool, "make models sharded; stage 3")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_DEEPSPEED_ZERO3_INIT"),
    peer(Group::kDeepSpeed, "zero3_save_16bit_model", kBool, "save whole 16-bit weights; stage 3")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"),
    peer(Group::kDeepSpeed, "deepspeed_hostfile", kText, "file of the machines and their slots")
        .in(Section::kDeepSpeed),
    peer(Group::kDeepSpeed, "deepspeed_exclusion_filter", kText,
         "machines and slots not to use, as in h1@h2:0,2")
        .in(Section::kDeepSpeed),
    peer(Group::kDeepSpeed, "deepspeed_inclusion_filter", kText,
         "the only machines and slots to use")
        .in(Section::kDeepSpeed),
    peer(Group::kDeepSpeed, "deepspeed_multinode_launcher", kText,
         "program that starts the other machines")
        .one_of("pdsh|standard|openmpi|mvapich|mpich|nossh|slurm")
        .in(Section::kDeepSpeed),
    peer(Group::kDeepSpeed, "deepspeed_moe_layer_cls_names", kText,
         "layers of experts, separated by commas")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),
    peer(Group::kParallelism, "parallelism_config_dp_replicate_size", kInt,
         "data parallel replicas")
        .or_else("1")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_DP_REPLICATE_SIZE"),
    peer(Group::kParallelism, "parallelism_config_dp_shard_size", kInt,
         "ranks that share a replica by shards")
        .or_else("1")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_DP_SHARD_SIZE"),
    peer(Group::kParallelism, "parallelism_config_tp_size", kInt, "tensor parallel ranks")
        .or_else("1")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_TP_SIZE"),
    peer(Group::kParallelism, "parallelism_config_cp_size", kInt, "context parallel ranks")
        .or_else("1")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_CP_SIZE"),
    peer(Group::kParallelism, "parallelism_config_cp_backend", kText,
         "implementation of context parallelism")
        .or_else("torch")
        .one_of("torch")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_CP_BACKEND"),
    peer(Group::kParallelism, "parallelism_config_cp_comm_strategy", kText,
         "how context parallel ranks exchange")
        .or_else("allgather")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_CP_COMM_STRATEGY"),
    peer(Group::kParallelism, "parallelism_config_sp_size", kInt, "sequence parallel ranks")
        .or_else("1")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_SP_SIZE"),
    peer(Group::kParallelism, "parallelism_config_sp_backend", kText,
         "implementation of sequence parallelism")
        .or_else("deepspeed")
        .one_of("deepspeed")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_SP_BACKEND"),
    peer(Group::kParallelism, "parallelism_config_sp_seq_length", kText, "length of all sequences")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_SP_SEQ_LENGTH"),
    peer(Group::kParallelism, "parallelism_config_sp_seq_length_is_variable", kBool,
         "whether lengths differ")
        .or_else("true")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"),
    peer(Group::kParallelism, "parallelism_config_sp_attn_implementation", kText,
         "kernel of the attention")
        .or_else("sdpa")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION"),
    ours(Group::kParallelism, "parallelism_config_pp_size", kInt, "pipeline stages")
        .or_else("1")
        .in(Section::kParallelism)
        .exchanged_by("PARALLELISM_CONFIG_PP_SIZE"),
    peer(Group::kMegatron, "megatron_lm_tp_degree", kInt, "tensor parallel ranks")
        .or_else("1")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_TP_DEGREE"),
    peer(Group::kMegatron, "megatron_lm_use_custom_fsdp", kBool, "shard with the engine's own FSDP")
        .or_else("false")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_USE_CUSTOM_FSDP"),
    peer(Group::kMegatron, "megatron_lm_no_load_optim", kBool, "do not load the optimizer")
        .or_else("false")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_NO_LOAD_OPTIM"),
    peer(Group::kMegatron, "megatron_lm_eod_mask_loss", kBool,
         "leave the ends of documents out of the loss")
        .or_else("false")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_EOD_MASK_LOSS"),
    peer(Group::kMegatron, "megatron_lm_overlap_cpu_optimizer_d2h_h2d", kBool,
         "overlap the copies of a host optimizer")
        .or_else("false")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D"),
    peer(Group::kMegatron, "megatron_lm_no_save_optim", kBool, "do not save the optimizer")
        .or_else("false")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_NO_SAVE_OPTIM"),
    peer(Group::kMegatron, "megatron_lm_optimizer_cpu_offload", kBool,
         "keep the optimizer on the host")
        .or_else("false")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD"),
    peer(Group::kMegatron, "megatron_lm_use_precision_aware_optimizer", kBool,
         "keep optimizer state in low precision")
        .or_else("false")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER"),
    peer(Group::kMegatron, "megatron_lm_decoder_last_pipeline_num_layers", kInt,
         "layers of the last stage")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS"),
    peer(Group::kMegatron, "megatron_lm_pp_degree", kInt, "pipeline stages")
        .or_else("1")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_PP_DEGREE"),
    peer(Group::kMegatron, "megatron_lm_num_micro_batches", kInt, "micro-batches of a step")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_NUM_MICRO_BATCHES"),
    peer(Group::kMegatron, "megatron_lm_sequence_parallelism", kBool,
         "shard activations over the tensor parallel ranks")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_SEQUENCE_PARALLELISM"),
    peer(Group::kMegatron, "megatron_lm_recompute_activations", kBool,
         "recompute activations selectively")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_RECOMPUTE_ACTIVATIONS"),
    peer(Group::kMegatron, "megatron_lm_use_distributed_optimizer", kBool,
         "shard the optimizer over the data parallel ranks")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER"),
    peer(Group::kMegatron, "megatron_lm_gradient_clipping", kFloat,
         "largest norm of the gradients; 0: any")
        .or_else("1.0")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_GRADIENT_CLIPPING"),
    peer(Group::kMegatron, "megatron_lm_recompute_granularity", kText, "full or selective")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_RECOMPUTE_GRANULARITY"),
    peer(Group::kMegatron, "megatron_lm_recompute_method", kText, "uniform or block")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_RECOMPUTE_METHOD"),
    peer(Group::kMegatron, "megatron_lm_recompute_num_layers", kInt,
         "layers that are recomputed together")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_RECOMPUTE_NUM_LAYERS"),
    peer(Group::kMegatron, "megatron_lm_attention_backend", kText, "kernel of the attention")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_ATTENTION_BACKEND"),
    peer(Group::kMegatron, "megatron_lm_expert_model_parallel_size", kInt, "expert parallel ranks")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE"),
    peer(Group::kMegatron, "megatron_lm_context_parallel_size", kInt, "context parallel ranks")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_CONTEXT_PARALLEL_SIZE"),
    peer(Group::kMegatron, "megatron_lm_attention_dropout", kFloat, "dropout in the attention")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_ATTENTION_DROPOUT"),
    peer(Group::kMegatron, "megatron_lm_hidden_dropout", kFloat, "dropout elsewhere")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_HIDDEN_DROPOUT"),
    peer(Group::kMegatron, "megatron_lm_attention_softmax_in_fp32", kBool,
         "softmax of the attention in float32")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32"),
    peer(Group::kMegatron, "megatron_lm_expert_tensor_parallel_size", kInt,
         "tensor parallel ranks of an expert")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE"),
    peer(Group::kMegatron, "megatron_lm_calculate_per_token_loss", kBool,
         "divide the loss by the number of tokens")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS"),
    peer(Group::kMegatron, "megatron_lm_use_rotary_position_embeddings", kBool,
         "rotary position embeddings")
        .in(Section::kMegatron)
        .exchanged_by("MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS"),
    peer(Group::kTpu, "tpu", kFlag, "run on TPUs"),
    peer(Group::kTpu, "tpu_use_cluster", kFlag, "start on every worker of the TPU pod")
        .spelt("tpu_cluster")
        .negated_by("no_tpu_cluster")
        .in(Section::kTop),
    peer(Group::kTpu, "tpu_use_sudo", kFlag, "start with sudo on the workers of the pod")
        .in(Section::kTop),
    peer(Group::kTpu, "vm", kTexts, "a worker of the pod; may be repeated")
        .in(Section::kTop, "tpu_vm"),
    peer(Group::kTpu, "env", kTexts, "NAME=VALUE for the workers of the pod; may be repeated")
        .in(Section::kTop, "tpu_env"),
    peer(Group::kTpu, "downcast_bf16", kFlag, "on TPUs, double becomes float, and float bfloat16")
        .in(Section::kTop)
        .written_to("XLA_DOWNCAST_BF16"),
    file_only(Group::kTpu, "tpu_name", kText, "name of the TPU pod").in(Section::kTop),
    file_only(Group::kTpu, "tpu_zone", kText, "zone of the TPU pod").in(Section::kTop),
    file_only(Group::kTpu, "command_file", kText, "file of commands to run on the workers first")
        .in(Section::kTop),
    file_only(Group::kTpu, "commands", kTexts, "commands to run on the workers first")
        .in(Section::kTop),
    peer(Group::kSageMaker, "aws_access_key_id", kText,
         "name of the AWS key; never written to a file")
        .exchanged_by("AWS_ACCESS_KEY_ID"),
    peer(Group::kSageMaker, "aws_secret_access_key", kText, "the AWS key; never written to a file")
        .exchanged_by("AWS_SECRET_ACCESS_KEY"),
    file_only(Group::kSageMaker, "ec2_instance_type", kText, "type of the machines")
        .in(Section::kSageMaker),
    file_only(Group::kSageMaker, "iam_role_name", kText, "role of the job").in(Section::kSageMaker),
    file_only(Group::kSageMaker, "image_uri", kText, "container image").in(Section::kSageMaker),
    file_only(Group::kSageMaker, "profile", kText, "AWS profile").in(Section::kSageMaker),
    file_only(Group::kSageMaker, "region", kText, "AWS region")
        .or_else("us-east-1")
        .in(Section::kSageMaker),
    file_only(Group::kSageMaker, "base_job_name", kText, "beginning of the job's name")
        .in(Section::kSageMaker),
    file_only(Group::kSageMaker, "pytorch_version", kText, "version of PyTorch in the job")
        .or_else("1.10.2")
        .in(Section::kSageMaker),
    file_only(Group::kSageMaker, "transformers_version", kText,
              "version of Transformers in the job")
        .or_else("4.17.0")
        .in(Section::kSageMaker),
    file_only(Group::kSageMaker, "py_version", kText, "version of Python in the job")
        .or_else("py38")
        .in(Section::kSageMaker),
    file_only(Group::kSageMaker, "sagemaker_inputs_file", kText,
              "table of input channels, with tabs and a heading")
        .in(Section::kSageMaker),
    file_only(Group::kSageMaker, "sagemaker_metrics_file", kText,
              "table of metrics, with tabs and a heading")
        .in(Section::kSageMaker),
    file_only(Group::kSageMaker, "additional_args", kText, "more arguments of the job")
        .in(Section::kSageMaker),
};

}  // namespace

absl::Span<const Setting> all_settings() { return kRows; }

}  // namespace accelerate::launch::settings
