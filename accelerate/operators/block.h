/// A call of a part of a model that may be computed again in the backward pass instead of keeping
/// its intermediate results, or be run in a compiled form.
///
///     x = accelerate::block(layer, x, mask);  // instead of layer(x, mask)
///
/// Modules have no hooks here, so this is where FSDP's activation_checkpointing acts: inside the
/// forward pass of a prepared model whose options ask for it, the call is a checkpoint() of the
/// module. Elsewhere, and for modules that the options leave out, it is an ordinary call. Blocks
/// inside of blocks are recomputed in their turn. A BlockRunner, such as that of compiled models,
/// may run a block that is not recomputed in its own way. Operator handlers of the thread may
/// replace the first input if it is a tensor, for example by this rank's shard of the sequences.
/// Errors:  those of checkpoint(), and those of the runner.
/// Threads: the calling thread, which must be that of the model's forward pass.
/// Mirrors: torch.distributed.algorithms._checkpoint.checkpoint_wrapper, which wraps modules.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include "accelerate/base/thread_scope.h"
#include "accelerate/forward/forward_call.h"
#include "accelerate/operators/checkpoint.h"

namespace accelerate {

/// Runs the blocks of a model in place of plain calls.
class BlockRunner {
 public:
  virtual ~BlockRunner() = default;

  /// Runs `call`, which is module->forward of a block's inputs, or gives it outputs in its place.
  virtual void run(const std::shared_ptr<torch::nn::Module>& module, ForwardCall& call) = 0;
};

/// While it lives block() leaves calls to the runner, in this thread. Scopes nest; the innermost
/// one decides.
struct BlockRunnerScope : internal::ThreadScope<BlockRunnerScope, BlockRunner*> {
  /// Null: plain calls.
  explicit BlockRunnerScope(BlockRunner* runner) : ThreadScope(runner) {}
};

/// What block() recomputes.
struct Recomputation {
  /// Absent: all modules.
  std::optional<std::unordered_set<const torch::nn::Module*>> modules = std::nullopt;
  CheckpointOptions options = {};
  /// How many calls in a scope, from the first one on; absent: all.
  std::optional<int> first_calls = std::nullopt;
};

/// While it lives block() recomputes, in this thread. Scopes nest; the innermost one decides.
class RecomputationScope : internal::ThreadScope<RecomputationScope, RecomputationScope*> {
 public:
  explicit RecomputationScope(std::shared_ptr<const Recomputation> recomputation)
      : ThreadScope(this), recomputation_(std::move(recomputation)) {}

  /// How many calls of block() have been checkpoints in the scope.
  int calls() const { return calls_; }

  /// The innermost scope's recomputation if block() is to recompute the module, and counts the
  /// call; else null.
  static std::shared_ptr<const Recomputation> recomputation_of(const torch::nn::Module& module);

 private:
  const std::shared_ptr<const Recomputation> recomputation_;
  int calls_ = 0;
};

namespace internal {

/// The first input of a block, as operator handlers replace it.
at::Tensor block_input(const torch::nn::Module& module, at::Tensor input);

template <typename Module, typename... Inputs>
auto run_block(const std::shared_ptr<Module>& module, Inputs&&... inputs) {
  auto recomputation = RecomputationScope::recomputation_of(*module);
  if (recomputation == nullptr) {
    BlockRunner* runner = BlockRunnerScope::current();
    if (runner == nullptr) return module->forward(std::forward<Inputs>(inputs)...);
    const ModuleForward<Module> forward{*module};
    ForwardCallOf<const ModuleForward<Module>, Inputs...> call(forward,
                                                               std::forward<Inputs>(inputs)...);
    runner->run(module, call);
    return call.take_output();
  }
  const CheckpointOptions options = recomputation->options;
  return checkpoint(
      options,
      [module, recomputation = std::move(recomputation)]<typename... Values>(Values&&... values) {
        const RecomputationScope scope(recomputation);
        return module->forward(std::forward<Values>(values)...);
      },
      std::forward<Inputs>(inputs)...);
}

}  // namespace internal

/// module->forward(inputs...). The module is kept alive until the backward pass.
template <typename Module, typename... Inputs>
auto block(const std::shared_ptr<Module>& module, Inputs&&... inputs) {
  return internal::run_block(module, std::forward<Inputs>(inputs)...);
}
template <typename Module, typename First, typename... Rest>
  requires(std::is_same_v<std::decay_t<First>, at::Tensor>)
auto block(const std::shared_ptr<Module>& module, First&& input, Rest&&... rest) {
  return internal::run_block(module, internal::block_input(*module, std::forward<First>(input)),
                             std::forward<Rest>(rest)...);
}
template <typename Module, typename... Inputs>
auto block(const torch::nn::ModuleHolder<Module>& module, Inputs&&... inputs) {
  return block(module.ptr(), std::forward<Inputs>(inputs)...);
}

}  // namespace accelerate
