#include "accelerate/config/zero_keys.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/config/zero_key_rows.h"

namespace accelerate::internal {
namespace {

using zero::deprecated;
using zero::honoured;
using zero::is_off;
using zero::Json;
using zero::of;
using zero::read_checkpointing;
using zero::read_cpu_offload;
using zero::read_opt_level;
using zero::read_pinning;
using zero::refused;
using zero::State;
using zero::without_effect;

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
  rows.push_back(honoured<&Z::train_batch_size>(
      "train_batch_size",
      "samples of a step of all ranks; it must be the product of the "
      "next two and the number of shares of the data",
      1));
  rows.push_back(honoured<&Z::train_micro_batch_size_per_gpu>(
      "train_micro_batch_size_per_gpu",
      "samples of a backward pass of a rank; `auto`: as the loaders", 1));
  rows.push_back(honoured<&Z::gradient_accumulation_steps>(
      "gradient_accumulation_steps",
      "backward passes of a step; it takes precedence over the "
      "Accelerator's",
      1));
  rows.push_back(honoured<&Z::gradient_clipping>("gradient_clipping",
                                                 "the largest norm of all gradients; 0: any", 0));
  rows.push_back(honoured<&Z::communication_data_type>("communication_data_type",
                                                       "what gradients are reduced in"));
  rows.push_back(honoured<&Z::prescale_gradients>(
      "prescale_gradients", "divide gradients by the number of ranks before they are summed"));
  rows.push_back(honoured<&Z::gradient_predivide_factor>(
      "gradient_predivide_factor",
      "without `prescale_gradients`: what they are divided by before they are summed; by the rest "
      "afterwards",
      std::numeric_limits<double>::min()));
}

void add_numbers(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  using F = ZeroFp16;
  rows.push_back(honoured<&Z::fp16, &F::enabled>(
      "fp16.enabled", "compute in float16; `auto`: as `mixed_precision` says"));
  rows.push_back(
      without_effect("fp16.auto_cast", kBoolean, "the model's inputs are cast in any case"));
  rows.push_back(honoured<&Z::fp16, &F::loss_scale>("fp16.loss_scale",
                                                    "the scale of the loss; 0: it adapts", 0));
  rows.push_back(honoured<&Z::fp16, &F::initial_scale_power>("fp16.initial_scale_power",
                                                             "it begins with 2 to this", 0, 126));
  rows.push_back(honoured<&Z::fp16, &F::loss_scale_window>(
      "fp16.loss_scale_window", "steps without an overflow after which it doubles", 1));
  rows.push_back(
      honoured<&Z::fp16, &F::hysteresis>("fp16.hysteresis", "overflows after which it halves", 1));
  rows.push_back(honoured<&Z::fp16, &F::consecutive_hysteresis>(
      "fp16.consecutive_hysteresis", "only overflows without a good step between them count"));
  rows.push_back(honoured<&Z::fp16, &F::min_loss_scale>(
      "fp16.min_loss_scale", "it does not fall below; an overflow there is an error",
      std::numeric_limits<double>::min()));
  rows.push_back(refused("fp16.fp16_master_weights_and_grads", kBoolean,
                         "the optimizer's own weights are float32 here"));
  rows.push_back(without_effect("fp16.fused_mode", kBoolean, "optimizers are always fused"));
  rows.push_back(honoured<&Z::bf16, &ZeroBf16::enabled>(
      "bf16.enabled", "compute in bfloat16; `auto`: as `mixed_precision` says"));
  rows.push_back(honoured<&Z::bf16, &ZeroBf16::check_grad_overflow>(
      "bf16.check_grad_overflow", "skip steps whose gradients are infinite or NaN"));
  rows.push_back(without_effect("bf16.immediate_grad_update", kBoolean,
                                "when gradients are added up does not change their sum"));
  rows.push_back(refused("bf16.bf16_master_weights_and_grads", kBoolean,
                         "the optimizer's own weights are float32 here"));
  rows.push_back(
      refused("bf16.bf16_optimizer_states", kBoolean, "the optimizer's state is float32 here"));
  rows.push_back(honoured<&Z::msamp, &ZeroMsamp::enabled>(
      "msamp.enabled", "Linear layers, and gradients of their weights, in fp8: stages 0 to 2"));
  rows.push_back({.info = {.key = "msamp.opt_level",
                           .type = "`O1` or `O2`",
                           .default_value = "O1",
                           .what = "O2: Adam's moments as well"},
                  .take = &read_opt_level});
  rows.push_back(refused("amp", kObject, "Apex does not exist for C++; use fp16 or bf16"));
  rows.push_back(refused("torch_autocast", kObject, "use fp16 or bf16"));
  rows.push_back(refused("data_types.grad_accum_dtype", kText,
                         "gradients are added up in the type of the parameters"));
  rows.push_back(refused("fp32_allreduce", kBoolean, "say `communication_data_type: fp32`"));
  rows.push_back(
      without_effect("seq_parallel_communication_data_type", kText, "no sequences are divided"));
}

void add_optimizer(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  using O = ZeroOptimizer;
  rows.push_back(honoured<&Z::optimizer, &O::type>(
      "optimizer.type", "the optimizer, in place of the program's: prepare a `DummyOptim`"));
  const auto add = [&](std::vector<std::string> types, ZeroKey row) {
    rows.push_back(of(std::move(types), std::move(row)));
  };
  rows.push_back(honoured<&Z::optimizer, &O::lr>(
      "optimizer.params.lr",
      "the learning rate, of Adagrad 0.01 by default; `auto`: the `DummyOptim`'s", 0));
  add({"Adam", "AdamW", "Lion", "Lamb"},
      honoured<&Z::optimizer, &O::betas>("optimizer.params.betas", "decay of the moments"));
  add({"Adam", "AdamW", "Adagrad", "Lamb"},
      honoured<&Z::optimizer, &O::eps>("optimizer.params.eps",
                                       "added to the denominator, of Adagrad 1e-10 by default", 0));
  rows.push_back(honoured<&Z::optimizer, &O::weight_decay>(
      "optimizer.params.weight_decay", "the decay of weights; `auto`: the `DummyOptim`'s", 0));
  add({"Adam", "AdamW", "Lamb"}, honoured<&Z::optimizer, &O::bias_correction>(
                                     "optimizer.params.bias_correction",
                                     "correct the first steps' moments; only Lamb may do without"));
  add({"Adam", "AdamW"}, honoured<&Z::optimizer, &O::amsgrad>("optimizer.params.amsgrad",
                                                              "divide by the largest moment"));
  add({"Adam", "AdamW"},
      honoured<&Z::optimizer, &O::adam_w_mode>("optimizer.params.adam_w_mode",
                                               "decay weights as AdamW does, which always does"));
  rows.push_back(without_effect("optimizer.params.torch_adam", kBoolean,
                                "there is one implementation, with LibTorch's numbers"));
  rows.push_back(without_effect("optimizer.params.fused", kBoolean, "optimizers are always fused"));
  rows.push_back(
      without_effect("optimizer.params.foreach", kBoolean, "optimizers are always fused"));
  rows.push_back(without_effect("optimizer.params.fp32_optimizer_states", kBoolean,
                                "the optimizer's state is float32"));
  add({"Lamb"}, honoured<&Z::optimizer, &O::max_coeff>("optimizer.params.max_coeff",
                                                       "the largest factor of a rate", 0));
  add({"Lamb"}, honoured<&Z::optimizer, &O::min_coeff>("optimizer.params.min_coeff",
                                                       "the smallest factor of a rate", 0));
  add({"SGD"}, honoured<&Z::optimizer, &O::momentum>("optimizer.params.momentum",
                                                     "the decay of the momentum", 0));
  add({"SGD"}, honoured<&Z::optimizer, &O::dampening>("optimizer.params.dampening",
                                                      "how little a gradient adds to it"));
  add({"SGD"},
      honoured<&Z::optimizer, &O::nesterov>("optimizer.params.nesterov", "Nesterov's momentum"));
  rows.push_back(refused("optimizer.params.max_grad_norm", kNumber, "say `gradient_clipping`"));
  rows.push_back(
      refused("optimizer.legacy_fusion", kBoolean, "there is one way of fusing optimizers"));
  rows.push_back(without_effect("zero_allow_untested_optimizer", kBoolean,
                                "the program's optimizer is accepted in any case"));
  rows.push_back(without_effect("zero_force_ds_cpu_optimizer", kBoolean,
                                "each optimizer computes where its parameters are"));
}

void add_scheduler(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  using S = ZeroScheduler;
  const std::vector<std::string> warmups = {"WarmupLR", "WarmupDecayLR"};
  const std::vector<std::string> all_warmups = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
  const std::vector<std::string> cycle = {"OneCycle"};
  const std::vector<std::string> range = {"LRRangeTest"};
  const auto add = [&](const std::vector<std::string>& types, ZeroKey row) {
    rows.push_back(of(types, std::move(row)));
  };
  rows.push_back(honoured<&Z::scheduler, &S::type>(
      "scheduler.type", "the schedule, in place of the program's: prepare a `DummyScheduler`"));
  rows.push_back(honoured<&Z::scheduler, &S::last_batch_iteration>(
      "scheduler.params.last_batch_iteration", "the step before the first one", -1));
  add(warmups, honoured<&Z::scheduler, &S::warmup_min_lr>("scheduler.params.warmup_min_lr",
                                                          "the first rate; `auto`: 0", 0));
  add(warmups, honoured<&Z::scheduler, &S::warmup_max_lr>(
                   "scheduler.params.warmup_max_lr",
                   "the rate after the warm-up, by default the optimizer's, of "
                   "WarmupDecayLR 0.001; `auto`: the optimizer's",
                   0));
  add(all_warmups, honoured<&Z::scheduler, &S::warmup_num_steps>(
                       "scheduler.params.warmup_num_steps",
                       "steps of the warm-up; `auto`: the `DummyScheduler`'s", 0));
  add(all_warmups, honoured<&Z::scheduler, &S::warmup_type>("scheduler.params.warmup_type",
                                                            "how the rate rises"));
  add({"WarmupDecayLR", "WarmupCosineLR"},
      honoured<&Z::scheduler, &S::total_num_steps>(
          "scheduler.params.total_num_steps",
          "all steps; `auto`: the `DummyScheduler`'s, divided by the ranks", 1));
  add({"WarmupCosineLR"},
      honoured<&Z::scheduler, &S::warmup_min_ratio>(
          "scheduler.params.warmup_min_ratio", "the first rate, as a part of the optimizer's", 0));
  add({"WarmupCosineLR"},
      honoured<&Z::scheduler, &S::cos_min_ratio>("scheduler.params.cos_min_ratio",
                                                 "the last rate, as a part of the optimizer's", 0));
  add(cycle, honoured<&Z::scheduler, &S::cycle_min_lr>("scheduler.params.cycle_min_lr",
                                                       "the rate at both ends", 0));
  add(cycle, honoured<&Z::scheduler, &S::cycle_max_lr>("scheduler.params.cycle_max_lr",
                                                       "the rate in the middle", 0));
  add(cycle, honoured<&Z::scheduler, &S::decay_lr_rate>("scheduler.params.decay_lr_rate",
                                                        "the decay after the cycle", 0));
  add(cycle, honoured<&Z::scheduler, &S::cycle_first_step_size>(
                 "scheduler.params.cycle_first_step_size", "steps up", 1));
  add(cycle, honoured<&Z::scheduler, &S::cycle_second_step_size>(
                 "scheduler.params.cycle_second_step_size", "steps down: as many", 1));
  add(cycle, honoured<&Z::scheduler, &S::cycle_first_stair_count>(
                 "scheduler.params.cycle_first_stair_count", "stairs up; 0: none", 0));
  add(cycle, honoured<&Z::scheduler, &S::cycle_second_stair_count>(
                 "scheduler.params.cycle_second_stair_count", "stairs down: as many", 0));
  add(cycle, honoured<&Z::scheduler, &S::decay_step_size>("scheduler.params.decay_step_size",
                                                          "steps between decays; 0: none", 0));
  add(cycle, honoured<&Z::scheduler, &S::cycle_momentum>("scheduler.params.cycle_momentum",
                                                         "the momentum goes the other way"));
  add(cycle, honoured<&Z::scheduler, &S::cycle_min_mom>("scheduler.params.cycle_min_mom",
                                                        "the momentum in the middle", 0));
  add(cycle, honoured<&Z::scheduler, &S::cycle_max_mom>("scheduler.params.cycle_max_mom",
                                                        "the momentum at both ends", 0));
  add(cycle, honoured<&Z::scheduler, &S::decay_mom_rate>("scheduler.params.decay_mom_rate",
                                                         "its decay after the cycle", 0));
  add(range, honoured<&Z::scheduler, &S::lr_range_test_min_lr>(
                 "scheduler.params.lr_range_test_min_lr", "the first rate", 0));
  add(range, honoured<&Z::scheduler, &S::lr_range_test_step_size>(
                 "scheduler.params.lr_range_test_step_size", "steps of a rise", 1));
  add(range, honoured<&Z::scheduler, &S::lr_range_test_step_rate>(
                 "scheduler.params.lr_range_test_step_rate", "how much it rises", 0));
  add(range, honoured<&Z::scheduler, &S::lr_range_test_staircase>(
                 "scheduler.params.lr_range_test_staircase", "it rises in stairs"));
}

void add_zero(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  const auto size = [&](ZeroKey row) {
    row.least = 0;
    rows.push_back(std::move(row));
  };
  rows.push_back(honoured<&Z::stage>("zero_optimization.stage",
                                     "0: nothing is divided; 1: the optimizer's state; 2: and "
                                     "gradients; 3: and parameters",
                                     0, 3));
  size(honoured<&Z::reduce_bucket_size>("zero_optimization.reduce_bucket_size",
                                        "elements that are reduced at a time in stages 1 and 2, up "
                                        "to 32 MiB; `auto`: h^2, where h is "
                                        "the size of the model's hidden states"));
  rows.push_back(without_effect("zero_optimization.allgather_bucket_size", kWhole,
                                "what a step has changed is gathered as passes use it"));
  rows.push_back(without_effect("zero_optimization.overlap_comm", kBoolean,
                                "gradients are reduced while others are computed in any case"));
  size(honoured<&Z::sub_group_size>("zero_optimization.sub_group_size",
                                    "elements that the optimizer updates at a time"));
  size(honoured<&Z::prefetch_bucket_size>(
      "zero_optimization.stage3_prefetch_bucket_size",
      "0: no group is gathered ahead of its use; otherwise one is; `auto`: 0.9 h^2"));
  size(honoured<&Z::param_persistence_threshold>(
      "zero_optimization.stage3_param_persistence_threshold",
      "parameters with fewer elements stay whole from a step to the next; `auto`: 10 h"));
  size(honoured<&Z::model_persistence_threshold>(
      "zero_optimization.stage3_model_persistence_threshold",
      "the most elements of all that stay whole"));
  size(honoured<&Z::max_live_parameters>("zero_optimization.stage3_max_live_parameters",
                                         "gathered elements on a rank before some are freed"));
  size(honoured<&Z::max_reuse_distance>(
      "zero_optimization.stage3_max_reuse_distance",
      "a parameter stays that is used again within so many elements"));
  rows.push_back(honoured<&Z::gather_16bit_weights_on_model_save>(
      "zero_optimization.stage3_gather_16bit_weights_on_model_save",
      "whole 16-bit weights can be saved in stage 3; `auto`: no"));
  ZeroKey old_name = honoured<&Z::gather_16bit_weights_on_model_save>(
      "zero_optimization.stage3_gather_fp16_weights_on_model_save",
      "the old name of the one before");
  rows.push_back(old_name);
  rows.push_back(honoured<&Z::zero_hpz_partition_size>(
      "zero_optimization.zero_hpz_partition_size",
      "ranks that have a second shard of the parameters among them, for "
      "the backward pass: those of a node",
      1));
  rows.push_back(honoured<&Z::leaf_module_classes>(
      "zero_optimization.leaf_module.classes",
      "classes of modules whose parameters are gathered together"));
  rows.push_back(
      refused("zero_optimization.leaf_module.names", "list of texts", "say the modules' classes"));
  rows.push_back(refused("zero_optimization.leaf_module.name_suffixes", "list of texts",
                         "say the modules' classes"));
}

void add_offload(std::vector<ZeroKey>& rows) {
  using Z = ZeroConfig;
  using O = ZeroOffloadOptimizer;
  using P = ZeroOffloadParam;
  constexpr auto kO = &Z::offload_optimizer;
  constexpr auto kP = &Z::offload_param;
  rows.push_back(honoured<kO, &O::device>(
      "zero_optimization.offload_optimizer.device",
      "where the optimizer's state is, and the host computes: stages 1 to 3; nvme: stage 3"));
  rows.push_back(honoured<kO, &O::nvme_path>("zero_optimization.offload_optimizer.nvme_path",
                                             "the folder of nvme"));
  rows.push_back(honoured<kO, &O::buffer_count>("zero_optimization.offload_optimizer.buffer_count",
                                                "buffers on the host for what is on the disk", 1));
  rows.push_back(honoured<kO, &O::pin_memory>("zero_optimization.offload_optimizer.pin_memory",
                                              "memory that devices copy from and to directly"));
  rows.push_back(honoured<kO, &O::pipeline_read>(
      "zero_optimization.offload_optimizer.pipeline_read", "read the next part during an update"));
  rows.push_back(
      honoured<kO, &O::pipeline_write>("zero_optimization.offload_optimizer.pipeline_write",
                                       "write the last part during an update"));
  rows.push_back(honoured<kO, &O::ratio>("zero_optimization.offload_optimizer.ratio",
                                         "the part of the state that is offloaded: the model's "
                                         "last groups of parameters; with nvme it is 1",
                                         0, 1));
  rows.push_back(without_effect("zero_optimization.offload_optimizer.fast_init", kBoolean,
                                "the state is made as parameters are divided"));
  rows.push_back(without_effect("zero_optimization.offload_optimizer.convert_grad_on_cpu", kBoolean,
                                "where gradients become float32 does not change them"));
  rows.push_back(without_effect("zero_optimization.offload_optimizer.cpuadam_cores_perc", kNumber,
                                "the host's threads are LibTorch's"));
  rows.push_back(refused("zero_optimization.offload_optimizer.super_offload", kBoolean,
                         "needs a host and a device with one memory"));
  rows.push_back(honoured<kP, &P::device>("zero_optimization.offload_param.device",
                                          "where parameters are between their uses: stage 3"));
  rows.push_back(honoured<kP, &P::nvme_path>("zero_optimization.offload_param.nvme_path",
                                             "the folder of nvme"));
  rows.push_back(honoured<kP, &P::buffer_count>("zero_optimization.offload_param.buffer_count",
                                                "buffers on the host for what is on the disk", 1));
  rows.push_back(honoured<kP, &P::buffer_size>("zero_optimization.offload_param.buffer_size",
                                               "most elements that are gathered together", 1));
  rows.push_back(
      honoured<kP, &P::max_in_cpu>("zero_optimization.offload_param.max_in_cpu",
                                   "elements that stay on the host beside those on the disk", 0));
  rows.push_back(honoured<kP, &P::pin_memory>("zero_optimization.offload_param.pin_memory",
                                              "memory that devices copy from and to directly"));
  rows.push_back(deprecated("zero_optimization.cpu_offload",
                            "the old name of `offload_optimizer` with `cpu`",
                            &read_cpu_offload<kO>));
  for (const char* key :
       {"zero_optimization.cpu_offload_params", "zero_optimization.cpu_offload_param"}) {
    rows.push_back(
        deprecated(key, "the old name of `offload_param` with `cpu`", &read_cpu_offload<kP>));
  }
  rows.push_back(deprecated("zero_optimization.cpu_offload_use_pin_memory",
                            "the old name of both `pin_memory`", &read_pinning));
  rows.push_back(honoured<&Z::aio, &ZeroAio::block_size>(
      "aio.block_size", "bytes of one read or write of a file", 1));
  rows.push_back(
      honoured<&Z::aio, &ZeroAio::queue_depth>("aio.queue_depth", "reads and writes under way", 1));
  rows.push_back(honoured<&Z::aio, &ZeroAio::thread_count>("aio.thread_count",
                                                           "threads that read and write", 1));
  rows.push_back(honoured<&Z::aio, &ZeroAio::thread_count>("aio.intra_op_parallelism",
                                                           "the new name of the one before", 1));
  rows.push_back(without_effect("aio.single_submit", kBoolean,
                                "how the system is told of reads and writes is its own affair"));
  rows.push_back(without_effect("aio.overlap_events", kBoolean,
                                "how the system is told of reads and writes is its own affair"));
  rows.push_back(refused("aio.use_gds", kBoolean, "devices do not read from disks directly"));
}

void add_rest(std::vector<ZeroKey>& rows) {
  rows.push_back(
      {.info = {.key = "activation_checkpointing",
                .type = kObject,
                .what = "there: what the model runs by `accelerate::block()` is computed "
                        "again in the backward pass, whatever is in it"},
       .take = &read_checkpointing});
  struct Plain {
    const char* key;
    const char* type;
    const char* why;
  };
  constexpr const char* kZero = "zero_optimization.";
  constexpr Plain kZeroWithoutEffect[] = {
      {"contiguous_gradients", kBoolean, kBuffers},
      {"round_robin_gradients", kBoolean, "which rank copies a gradient first does not change it"},
      {"reduce_scatter", kBoolean, "each rank gets the gradients of its shard alone in any case"},
      {"allgather_partitions", kBoolean, "parameters are gathered in any case, not broadcast"},
      {"use_multi_rank_bucket_allreduce", kBoolean, kBuffers},
      {"load_from_fp32_weights", kBoolean, "checkpoints have the optimizer's own weights"},
      {"elastic_checkpoint", kBoolean, "checkpoints load on any number of ranks"},
      {"stage3_module_granularity_threshold", kWhole, "parameters are fetched by their use"},
      {"stage3_use_all_reduce_for_fetch_params", kBoolean, kBuffers},
      {"stage3_allgather_sequential", kBoolean, kBuffers},
      {"stage3_partition_stream_chunk_size", kWhole, kBuffers},
      {"memory_efficient_linear", kBoolean, "linear layers are LibTorch's"},
      {"pipeline_loading_checkpoint", kBoolean, "checkpoints are loaded part by part"},
      {"override_module_apply", kBoolean, "modules see whole parameters by GatheredParameters"},
      {"log_trace_cache_warnings", kBoolean, "what is fetched follows each pass"},
      {"enable_sanity_checks", kBoolean, "collectives are compared in debug mode"},
      {"save_muon_momentum_buffer_in_memory", kBoolean, "there is no Muon"},
  };
  constexpr Plain kZeroRefused[] = {
      {"legacy_stage1", kBoolean, "there is one stage 1"},
      {"zero_quantized_weights", kBoolean, "parameters are gathered in their own type"},
      {"zero_quantized_nontrainable_weights", kBoolean, "parameters are kept in their own type"},
      {"zero_quantized_gradients", kBoolean, "gradients are reduced in their own type"},
      {"zeropp_loco_param", kObject, "gradients are reduced in their own type"},
      {"mics_hierarchical_params_gather", kBoolean, "there is no MiCS"},
      {"zenflow", kObject, "all gradients are applied in the step they belong to"},
  };
  constexpr Plain kWithoutEffect[] = {
      {"steps_per_print", kNumber, "nothing is printed"},
      {"wall_clock_breakdown", kBoolean, kProfile},
      {"memory_breakdown", kBoolean, kProfile},
      {"dump_state", kBoolean, "the Accelerator's state has a text of its own"},
      {"flops_profiler", kObject, kProfile},
      {"comms_logger", kObject, kProfile},
      {"tensorboard", kObject, kTrackers},
      {"wandb", kObject, kTrackers},
      {"comet", kObject, kTrackers},
      {"csv_monitor", kObject, kTrackers},
      {"checkpoint", kObject, "checkpoints are the Accelerator's: see checkpoints.md"},
      {"dataloader_drop_last", kBoolean, "loaders are the program's"},
      {"vocabulary_size", kWhole, "it is for DeepSpeed's own reports"},
      {"managed_gradient_accumulation", kBoolean, "the Accelerator says where a step ends"},
      {"pipeline", kObject, "it is for models that DeepSpeed divides into stages"},
      {"graph_harvesting", kBoolean, "no graphs of kernels are recorded"},
      {"use_data_before_expert_parallelism", kBoolean, "experts are not divided among ranks"},
      {"use_node_local_storage", kBoolean, "checkpoints are the Accelerator's"},
  };
  constexpr Plain kRefused[] = {
      {"sparse_gradients", kBoolean, "gradients are dense"},
      {"disable_allgather", kBoolean, "ranks would go on with old parameters"},
      {"expert_parallel", kObject, "experts are not divided among ranks"},
      {"sparse_attention", kObject, "attention is the model's"},
      {"compile", kObject, "nothing is compiled"},
      {"elasticity", kObject, "the number of ranks of a job is fixed"},
      {"autotuning", kObject, "settings are not searched"},
      {"hybrid_engine", kObject, "there is no engine for inference"},
      {"compression_training", kObject, "models are not compressed"},
      {"quantize_training", kObject, "models are not quantised"},
      {"weight_quantization", kObject, "models are not quantised"},
      {"data_efficiency", kObject, "data is the program's"},
      {"curriculum_learning", kObject, "data is the program's"},
      {"progressive_layer_drop", kObject, "layers are the model's"},
      {"eigenvalue", kObject, "eigenvalues are not computed"},
      {"nebula", kObject, "checkpoints are the Accelerator's"},
      {"datastates_ckpt", kObject, "checkpoints are the Accelerator's"},
  };
  const auto add = [&](const std::string& prefix, const Plain& row, State state) {
    rows.push_back({.info = {.key = absl::StrCat(prefix, row.key),
                             .type = row.type,
                             .state = state,
                             .what = row.why},
                    .is_off = &is_off});
  };
  const auto add_refused = [&](const char* key, const char* type, const char* why,
                               bool (*is_off)(const Json& value)) {
    ZeroKey row = refused(key, type, why);
    row.is_off = is_off;
    rows.push_back(std::move(row));
  };
  for (const Plain& row : kZeroWithoutEffect) add(kZero, row, State::kWithoutEffect);
  for (const Plain& row : kZeroRefused) add(kZero, row, State::kRefused);
  add_refused("zero_optimization.ignore_unused_parameters", kBoolean,
              "a parameter without a gradient is accepted, so it cannot be `false`",
              [](const Json& value) { return value == true; });
  add_refused("zero_optimization.mics_shard_size", kWhole,
              "say `zero_hpz_partition_size`, or use FSDP's HYBRID_SHARD",
              [](const Json& value) { return value.is_number() && value <= 1; });
  for (const Plain& row : kWithoutEffect) add("", row, State::kWithoutEffect);
  for (const Plain& row : kRefused) add("", row, State::kRefused);
  add_refused("sequence_parallel_size", kWhole,
              "sequences are divided by a ParallelismConfig (sp_size), so it is at most 1",
              [](const Json& value) { return value.is_number() && value <= 1; });
  add_refused("tensor_parallel", kObject,
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
