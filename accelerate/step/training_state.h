/// What the Accelerators of one Runtime share besides PartialState and GradientState: everything
/// that was prepared, and where accumulation stands.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <c10/util/SmallVector.h>

#include "accelerate/comm/operations.h"
#include "accelerate/config/fp8_kwargs.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/parallel/prepared_model.h"
#include "accelerate/precision/shared_scaler.h"
#include "accelerate/tensors/optimizer_state_reader.h"

namespace accelerate::internal {

// The micro-steps that one optimizer step is made of.
struct AccumulationWindow {
  // That have begun; 0 in loops without accumulate().
  int64_t steps = 0;
  // That accumulate() was told of; empty: all. Not dereferenced.
  c10::SmallVector<const ModelState*, 4> models;
  // What of it was divided by the planned number of micro-steps was brought to the true one.
  bool rescaled = false;
  // Whether losses are divided by micro-steps, or by tokens at the end; both is a mistake.
  bool divides_by_steps = false;
  bool divides_by_tokens = false;
  // This rank's, so far.
  int64_t tokens = 0;
  // What the losses that accumulated were divided by meanwhile; 0: none did.
  int64_t token_unit = 0;
  // Their sum was taken.
  bool tokens_are_summed = false;
};

struct TrainingState {
  // Of the AcceleratorState that it belongs to.
  int generation = 0;
  // As an Accelerator was asked for it.
  std::optional<GradientAccumulationPlugin> accumulation;
  int64_t step = 0;
  AccumulationWindow window;
  // Whether ranks may run different numbers of steps now.
  bool joining = false;
  std::vector<std::shared_ptr<ModelState>> models;
  // Of prepared loaders that still live; theirs is the data.
  std::vector<std::weak_ptr<LoaderCore>> loaders;
  // Of prepared optimizers that still have a handle.
  std::vector<std::weak_ptr<AcceleratedOptimizer::Shared>> optimizers;
  // Who reads their states behind training; optimizers that are prepared later wait for them, too.
  std::vector<std::weak_ptr<OptimizerStateReader>> readers;
  std::vector<std::weak_ptr<AcceleratedScheduler::Shared>> schedulers;
  // Whether an optimizer was prepared that steps during the backward pass.
  bool steps_in_backward = false;
  // In fp8.
  std::optional<Fp8Plan> fp8;
  // In fp16.
  std::shared_ptr<SharedScaler> scaler;
  GradScalerKwargs scaler_kwargs;
  // Groups of the first ranks, by their number.
  std::map<int, ProcessGroupPtr> first_ranks;
};

}  // namespace accelerate::internal
