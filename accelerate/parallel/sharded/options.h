/// What the options of a job say of the models that its ranks divide: its plugin's, those of ZeRO,
/// or the defaults of version 2 where a parallelism_config divides models without one.
///
/// Errors:  those of fsdp_units.
/// Threads: pure functions.
/// Mirrors: accelerate utils/fsdp_utils.py, fsdp2_prepare_model; accelerator.py, where it calls
///          FullyShardedDataParallel.
#pragma once

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/parallel/residency/sharding_options.h"

namespace accelerate {

struct FullyShardedDataParallelPlugin;
struct ModelPlan;

ShardedPrecision sharded_precision(const ModelPlan& plan);

ShardingOptions sharding_options(const torch::nn::Module& module, const ModelPlan& plan);

/// Version 1's rules without use_orig_params, where PyTorch has one flat parameter for each unit:
/// all parameters of a unit are trained or none, and an optimizer has those that it trains in one
/// group. For other plugins they check nothing. `plugin` is resolved.
/// Errors: c10::ValueError naming the unit and two of its parameters.
void check_trained_alike(const torch::nn::Module& module,
                         const FullyShardedDataParallelPlugin& plugin);
void check_in_one_group(const torch::nn::Module& module,
                        const FullyShardedDataParallelPlugin& plugin,
                        const torch::optim::Optimizer& optimizer);

}  // namespace accelerate
