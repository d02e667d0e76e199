#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "accelerate/base/compile_backends.h"
#include "accelerate/base/enums.h"
#include "accelerate/options/rows.h"

namespace accelerate::options {
namespace {

using enum Group;
using enum Spelling;
using enum ValueType;

constexpr Family compile = {kCompile, Section::kDynamo, "ACCELERATE_"};
constexpr Family fp8 = {kFp8, Section::kFp8, "ACCELERATE_"};
constexpr Family fsdp = {kFsdp, Section::kFsdp, ""};
constexpr Family deepspeed = {kDeepSpeed, Section::kDeepSpeed, "ACCELERATE_DEEPSPEED_",
                              /*is_of_field=*/true};
// For DeepSpeed's own launcher.
constexpr Family zero_launch = {kDeepSpeed, Section::kDeepSpeed, nullptr};
constexpr Family mesh = {kParallelism, Section::kParallelism, ""};
constexpr Family megatron = {kMegatron, Section::kMegatron, ""};
constexpr Family megatron_field = {kMegatron, Section::kMegatron, "", /*is_of_field=*/true};

// The names of DynamoBackend in small letters and a misspelt one, between `|`, with a zero at the
// end.
constexpr auto kCompilers = [] {
  constexpr size_t kSize = [] {
    size_t size = std::string_view(kMisspeltTraceOnce).size() + 1;
    for (const std::string_view name : EnumTable<DynamoBackend>::kTexts) size += name.size() + 1;
    return size;
  }();
  std::array<char, kSize> names{};
  size_t at = 0;
  for (const std::string_view name : EnumTable<DynamoBackend>::kTexts) {
    for (const char letter : name) {
      const bool is_capital = letter >= 'A' && letter <= 'Z';
      names[at++] = is_capital ? static_cast<char>(letter - 'A' + 'a') : letter;
    }
    names[at++] = '|';
  }
  for (const char letter : std::string_view(kMisspeltTraceOnce)) names[at++] = letter;
  return names;
}();
// Whoever is asked chooses among those that work, and compiles.
constexpr char kOffered[] = "eager|aot_eager|inductor";

// Conditions of questions.
constexpr char kMakesZero[] = "!deepspeed_config_file";
constexpr char kDividesGradients[] = "zero_stage=2|3";
constexpr char kByOwnLauncher[] = "deepspeed_multinode_launcher!=standard";
constexpr char kFirst[] = "fsdp_version=1";
constexpr char kSecond[] = "fsdp_version=2";
constexpr char kByAo[] = "fp8_backend=ao";
constexpr char kRecipe[] = "fp8_use_autocast_during_eval";
constexpr char kCompiler[] = "dynamo_mode";

constexpr Option kEngineRows[] = {
    compile("dynamo_backend", kText, "no", "compiler of the model",
            {"Which compiler?", "inductor", nullptr, kOffered})
        .in_any_case(kCompilers.data())
        .written_as(kUpper),
    compile("dynamo_mode", kText, "default", "what the compiler optimises for",
            {"What should it optimise for?", nullptr, nullptr, nullptr,
             "Change what it does by default?"})
        .one_of("default|reduce-overhead|max-autotune|max-autotune-no-cudagraphs"),
    compile("dynamo_use_fullgraph", kFlag, nullptr, "the model must compile into one graph",
            {"Must the model compile into one graph?", "no", kCompiler})
        .written_as(kCapital)
        .fills("fullgraph"),
    compile("dynamo_use_dynamic", kFlag, nullptr, "compile for sizes that change",
            {"Do sizes change from step to step?", "no", kCompiler})
        .written_as(kCapital)
        .fills("dynamic")
        .field_or(""),
    compile("dynamo_use_regional_compilation", kFlag, nullptr, "compile repeated blocks once",
            {"?", "no", kCompiler})
        .written_as(kCapital),
    fp8("fp8_backend", kText, nullptr, "library of the 8-bit kernels",
        {"Which library for 8 bits?", "te"})
        .in_any_case("ao|te|msamp"),
    fp8("fp8_use_autocast_during_eval", kFlag, nullptr, "8 bits in evaluation too",
        {"?", "no", "fp8_backend=te", nullptr, "Change what it does by default?"})
        .written_as(kCapital),
    fp8("fp8_margin", kInt, "0", "margin of the scaling factor", {"?", "0", kRecipe}),
    fp8("fp8_interval", kInt, "1", "steps between two scaling factors", {"?", "1", kRecipe})
        .between(1, INT32_MAX),
    fp8("fp8_format", kText, "HYBRID", "number format", {"Which number format?", nullptr, kRecipe})
        .in_any_case("HYBRID|E4M3|E5M2")
        .fills("fp8_format"),
    fp8("fp8_amax_history_len", kInt, "1024", "last steps whose maxima give a scaling factor",
        {"Steps that are looked back at?", "1024", kRecipe})
        .once("amax_history_length")
        .between(1, INT32_MAX),
    fp8("fp8_amax_compute_algo", kText, "most_recent", "how a scaling factor follows from them",
        {"How does a scaling factor follow from them?", "most_recent", kRecipe})
        .once("amax_compute_algorithm")
        .in_any_case("max|most_recent"),
    fp8("fp8_override_linear_precision", kBools, "false,false,false",
        "higher precision in forward, input gradient, weight gradient: three booleans",
        {"In ", nullptr, kRecipe, "forward|the input's gradient|the weight's gradient",
         "Higher precision in some linear layers' products?"})
        .without_variable(),
    fp8("fp8_opt_level", kText, "O2", "which parts are in 8 bits", {"?", "O2", "fp8_backend=msamp"})
        .once("optimization_level")
        .one_of("O1|O2"),
    fp8("fp8_enable_fsdp_float8_all_gather", kBool, "true", "gather shards in 8 bits",
        {"?", "yes", kByAo})
        .written_as(kDigit),
    fp8("fp8_pad_inner_dim", kBool, "true", "pad matrices to sizes that the kernels take",
        {"?", "yes", kByAo})
        .written_as(kDigit),
    fp8("fp8_use_mxfp8_block_scaling", kBool, nullptr, "a power of two as scale for each 32 values")
        .by_variable()
        .field_or("false"),
    fsdp("fsdp_version", kText, "1", "1 or 2", {"Which version of FSDP?", "2"})
        .one_of("1|2")
        .fills("fsdp_version"),
    fsdp("fsdp_reshard_after_forward", kText, "true",
         "version 2: true, false or a number of ranks; version 1: a strategy",
         {"Free parameters after the forward pass?", "yes", kSecond})
        .written_as(kLower),
    fsdp("fsdp_sharding_strategy", kText, "FULL_SHARD", "version 1: what is sharded",
         {"What is sharded?", nullptr, kFirst,
          "FULL_SHARD|SHARD_GRAD_OP|NO_SHARD|HYBRID_SHARD|HYBRID_SHARD_ZERO2"})
        .field_or(""),
    fsdp("fsdp_offload_params", kBool, "false", "keep shards on the host", {"?", "no"})
        .fills("cpu_offload"),
    fsdp("fsdp_auto_wrap_policy", kText, nullptr, "which modules are wrapped",
         {"Which modules are sharded by themselves?", nullptr, nullptr,
          "TRANSFORMER_BASED_WRAP|SIZE_BASED_WRAP|NO_WRAP"}),
    fsdp("fsdp_transformer_layer_cls_to_wrap", kText, nullptr,
         "layers to wrap, separated by commas",
         {"Class names of the layers, between commas", nullptr,
          "fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP", nullptr,
          "!The layers that the model says are never divided?"})
        .once("fsdp_transformer_cls_to_wrap")
        .exchanged_by("FSDP_TRANSFORMER_CLS_TO_WRAP")
        .fills("transformer_cls_names_to_wrap"),
    fsdp("fsdp_min_num_params", kInt, "100000000", "smallest module that is wrapped by size",
         {"Parameters of the smallest such module?", "100000000",
          "fsdp_auto_wrap_policy=SIZE_BASED_WRAP"})
        .between(0, INT64_MAX)
        .field_or("0"),
    fsdp("fsdp_backward_prefetch", kText, nullptr, "version 1: when the next shards are fetched",
         {"When are the next shards fetched in backward?", nullptr, kFirst,
          "BACKWARD_PRE|BACKWARD_POST|NO_PREFETCH"})
        .once("fsdp_backward_prefetch_policy|backward_prefetch_policy"),
    fsdp("fsdp_state_dict_type", kText, nullptr, "how checkpoints are written",
         {"How are checkpoints written?", nullptr, nullptr,
          "FULL_STATE_DICT|LOCAL_STATE_DICT@fsdp_version=1|SHARDED_STATE_DICT"}),
    fsdp("fsdp_forward_prefetch", kBool, "false",
         "version 1: has no effect, forward passes fetch the next shards in any case",
         {"Fetch the next shards in forward as well? No effect", "no", kFirst}),
    fsdp("fsdp_use_orig_params", kBool, "true", "version 1: show the original parameters",
         {"Show the original parameters?", "yes", kFirst})
        .field_or("false"),
    fsdp("fsdp_cpu_ram_efficient_loading", kBool, "true",
         "only rank 0 needs the weights when the model is prepared",
         {"Does only rank 0 read the weights?", "yes"})
        .field_or("false"),
    fsdp("fsdp_sync_module_states", kBool, "true",
         "version 1: other ranks than 0 need no weights; all take those of rank 0 in any case",
         {"Take the weights of rank 0? No effect", "yes",
          "fsdp_version=1&fsdp_cpu_ram_efficient_loading=false"})
        .field_or("false"),
    fsdp("fsdp_activation_checkpointing", kBool, "false",
         "recompute activations in the backward pass",
         {"Recompute activations in backward?", "no"}),
    fsdp("fsdp_activation_checkpointing_offload", kBool, "false",
         "version 2: keep the inputs of recomputed layers on the host; needs "
         "fsdp_activation_checkpointing")
        .since("1.15.0"),
    fsdp("fsdp_ignored_modules", kText, nullptr, "modules that are not sharded, as a pattern")
        .ours(),
    deepspeed("deepspeed_config_file", kText, nullptr, "JSON file of the ZeRO engine",
              {"Path of the JSON file", nullptr, nullptr, nullptr,
               "Do you have a JSON file for DeepSpeed?", true})
        .called("FILE")
        .exchanged_by("ACCELERATE_DEEPSPEED_CONFIG_FILE")
        .fills("hf_ds_config"),
    deepspeed("zero_stage", kInt, "2",
              "what is sharded: 0 nothing, 1 optimizer, 2 and gradients, 3 and parameters",
              {"Which stage of ZeRO?", "2", kMakesZero})
        .one_of("0|1|2|3"),
    deepspeed("offload_optimizer_device", kText, "none", "where the optimizer keeps its state",
              {"Where are the optimizer kept?", nullptr, kDividesGradients})
        .one_of("none|cpu|nvme"),
    deepspeed("offload_optimizer_nvme_path", kText, "none",
              "folder for the optimizer state on nvme",
              {"Folder on NVMe for the optimizer", "/nvme", "offload_optimizer_device=nvme",
               nullptr, nullptr, true}),
    deepspeed("offload_param_device", kText, "none", "where parameters are kept; stage 3",
              {"Where are the parameters kept?", nullptr, kDividesGradients})
        .one_of("none|cpu|nvme"),
    deepspeed("offload_param_nvme_path", kText, "none", "folder for parameters on nvme",
              {"Folder on NVMe for the parameters", "/nvme", "offload_param_device=nvme", nullptr,
               nullptr, true}),
    deepspeed("gradient_clipping", kFloat, "auto", "largest norm of the gradients",
              {"Largest norm", "1.0", kMakesZero, nullptr, "Clip gradients?"})
        .exchanged_by("ACCELERATE_GRADIENT_CLIPPING"),
    deepspeed("zero3_save_16bit_model", kBool, "false", "save whole 16-bit weights; stage 3",
              {"Save whole 16-bit weights?", "no", "zero_stage=3"}),
    deepspeed("zero3_init_flag", kBool, nullptr,
              "stage 3: has no effect, an empty model is divided as it gets its values in any case",
              {"Make models sharded (zero.Init)? For stage 3, no effect", "no"})
        .exchanged_by("ACCELERATE_DEEPSPEED_ZERO3_INIT"),
    deepspeed("deepspeed_moe_layer_cls_names", kText, nullptr,
              "layers of experts, separated by commas",
              {"Class names of these layers, between commas", nullptr, nullptr, nullptr,
               "Has the model layers of experts (MoE)?"})
        .exchanged_by("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES")
        .fills("transformer_moe_cls_names"),
    zero_launch("deepspeed_multinode_launcher", kText, nullptr,
                "program that starts the other machines",
                {"Which program starts the other machines?", "pdsh", "num_machines!=1"})
        .one_of("pdsh|standard|openmpi|mvapich|mpich|nossh|slurm"),
    // What is proposed is DeepSpeed's own default.
    zero_launch("deepspeed_hostfile", kText, nullptr,
                "file of the machines and their slots, for DeepSpeed's own launcher",
                {"File of the machines and their slots", "/job/hostfile", kByOwnLauncher, nullptr,
                 nullptr, true})
        .called("FILE"),
    zero_launch("deepspeed_exclusion_filter", kText, nullptr,
                "machines and slots not to use, as in h1@h2:0,2",
                {"Which, as in host1@host2:0,2", nullptr, kByOwnLauncher, nullptr,
                 "Leave some of them out?"}),
    zero_launch("deepspeed_inclusion_filter", kText, nullptr, "the only machines and slots to use",
                {"Which, as in host1@host2:0,2", nullptr,
                 "deepspeed_multinode_launcher!=standard&!deepspeed_exclusion_filter", nullptr,
                 "Use only some of them?"}),
    mesh("parallelism_config_dp_replicate_size", kInt, "1", "data parallel replicas", {"?", "1"})
        .between(1),
    mesh("parallelism_config_dp_shard_size", kInt, "1",
         "ranks among which a replica's parameters are divided",
         {"Ranks that share a replica by shards?"})
        .between(1),
    mesh("parallelism_config_tp_size", kInt, "1", "tensor parallel ranks", {"?", "1"}).between(1),
    mesh("parallelism_config_cp_size", kInt, "1", "context parallel ranks",
         {"Context parallel ranks?", "1"})
        .between(1),
    mesh("parallelism_config_cp_backend", kText, "torch", "implementation of context parallelism")
        .one_of("torch"),
    mesh("parallelism_config_cp_comm_strategy", kText, "allgather",
         "how context parallel ranks exchange",
         {"How do they exchange?", nullptr, "parallelism_config_cp_size!=1", "allgather|alltoall"}),
    mesh("parallelism_config_sp_size", kInt, "1", "sequence parallel ranks",
         {"Sequence parallel ranks?", "1", "parallelism_config_cp_size=1"})
        .between(1),
    mesh("parallelism_config_sp_backend", kText, "deepspeed",
         "implementation of sequence parallelism")
        .one_of("deepspeed"),
    mesh("parallelism_config_sp_seq_length", kText, nullptr, "length of all sequences"),
    mesh("parallelism_config_sp_seq_length_is_variable", kBool, "true", "whether lengths differ")
        .written_as(kCapital),
    mesh("parallelism_config_sp_attn_implementation", kText, "sdpa", "kernel of the attention")
        .field_or(""),
    mesh("parallelism_config_pp_size", kInt, "1",
         "ranks that have stages of a model, for programs that call train_batch")
        .between(1)
        .ours(),
    mesh("parallelism_config_pp_placement", kText, "outermost",
         "place of the pipeline among the axes")
        .one_of("outermost|inside_dp_replicate")
        .ours(),
    mesh("parallelism_config_pp_schedule", kText, "1f1b",
         "in which order stages compute; see pipelines.md")
        .one_of("gpipe|1f1b|interleaved|looped_bfs|zb_h1|zb_v")
        .ours(),
    mesh("parallelism_config_pp_stages_per_rank", kInt, "1",
         "stages of each rank, for schedules that have several")
        .between(1)
        .ours(),
    mesh("parallelism_config_pp_split_points", kText, nullptr,
         "parts of the model at which all stages but the first begin, between commas")
        .ours(),
    mesh("parallelism_config_pp_micro_batches", kInt, "1",
         "parts of a batch that go through the stages one behind the other")
        .between(1)
        .ours(),
    mesh("parallelism_config_pp_stage_bytes", kText, nullptr,
         "what each stage keeps of a micro-batch for its backward pass, as in 1.5GiB,1GiB, or once "
         "for all; --dry_run tells how much that is by rank")
        .without_variable()
        .ours(),
    mesh("parallelism_config_ep_size", kInt, "1",
         "of the ranks along dp_shard, cp and sp: how many divide the experts of a layer")
        .between(1)
        .ours(),
    megatron("megatron_lm_tp_degree", kInt, "1", "tensor parallel ranks", {"?", "1"}).between(1),
    megatron_field("megatron_lm_sequence_parallelism", kBool, "false",
                   "shard activations over the tensor parallel ranks",
                   {"Shard activations over them?", "yes", "megatron_lm_tp_degree!=1"})
        .once("megatron_lm_sequence_parallel"),
    megatron("megatron_lm_pp_degree", kInt, "1", "pipeline stages", {"?", "1"}).between(1),
    megatron_field("megatron_lm_num_micro_batches", kInt, "1", "micro-batches of a step",
                   {"?", "1", "megatron_lm_pp_degree!=1"}),
    megatron_field("megatron_lm_recompute_activations", kBool, "false",
                   "recompute activations selectively", {"?", "yes"}),
    megatron_field("megatron_lm_use_distributed_optimizer", kBool, "false",
                   "shard the optimizer over the data parallel ranks",
                   {"Shard the optimizer?", "yes"}),
    megatron("megatron_lm_gradient_clipping", kFloat, "1.0",
             "largest norm of the gradients; 0: any",
             {"Largest norm of the gradients; 0: any", "1.0"}),
    megatron("megatron_lm_use_custom_fsdp", kBool, "false", "shard with the engine's own FSDP"),
    megatron("megatron_lm_no_load_optim", kBool, "false", "do not load the optimizer"),
    megatron("megatron_lm_eod_mask_loss", kBool, "false",
             "leave the ends of documents out of the loss"),
    megatron("megatron_lm_overlap_cpu_optimizer_d2h_h2d", kBool, "false",
             "overlap the copies of a host optimizer"),
    megatron("megatron_lm_no_save_optim", kBool, "false", "do not save the optimizer"),
    megatron("megatron_lm_optimizer_cpu_offload", kBool, "false", "keep the optimizer on the host"),
    megatron("megatron_lm_use_precision_aware_optimizer", kBool, "false",
             "keep optimizer state in low precision"),
    megatron("megatron_lm_decoder_last_pipeline_num_layers", kInt, nullptr,
             "layers of the last stage"),
    megatron_field("megatron_lm_recompute_granularity", kText, "full", "full or selective"),
    megatron_field("megatron_lm_recompute_method", kText, "uniform", "uniform or block"),
    megatron_field("megatron_lm_recompute_num_layers", kInt, "1",
                   "layers that are recomputed together"),
    megatron_field("megatron_lm_attention_backend", kText, "true", "kernel of the attention"),
    megatron_field("megatron_lm_expert_model_parallel_size", kInt, "1", "expert parallel ranks"),
    megatron_field("megatron_lm_context_parallel_size", kInt, "1", "context parallel ranks"),
    megatron_field("megatron_lm_attention_dropout", kFloat, "0", "dropout in the attention"),
    megatron_field("megatron_lm_hidden_dropout", kFloat, "0", "dropout elsewhere"),
    megatron_field("megatron_lm_attention_softmax_in_fp32", kBool, "true",
                   "softmax of the attention in float32"),
    megatron_field("megatron_lm_expert_tensor_parallel_size", kInt, "1",
                   "tensor parallel ranks of an expert"),
    megatron_field("megatron_lm_calculate_per_token_loss", kBool, "true",
                   "divide the loss by the number of tokens"),
    megatron_field("megatron_lm_use_rotary_position_embeddings", kBool, "true",
                   "rotary position embeddings"),
};

}  // namespace

absl::Span<const Option> engine_rows() { return kEngineRows; }

}  // namespace accelerate::options
