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
#include <vector>

namespace accelerate {

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

  /// How many backward passes make one optimizer step. At least 1.
  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t num_steps);

  /// Whether a loader is being iterated.
  bool in_dataloader() const { return !loaders_.empty(); }

  /// Whether the innermost loader has handed out its last batch; false outside of loops.
  bool end_of_dataloader() const;

  /// How many rows of the innermost loader's last global batch (over all ranks) are real and not
  /// padding; 0: all of them.
  int64_t remainder() const;

 private:
  bool sync_gradients_ = true;
  int64_t num_steps_ = 1;
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

  void set_end_of_dataloader(bool end) { end_of_dataloader_ = end; }
  void set_remainder(int64_t remainder) { remainder_ = remainder; }

 private:
  friend class GradientState;

  GradientState* state_;  // null once the state is gone
  bool end_of_dataloader_ = false;
  int64_t remainder_;
};

}  // namespace accelerate
