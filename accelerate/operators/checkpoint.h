/// Activation checkpointing: intermediate results of a part of a model are not kept for the
/// backward pass but recomputed there, which trades time for memory.
///
///     at::Tensor out = checkpoint(block, x);             // instead of block(x)
///     auto [y, state] = checkpoint([&](at::Tensor x, at::Tensor h) { ... }, x, h);
///
/// Gradients equal those of the plain call, bit by bit if the function is deterministic: the rank's
/// generators (CPU and device), autocast and the operator handlers, such as fp8's, are restored for
/// the recomputation. They reach the same tensors as without a checkpoint: inputs, and parameters
/// and other tensors that the function captures, whether an input requires a gradient or not. The
/// graph has the same edges, so DDP (with find_unused_parameters, too), hooks,
/// torch::autograd::grad, retain_graph, a second backward pass and gradients of gradients work.
/// Checkpoints nest.
///
/// Mechanism: the function runs with gradients, which shows the edges that leave its part of the
/// graph. One node with the same edges replaces that part, and the tensors that it saved are freed.
/// Until then, at the end of the call, memory use equals that of the recomputation.
///
/// The function and its inputs are copied; variables that a lambda captures by reference must live
/// until the backward pass. Other state that the function changes, such as the statistics of a
/// batch norm, changes twice. Without gradients (at::NoGradGuard) the function is simply called.
/// Errors: from the call, c10::Error if the function changes an input in place. From backward(),
///         c10::Error if an input or a parameter has changed in place meanwhile, if the
///         recomputation gives other tensors (number, shape, type, device) or uses other
///         parameters, or if the graph was freed; and the function's own exceptions.
/// Local. Threads: the recomputation runs on the thread of the backward pass.
/// Mirrors: torch.utils.checkpoint.checkpoint(use_reentrant=False).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "accelerate/forward/forward_call.h"
#include "accelerate/tensors/tree.h"

namespace accelerate {

struct CheckpointOptions {
  /// If false, the recomputation draws new random numbers, which saves time if it draws none.
  bool preserve_rng_state = true;
  /// Inputs on a device are copied to host memory, pinned, at the end of the call, and back before
  /// the recomputation; the device keeps none of them in between, unless somebody else does. The
  /// values are the same. Tensors of the CPU, leaves that require gradients and expanded views stay
  /// where they are.
  bool offload_inputs = false;
};

namespace internal {

struct CheckpointedCall;

/// Computes the results from the tensors of the inputs.
using ComputeAgain = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// The tensors among the inputs. With `offload_inputs` the call keeps them, and there are tensors
/// without elements in their place, because containers of LibTorch take no undefined ones.
std::vector<at::Tensor> inputs_of(ForwardCall& call, bool offload_inputs);

/// Call before the function. The call keeps the inputs' tensors.
std::shared_ptr<CheckpointedCall> begin_checkpoint(CheckpointOptions options,
                                                   const std::vector<at::Tensor>& inputs);

/// The tensors that replace the function's results.
std::vector<at::Tensor> end_checkpoint(std::shared_ptr<CheckpointedCall> call,
                                       const std::vector<at::Tensor>& outputs, ComputeAgain again);

}  // namespace internal

/// The number of the innermost function that checkpoint() runs on this thread, another one each
/// time that it is computed; 0: there is none. What an operator handler remembers of the function's
/// graph is of no use before and after: the function must make its graph by itself.
uint64_t checkpointed_run();

/// function(inputs...), which gives a tensor or a tree with tensors (see tensors/tree.h). Inputs
/// are any values; tensors in them are checked for changes in place.
template <typename Function, typename... Inputs>
auto checkpoint(CheckpointOptions options, Function&& function, Inputs&&... inputs) {
  using Callable = std::decay_t<Function>;
  using Result = std::decay_t<std::invoke_result_t<Callable&, std::decay_t<Inputs>...>>;
  static_assert(internal::kMayHoldTensors<Result> && !internal::kHoldsReferences<Result>,
                "a checkpointed function returns its tensors: a backward pass starts from them");
  if (!at::GradMode::is_enabled()) {
    Callable callable = std::forward<Function>(function);
    return Result(callable(std::decay_t<Inputs>(std::forward<Inputs>(inputs))...));
  }
  using Arguments = std::tuple<std::decay_t<Inputs>...>;
  Callable callable = std::forward<Function>(function);
  Arguments arguments(std::forward<Inputs>(inputs)...);
  std::vector<at::Tensor> tensors = with_forward_call(callable, arguments, [&](auto& call) {
    return internal::inputs_of(call, options.offload_inputs);
  });
  auto run = [callable = std::move(callable),
              others = std::make_shared<const Arguments>(std::move(arguments))](
                 const std::vector<at::Tensor>& given) mutable {
    Arguments fresh = *others;  // each time, because the function may change them
    return with_forward_call(callable, fresh, [&given](auto& call) {
      call.inputs().set_tensors(given);
      call.run(/*input_dtype=*/std::nullopt);
      return ForwardOutput<Result>(call.take_output());
    });
  };
  auto call = internal::begin_checkpoint(options, tensors);
  ForwardOutput<Result> result = run(tensors);
  tensors.clear();
  std::vector<at::Tensor> outputs = internal::end_checkpoint(
      std::move(call), result.tensors(),
      [run = std::move(run)](const std::vector<at::Tensor>& given) mutable {
        return run(given).tensors();
      });
  result.set_tensors(std::move(outputs));
  return result.take();
}

template <typename Function, typename... Inputs>
  requires(!std::is_same_v<std::decay_t<Function>, CheckpointOptions>)
auto checkpoint(Function&& function, Inputs&&... inputs) {
  return checkpoint(CheckpointOptions(), std::forward<Function>(function),
                    std::forward<Inputs>(inputs)...);
}

}  // namespace accelerate
