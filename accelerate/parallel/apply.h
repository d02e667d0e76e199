/// Which stages a model gets.
///
/// Threads: the rank's thread.
#pragma once

#include <optional>

#include "accelerate/base/enums.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/parallel/prepared_model.h"
#include "accelerate/precision/autocast.h"

namespace accelerate {

/// What a job does with its models.
struct ModelPlan {
  DistributedType distributed_type = DistributedType::kNo;
  /// The ranks that train together; null for one rank.
  ProcessGroupPtr group = nullptr;
  DistributedDataParallelKwargs ddp = {};
  std::optional<AutocastSettings> autocast = std::nullopt;
  std::optional<Fp8Plan> fp8 = std::nullopt;
};

/// Gives the model its stages. A model that has them already changes only when it is to be trained
/// for the first time (`trains`), which is when ranks begin to train it together.
/// Collective where ranks train it together. Errors: as those of DistributedDataParallel.
void apply_stages(ModelState& model, const ModelPlan& plan, bool trains);

}  // namespace accelerate
