/// Activation checkpointing: a part of a model whose intermediate results are not kept for the
/// backward pass but computed again there. Memory for time.
///
///     at::Tensor out = checkpoint(block, x);             // instead of block(x)
///     auto [y, state] = checkpoint([&](at::Tensor x, at::Tensor h) { ... }, x, h);
///
/// Gradients are those of the plain call, bit by bit if the function computes the same twice: the
/// generators of the rank (CPU and device), autocast and layers in fp8 are put back to what they
/// were. They reach whatever they would reach without a checkpoint: inputs, and parameters and
/// other tensors that the function captures, whether an input requires a gradient or not. The graph
/// shows them as well, so DDP (find_unused_parameters included), hooks, torch::autograd::grad,
/// retain_graph, a second backward pass and gradients of gradients work; checkpoints nest.
///
/// How: the function runs with gradients, so that it is known which edges leave its part of the
/// graph, and one node with the same edges takes that part's place, which frees what it saved.
/// Until then, at the end of the call, memory is what it will be during the recomputation.
///
/// The function and its inputs are copied; what a lambda captures by reference must be there until
/// the backward pass. What else it changes (such as statistics of a batch norm) it changes twice.
/// Without gradients (at::NoGradGuard) the function is simply called.
/// Errors: from the call, c10::Error if the function changes an input in place. From backward(),
///         c10::Error if an input or a parameter has changed in place meanwhile, if the function
///         now gives other tensors (number, shape, type, device) or uses other parameters, or after
///         the graph was freed; and whatever the function throws.
/// Threads: the function is computed again on the thread that runs the backward pass.
/// Mirrors: torch.utils.checkpoint.checkpoint(use_reentrant=False).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "accelerate/tensors/tree.h"

namespace accelerate {

struct CheckpointOptions {
  /// Off: random numbers are drawn anew, which saves a little time where the function draws none.
  bool preserve_rng_state = true;
};

namespace internal {

struct CheckpointedCall;

/// To be called before the function is.
std::shared_ptr<CheckpointedCall> begin_checkpoint(CheckpointOptions options,
                                                   const std::vector<at::Tensor>& inputs);

/// What takes the place of the function's tensors. `again` computes them again.
std::vector<at::Tensor> end_checkpoint(std::shared_ptr<CheckpointedCall> call,
                                       const std::vector<at::Tensor>& outputs,
                                       std::function<std::vector<at::Tensor>()> again);

template <typename T>
std::vector<at::Tensor> tensors_of(const T& value) {
  std::vector<at::Tensor> tensors;
  tree_for_each(value, [&tensors](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

}  // namespace internal

/// function(inputs...), which is a tensor or a tree with tensors in it (see util/tree.h). Inputs
/// are any values; tensors in them are looked after, see above.
template <typename Function, typename... Inputs>
auto checkpoint(CheckpointOptions options, Function&& function, Inputs&&... inputs) {
  using Callable = std::decay_t<Function>;
  using Result = std::decay_t<std::invoke_result_t<Callable&, std::decay_t<Inputs>...>>;
  static_assert(internal::kMayHoldTensors<Result>,
                "a checkpointed function returns its tensors: a backward pass starts from them");
  if (!at::GradMode::is_enabled()) {
    Callable callable = std::forward<Function>(function);
    return Result(callable(std::decay_t<Inputs>(std::forward<Inputs>(inputs))...));
  }
  const auto values =
      std::make_shared<const std::tuple<std::decay_t<Inputs>...>>(std::forward<Inputs>(inputs)...);
  auto run = [callable = Callable(std::forward<Function>(function)), values]() mutable -> Result {
    // Each time with fresh copies, which the function may do with what it likes.
    return std::apply(callable, std::tuple<std::decay_t<Inputs>...>(*values));
  };
  auto call = internal::begin_checkpoint(options, internal::tensors_of(*values));
  Result result = run();
  const std::vector<at::Tensor> outputs = internal::end_checkpoint(
      std::move(call), internal::tensors_of(result),
      [run = std::move(run)]() mutable { return internal::tensors_of(run()); });
  size_t next = 0;
  return tree_map(std::move(result), [&](const at::Tensor&) { return outputs[next++]; });
}

template <typename Function, typename... Inputs>
  requires(!std::is_same_v<std::decay_t<Function>, CheckpointOptions>)
auto checkpoint(Function&& function, Inputs&&... inputs) {
  return checkpoint(CheckpointOptions(), std::forward<Function>(function),
                    std::forward<Inputs>(inputs)...);
}

}  // namespace accelerate
