/// Scales the loss so that small gradients survive fp16, and leaves a step out where a gradient
/// became infinite by it.
///
///   GradScaler scaler;
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);   // only where gradients are looked at before the step
///   scaler.step(optimizer);       // steps unless a gradient is infinite or not a number
///   scaler.update();              // once for all optimizers of an iteration
///
/// With several ranks all agree: a gradient that is not finite on one of them counts on all, so
/// that they leave out the same steps and have the same scale.
///
/// Errors:  c10::ValueError for options out of range, for fp16 gradients, and for calls out of
/// turn. Threads: the rank's thread. Mirrors: torch.amp.GradScaler. Differs: ranks agree; see
/// accelerate/docs/differences.md.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/tensors/tree.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace accelerate {

class GradScaler {
 public:
  /// `group`: the ranks that step together; null for one rank.
  explicit GradScaler(const GradScalerKwargs& options = {}, ProcessGroupPtr group = nullptr);

  bool is_enabled() const { return options_.enabled; }

  /// The ranks that step together from now on; null: each decides for itself. Ranks that come
  /// together again need one state: see adopt_state. Local.
  void set_group(ProcessGroupPtr group) { group_ = std::move(group); }
  const ProcessGroupPtr& group() const { return group_; }

  /// The tensors of the tree times the scale. The first one's device is where the scale is kept.
  /// Local.
  template <typename Tree>
  Tree scale(Tree outputs) {
    if (!is_enabled()) return outputs;
    return tree_map(std::move(outputs), [this](const at::Tensor& output) {
      return output.defined() ? scale_tensor(output) : output;
    });
  }

  /// Divides the gradients of the optimizer's parameters by the scale, in place, and looks whether
  /// all are finite. At most once between two updates. Collective with several ranks.
  /// Errors: c10::ValueError naming the parameter with an fp16 gradient: parameters are to stay in
  ///         float32, autocast does the rest.
  void unscale_(torch::optim::Optimizer& optimizer);
  bool is_unscaled(const torch::optim::Optimizer& optimizer) const;

  /// The optimizer's step, after unscale_ if that was not called; left out if a gradient is not
  /// finite. Returns whether it was done. Collective with several ranks.
  /// Errors: c10::ValueError if no parameter has a gradient, or for a second step before update().
  bool step(torch::optim::Optimizer& optimizer);

  /// Adapts the scale to what the steps since the last update found, or sets it. Local.
  void update(std::optional<double> new_scale = std::nullopt);

  /// The optimizer's gradients are scaled ones again: it can be unscaled and stepped once more
  /// before update(), for which what was found in the old ones still counts. Local.
  void renew(const torch::optim::Optimizer& optimizer);

  /// 1 where it is not enabled. Waits for the device.
  double get_scale() const;
  double get_growth_factor() const { return options_.growth_factor; }
  void set_growth_factor(double new_factor);
  double get_backoff_factor() const { return options_.backoff_factor; }
  void set_backoff_factor(double new_factor);
  int64_t get_growth_interval() const { return options_.growth_interval; }
  void set_growth_interval(int64_t new_interval);
  /// Steps in a row without an infinite gradient.
  int64_t get_growth_tracker() const;

  /// scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; empty where it is not
  /// enabled. Local.
  nlohmann::ordered_json state_dict() const;
  /// Errors: c10::ValueError naming the field that is missing or out of range; nothing is changed.
  void load_state_dict(const nlohmann::ordered_json& state_dict);

  /// The largest of what was found in gradients since the last update: more than 0 if one was not
  /// finite; absent if none was looked at. Not part of state_dict. Waits for the device.
  std::optional<double> found_inf() const;
  /// What renewed optimizers found before a state was loaded. Local.
  void set_found_inf(std::optional<double> found_inf);

  /// Gives all ranks of the group rank `source`'s state. Collective.
  void adopt_state(int source);

 private:
  enum class Stage { kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kUnscaled;
    // More than 0 if a gradient is not finite on any rank; undefined without gradients.
    at::Tensor found_inf;
  };

  at::Tensor scale_tensor(const at::Tensor& output);
  void keep_scale_on(c10::Device device);
  at::Tensor all_found_inf() const;
  at::Tensor unscale_gradients(const torch::optim::Optimizer& optimizer);

  GradScalerKwargs options_;
  ProcessGroupPtr group_;
  // Undefined until something is scaled.
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  // What they are until then.
  double initial_scale_;
  int64_t initial_growth_tracker_ = 0;
  // Of the optimizers that were unscaled or stepped since the last update.
  std::unordered_map<const torch::optim::Optimizer*, OptimizerState> optimizers_;
  // Of those that were renewed.
  at::Tensor found_inf_;
};

/// The scaler for this kind of job. Sharded kinds will have one of their own.
/// Mirrors: accelerate utils/modeling.py, get_grad_scaler.
GradScaler get_grad_scaler(std::optional<DistributedType> distributed_type = std::nullopt,
                           const GradScalerKwargs& options = {}, ProcessGroupPtr group = nullptr);

}  // namespace accelerate
