/// Scales the loss so that small gradients survive fp16, and skips a step if scaling made a
/// gradient infinite.
///
///   GradScaler scaler;
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);   // only if gradients are used before the step, such as clipped
///   scaler.step(optimizer);       // skipped if a gradient is infinite or NaN
///   scaler.update();              // once for all optimizers of an iteration
///
/// Ranks agree: a gradient that is not finite on one rank counts on all of them, so all ranks skip
/// the same steps and have the same scale.
///
/// Errors:  c10::ValueError for options out of range, fp16 gradients, and calls in the wrong order.
/// Threads: the rank's thread.
/// Mirrors: torch.amp.GradScaler; with a LossScaling, DeepSpeed's scaler.
/// Differs: ranks agree; see accelerate/docs/differences.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/tensors/tree.h"

namespace accelerate {

struct ZeroConfig;

/// How a scale adapts in DeepSpeed's way, which differs from PyTorch's in these settings, and in
/// that the scale grows one good step later at the beginning and after an infinite gradient.
/// Mirrors: deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler and LossScaler.
struct LossScaling {
  /// The scale stays as it is; steps with infinite gradients are skipped all the same.
  bool is_static = false;
  /// The scale backs off at the last of so many steps with infinite gradients, and then at each of
  /// them until `hysteresis` is restored: where the scale grows.
  int64_t hysteresis = 1;
  /// Each step with finite gradients restores it.
  bool consecutive_hysteresis = false;
  /// The scale never falls below; update() throws where it is to back off and is there already.
  double min_scale = 1;
};

class GradScaler {
 public:
  /// `group`: the ranks that step together; null for one rank. `scaling`: absent for PyTorch's way.
  explicit GradScaler(const GradScalerKwargs& options = {}, ProcessGroupPtr group = nullptr,
                      const std::optional<LossScaling>& scaling = std::nullopt);

  bool is_enabled() const { return options_.enabled; }

  /// Sets the ranks that step together from now on; null: each rank decides alone. Ranks that agree
  /// again afterwards need the same state: see broadcast_state. Local.
  void set_group(ProcessGroupPtr group) { group_ = std::move(group); }
  const ProcessGroupPtr& group() const { return group_; }

  /// The tensors of the tree times the scale, which is kept on the first tensor's device. Local.
  template <typename Tree>
  Tree scale(Tree outputs) {
    if (!is_enabled()) return outputs;
    return tree_map(std::move(outputs), [this](const at::Tensor& output) {
      return output.defined() ? scale_tensor(output) : output;
    });
  }

  /// Divides the gradients of the optimizer's parameters by the scale, in place, and checks whether
  /// all are finite. At most once between two updates. Collective with several ranks.
  /// Errors: c10::ValueError that names a parameter with an fp16 gradient: parameters must stay in
  ///         float32, and autocast casts them.
  void unscale_(torch::optim::Optimizer& optimizer);
  bool is_unscaled(const torch::optim::Optimizer& optimizer) const;

  /// Steps the optimizer, after unscale_ if that was not called; skips the step if a gradient is
  /// not finite. Returns whether the optimizer stepped. Collective with several ranks.
  /// Errors: c10::ValueError if no parameter has a gradient, or for a second step before update().
  bool step(torch::optim::Optimizer& optimizer);
  /// The same with another way to make the optimizer's step.
  bool step(torch::optim::Optimizer& optimizer, const std::function<void()>& update);

  /// Adapts the scale to the gradients since the last update, or sets it. Local.
  /// Errors: with a LossScaling, c10::Error naming rank and step if the scale is at its minimum and
  ///         gradients are infinite still; all ranks throw then, and the scale stays.
  void update(std::optional<double> new_scale = std::nullopt);

  /// Declares that the optimizer's gradients are scaled again: unscale_ and step may be called once
  /// more before update(), which still counts what the old gradients were. Local.
  void renew(const torch::optim::Optimizer& optimizer);

  /// 1 if disabled. Waits for the device.
  double get_scale() const;
  double get_growth_factor() const { return options_.growth_factor; }
  void set_growth_factor(double factor) { set(&GradScalerKwargs::growth_factor, factor); }
  double get_backoff_factor() const { return options_.backoff_factor; }
  void set_backoff_factor(double factor) { set(&GradScalerKwargs::backoff_factor, factor); }
  int64_t get_growth_interval() const { return options_.growth_interval; }
  void set_growth_interval(int64_t steps) { set(&GradScalerKwargs::growth_interval, steps); }
  /// Steps in a row without an infinite gradient since the scale grew; with a LossScaling it begins
  /// with -1, and does so again after an infinite gradient.
  int64_t get_growth_tracker() const;

  /// scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; empty if disabled.
  /// With a LossScaling also hysteresis, consecutive_hysteresis, min_scale, cur_hysteresis and
  /// cur_iter: what is left of the hysteresis, and the number of updates. Local.
  nlohmann::ordered_json state_dict() const;
  /// A state without the fields of a LossScaling leaves its settings and restores the hysteresis;
  /// a static scale stays in any case.
  /// Errors: c10::ValueError that names a missing field or one out of range; nothing is changed.
  void load_state_dict(const nlohmann::ordered_json& state_dict);

  /// More than 0 if a gradient since the last update was not finite; absent if none was checked.
  /// Not part of state_dict. Waits for the device.
  std::optional<double> found_inf() const;
  /// Restores found_inf() after a state was loaded. Local.
  void set_found_inf(std::optional<double> found_inf);

  /// Loads rank `source`'s state on all ranks of the group. Collective.
  void broadcast_state(int source);

 private:
  enum class Stage { kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kUnscaled;
    // More than 0 if a gradient is not finite on any rank; undefined without gradients.
    at::Tensor found_inf;
  };

  static void check(const GradScalerKwargs& options);
  template <typename T>
  void set(T GradScalerKwargs::* option, T value) {
    GradScalerKwargs options = options_;
    options.*option = value;
    check(options);
    options_ = options;
  }
  at::Tensor scale_tensor(const at::Tensor& output);
  void make_scale_on(c10::Device device);
  at::Tensor all_found_inf() const;
  void adapt_as_deepspeed(const at::Tensor& found_inf);
  at::Tensor unscale_gradients(const torch::optim::Optimizer& optimizer);

  GradScalerKwargs options_;
  ProcessGroupPtr group_;
  std::optional<LossScaling> scaling_;
  // With a LossScaling: the scale backs off at the last of so many infinite gradients.
  int64_t hysteresis_left_ = 1;
  // With a LossScaling: the updates so far.
  int64_t updates_ = 0;
  // Undefined until something is scaled.
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  // Their values until then.
  double initial_scale_;
  int64_t initial_growth_tracker_ = 0;
  // The optimizers that were unscaled or stepped since the last update.
  std::unordered_map<const torch::optim::Optimizer*, OptimizerState> optimizers_;
  // The maximum over renewed optimizers.
  at::Tensor found_inf_;
};

/// The scaler for this kind of job.
/// Errors: c10::ValueError for engines that scale by themselves.
/// Mirrors: accelerate utils/modeling.py, get_grad_scaler.
GradScaler get_grad_scaler(std::optional<DistributedType> distributed_type = std::nullopt,
                           const GradScalerKwargs& options = {}, ProcessGroupPtr group = nullptr);

/// The scaler that a DeepSpeed configuration asks for, whatever its stage. In fp16 the scale begins
/// with 2 to initial_scale_power, doubles after loss_scale_window good steps and halves; or it is
/// loss_scale throughout. In bf16 with check_grad_overflow it is 1, and steps with infinite
/// gradients are skipped. Absent otherwise. Local.
/// Mirrors: deepspeed/runtime/fp16/loss_scaler.py, CreateLossScaler.
std::optional<GradScaler> zero_grad_scaler(const ZeroConfig& zero, ProcessGroupPtr group = nullptr);

/// One GradScaler for all the optimizers of a rank.
///
/// The scale adapts once per iteration, when all optimizers have stepped. If one has stepped twice
/// before that, not all of them step in each iteration, and the scale adapts before the next
/// backward pass. Gradients that were unscaled without a step are scaled again before a backward
/// pass adds to them.
///
/// Mirrors: nothing in HF Accelerate, where each prepared optimizer's step updates the scale.
class SharedScaler {
 public:
  explicit SharedScaler(GradScaler scaler) : scaler_(std::move(scaler)) {}
  SharedScaler(const SharedScaler&) = delete;
  SharedScaler& operator=(const SharedScaler&) = delete;

  GradScaler& scaler() { return scaler_; }

  /// The scaler's state and, under "accelerate", each optimizer's progress since the last update,
  /// in the order of preparation. Local; waits for the device.
  nlohmann::ordered_json state_dict() const;
  /// A state without "accelerate", such as HF Accelerate's, is that of a scaler just updated.
  /// Local.
  /// Errors: c10::ValueError that names a missing field or one of another type, or for another
  ///         number of optimizers; nothing is changed.
  void load_state_dict(const nlohmann::ordered_json& state);

  /// Call before scaling a loss. Local; may wait for the device.
  void begin_backward();

  /// Registers an optimizer with the scaler for its lifetime.
  class User {
   public:
    User() = default;
    User(std::shared_ptr<SharedScaler> shared, torch::optim::Optimizer& optimizer);

    explicit operator bool() const { return entry_ != nullptr; }

    /// As GradScaler::unscale_; no effect on unscaled gradients.
    void unscale();
    /// As GradScaler::step.
    bool step(const std::function<void()>& update);
    /// Call when the optimizer's gradients were cleared.
    void clear_unscaled();
    /// A parameter whose gradient may wait, scaled, until it becomes part of one of the
    /// optimizer's: it follows the scale.
    void add_waiting(const at::Tensor& parameter) { entry_->waiting.push_back(parameter); }

   private:
    struct Entry {
      ~Entry();

      std::shared_ptr<SharedScaler> shared;
      torch::optim::Optimizer* optimizer;
      bool is_unscaled = false;  // the gradients
      int steps = 0;             // since the last update
      std::vector<at::Tensor> waiting = {};
    };
    friend class SharedScaler;
    std::unique_ptr<Entry> entry_;
  };

 private:
  void update();

  GradScaler scaler_;
  std::vector<User::Entry*> users_;
};

}  // namespace accelerate
