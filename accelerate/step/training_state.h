/// What the Accelerators of one Runtime share besides PartialState and GradientState: everything
/// that was prepared, and the precision. GradientState has the state of accumulation.
///
/// Threads: the rank's thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "accelerate/comm/operations.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/precision/job_precision.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

// How backward passes step optimizers by themselves.
struct StepInBackward {
  // Those of the optimizers that are prepared next; see SharedOptimizer.
  double max_norm = 0;
  int64_t part_elements = 0;
  // The norm of the last step's gradients before they were clipped; undefined before that step.
  at::Tensor norm = {};
  // The optimizers and schedules that it steps live as long, since programs need not call them.
  std::vector<std::shared_ptr<SharedOptimizer>> optimizers = {};
  std::vector<std::shared_ptr<SharedScheduler>> schedulers = {};
};

struct TrainingState {
  // The AcceleratorState's generation when this was made.
  int generation = 0;
  std::vector<std::shared_ptr<ModelState>> models;
  // Prepared objects are watched, not owned. A loader expires with its last copy, an optimizer and
  // a scheduler with the last handle.
  std::vector<std::weak_ptr<LoaderCore>> loaders;
  std::vector<std::weak_ptr<SharedOptimizer>> optimizers;
  std::vector<std::weak_ptr<SharedScheduler>> schedulers;
  // Saves that still read the optimizers' states; optimizers prepared later wait for them as well.
  std::vector<std::weak_ptr<OptimizerStateReader>> readers;
  // Whether an optimizer was prepared that steps during the backward pass.
  bool has_lomo = false;
  // Absent: users step.
  std::optional<StepInBackward> step_in_backward;
  // How models are divided that are prepared from now on; absent: not by ZeRO.
  std::optional<ZeroConfig> zero;
  ProcessGroupPtr only_rank;      // who divides them in a job of one rank
  ProcessGroupPtr second_shards;  // who has second shards of them; null: not made yet
  // The optimizers that placeholders became.
  std::unordered_map<const DummyOptim*, std::weak_ptr<SharedOptimizer>> made_for;
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
void remember(std::vector<std::weak_ptr<T>>& known, const std::shared_ptr<T>& object) {
  std::erase_if(known, [](const auto& each) { return each.expired(); });
  known.push_back(object);
}

}  // namespace accelerate::internal
