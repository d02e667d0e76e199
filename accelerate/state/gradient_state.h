/// Where gradient accumulation stands on one rank: over how many micro-steps gradients accumulate,
/// whether this micro-step synchronises them, what the open window has seen so far, and where the
/// running data loader is. This object is the only record of these facts.
///
/// There is one per Runtime; the rank's loaders, optimizers and Accelerators share it. A loader
/// that is being iterated holds a LoaderScope, and the innermost scope counts: an evaluation loop
/// inside a training loop is the active loader while it runs, and the training loop is afterwards.
///
/// Ownership: scopes point to their GradientState and may outlive it.
/// Threads:   belongs to its rank's thread; not synchronised.
/// Mirrors:   accelerate state.py, GradientState.
/// Differs:   a scope ends with its iterator, so leaving a loop early leaves nothing behind.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <c10/util/SmallVector.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/kwargs_handlers.h"

namespace accelerate {

/// Which rows of the current batches are samples and which are padding. Real rows come first in
/// each batch, and first in the concatenation of the data shares' batches; ranks of one share have
/// the same batch.
struct BatchRound {
  static constexpr int64_t kAll = -1;

  /// The number of real rows in this rank's batch.
  int64_t own_rows = kAll;
  /// The number of real rows in the batches of all shares together.
  int64_t real_rows = kAll;
  /// Whether shares' batches may differ in their number of rows.
  bool ragged = false;
  /// How many data shares have a batch: the first ones. 0: all.
  int shares = 0;
  /// Whether no share has a batch after this one. A share's own last batch may come earlier.
  bool last = false;
};

/// The micro-steps that make one optimizer step.
struct AccumulationWindow {
  /// The micro-steps that have begun; 0 in loops without accumulate().
  int64_t steps = 0;
  /// The models that accumulate() named; empty: all prepared models. Compared, not dereferenced.
  c10::SmallVector<const torch::nn::Module*, 4> models;
  /// Gradients already scaled by 1/num_steps were rescaled to the actual window length.
  bool rescaled = false;
  /// Losses were divided by the number of micro-steps, or are divided by tokens at the end of the
  /// window. A window that does both is an error.
  bool divides_by_steps = false;
  bool divides_by_tokens = false;
  /// This rank's tokens so far.
  int64_t tokens = 0;
  /// The divisor of the losses before the last micro-step; 0: there was no such loss.
  int64_t token_unit = 0;
  /// The tokens of all ranks were summed.
  bool tokens_are_summed = false;
};

class GradientState {
 public:
  class LoaderScope;

  /// remainder() where it cannot be known, and outside of loops.
  static constexpr int64_t kUnknownRemainder = -1;

  GradientState() = default;
  ~GradientState();
  GradientState(const GradientState&) = delete;
  GradientState& operator=(const GradientState&) = delete;

  /// Whether this step's backward pass synchronises gradients over the ranks.
  bool sync_gradients() const { return sync_gradients_; }
  void set_sync_gradients(bool sync_gradients) { sync_gradients_ = sync_gradients; }

  /// How gradients accumulate. Errors: c10::ValueError for less than one step.
  const GradientAccumulationPlugin& plugin() const { return plugin_; }
  void set_plugin(const GradientAccumulationPlugin& plugin);

  /// The plugin that an Accelerator was constructed with. The first request takes effect; later
  /// ones must equal it, or the plugin as setters have changed it since.
  /// Errors: c10::ValueError for a request that contradicts the first one.
  void request_plugin(const GradientAccumulationPlugin& plugin);

  /// The fields of the plugin that differ from their defaults, by name.
  nlohmann::ordered_json plugin_kwargs() const;

  /// How many backward passes make one optimizer step. At least 1.
  int64_t num_steps() const { return plugin_.num_steps.value_or(1); }
  void set_num_steps(int64_t num_steps);

  /// See GradientAccumulationPlugin.
  bool adjust_scheduler() const { return plugin_.adjust_scheduler.value_or(false); }
  bool sync_with_dataloader() const { return plugin_.sync_with_dataloader; }
  bool sync_each_batch() const { return plugin_.sync_each_batch; }
  bool normalize_partial_window() const { return plugin_.normalize_partial_window; }

  /// Whether the gradients of all optimizers were averaged over the ranks already. Only XLA devices
  /// use it, where optimizers average gradients. Clipping sets it; a program that averages by
  /// itself sets it after backward() and before each optimizer's step, which then averages
  /// nothing. backward() and an optimizer's step reset it. Equal on all ranks.
  bool is_xla_gradients_synced() const { return is_xla_gradients_synced_; }
  void set_is_xla_gradients_synced(bool synced) { is_xla_gradients_synced_ = synced; }

  /// Counts one micro-step, opens a window if the last one is complete, and decides whether this
  /// micro-step synchronises: every num_steps()-th one does, and so does the last batch of a
  /// loader.
  void begin_micro_step();
  /// Micro-steps since the last one that synchronised at a loader's end.
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }
  AccumulationWindow& window() { return window_; }
  const AccumulationWindow& window() const { return window_; }

  /// Whether ranks may run different numbers of steps now, inside join_uneven_inputs.
  bool joining() const { return joining_; }
  /// At the end of joining all ranks count their micro-steps from zero again.
  void set_joining(bool joining);

  /// Counts from zero in a new window, and synchronises. Running passes over loaders stay.
  void restart();
  /// As constructed, except that running passes over loaders stay.
  void reset();

  /// Whether a loader is being iterated.
  bool in_dataloader() const { return !loaders_.empty(); }

  /// The innermost pass; null outside of loops.
  const LoaderScope* active_dataloader() const {
    return loaders_.empty() ? nullptr : loaders_.back();
  }
  /// All passes that run, outermost first.
  const std::vector<LoaderScope*>& dataloader_references() const { return loaders_; }

  /// Whether the innermost loader has handed out its last batch; false outside of loops.
  bool end_of_dataloader() const;

  /// How many rows of the innermost loader's last global batch (over all shares) are real and not
  /// padding; 0: all of them. gather_for_metrics uses round() instead.
  int64_t remainder() const;

  /// The round of the innermost loader's current batch; null outside of loops.
  const BatchRound* round() const;

 private:
  bool sync_gradients_ = true;
  GradientAccumulationPlugin plugin_;
  std::optional<GradientAccumulationPlugin> requested_plugin_;
  bool is_xla_gradients_synced_ = false;
  bool joining_ = false;
  int64_t step_ = 0;
  AccumulationWindow window_;
  std::vector<LoaderScope*> loaders_;  // outermost first
};

/// One running pass over a loader. It becomes the innermost pass when it is constructed, and leaves
/// the stack when it is destroyed, wherever it then stands: interleaved loops may end in any order.
class GradientState::LoaderScope {
 public:
  explicit LoaderScope(GradientState& state, int64_t remainder = kUnknownRemainder);
  ~LoaderScope();
  LoaderScope(const LoaderScope&) = delete;
  LoaderScope& operator=(const LoaderScope&) = delete;

  bool end_of_dataloader() const { return end_of_dataloader_; }
  int64_t remainder() const { return remainder_; }
  const BatchRound& round() const { return round_; }

  void set_end_of_dataloader(bool end) { end_of_dataloader_ = end; }
  void set_remainder(int64_t remainder) { remainder_ = remainder; }
  void set_round(const BatchRound& round) { round_ = round; }

 private:
  friend class GradientState;

  GradientState* state_;  // null once the state is gone
  bool end_of_dataloader_ = false;
  int64_t remainder_;
  BatchRound round_;
};

}  // namespace accelerate
