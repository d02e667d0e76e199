/// The training step: what happens between the loss and the optimizer's step.
///
/// It knows the prepared objects, opens and closes accumulation windows, and weighs losses by
/// micro-steps and tokens. What depends on the kind of job is the engine's: the backward pass, the
/// step behind it, clipping, what a user's calls of a prepared optimizer do. The Accelerator
/// delegates to this class, and documents its methods for users.
///
/// GradientState has the state of accumulation, TrainingState the prepared objects and the engine;
/// this class has none of its own. What a technique adds to the step is a verb of its class: see
/// technique.h. What an engine adds is one of StepEngine: see step_engine.h.
/// Errors: as documented at the Accelerator's methods.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/forward/technique.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/parallel/replicated/join.h"
#include "accelerate/step/backward_options.h"

namespace accelerate {

class AcceleratedOptimizer;
class AcceleratedScheduler;
class AcceleratorState;
class GradientState;
class GradScaler;
class ModelState;
class PipelineTechnique;
class SharedScaler;
struct BatchRound;
struct DummyOptim;
struct DummyScheduler;
struct KwargsHandlers;
struct SchedulerPolicy;
struct TrainBatchOptions;

namespace internal {
class LoaderCore;
class LomoEngine;
class StepEngine;
class TrainingStep;
class ZeroEngine;
struct TrainingState;
struct WindowCalls;
}  // namespace internal

struct JoinOptions {
  /// Replaces the configuration's even_batches inside the scope. Absent: the configuration's.
  std::optional<bool> even_batches = std::nullopt;
};

/// While it lives, ranks may have different numbers of batches. See
/// Accelerator::join_uneven_inputs.
/// Threads: the rank's thread.
/// Mirrors: accelerate accelerator.py, Accelerator.join_uneven_inputs.
class UnevenInputsScope {
 public:
  UnevenInputsScope(UnevenInputsScope&&) = default;
  /// The rank shadows the collectives of those that still train, and throws what that throws.
  ~UnevenInputsScope() noexcept(false) = default;

 private:
  friend class internal::TrainingStep;
  // Undoes what the scope changed.
  class Restorer {
   public:
    Restorer() = default;
    Restorer(Restorer&& other) noexcept
        : loaders(std::move(other.loaders)),
          joining(std::exchange(other.joining, nullptr)),
          scaler(std::move(other.scaler)),
          scaling_group(std::move(other.scaling_group)) {}
    ~Restorer();
    // The loaders' even_batches before the scope.
    std::vector<std::pair<std::shared_ptr<internal::LoaderCore>, bool>> loaders;
    // Null unless ranks join.
    GradientState* joining = nullptr;
    // The scaler's process group before the scope; null without a scaler.
    std::shared_ptr<SharedScaler> scaler;
    ProcessGroupPtr scaling_group;
  };
  UnevenInputsScope(Restorer restorer, JoinScope join)
      : restorer_(std::move(restorer)), join_(std::move(join)) {}

  Restorer restorer_;
  JoinScope join_;  // ends before the loaders are restored
};

namespace internal {

/// What one call of prepare() has. What it points to outlives the call.
struct PreparedTogether {
  std::vector<const torch::nn::Module*> modules;
  std::vector<const torch::optim::Optimizer*> optimizers;
  std::vector<std::optional<int64_t>> batch_sizes;  // by loader
  bool has_scheduler = false;
  const DummyOptim* dummy_optimizer = nullptr;  // null: none
  const DummyScheduler* dummy_scheduler = nullptr;
};

class TrainingStep {
 public:
  /// Models that a call is about; empty: all prepared ones.
  using Models = std::initializer_list<const ModelState*>;

  /// All three outlive the step.
  TrainingStep(AcceleratorState& state, GradientState& gradients, TrainingState& training)
      : state_(state), gradients_(gradients), training_(training) {}

  // ---- Prepared objects.

  /// The ranks that average gradients, one for each share of the data; null for one share.
  ProcessGroupPtr training_group() const;
  /// Local. Errors: c10::ValueError, with the caller's name, where ranks train the same share.
  void check_each_rank_has_a_share(const char* caller) const;
  /// Checks what will be prepared together, and what was before, while all of it is as it was.
  /// Local. Errors: c10::ValueError naming the first parameter that is to be divided among ranks
  /// and that
  ///         an optimizer needs whole, or has state for.
  void check_before_sharding(const std::vector<const torch::nn::Module*>& modules,
                             const std::vector<const torch::optim::Optimizer*>& optimizers) const;
  /// With a deepspeed_plugin: completes its configuration by what is prepared, which training
  /// follows from then on, and makes ZeRO's engine where a model is prepared with an optimizer.
  /// Local. Errors: those of complete() and zero_config(), with the plugin unchanged;
  /// c10::ValueError for a placeholder without a plugin.
  void configure_zero(const PreparedTogether& together, bool split_batches);
  /// The model with its techniques; see apply_techniques. The same module gives the same result,
  /// and is moved to the device the first time if `device_placement`; see move_prepared_model.
  /// check_before_sharding was called for it. Collective.
  std::shared_ptr<ModelState> add_model(const std::shared_ptr<torch::nn::Module>& module,
                                        const KwargsHandlers& handlers, bool device_placement,
                                        bool trains);
  /// The handle that steps as the job's engine does, with the scaler. Local. Errors: those of
  /// StepEngine::check and prepare_models.
  AcceleratedOptimizer add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  /// The one that the plugin's configuration names, for the placeholder's parameters. Local.
  AcceleratedOptimizer add_optimizer(const DummyOptim& placeholder);
  /// Local. `scheduler` outlives the result.
  AcceleratedScheduler add_scheduler(torch::optim::LRScheduler& scheduler,
                                     const SchedulerPolicy& policy);
  /// The one that the placeholder makes, or that the plugin's configuration names. Local.
  AcceleratedScheduler add_scheduler(const DummyScheduler& placeholder,
                                     const SchedulerPolicy& policy);
  /// Lets go of all prepared objects, and counts micro-steps from zero again. Local.
  /// Errors: c10::ValueError inside join_uneven_inputs.
  void release_prepared();

  // ---- The window.

  NoSyncScope accumulate(Models models);
  NoSyncScope no_sync(Models models) const;
  UnevenInputsScope join_uneven_inputs(const JoinOptions& options, bool even_batches,
                                       Models models);

  // ---- The backward pass.

  void backward(const at::Tensor& loss, const BackwardOptions& options);
  at::Tensor backward_tokens(const at::Tensor& loss_sum, int64_t n_tokens,
                             const BackwardOptions& options);
  at::Tensor train_batch(const ModelState& model, const WindowCalls& calls,
                         const TrainBatchOptions& options);
  at::Tensor evaluate_batch(const ModelState& model, const WindowCalls& calls,
                            const TrainBatchOptions& options);
  void lomo_backward(const at::Tensor& loss, std::optional<double> learning_rate);
  bool has_lomo_optimizer() const;

  /// The same as a pass that synchronises gradients, or as one that does not. Collective.
  void engine_backward(const at::Tensor& loss, bool sync_gradients, const BackwardOptions& options);
  /// See StepEngine::norm.
  at::Tensor engine_norm() const;

  // ---- Gradients.

  void unscale_gradients();
  void unscale_gradients(const AcceleratedOptimizer& optimizer);
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                             double norm_type, bool error_if_nonfinite);
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  bool optimizer_step_was_skipped() const;
  /// Null where losses are not scaled.
  GradScaler* scaler() const;

  // ---- Other ranks.

  /// The ranks of this rank's column whose shares have a batch in this round; the whole column
  /// where `round` is null.
  ProcessGroupPtr metrics_group(const BatchRound* round) const;
  /// After ranks trained these models by themselves: the optimizers that train them, the schedulers
  /// and the scaler take rank `source`'s state. Collective.
  void broadcast_training_state(int source, const std::vector<const ModelState*>& models);

 private:
  // The job's outermost engine; the first call makes the chain that this kind of job has. Errors:
  // c10::ValueError after the AcceleratorState was reset.
  StepEngine& engine() const;
  // ZeRO's engine, which surrounds all others; the first call adds it. Errors: as engine().
  ZeroEngine& zero_engine() const;
  // Null before the job has an engine.
  LomoEngine* lomo() const;
  // The axes along which the modules of prepared models have parts of their tensors, or get parts
  // of their inputs.
  AxisSet divided_axes() const;
  // What this rank's groups are for where techniques divide models along these axes.
  RankRoles roles(AxisSet divides) const;
  ProcessGroupPtr ranks_after_forward(AxisSet divides) const;
  // Errors: c10::ValueError for a job whose models are in stages.
  void check_backward_is_whole(const char* caller) const;
  // By how many micro-steps a loss that is a mean is divided. In the last one of a window that has
  // fewer, earlier gradients are changed to that.
  int64_t steps_of_window();
  // What train_batch returns, on all ranks of a pipeline: of losses that are means, or of sums. The
  // second one divides the gradients of a window that ends.
  at::Tensor window_mean(const PipelineTechnique* pipeline, const at::Tensor& total) const;
  // Over all ranks, [3]: the sum of losses, the tokens, and those of the window so far.
  at::Tensor sums_of_tokens(const PipelineTechnique* pipeline, const at::Tensor& total,
                            int64_t tokens, int64_t window_tokens) const;
  at::Tensor divide_window_by_tokens(const PipelineTechnique* pipeline, const at::Tensor& total,
                                     int64_t tokens, bool synchronises);
  // The models named, or all prepared ones.
  std::vector<const ModelState*> named_or_all(Models models) const;
  // Multiplies the gradients of the window's models and of the prepared optimizers' parameters.
  void multiply_gradients(const at::Tensor& factor);

  AcceleratorState& state_;
  GradientState& gradients_;
  TrainingState& training_;
};

}  // namespace internal
}  // namespace accelerate
