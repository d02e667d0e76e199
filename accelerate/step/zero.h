/// What the configuration of a job's deepspeed_plugin makes of what is prepared.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <unordered_map>

#include "accelerate/comm/operations.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/step/prepared_together.h"

namespace accelerate {

class AcceleratorState;
class GradientState;

namespace internal {

struct TrainingState;

/// How ZeRO divides the models that are prepared from now on.
class ZeroDivision {
 public:
  /// `state` outlives this.
  explicit ZeroDivision(const AcceleratorState& state) : state_(state) {}

  /// That of the plugin by which a model was prepared last.
  const ZeroConfig& config() const { return config_; }
  void set_config(const ZeroConfig& config) { config_ = config; }

  /// The ranks among which models are divided; null for stage 0. A job of one rank has a group of
  /// that rank. Local.
  ProcessGroupPtr shards();
  /// Those that have second shards of the parameters among them; null: none have. Collective where
  /// the group is made. Errors: c10::ValueError for a number of ranks that is not a factor of all.
  ProcessGroupPtr second_shards();

  /// The optimizers that placeholders became; null for one without, or whose optimizer was freed.
  void set_optimizer(const DummyOptim& placeholder,
                     const std::shared_ptr<SharedOptimizer>& optimizer) {
    optimizers_[&placeholder] = optimizer;
  }
  std::shared_ptr<SharedOptimizer> optimizer_of(const DummyOptim& placeholder) const {
    const auto found = optimizers_.find(&placeholder);
    return found != optimizers_.end() ? found->second.lock() : nullptr;
  }

 private:
  const AcceleratorState& state_;
  ZeroConfig config_;
  ProcessGroupPtr own_;            // of one rank; null: not made yet
  ProcessGroupPtr second_shards_;  // null: not made yet
  std::unordered_map<const DummyOptim*, std::weak_ptr<SharedOptimizer>> optimizers_;
};

/// With a deepspeed_plugin: completes its configuration by what is prepared, which training follows
/// from then on, and makes ZeRO's engine where a model is prepared with an optimizer. Local.
/// Errors: those of complete() and zero_config(), with the plugin unchanged; c10::ValueError for a
///         placeholder without a plugin.
void begin_zero(const PreparedTogether& together, bool split_batches, const AcceleratorState& state,
                GradientState& gradients, TrainingState& training);

}  // namespace internal
}  // namespace accelerate
