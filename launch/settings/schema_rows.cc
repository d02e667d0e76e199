#include <type_traits>

#include "launch/settings/schema.h"

namespace accelerate::launcher::settings {
namespace {

using enum Group;
using enum Status;
using enum ValueType;

// A row in the making: what most rows lack is not mentioned.
struct Row {
  Setting setting;

  constexpr operator Setting() const { return setting; }

  template <typename T>
  constexpr Row with(T Setting::* field, std::type_identity_t<T> value) const {
    Row row = *this;
    row.setting.*field = value;
    return row;
  }

  constexpr Row ours() const { return with(&Setting::origin, SettingOrigin::kOurs); }
  constexpr Row shortened(char letter) const { return with(&Setting::short_name, letter); }
  constexpr Row spelt(const char* flag) const { return with(&Setting::flag, flag); }
  constexpr Row or_spelt(const char* flag) const { return with(&Setting::other_flag, flag); }
  constexpr Row common() const { return with(&Setting::is_common, true); }
  constexpr Row negated_by(const char* flag) const { return with(&Setting::negated_flag, flag); }
  constexpr Row called(const char* value) const { return with(&Setting::value_name, value); }
  constexpr Row or_else(const char* value) const { return with(&Setting::default_value, value); }
  constexpr Row one_of(const char* choices) const { return with(&Setting::choices, choices); }
  constexpr Row in_any_case() const { return with(&Setting::is_in_any_case, true); }
  constexpr Row in(Section section) const { return with(&Setting::section, section); }
  constexpr Row at_top(const char* key = nullptr) const {
    return in(Section::kTop).with(&Setting::key, key);
  }
  // At the top of files of both kinds.
  constexpr Row in_both(const char* key = nullptr) const {
    return at_top(key).with(&Setting::in_sagemaker, true);
  }
  constexpr Row absent() const { return with(&Setting::status, kNotInThisVersion); }
  // The variable's value is the launcher's default, and ranks get it.
  constexpr Row exchanged_by(const char* name) const { return with(&Setting::variable, name); }
  constexpr Row written_to(const char* name) const {
    return exchanged_by(name).with(&Setting::variable_is_read, false);
  }
};

constexpr Row peer(Group group, const char* name, ValueType type, const char* help) {
  return {{.name = name,
           .type = type,
           .default_value = type == kFlag ? "false" : nullptr,
           .group = group,
           .help = help}};
}
constexpr Row ours(Group group, const char* name, ValueType type, const char* help) {
  return peer(group, name, type, help).ours();
}
constexpr Row file_only(Group group, const char* name, ValueType type, const char* help) {
  return peer(group, name, type, help).with(&Setting::origin, SettingOrigin::kFileOnly);
}

// Rows of a group whose keys stand in one section, each with its variable and its default.
template <Group group, Section section, Status status = kWorks>
constexpr Row engine_row(const char* name, const char* variable, ValueType type,
                         const char* otherwise, const char* help) {
  const Row row = peer(group, name, type, help)
                      .in(section)
                      .exchanged_by(variable)
                      .with(&Setting::status, status);
  return otherwise == nullptr ? row : row.or_else(otherwise);
}
constexpr auto& compile = engine_row<kCompile, Section::kDynamo, kNotInThisVersion>;
constexpr auto& fp8 = engine_row<kFp8, Section::kFp8>;
constexpr auto& fsdp = engine_row<kFsdp, Section::kFsdp>;
constexpr auto& deepspeed = engine_row<kDeepSpeed, Section::kDeepSpeed>;
constexpr auto& mesh = engine_row<kParallelism, Section::kParallelism>;
constexpr auto& megatron = engine_row<kMegatron, Section::kMegatron, kNotInThisVersion>;

// In the order of the groups.
constexpr Setting kRows[] = {
    peer(kProgram, "config_file", kText, "YAML or JSON file to take settings from")
        .called("FILE")
        .common(),
    ours(kProgram, "no_default_config", kFlag,
         "take no settings from the default configuration file"),
    peer(kProgram, "module", kFlag, "PROGRAM is a shared object to load").shortened('m').common(),
    peer(kProgram, "no_python", kFlag, "has no effect: programs are always started as they are"),
    peer(kProgram, "main_training_function", kText,
         "symbol to call in the shared object of --module")
        .at_top(),
    peer(kRanks, "cpu", kFlag, "run on the CPU even where there are devices")
        .in_both("use_cpu")
        .exchanged_by("ACCELERATE_USE_CPU")
        .common(),
    peer(kRanks, "multi_gpu", kFlag, "one rank per device; at least two ranks").common(),
    peer(kRanks, "mixed_precision", kText, "data type of the computation")
        .or_else("no")
        .one_of("no|fp16|bf16|fp8")
        .in_any_case()
        .in_both()
        .exchanged_by("ACCELERATE_MIXED_PRECISION")
        .common(),
    peer(kRanks, "num_processes", kInt, "ranks over all machines; default: one per device, else 1")
        .at_top()
        .written_to("WORLD_SIZE")
        .common(),
    ours(kRanks, "nproc_per_node", kInt, "ranks of each machine, in place of --num_processes"),
    peer(kRanks, "gradient_accumulation_steps", kInt, "micro-batches of a step")
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
        .common(),
    peer(kRanks, "num_cpu_threads_per_process", kInt,
         "threads of a rank; default: see launching.md")
        .written_to("OMP_NUM_THREADS")
        .common(),
    peer(kRanks, "enable_cpu_affinity", kFlag, "bind each rank to the cores near its device")
        .in_both()
        .exchanged_by("ACCELERATE_CPU_AFFINITY"),
    peer(kRanks, "use_deepspeed", kFlag,
         "shard optimizer, gradients and parameters in stages (ZeRO)")
        .exchanged_by("ACCELERATE_USE_DEEPSPEED"),
    peer(kRanks, "use_fsdp", kFlag, "shard parameters (FSDP)").exchanged_by("ACCELERATE_USE_FSDP"),
    peer(kRanks, "use_parallelism_config", kFlag, "arrange the ranks in a mesh; see parallelism.md")
        .exchanged_by("ACCELERATE_USE_PARALLELISM_CONFIG"),
    peer(kRanks, "use_megatron_lm", kFlag,
         "tensor, pipeline and sequence parallelism in the manner of Megatron-LM")
        .exchanged_by("ACCELERATE_USE_MEGATRON_LM")
        .absent(),
    peer(kRanks, "gpu_ids", kText, "devices of this machine, as in 0,2, or all").in_both().common(),
    file_only(kRanks, "compute_environment", kText, "where the run is")
        .or_else("LOCAL_MACHINE")
        .one_of("LOCAL_MACHINE|AMAZON_SAGEMAKER")
        .in_both(),
    file_only(kRanks, "distributed_type", kText, "kind of the run").in_both(),
    peer(kMachines, "num_machines", kInt, "machines of the run")
        .in_both()
        .written_to("GROUP_WORLD_SIZE")
        .common(),
    ours(kMachines, "standalone", kFlag, "this machine alone, at any free port"),
    peer(kMachines, "same_network", kFlag,
         "the rendezvous is at main_process_ip:main_process_port, as without it; excludes "
         "--rdzv_endpoint")
        .at_top(),
    peer(kMachines, "machine_rank", kInt, "number of this machine, from 0")
        .at_top()
        .written_to("GROUP_RANK")
        .or_spelt("node_rank")
        .common(),
    peer(kMachines, "main_process_ip", kText, "name or address of machine 0")
        .at_top()
        .written_to("MASTER_ADDR")
        .or_spelt("master_addr")
        .common(),
    peer(kMachines, "main_process_port", kInt,
         "port of machine 0; 0: any free one; default: 29500, on one machine any free one")
        .at_top()
        .written_to("MASTER_PORT")
        .or_spelt("master_port")
        .common(),
    peer(kMachines, "rdzv_backend", kText,
         "rendezvous of machines: static, or c10d where they may come and go")
        .or_else("static")
        .at_top()
        .common(),
    peer(kMachines, "rdzv_conf", kText, "key=value,... of the rendezvous"),
    peer(kMachines, "mpirun_hostfile", kText, "start with mpirun on the machines in this file")
        .called("FILE")
        .in(Section::kMpirun),
    ours(kMachines, "nnodes", kText,
         "machines that may take part; a range with --rdzv_backend c10d")
        .called("MIN:MAX")
        .common(),
    ours(kMachines, "rdzv_endpoint", kText,
         "place of the rendezvous, an IPv6 address in brackets; default: main_process_ip and "
         "main_process_port")
        .called("HOST:PORT")
        .common(),
    ours(kMachines, "rdzv_id", kText, "name of the run; a rendezvous takes machines of one run")
        .or_else("none"),
    ours(kMachines, "local_addr", kText, "address of this machine as the others reach it"),
    ours(kMachines, "slurm", kFlag,
         "start with srun; found by itself inside an allocation of several machines")
        .negated_by("no_slurm"),
    peer(kLogs, "quiet", kFlag, "when the run fails, only pass on the exit code")
        .shortened('q')
        .common(),
    peer(kLogs, "tee", kText,
         "streams that go to the console as well as to files: 0 none, 1 out, 2 err, 3 both, or by "
         "rank as in 0:3,1:1")
        .shortened('t')
        .or_else("0")
        .common(),
    peer(kLogs, "log_dir", kText, "folder for the output of each rank").called("DIR").common(),
    peer(kLogs, "role", kText, "name of this group of ranks in messages").or_else("default"),
    peer(kLogs, "max_restarts", kInt, "how often to start the ranks anew after a failure")
        .or_else("0")
        .common(),
    peer(kLogs, "monitor_interval", kFloat,
         "seconds within which machines that join an elastic run are added together; failures are "
         "noticed at once")
        .or_else("0.1"),
    peer(kLogs, "debug", kFlag, "compare collectives between ranks before they run")
        .in_both()
        .exchanged_by("ACCELERATE_DEBUG_MODE")
        .common(),
    ours(kLogs, "redirects", kText, "streams that go to files only; as --tee").or_else("0"),
    ours(kLogs, "local_ranks_filter", kText,
         "the only ranks of this machine whose output is shown, as in 0,1"),
    ours(kLogs, "kill_grace", kInt, "seconds from asking ranks to stop to killing them"),
    ours(kLogs, "no_preflight", kFlag, "skip the checks before the start"),
    ours(kSimulation, "simulate", kText,
         "run on a simulated cluster inside one process, for example 2x4 or 2x4:h100")
        .called("SPEC")
        .at_top()
        .written_to("ACCELERATE_SIMULATE")
        .common(),
    ours(kSimulation, "simulate_seed", kText, "scheduler seed of the simulated run")
        .written_to("ACCELERATE_SIMULATE_SEED"),
    ours(kSimulation, "seeds", kText,
         "repeat the simulated run with each seed, as 0:50 with 0 to 49, and tell which failed; "
         "with --report each has a folder of its own in DIR")
        .called("FIRST:END"),
    ours(kSimulation, "sweep", kText,
         "run the program on each of these simulated clusters, between semicolons as in "
         "\"2x8:h100;4x8:h100\", and print a table of step times, MFU and memory")
        .called("CLUSTERS"),
    ours(kSimulation, "fit", kText,
         "find the smallest part of this simulated cluster on which the program fits, as in "
         "128x8:h100")
        .called("CLUSTER"),
    ours(kSimulation, "tokens_per_sample", kInt,
         "length of a sequence, for the tokens per second in the table of --sweep and --fit"),
    ours(kSimulation, "csv", kText, "where --sweep and --fit write their table as CSV")
        .called("FILE"),
    ours(kSimulation, "no_detect", kText,
         "detectors to turn off in the simulated run: races, leaks, drift, between commas")
        .written_to("ACCELERATE_SIMULATE_NO_DETECT"),
    ours(kSimulation, "simulate_numerics", kText,
         "what the simulated run computes: shapes gives times and memory without the values of "
         "large tensors, for models that do not fit on this machine")
        .one_of("real|shapes")
        .or_spelt("numerics")
        .written_to("ACCELERATE_SIMULATE_NUMERICS"),
    ours(kSimulation, "simulate_unknown_values", kText,
         "what a program gets that reads a value which --simulate_numerics shapes does not compute")
        .one_of("error|nan")
        .written_to("ACCELERATE_SIMULATE_UNKNOWN_VALUES"),
    ours(kSimulation, "simulate_fold", kFlag,
         "execute one of the ranks that do the same, and count it for the others; needs "
         "--simulate_numerics shapes")
        .or_spelt("fold")
        .written_to("ACCELERATE_SIMULATE_FOLD"),
    ours(kSimulation, "report", kText,
         "where the simulated run writes report.html, trace.json and summary.json")
        .called("DIR")
        .written_to("ACCELERATE_SIMULATE_REPORT")
        .common(),
    ours(kLook, "print_config", kFlag,
         "show the settings that are not the defaults, and where they came from; start nothing; "
         "--print_config=all: every setting")
        .common(),
    ours(kLook, "dry_run", kFlag, "show what would be started; start nothing").common(),
    compile("dynamo_backend", "ACCELERATE_DYNAMO_BACKEND", kText, "no", "compiler of the model")
        .one_of("no|eager|aot_eager|inductor|aot_ts_nvfuser|nvprims_nvfuser|cudagraphs|ofi|fx2trt|"
                "onnxrt|tensorrt|aot_torchxla_trace_once|torhchxla_trace_once|tvm")
        .in_any_case(),
    compile("dynamo_mode", "ACCELERATE_DYNAMO_MODE", kText, "default",
            "what the compiler optimises for")
        .one_of("default|reduce-overhead|max-autotune"),
    compile("dynamo_use_fullgraph", "ACCELERATE_DYNAMO_USE_FULLGRAPH", kFlag, nullptr,
            "the model must compile into one graph"),
    compile("dynamo_use_dynamic", "ACCELERATE_DYNAMO_USE_DYNAMIC", kFlag, nullptr,
            "compile for sizes that change"),
    compile("dynamo_use_regional_compilation", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", kFlag,
            nullptr, "compile repeated blocks once"),
    fp8("fp8_backend", "ACCELERATE_FP8_BACKEND", kText, nullptr, "library of the 8-bit kernels")
        .one_of("ao|te|msamp")
        .in_any_case(),
    fp8("fp8_use_autocast_during_eval", "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", kFlag, nullptr,
        "8 bits in evaluation too"),
    fp8("fp8_margin", "ACCELERATE_FP8_MARGIN", kInt, "0", "margin of the scaling factor"),
    fp8("fp8_interval", "ACCELERATE_FP8_INTERVAL", kInt, "1", "steps between two scaling factors"),
    fp8("fp8_format", "ACCELERATE_FP8_FORMAT", kText, "HYBRID", "number format")
        .one_of("HYBRID|E4M3|E5M2")
        .in_any_case(),
    fp8("fp8_amax_history_len", "ACCELERATE_FP8_AMAX_HISTORY_LEN", kInt, "1024",
        "steps that are looked back at for a scaling factor"),
    fp8("fp8_amax_compute_algo", "ACCELERATE_FP8_AMAX_COMPUTE_ALGO", kText, "most_recent",
        "how a scaling factor follows from them")
        .one_of("max|most_recent")
        .in_any_case(),
    fp8("fp8_override_linear_precision", nullptr, kBools, "false,false,false",
        "higher precision in forward, input gradient, weight gradient: three booleans"),
    fp8("fp8_opt_level", "ACCELERATE_FP8_OPT_LEVEL", kText, "O2", "which parts are in 8 bits")
        .one_of("O1|O2"),
    fp8("fp8_enable_fsdp_float8_all_gather", "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", kBool,
        "true", "gather shards in 8 bits"),
    fp8("fp8_pad_inner_dim", "ACCELERATE_FP8_PAD_INNER_DIM", kBool, "true",
        "pad matrices to sizes that the kernels take"),
    fsdp("fsdp_version", "FSDP_VERSION", kText, "1", "1 or 2").one_of("1|2"),
    fsdp("fsdp_offload_params", "FSDP_OFFLOAD_PARAMS", kBool, "false", "keep shards on the host"),
    fsdp("fsdp_min_num_params", "FSDP_MIN_NUM_PARAMS", kInt, "100000000",
         "smallest module that is wrapped by size"),
    fsdp("fsdp_sharding_strategy", "FSDP_SHARDING_STRATEGY", kText, "FULL_SHARD",
         "version 1: what is sharded"),
    fsdp("fsdp_reshard_after_forward", "FSDP_RESHARD_AFTER_FORWARD", kText, "true",
         "version 2: true, false or a number of ranks; version 1: a strategy"),
    fsdp("fsdp_auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY", kText, nullptr,
         "which modules are wrapped"),
    fsdp("fsdp_transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP", kText, nullptr,
         "layers to wrap, separated by commas"),
    fsdp("fsdp_backward_prefetch", "FSDP_BACKWARD_PREFETCH", kText, nullptr,
         "version 1: when the next shards are fetched"),
    fsdp("fsdp_state_dict_type", "FSDP_STATE_DICT_TYPE", kText, nullptr,
         "how checkpoints are written"),
    fsdp("fsdp_forward_prefetch", "FSDP_FORWARD_PREFETCH", kBool, "false",
         "version 1: has no effect, forward passes fetch the next shards in any case"),
    fsdp("fsdp_use_orig_params", "FSDP_USE_ORIG_PARAMS", kBool, "true",
         "version 1: show the original parameters"),
    fsdp("fsdp_cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING", kBool, "true",
         "only rank 0 needs the weights when the model is prepared"),
    fsdp("fsdp_sync_module_states", "FSDP_SYNC_MODULE_STATES", kBool, "true",
         "version 1: other ranks than 0 need no weights; all take those of rank 0 in any case"),
    fsdp("fsdp_activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", kBool, "false",
         "recompute activations in the backward pass"),
    fsdp("fsdp_activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", kBool,
         "false",
         "version 2: keep the inputs of recomputed layers on the host; needs "
         "fsdp_activation_checkpointing"),
    fsdp("fsdp_ignored_modules", "FSDP_IGNORED_MODULES", kText, nullptr,
         "modules that are not sharded, as a pattern")
        .ours(),
    deepspeed("deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE", kText, nullptr,
              "JSON file of the ZeRO engine")
        .called("FILE"),
    deepspeed("zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE", kInt, nullptr,
              "what is sharded: 0 nothing, 1 optimizer, 2 and gradients, 3 and parameters")
        .one_of("0|1|2|3"),
    deepspeed("offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", kText,
              nullptr, "where the optimizer keeps its state")
        .one_of("none|cpu|nvme"),
    deepspeed("offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", kText, nullptr,
              "where parameters are kept; stage 3")
        .one_of("none|cpu|nvme"),
    deepspeed("offload_optimizer_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
              kText, nullptr, "folder for the optimizer state on nvme"),
    deepspeed("offload_param_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", kText,
              nullptr, "folder for parameters on nvme"),
    deepspeed("gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", kFloat, nullptr,
              "largest norm of the gradients"),
    deepspeed("zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT", kBool, nullptr,
              "stage 3: has no effect, an empty model is divided as it gets its values in any "
              "case"),
    deepspeed("zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", kBool,
              nullptr, "save whole 16-bit weights; stage 3"),
    deepspeed("deepspeed_hostfile", nullptr, kText, nullptr,
              "file of the machines and their slots, for DeepSpeed's own launcher")
        .called("FILE"),
    deepspeed("deepspeed_exclusion_filter", nullptr, kText, nullptr,
              "machines and slots not to use, as in h1@h2:0,2"),
    deepspeed("deepspeed_inclusion_filter", nullptr, kText, nullptr,
              "the only machines and slots to use"),
    deepspeed("deepspeed_multinode_launcher", nullptr, kText, nullptr,
              "program that starts the other machines")
        .one_of("pdsh|standard|openmpi|mvapich|mpich|nossh|slurm"),
    deepspeed("deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", kText,
              nullptr, "layers of experts, separated by commas"),
    mesh("parallelism_config_dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", kInt, "1",
         "data parallel replicas"),
    mesh("parallelism_config_dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE", kInt, "1",
         "ranks among which a replica's parameters are divided"),
    mesh("parallelism_config_tp_size", "PARALLELISM_CONFIG_TP_SIZE", kInt, "1",
         "tensor parallel ranks")
        .absent(),
    mesh("parallelism_config_cp_size", "PARALLELISM_CONFIG_CP_SIZE", kInt, "1",
         "context parallel ranks; needs --use_fsdp --fsdp_version 2")
        .absent(),
    mesh("parallelism_config_cp_backend", "PARALLELISM_CONFIG_CP_BACKEND", kText, "torch",
         "implementation of context parallelism")
        .one_of("torch")
        .absent(),
    mesh("parallelism_config_cp_comm_strategy", "PARALLELISM_CONFIG_CP_COMM_STRATEGY", kText,
         "allgather", "how context parallel ranks exchange")
        .absent(),
    mesh("parallelism_config_sp_size", "PARALLELISM_CONFIG_SP_SIZE", kInt, "1",
         "sequence parallel ranks")
        .absent(),
    mesh("parallelism_config_sp_backend", "PARALLELISM_CONFIG_SP_BACKEND", kText, "deepspeed",
         "implementation of sequence parallelism")
        .one_of("deepspeed")
        .absent(),
    mesh("parallelism_config_sp_seq_length", "PARALLELISM_CONFIG_SP_SEQ_LENGTH", kText, nullptr,
         "length of all sequences")
        .absent(),
    mesh("parallelism_config_sp_seq_length_is_variable",
         "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", kBool, "true", "whether lengths differ")
        .absent(),
    mesh("parallelism_config_sp_attn_implementation", "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION",
         kText, "sdpa", "kernel of the attention")
        .absent(),
    mesh("parallelism_config_pp_size", "PARALLELISM_CONFIG_PP_SIZE", kInt, "1", "pipeline stages")
        .ours()
        .absent(),
    mesh("parallelism_config_pp_placement", "PARALLELISM_CONFIG_PP_PLACEMENT", kText, "outermost",
         "place of the pipeline among the axes")
        .one_of("outermost|inside_dp_replicate")
        .ours()
        .absent(),
    megatron("megatron_lm_tp_degree", "MEGATRON_LM_TP_DEGREE", kInt, "1", "tensor parallel ranks"),
    megatron("megatron_lm_use_custom_fsdp", "MEGATRON_LM_USE_CUSTOM_FSDP", kBool, "false",
             "shard with the engine's own FSDP"),
    megatron("megatron_lm_no_load_optim", "MEGATRON_LM_NO_LOAD_OPTIM", kBool, "false",
             "do not load the optimizer"),
    megatron("megatron_lm_eod_mask_loss", "MEGATRON_LM_EOD_MASK_LOSS", kBool, "false",
             "leave the ends of documents out of the loss"),
    megatron("megatron_lm_overlap_cpu_optimizer_d2h_h2d",
             "MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D", kBool, "false",
             "overlap the copies of a host optimizer"),
    megatron("megatron_lm_no_save_optim", "MEGATRON_LM_NO_SAVE_OPTIM", kBool, "false",
             "do not save the optimizer"),
    megatron("megatron_lm_optimizer_cpu_offload", "MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD", kBool,
             "false", "keep the optimizer on the host"),
    megatron("megatron_lm_use_precision_aware_optimizer",
             "MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER", kBool, "false",
             "keep optimizer state in low precision"),
    megatron("megatron_lm_decoder_last_pipeline_num_layers",
             "MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS", kInt, nullptr,
             "layers of the last stage"),
    megatron("megatron_lm_pp_degree", "MEGATRON_LM_PP_DEGREE", kInt, "1", "pipeline stages"),
    megatron("megatron_lm_num_micro_batches", "MEGATRON_LM_NUM_MICRO_BATCHES", kInt, nullptr,
             "micro-batches of a step"),
    megatron("megatron_lm_sequence_parallelism", "MEGATRON_LM_SEQUENCE_PARALLELISM", kBool, nullptr,
             "shard activations over the tensor parallel ranks"),
    megatron("megatron_lm_recompute_activations", "MEGATRON_LM_RECOMPUTE_ACTIVATIONS", kBool,
             nullptr, "recompute activations selectively"),
    megatron("megatron_lm_use_distributed_optimizer", "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER",
             kBool, nullptr, "shard the optimizer over the data parallel ranks"),
    megatron("megatron_lm_gradient_clipping", "MEGATRON_LM_GRADIENT_CLIPPING", kFloat, "1.0",
             "largest norm of the gradients; 0: any"),
    megatron("megatron_lm_recompute_granularity", "MEGATRON_LM_RECOMPUTE_GRANULARITY", kText,
             nullptr, "full or selective"),
    megatron("megatron_lm_recompute_method", "MEGATRON_LM_RECOMPUTE_METHOD", kText, nullptr,
             "uniform or block"),
    megatron("megatron_lm_recompute_num_layers", "MEGATRON_LM_RECOMPUTE_NUM_LAYERS", kInt, nullptr,
             "layers that are recomputed together"),
    megatron("megatron_lm_attention_backend", "MEGATRON_LM_ATTENTION_BACKEND", kText, nullptr,
             "kernel of the attention"),
    megatron("megatron_lm_expert_model_parallel_size", "MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE",
             kInt, nullptr, "expert parallel ranks"),
    megatron("megatron_lm_context_parallel_size", "MEGATRON_LM_CONTEXT_PARALLEL_SIZE", kInt,
             nullptr, "context parallel ranks"),
    megatron("megatron_lm_attention_dropout", "MEGATRON_LM_ATTENTION_DROPOUT", kFloat, nullptr,
             "dropout in the attention"),
    megatron("megatron_lm_hidden_dropout", "MEGATRON_LM_HIDDEN_DROPOUT", kFloat, nullptr,
             "dropout elsewhere"),
    megatron("megatron_lm_attention_softmax_in_fp32", "MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32",
             kBool, nullptr, "softmax of the attention in float32"),
    megatron("megatron_lm_expert_tensor_parallel_size", "MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE",
             kInt, nullptr, "tensor parallel ranks of an expert"),
    megatron("megatron_lm_calculate_per_token_loss", "MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS", kBool,
             nullptr, "divide the loss by the number of tokens"),
    megatron("megatron_lm_use_rotary_position_embeddings",
             "MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS", kBool, nullptr,
             "rotary position embeddings"),
    peer(kTpu, "tpu", kFlag, "run on TPUs"),
    peer(kTpu, "tpu_use_cluster", kFlag, "start on every worker of the TPU pod")
        .spelt("tpu_cluster")
        .negated_by("no_tpu_cluster")
        .at_top(),
    peer(kTpu, "tpu_use_sudo", kFlag, "start with sudo on the workers of the pod").at_top(),
    peer(kTpu, "vm", kTexts, "a worker of the pod, or several between commas; may be repeated")
        .called("NAME")
        .at_top("tpu_vm"),
    peer(kTpu, "env", kTexts, "variable for the workers of the pod; may be repeated")
        .called("NAME=VALUE")
        .at_top("tpu_env"),
    peer(kTpu, "downcast_bf16", kFlag, "on TPUs, double becomes float, and float bfloat16")
        .at_top()
        .written_to("XLA_DOWNCAST_BF16")
        .absent(),
    file_only(kTpu, "tpu_name", kText, "name of the TPU pod").at_top(),
    file_only(kTpu, "tpu_zone", kText, "zone of the TPU pod").at_top(),
    file_only(kTpu, "command_file", kText, "file of commands to run on the workers first").at_top(),
    file_only(kTpu, "commands", kTexts, "commands to run on the workers first").at_top(),
    peer(kSageMaker, "aws_access_key_id", kText,
         "name of the AWS key, for the aws program; never written to a file")
        .exchanged_by("AWS_ACCESS_KEY_ID"),
    peer(kSageMaker, "aws_secret_access_key", kText,
         "the AWS key, for the aws program; never written to a file")
        .exchanged_by("AWS_SECRET_ACCESS_KEY"),
    file_only(kSageMaker, "ec2_instance_type", kText, "type of the machines")
        .in(Section::kSageMaker),
    file_only(kSageMaker, "iam_role_name", kText,
              "role of the job: its ARN, or its name, which aws is asked about")
        .in(Section::kSageMaker),
    file_only(kSageMaker, "image_uri", kText, "container image").in(Section::kSageMaker),
    file_only(kSageMaker, "profile", kText, "AWS profile").in(Section::kSageMaker),
    file_only(kSageMaker, "region", kText, "AWS region")
        .or_else("us-east-1")
        .in(Section::kSageMaker),
    file_only(kSageMaker, "base_job_name", kText, "beginning of the job's name")
        .in(Section::kSageMaker),
    file_only(kSageMaker, "pytorch_version", kText,
              "has no effect: image_uri names the container with all that is in it")
        .or_else("1.10.2")
        .in(Section::kSageMaker),
    file_only(kSageMaker, "transformers_version", kText, "has no effect, as pytorch_version")
        .or_else("4.17.0")
        .in(Section::kSageMaker),
    file_only(kSageMaker, "py_version", kText, "has no effect, as pytorch_version")
        .or_else("py38")
        .in(Section::kSageMaker),
    file_only(kSageMaker, "sagemaker_inputs_file", kText,
              "table of input channels, with tabs and a heading")
        .in(Section::kSageMaker),
    file_only(kSageMaker, "sagemaker_metrics_file", kText,
              "table of metrics, with tabs and a heading")
        .in(Section::kSageMaker),
    file_only(kSageMaker, "additional_args", kText, "more arguments of the job")
        .in(Section::kSageMaker),
};

}  // namespace

absl::Span<const Setting> all_settings() { return kRows; }

}  // namespace accelerate::launcher::settings
