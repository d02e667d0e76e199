/// What the Accelerators of one Runtime share besides PartialState and GradientState: everything
/// that was prepared, and the precision. GradientState has the state of accumulation.
///
/// Threads: the rank's thread.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "accelerate/comm/process_group.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/precision/job_precision.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

class LoaderCore;
class StepEngine;
class ZeroDivision;

struct TrainingState {
  // The AcceleratorState's generation when this was made.
  int generation = 0;
  // All that models can have; given by the Accelerator.
  TechniqueList techniques;
  std::vector<std::shared_ptr<ModelState>> models;
  // Prepared objects are watched, not owned. A loader expires with its last copy, an optimizer and
  // a scheduler with the last handle.
  std::vector<std::weak_ptr<LoaderCore>> loaders;
  std::vector<std::weak_ptr<SharedOptimizer>> optimizers;
  std::vector<std::weak_ptr<SharedScheduler>> schedulers;
  // Saves that still read the optimizers' states; optimizers prepared later wait for them as well.
  std::vector<std::weak_ptr<OptimizerStateReader>> readers;
  // How steps are made; null until something asks. See step_engine.h.
  std::shared_ptr<StepEngine> engine;
  // What the engine steps by itself, so that programs need not keep handles of it.
  std::vector<std::shared_ptr<const void>> kept;
  // How models are divided that are prepared from now on; null: as the mesh says.
  std::shared_ptr<ZeroDivision> division;
  JobPrecision precision;
  // Groups of this rank's column without all shares but the first n, by n.
  std::map<int, ProcessGroupPtr> first_shares;
};

// Calls fn(object) for each object that has not expired.
template <typename T, typename Fn>
void for_each_alive(const std::vector<std::weak_ptr<T>>& known, Fn&& fn) {
  for (const std::weak_ptr<T>& each : known) {
    if (const std::shared_ptr<T> alive = each.lock()) fn(alive);
  }
}

// Adds `object`, and drops entries that have expired.
template <typename T>
void register_in(std::vector<std::weak_ptr<T>>& known, const std::shared_ptr<T>& object) {
  std::erase_if(known, [](const auto& each) { return each.expired(); });
  known.push_back(object);
}

}  // namespace accelerate::internal
