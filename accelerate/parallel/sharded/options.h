/// What the options of a job say of the models that its ranks divide: its plugin's, those of ZeRO,
/// or the defaults of version 2 where a parallelism_config divides models without one.
///
/// Errors:  those of fsdp_units.
/// Threads: pure functions.
/// Mirrors: accelerate utils/fsdp_utils.py, fsdp2_prepare_model; accelerator.py, where it calls
///          FullyShardedDataParallel.
#pragma once

#include <cstdint>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/parallel/residency/sharding_options.h"

namespace accelerate {

struct FullyShardedDataParallelPlugin;
struct ModelPlan;
struct ZeroConfig;

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

/// How ranks divide a model by the configuration of ZeRO.
///
///   stage 1   parameters stay whole, gradients add up whole until the optimizer steps; the shards,
///             which optimizers train, are divided with the state that these keep
///   stage 2   as 1, but each backward pass reduces gradients to the shards
///   stage 3   parameters are whole only while they are used
///
/// In 16 bits shards stay in float32, and the model has parameters in 16 bits. `group_bytes`: how
/// large groups of parameters should be that nothing else decides. `ranks`: how many divide them.
/// Errors:  c10::ValueError for a class of leaf modules that the model does not have.
/// Mirrors: deepspeed.initialize, DeepSpeedZeroOptimizer and DeepSpeedZeroOptimizer_Stage3.
ShardingOptions zero_sharding_options(const torch::nn::Module& module, const ZeroConfig& config,
                                      int64_t group_bytes, int ranks);
ShardedPrecision zero_precision(const ZeroConfig& config);

}  // namespace accelerate
