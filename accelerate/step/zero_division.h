/// How ZeRO divides the models of a job.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <unordered_map>

#include "accelerate/comm/process_group.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/optim/shared_objects.h"

namespace accelerate {

class AcceleratorState;
struct DummyOptim;

namespace internal {

/// How ZeRO divides the models that are prepared from now on.
class ZeroDivision {
 public:
  /// `state` outlives this.
  explicit ZeroDivision(const AcceleratorState& state) : state_(state) {}

  /// That of the plugin by which a model was prepared last.
  const ZeroConfig& config() const { return config_; }
  void set_config(const ZeroConfig& config) { config_ = config; }

  /// This rank's roles in place of those of the mesh: ZeRO divides a model, or a part of it where
  /// other techniques cut the model, among all ranks that train it with data of their own. One such
  /// rank divides nothing, but has the only shard of each parameter, which may be on the host, for
  /// instance. Local, but the first call for cuts along other axes is collective over the ranks of
  /// these and of dp.
  RankRoles roles(RankRoles of_mesh) const;
  /// The ranks that have second shards of the parameters among them; null: none have. Collective
  /// where the group is made.
  /// Errors: c10::ValueError for a number of ranks that is not a factor of all.
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
  ProcessGroupPtr second_shards_;  // null: not made yet
  std::unordered_map<const DummyOptim*, std::weak_ptr<SharedOptimizer>> optimizers_;
};

}  // namespace internal
}  // namespace accelerate
