/// How ranks divide a model by the configuration of ZeRO.
///
///   stage 1   parameters stay whole, gradients add up whole until the optimizer steps; the shards,
///             which optimizers train, are divided with the state that these keep
///   stage 2   as 1, but each backward pass reduces gradients to the shards
///   stage 3   parameters are whole only while they are used
///
/// In 16 bits shards stay in float32, and the model has parameters in 16 bits.
///
/// Errors:  c10::ValueError for a class of leaf modules that the model does not have.
/// Threads: pure functions.
/// Mirrors: deepspeed.initialize, DeepSpeedZeroOptimizer and DeepSpeedZeroOptimizer_Stage3.
#pragma once

#include <cstdint>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/parallel/residency/sharding_options.h"

namespace accelerate {

ShardedPrecision zero_precision(const ZeroConfig& config);

/// `group_bytes`: how large groups of parameters should be that nothing else decides. `ranks`: how
/// many divide them.
ShardingOptions zero_sharding_options(const torch::nn::Module& module, const ZeroConfig& config,
                                      int64_t group_bytes, int ranks);

}  // namespace accelerate
