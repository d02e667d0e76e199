/// What the parts of one rank's training step must agree on: whether gradients are synchronised
/// now, over how many steps they accumulate, and where the running data loader stands.
///
/// There is one per Runtime; loaders, optimizers and the Accelerator of a rank share it. A loader
/// that is being iterated holds a LoaderScope, and the innermost scope answers for the loader: an
/// evaluation loop inside a training loop is asked while it runs, the training loop again after it.
///
/// Ownership: scopes point to their GradientState and may outlive it.
/// Threads:   belongs to its rank's thread; not synchronised.
/// Mirrors:   accelerate state.py, GradientState.
/// Differs:   a scope ends with its iterator, so leaving a loop early leaves nothing behind.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/config/kwargs_handlers.h"

namespace accelerate {

/// What is real in the batches that ranks have in hand, and what only fills them up: real rows come
/// first in each batch, and first in the ranks' batches one after the other.
struct BatchRound {
  static constexpr int64_t kAll = -1;

  /// How many rows of this rank's batch are real.
  int64_t own_rows = kAll;
  /// How many rows of all ranks' batches are.
  int64_t real_rows = kAll;
  /// Whether ranks' batches may differ in their number of rows.
  bool ragged = false;
  /// How many ranks have a batch: the first ones. 0: all.
  int ranks = 0;
  /// Whether no rank has a batch after this one. A rank's own last batch may come earlier.
  bool last = false;
};

class GradientState {
 public:
  class LoaderScope;

  /// remainder() where nobody can tell it, and outside of loops.
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

  /// What of the plugin differs from the default, by name.
  nlohmann::ordered_json plugin_kwargs() const;

  /// How many backward passes make one optimizer step. At least 1.
  int64_t num_steps() const { return plugin_.num_steps.value_or(1); }
  void set_num_steps(int64_t num_steps);

  /// See GradientAccumulationPlugin.
  bool adjust_scheduler() const { return plugin_.adjust_scheduler.value_or(false); }
  bool sync_with_dataloader() const { return plugin_.sync_with_dataloader; }
  bool sync_each_batch() const { return plugin_.sync_each_batch; }
  bool normalize_partial_window() const { return plugin_.normalize_partial_window; }

  /// Whether this step's gradients are reduced over the ranks already; reset by the optimizer's
  /// step. Kept for XLA devices only, whose optimizers the peer lets reduce them.
  bool is_xla_gradients_synced() const { return is_xla_gradients_synced_; }
  void set_is_xla_gradients_synced(bool synced) { is_xla_gradients_synced_ = synced; }

  /// As it was made; passes that run stay.
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

  /// How many rows of the innermost loader's last global batch (over all ranks) are real and not
  /// padding; 0: all of them. What gather_for_metrics goes by is round().
  int64_t remainder() const;

  /// Of the innermost loader's batch; null outside of loops.
  const BatchRound* round() const;

 private:
  bool sync_gradients_ = true;
  GradientAccumulationPlugin plugin_;
  bool is_xla_gradients_synced_ = false;
  std::vector<LoaderScope*> loaders_;  // outermost first
};

/// One running pass over a loader. It is the innermost from construction on, and leaves the stack
/// on destruction wherever it then stands, so interleaved loops may end in any order.
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
