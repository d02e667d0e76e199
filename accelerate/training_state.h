/// What the Accelerators of one Runtime share besides PartialState and GradientState: everything
/// that was prepared, and where accumulation stands.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "accelerate/comm/operations.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/parallel/prepared_model.h"

namespace accelerate::internal {

struct TrainingState {
  // Of the AcceleratorState that it belongs to.
  int generation = 0;
  bool accumulation_is_set = false;
  int64_t step = 0;
  // Whether ranks may run different numbers of steps now.
  bool joining = false;
  std::vector<std::shared_ptr<ModelState>> models;
  // Of prepared loaders that still live; theirs is the data.
  std::vector<std::weak_ptr<LoaderCore>> loaders;
  // Of prepared optimizers that still have a handle.
  std::vector<std::weak_ptr<AcceleratedOptimizer::Shared>> optimizers;
  std::vector<std::weak_ptr<AcceleratedScheduler::Shared>> schedulers;
  // Groups of the first ranks, by their number.
  std::map<int, ProcessGroupPtr> first_ranks;
};

}  // namespace accelerate::internal
