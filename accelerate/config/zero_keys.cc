#include "accelerate/config/zero_keys.h"

#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/config/zero_key_rows.h"

namespace accelerate::internal {
namespace {

using zero::Block;
using zero::Json;
using zero::read_checkpointing;
using zero::read_cpu_offload;
using zero::read_opt_level;
using zero::read_pinning;

constexpr char kBoolean[] = "boolean";
constexpr char kWhole[] = "whole number";
constexpr char kNumber[] = "number";
constexpr char kText[] = "text";
constexpr char kObject[] = "object";
constexpr char kTrackers[] = "trackers log: see tracking.md";
constexpr char kProfile[] = "profiles are the Accelerator's: see profiling.md";
constexpr char kBuffers[] = "how this engine lays out its buffers does not depend on it";

void add_batches(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  const Block<> top(rows);
  top.honoured<&Z::train_batch_size>("train_batch_size",
                                     "samples of a step of all ranks; it must be the product of "
                                     "the next two and the number of shares of the data",
                                     1);
  top.honoured<&Z::train_micro_batch_size_per_gpu>(
      "train_micro_batch_size_per_gpu",
      "samples of a backward pass of a rank; `auto`: as the loaders", 1);
  top.honoured<&Z::gradient_accumulation_steps>(
      "gradient_accumulation_steps",
      "backward passes of a step; it takes precedence over the Accelerator's", 1);
  top.honoured<&Z::gradient_clipping>("gradient_clipping",
                                      "the largest norm of all gradients; 0: any", 0);
  top.honoured<&Z::communication_data_type>("communication_data_type",
                                            "what gradients are reduced in");
  top.honoured<&Z::prescale_gradients>(
      "prescale_gradients", "divide gradients by the number of ranks before they are summed");
  top.honoured<&Z::gradient_predivide_factor>("gradient_predivide_factor",
                                              "without `prescale_gradients`: what they are divided "
                                              "by before they are summed; by the rest afterwards",
                                              std::numeric_limits<double>::min());
}

void add_numbers(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  using F = ZeroFp16;
  const Block<&Z::fp16> fp16(rows, "fp16.");
  const Block<&Z::bf16> bf16(rows, "bf16.");
  const Block<&Z::msamp> msamp(rows, "msamp.");
  const Block<> top(rows);
  fp16.honoured<&F::enabled>("enabled", "compute in float16; `auto`: as `mixed_precision` says");
  fp16.without_effect("auto_cast", kBoolean, "the model's inputs are cast in any case");
  fp16.honoured<&F::loss_scale>("loss_scale", "the scale of the loss; 0: it adapts", 0);
  fp16.honoured<&F::initial_scale_power>("initial_scale_power", "it begins with 2 to this", 0, 126);
  fp16.honoured<&F::loss_scale_window>("loss_scale_window",
                                       "steps without an overflow after which it doubles", 1);
  fp16.honoured<&F::hysteresis>("hysteresis", "overflows after which it halves", 1);
  fp16.honoured<&F::consecutive_hysteresis>(
      "consecutive_hysteresis", "only overflows without a good step between them count");
  fp16.honoured<&F::min_loss_scale>("min_loss_scale",
                                    "it does not fall below; an overflow there is an error",
                                    std::numeric_limits<double>::min());
  fp16.refused("fp16_master_weights_and_grads", kBoolean,
               "the optimizer's own weights are float32 here");
  fp16.without_effect("fused_mode", kBoolean, "optimizers are always fused");
  bf16.honoured<&ZeroBf16::enabled>("enabled",
                                    "compute in bfloat16; `auto`: as `mixed_precision` says");
  bf16.honoured<&ZeroBf16::check_grad_overflow>("check_grad_overflow",
                                                "skip steps whose gradients are infinite or NaN");
  bf16.without_effect("immediate_grad_update", kBoolean,
                      "when gradients are added up does not change their sum");
  bf16.refused("bf16_master_weights_and_grads", kBoolean,
               "the optimizer's own weights are float32 here");
  bf16.refused("bf16_optimizer_states", kBoolean, "the optimizer's state is float32 here");
  msamp.honoured<&ZeroMsamp::enabled>(
      "enabled", "Linear layers, and gradients of their weights, in fp8: stages 0 to 2");
  rows.push_back({.info = {.key = "msamp.opt_level",
                           .type = "`O1` or `O2`",
                           .default_value = "O1",
                           .what = "O2: Adam's moments as well"},
                  .take = &read_opt_level});
  top.refused("amp", kObject, "Apex does not exist for C++; use fp16 or bf16");
  top.refused("torch_autocast", kObject, "use fp16 or bf16");
  top.refused("data_types.grad_accum_dtype", kText,
              "gradients are added up in the type of the parameters");
  top.refused("fp32_allreduce", kBoolean, "say `communication_data_type: fp32`");
  top.without_effect("seq_parallel_communication_data_type", kText, "no sequences are divided");
}

void add_optimizer(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  using O = ZeroOptimizer;
  const Block<> top(rows);
  const Block<&Z::optimizer> params(rows, "optimizer.params.");
  top.honoured<&Z::optimizer, &O::type>(
      "optimizer.type", "the optimizer, in place of the program's: prepare a `DummyOptim`");
  params.honoured<&O::lr>(
      "lr", "the learning rate, of Adagrad 0.01 by default; `auto`: the `DummyOptim`'s", 0);
  params.of({"Adam", "AdamW", "Lion", "Lamb"}).honoured<&O::betas>("betas", "decay of the moments");
  params.of({"Adam", "AdamW", "Adagrad", "Lamb"})
      .honoured<&O::eps>("eps", "added to the denominator, of Adagrad 1e-10 by default", 0);
  params.honoured<&O::weight_decay>("weight_decay",
                                    "the decay of weights; `auto`: the `DummyOptim`'s", 0);
  params.of({"Adam", "AdamW", "Lamb"})
      .honoured<&O::bias_correction>("bias_correction",
                                     "correct the first steps' moments; only Lamb may do without");
  params.of({"Adam", "AdamW"}).honoured<&O::amsgrad>("amsgrad", "divide by the largest moment");
  params.of({"Adam", "AdamW"})
      .honoured<&O::adam_w_mode>("adam_w_mode", "decay weights as AdamW does, which always does");
  params.without_effect("torch_adam", kBoolean,
                        "there is one implementation, with LibTorch's numbers");
  params.without_effect("fused", kBoolean, "optimizers are always fused");
  params.without_effect("foreach", kBoolean, "optimizers are always fused");
  params.without_effect("fp32_optimizer_states", kBoolean, "the optimizer's state is float32");
  params.of({"Lamb"}).honoured<&O::max_coeff>("max_coeff", "the largest factor of a rate", 0);
  params.of({"Lamb"}).honoured<&O::min_coeff>("min_coeff", "the smallest factor of a rate", 0);
  params.of({"SGD"}).honoured<&O::momentum>("momentum", "the decay of the momentum", 0);
  params.of({"SGD"}).honoured<&O::dampening>("dampening", "how little a gradient adds to it");
  params.of({"SGD"}).honoured<&O::nesterov>("nesterov", "Nesterov's momentum");
  params.refused("max_grad_norm", kNumber, "say `gradient_clipping`");
  top.refused("optimizer.legacy_fusion", kBoolean, "there is one way of fusing optimizers");
  top.without_effect("zero_allow_untested_optimizer", kBoolean,
                     "the program's optimizer is accepted in any case");
  top.without_effect("zero_force_ds_cpu_optimizer", kBoolean,
                     "each optimizer computes where its parameters are");
}

void add_scheduler(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  using S = ZeroScheduler;
  const std::vector<std::string> warmups = {"WarmupLR", "WarmupDecayLR"};
  const std::vector<std::string> all_warmups = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
  const std::vector<std::string> cycle = {"OneCycle"};
  const std::vector<std::string> range = {"LRRangeTest"};
  const Block<> top(rows);
  const Block<&Z::scheduler> params(rows, "scheduler.params.");
  top.honoured<&Z::scheduler, &S::type>(
      "scheduler.type", "the schedule, in place of the program's: prepare a `DummyScheduler`");
  params.honoured<&S::last_batch_iteration>("last_batch_iteration", "the step before the first one",
                                            -1);
  params.of(warmups).honoured<&S::warmup_min_lr>("warmup_min_lr", "the first rate; `auto`: 0", 0);
  params.of(warmups).honoured<&S::warmup_max_lr>(
      "warmup_max_lr",
      "the rate after the warm-up, by default the optimizer's, of WarmupDecayLR 0.001; `auto`: the "
      "optimizer's",
      0);
  params.of(all_warmups)
      .honoured<&S::warmup_num_steps>("warmup_num_steps",
                                      "steps of the warm-up; `auto`: the `DummyScheduler`'s", 0);
  params.of(all_warmups).honoured<&S::warmup_type>("warmup_type", "how the rate rises");
  params.of({"WarmupDecayLR", "WarmupCosineLR"})
      .honoured<&S::total_num_steps>(
          "total_num_steps", "all steps; `auto`: the `DummyScheduler`'s, divided by the ranks", 1);
  params.of({"WarmupCosineLR"})
      .honoured<&S::warmup_min_ratio>("warmup_min_ratio",
                                      "the first rate, as a part of the optimizer's", 0);
  params.of({"WarmupCosineLR"})
      .honoured<&S::cos_min_ratio>("cos_min_ratio", "the last rate, as a part of the optimizer's",
                                   0);
  params.of(cycle).honoured<&S::cycle_min_lr>("cycle_min_lr", "the rate at both ends", 0);
  params.of(cycle).honoured<&S::cycle_max_lr>("cycle_max_lr", "the rate in the middle", 0);
  params.of(cycle).honoured<&S::decay_lr_rate>("decay_lr_rate", "the decay after the cycle", 0);
  params.of(cycle).honoured<&S::cycle_first_step_size>("cycle_first_step_size", "steps up", 1);
  params.of(cycle).honoured<&S::cycle_second_step_size>("cycle_second_step_size",
                                                        "steps down: as many", 1);
  params.of(cycle).honoured<&S::cycle_first_stair_count>("cycle_first_stair_count",
                                                         "stairs up; 0: none", 0);
  params.of(cycle).honoured<&S::cycle_second_stair_count>("cycle_second_stair_count",
                                                          "stairs down: as many", 0);
  params.of(cycle).honoured<&S::decay_step_size>("decay_step_size", "steps between decays; 0: none",
                                                 0);
  params.of(cycle).honoured<&S::cycle_momentum>("cycle_momentum",
                                                "the momentum goes the other way");
  params.of(cycle).honoured<&S::cycle_min_mom>("cycle_min_mom", "the momentum in the middle", 0);
  params.of(cycle).honoured<&S::cycle_max_mom>("cycle_max_mom", "the momentum at both ends", 0);
  params.of(cycle).honoured<&S::decay_mom_rate>("decay_mom_rate", "its decay after the cycle", 0);
  params.of(range).honoured<&S::lr_range_test_min_lr>("lr_range_test_min_lr", "the first rate", 0);
  params.of(range).honoured<&S::lr_range_test_step_size>("lr_range_test_step_size",
                                                         "steps of a rise", 1);
  params.of(range).honoured<&S::lr_range_test_step_rate>("lr_range_test_step_rate",
                                                         "how much it rises", 0);
  params.of(range).honoured<&S::lr_range_test_staircase>("lr_range_test_staircase",
                                                         "it rises in stairs");
}

void add_zero(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  const Block<> zero(rows, "zero_optimization.");
  const Block<> leaf(rows, "zero_optimization.leaf_module.");
  zero.honoured<&Z::stage>(
      "stage",
      "0: nothing is divided; 1: the optimizer's state; 2: and gradients; 3: and parameters", 0, 3);
  zero.honoured<&Z::reduce_bucket_size>(
      "reduce_bucket_size",
      "elements that are reduced at a time in stages 1 and 2, at most as many as take 32 MiB; "
      "`auto`: h^2, where h is the size of the model's hidden states",
      0);
  zero.without_effect("allgather_bucket_size", kWhole,
                      "what a step has changed is gathered as passes use it");
  zero.without_effect("overlap_comm", kBoolean,
                      "gradients are reduced while others are computed in any case");
  zero.honoured<&Z::sub_group_size>("sub_group_size",
                                    "elements that the optimizer updates at a time", 0);
  zero.honoured<&Z::prefetch_bucket_size>(
      "stage3_prefetch_bucket_size",
      "0: no group is gathered ahead of its use; otherwise one is; `auto`: 0.9 h^2", 0);
  zero.honoured<&Z::param_persistence_threshold>(
      "stage3_param_persistence_threshold",
      "parameters with fewer elements stay whole from a step to the next; `auto`: 10 h", 0);
  zero.honoured<&Z::model_persistence_threshold>("stage3_model_persistence_threshold",
                                                 "the most elements of all that stay whole", 0);
  zero.honoured<&Z::max_live_parameters>("stage3_max_live_parameters",
                                         "gathered elements on a rank before some are freed", 0);
  zero.honoured<&Z::max_reuse_distance>(
      "stage3_max_reuse_distance", "a parameter stays that is used again within so many elements",
      0);
  zero.honoured<&Z::gather_16bit_weights_on_model_save>(
      "stage3_gather_16bit_weights_on_model_save",
      "whole 16-bit weights can be saved in stage 3; `auto`: no");
  zero.honoured<&Z::gather_16bit_weights_on_model_save>("stage3_gather_fp16_weights_on_model_save",
                                                        "the old name of the one before");
  zero.honoured<&Z::zero_hpz_partition_size>("zero_hpz_partition_size",
                                             "ranks that have a second shard of the parameters "
                                             "among them, for the backward pass: those of a node",
                                             1);
  leaf.honoured<&Z::leaf_module_classes>(
      "classes", "classes of modules whose parameters are gathered together");
  leaf.refused("names", "list of texts", "say the modules' classes");
  leaf.refused("name_suffixes", "list of texts", "say the modules' classes");
}

void add_offload(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  using O = ZeroOffloadOptimizer;
  using P = ZeroOffloadParam;
  constexpr auto kO = &Z::offload_optimizer;
  constexpr auto kP = &Z::offload_param;
  const Block<kO> optimizer(rows, "zero_optimization.offload_optimizer.");
  const Block<kP> param(rows, "zero_optimization.offload_param.");
  const Block<> zero(rows, "zero_optimization.");
  const Block<&Z::aio> aio(rows, "aio.");
  optimizer.honoured<&O::device>(
      "device",
      "where the optimizer's state is, and the host computes: stages 1 to 3; nvme: stage 3");
  optimizer.honoured<&O::nvme_path>("nvme_path", "the folder of nvme");
  optimizer.honoured<&O::buffer_count>("buffer_count",
                                       "buffers on the host for what is on the disk", 1);
  optimizer.honoured<&O::pin_memory>("pin_memory", "memory that devices copy from and to directly");
  optimizer.honoured<&O::pipeline_read>("pipeline_read", "read the next part during an update");
  optimizer.honoured<&O::pipeline_write>("pipeline_write", "write the last part during an update");
  optimizer.honoured<&O::ratio>("ratio",
                                "the part of the state that is offloaded: the model's last groups "
                                "of parameters; with nvme it is 1",
                                0, 1);
  optimizer.without_effect("fast_init", kBoolean, "the state is made as parameters are divided");
  optimizer.without_effect("convert_grad_on_cpu", kBoolean,
                           "where gradients become float32 does not change them");
  optimizer.without_effect("cpuadam_cores_perc", kNumber, "the host's threads are LibTorch's");
  optimizer.refused("super_offload", kBoolean, "needs a host and a device with one memory");
  param.honoured<&P::device>("device",
                             "where parameters are between their uses in stage 3; without effect "
                             "in stages 0 to 2");
  param.honoured<&P::nvme_path>("nvme_path", "the folder of nvme");
  param.honoured<&P::buffer_count>("buffer_count", "buffers on the host for what is on the disk",
                                   1);
  param.honoured<&P::buffer_size>("buffer_size", "most elements that are gathered together", 1);
  param.honoured<&P::max_in_cpu>("max_in_cpu",
                                 "elements that stay on the host beside those on the disk", 0);
  param.honoured<&P::pin_memory>("pin_memory", "memory that devices copy from and to directly");
  zero.deprecated("cpu_offload", "the old name of `offload_optimizer` with `cpu`",
                  &read_cpu_offload<kO>);
  for (const char* key : {"cpu_offload_params", "cpu_offload_param"}) {
    zero.deprecated(key, "the old name of `offload_param` with `cpu`", &read_cpu_offload<kP>);
  }
  zero.deprecated("cpu_offload_use_pin_memory", "the old name of both `pin_memory`", &read_pinning);
  aio.honoured<&ZeroAio::block_size>("block_size", "bytes of one read or write of a file", 1);
  aio.honoured<&ZeroAio::queue_depth>("queue_depth", "reads and writes under way", 1);
  aio.honoured<&ZeroAio::thread_count>("thread_count", "threads that read and write", 1);
  aio.honoured<&ZeroAio::thread_count>("intra_op_parallelism", "the new name of the one before", 1);
  aio.without_effect("single_submit", kBoolean,
                     "how the system is told of reads and writes is its own affair");
  aio.without_effect("overlap_events", kBoolean,
                     "how the system is told of reads and writes is its own affair");
  aio.refused("use_gds", kBoolean, "devices do not read from disks directly");
}

void add_rest(std::vector<ZeroKey>& rows) {
  const Block<> top(rows);
  const Block<> zero(rows, "zero_optimization.");
  rows.push_back(
      {.info = {.key = "activation_checkpointing",
                .type = kObject,
                .what = "if the block is there, what the model runs by `accelerate::block()` is "
                        "computed again in the backward pass, whatever the block has"},
       .take = &read_checkpointing});
  zero.without_effect("contiguous_gradients", kBoolean, kBuffers);
  zero.without_effect("round_robin_gradients", kBoolean,
                      "which rank copies a gradient first does not change it");
  zero.without_effect("reduce_scatter", kBoolean,
                      "each rank gets the gradients of its shard alone in any case");
  zero.without_effect("allgather_partitions", kBoolean,
                      "parameters are gathered in any case, not broadcast");
  zero.without_effect("use_multi_rank_bucket_allreduce", kBoolean, kBuffers);
  zero.without_effect("load_from_fp32_weights", kBoolean,
                      "checkpoints have the optimizer's own weights");
  zero.without_effect("elastic_checkpoint", kBoolean, "checkpoints load on any number of ranks");
  zero.without_effect("stage3_module_granularity_threshold", kWhole,
                      "parameters are fetched by their use");
  zero.without_effect("stage3_use_all_reduce_for_fetch_params", kBoolean, kBuffers);
  zero.without_effect("stage3_allgather_sequential", kBoolean, kBuffers);
  zero.without_effect("stage3_partition_stream_chunk_size", kWhole, kBuffers);
  zero.without_effect("memory_efficient_linear", kBoolean, "linear layers are LibTorch's");
  zero.without_effect("pipeline_loading_checkpoint", kBoolean,
                      "checkpoints are loaded part by part");
  zero.without_effect("override_module_apply", kBoolean,
                      "modules see whole parameters by GatheredParameters");
  zero.without_effect("log_trace_cache_warnings", kBoolean, "what is fetched follows each pass");
  zero.without_effect("enable_sanity_checks", kBoolean, "collectives are compared in debug mode");
  zero.without_effect("save_muon_momentum_buffer_in_memory", kBoolean, "there is no Muon");
  zero.refused("legacy_stage1", kBoolean, "there is one stage 1");
  zero.refused("zero_quantized_weights", kBoolean, "parameters are gathered in their own type");
  zero.refused("zero_quantized_nontrainable_weights", kBoolean,
               "parameters are kept in their own type");
  zero.refused("zero_quantized_gradients", kBoolean, "gradients are reduced in their own type");
  zero.refused("zeropp_loco_param", kObject, "gradients are reduced in their own type");
  zero.refused("mics_hierarchical_params_gather", kBoolean, "there is no MiCS");
  zero.refused("zenflow", kObject, "all gradients are applied in the step they belong to");
  zero.refused("ignore_unused_parameters", kBoolean,
               "a parameter without a gradient is accepted, so it cannot be `false`",
               [](const Json& value) { return value == true; });
  zero.refused("mics_shard_size", kWhole,
               "say `zero_hpz_partition_size`, or use FSDP's HYBRID_SHARD",
               [](const Json& value) { return value.is_number() && value <= 1; });
  top.without_effect("steps_per_print", kNumber, "nothing is printed");
  top.without_effect("wall_clock_breakdown", kBoolean, kProfile);
  top.without_effect("memory_breakdown", kBoolean, kProfile);
  top.without_effect("dump_state", kBoolean, "the Accelerator's state has a text of its own");
  top.without_effect("flops_profiler", kObject, kProfile);
  top.without_effect("comms_logger", kObject, kProfile);
  top.without_effect("tensorboard", kObject, kTrackers);
  top.without_effect("wandb", kObject, kTrackers);
  top.without_effect("comet", kObject, kTrackers);
  top.without_effect("csv_monitor", kObject, kTrackers);
  top.without_effect("checkpoint", kObject,
                     "checkpoints are the Accelerator's: see checkpoints.md");
  top.without_effect("dataloader_drop_last", kBoolean, "loaders are the program's");
  top.without_effect("vocabulary_size", kWhole, "it is for DeepSpeed's own reports");
  top.without_effect("managed_gradient_accumulation", kBoolean,
                     "the Accelerator says where a step ends");
  top.without_effect("pipeline", kObject, "it is for models that DeepSpeed divides into stages");
  top.without_effect("graph_harvesting", kBoolean, "no graphs of kernels are recorded");
  top.without_effect("use_data_before_expert_parallelism", kBoolean,
                     "experts are divided by a ParallelismConfig");
  top.without_effect("use_node_local_storage", kBoolean, "checkpoints are the Accelerator's");
  top.refused("sparse_gradients", kBoolean, "gradients are dense");
  top.refused("disable_allgather", kBoolean, "ranks would go on with old parameters");
  top.refused("expert_parallel", kObject,
              "not by this configuration; experts are divided by a ParallelismConfig (ep_size)");
  top.refused("sparse_attention", kObject, "attention is the model's");
  top.refused("compile", kObject,
              "not by this configuration; models are compiled by a TorchDynamoPlugin");
  top.refused("elasticity", kObject, "the number of ranks of a job is fixed");
  top.refused("autotuning", kObject, "settings are not searched");
  top.refused("hybrid_engine", kObject, "there is no engine for inference");
  top.refused("compression_training", kObject, "models are not compressed");
  top.refused("quantize_training", kObject, "models are not quantised");
  top.refused("weight_quantization", kObject, "models are not quantised");
  top.refused("data_efficiency", kObject, "data is the program's");
  top.refused("curriculum_learning", kObject, "data is the program's");
  top.refused("progressive_layer_drop", kObject, "layers are the model's");
  top.refused("eigenvalue", kObject, "eigenvalues are not computed");
  top.refused("nebula", kObject, "checkpoints are the Accelerator's");
  top.refused("datastates_ckpt", kObject, "checkpoints are the Accelerator's");
  top.refused("sequence_parallel_size", kWhole,
              "sequences are divided by a ParallelismConfig (sp_size), so it is at most 1",
              [](const Json& value) { return value.is_number() && value <= 1; });
  top.refused("tensor_parallel", kObject,
              "layers are divided by a ParallelismConfig, so `autotp_size` is at most 1",
              [](const Json& value) {
                return value.is_object() && value.value("autotp_size", Json(0)) <= 1;
              });
}

// `cpu_offload: true` is a device; false asks for nothing else than the default.
Json device_of(const Json& value) { return value.get<bool>() ? "cpu" : "none"; }

constexpr ZeroName kNames[] = {
    {"bfloat16", "bf16"},
    {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"},
    {"zero_optimization.param_persistence_threshold",
     "zero_optimization.stage3_param_persistence_threshold"},
    {"zero_optimization.model_persistence_threshold",
     "zero_optimization.stage3_model_persistence_threshold"},
    {"zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters"},
    {"zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance"},
    {"zero_optimization.gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization.gather_16bit_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization.module_granularity_threshold",
     "zero_optimization.stage3_module_granularity_threshold"},
    {"zero_optimization.use_all_reduce_for_fetch_params",
     "zero_optimization.stage3_use_all_reduce_for_fetch_params"},
    {"zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential"},
    {"zero_optimization.partition_stream_chunk_size",
     "zero_optimization.stage3_partition_stream_chunk_size"},
    {"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device", &device_of},
    {"zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device", &device_of},
    {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device", &device_of},
    {"zero_optimization.cpu_offload_use_pin_memory",
     "zero_optimization.offload_optimizer.pin_memory"},
    {"zero_optimization.cpu_offload_use_pin_memory", "zero_optimization.offload_param.pin_memory"},
    {"aio.intra_op_parallelism", "aio.thread_count"},
};

}  // namespace

absl::Span<const ZeroName> zero_names() { return kNames; }

const std::vector<ZeroKey>& zero_keys() {
  static const std::vector<ZeroKey> kRows = [] {
    std::vector<ZeroKey> rows;
    add_batches(rows);
    add_numbers(rows);
    add_optimizer(rows);
    add_scheduler(rows);
    add_zero(rows);
    add_offload(rows);
    add_rest(rows);
    return rows;
  }();
  return kRows;
}

}  // namespace accelerate::internal
