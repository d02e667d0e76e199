/// What techniques are told of a job and of the model that they are applied to.
///
/// Threads: values.
#pragma once

#include <c10/core/Device.h>

#include "accelerate/base/enums.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/forward/technique.h"
#include "accelerate/precision/job_precision.h"

namespace accelerate {

struct FullyShardedDataParallelPlugin;
struct ZeroConfig;

/// A job, as far as techniques ask about it. All that it refers to outlives it.
struct ModelPlan {
  DistributedType distributed_type = DistributedType::kNo;
  c10::Device device = c10::kCPU;
  /// The ranks that average gradients, one for each share of the data; null for one share.
  ProcessGroupPtr group = nullptr;
  /// All ranks of the job where some train the same share alike, which needs equal weights. Null
  /// where each rank has a share of its own.
  ProcessGroupPtr whole_job = nullptr;
  /// The ranks among which parameters are divided, and those with the same shard of other replicas;
  /// null for one.
  ProcessGroupPtr shards = nullptr;
  ProcessGroupPtr replicas = nullptr;
  /// Those of `shards` among which parameters are divided from a forward pass to its backward pass;
  /// null: all.
  ProcessGroupPtr after_forward = nullptr;
  /// How models are divided; null: by ShardedDataParallelKwargs alone. Resolved.
  const FullyShardedDataParallelPlugin* fsdp = nullptr;
  /// The same by ZeRO; null: not.
  const ZeroConfig* zero = nullptr;
  /// The options of all techniques.
  const KwargsHandlers& handlers;
  const JobPrecision& precision;
};

/// One model that gets its techniques.
struct TechniqueContext {
  /// With the techniques that it has had so far.
  const ModelState& model;
  const ModelPlan& plan;
  /// The ranks that train this model together from now on; null for none.
  ProcessGroupPtr group;
  /// The techniques that the new one will surround.
  const Techniques& inside;
};

/// Whether the model is to be divided among ranks.
inline bool is_sharded(const TechniqueContext& context) {
  return context.group != nullptr && context.plan.shards != nullptr;
}

}  // namespace accelerate
