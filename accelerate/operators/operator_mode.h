/// Handlers that see the operators of a thread before autograd and automatic mixed precision do.
///
/// While an OperatorModeScope lives, its thread calls the scope's handler instead of each operator.
/// The handler reads or changes the arguments, computes the result itself, or passes the call on
/// with `call.proceed()`: to the next handler, and after the last one to LibTorch. Operators that a
/// kernel, a handler or a backward pass calls go through the handlers as well; a handler that must
/// not see its own operators calls them inside `OperatorModeScope::without`.
///
/// A thread's handlers form a stack, ordered by OperatorOrder. Within one order the handler of the
/// innermost scope comes first.
///
/// Parameters that are brought into memory for each use have a mechanism of their own, which sees
/// the operators after all handlers: see managed_storage.h.
///
/// Mechanism: one dispatch key, TESTING_ONLY_GenericMode, with a boxed fallback. LibTorch accepts
/// one fallback per key and process, so no other code may register anything for this key. The
/// handlers are in c10::ThreadLocalDebugInfo, which travels with the key in at::ThreadLocalState.
/// Cost:    none without handlers, because the thread does not include the key then. With one
///          handler about 0.1 us per operator; see operator_mode_benchmark.cc.
/// Errors:  exceptions of handlers and operators reach the operator's caller.
/// Threads: a scope acts on the thread that made it, and on what LibTorch does for that thread on
///          others with its at::ThreadLocalState: a backward pass on the thread of a device or of a
///          thread pool, a forked task, a collective of Gloo. It ends on all of them with the
///          scope, so work that comes later, such as a recomputation, takes
///          current_operator_handlers() along. Handlers are called on several threads at a time and
///          must be thread-safe; a call on another thread may outlast the scope.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

/// Where a handler stands in the stack, outermost first.
enum class OperatorOrder {
  /// Says where tensors are made, which all handlers below may read from the arguments.
  kConstruction,
  /// Computes layers of which ranks have parts: what a rank computes of a linear layer is left to
  /// the handlers below.
  kTensorParallel,
  /// Says which random numbers operators draw (random_streams.h).
  kRandomStreams,
  /// Computes attention of which ranks have parts.
  kAttention,
  /// Computes linear layers in another way.
  kLinearProducts,
  /// Records the operators that are left, as they reach autograd.
  kRecording,
};

/// An operator to compare calls with, as find_operator("aten::softmax", "int").
/// Errors: c10::Error for one that LibTorch does not have.
inline c10::OperatorHandle find_operator(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

class OperatorHandler;
using OperatorHandlers = std::vector<std::shared_ptr<OperatorHandler>>;

/// One call of an operator on its way through the handlers.
class OperatorCall {
 public:
  const c10::OperatorHandle& op() const { return op_; }

  /// The dispatch keys that are left for the operator.
  c10::DispatchKeySet keys() const { return keys_; }

  /// Before proceed() the arguments are on top, afterwards the results.
  torch::jit::Stack& stack() const { return stack_; }

  /// Calls the next handler, or the operator itself. A handler that does not proceed replaces the
  /// arguments on the stack by the results.
  void proceed() const;

 private:
  friend void show_operator(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);
  using Next = OperatorHandlers::const_iterator;

  OperatorCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack,
               Next next, Next end)
      : op_(op), keys_(keys), stack_(stack), next_(next), end_(end) {}

  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
  torch::jit::Stack& stack_;
  const Next next_, end_;
};

class OperatorHandler {
 public:
  explicit OperatorHandler(OperatorOrder order) : order_(order) {}
  virtual ~OperatorHandler() = default;
  OperatorHandler(const OperatorHandler&) = delete;
  OperatorHandler& operator=(const OperatorHandler&) = delete;

  virtual void call(const OperatorCall& call) = 0;

  /// What a module that block() calls (block.h) gets in place of its first input, a tensor.
  virtual at::Tensor block_input(const torch::nn::Module& /*module*/, at::Tensor input) {
    return input;
  }

  /// After a function that is to be computed again (checkpoint.h), for each tensor that it got,
  /// while checkpointed_run() is still that of the function: what the handler remembers of the
  /// tensor by this run is of no more use.
  virtual void forget(const at::Tensor& /*input*/) {}

  OperatorOrder order() const { return order_; }

 private:
  const OperatorOrder order_;
};

/// This thread's handlers, outermost first.
const OperatorHandlers& current_operator_handlers();

/// Whether an operator is called by a backward pass that runs while this thread's innermost scope
/// lives, and not by a recomputation, which makes a scope of its own in the backward pass.
bool is_backward_of_operator_scope();

class OperatorModeScope {
 public:
  /// Adds a handler to those of the scopes around it. Null changes nothing.
  explicit OperatorModeScope(std::shared_ptr<OperatorHandler> handler);
  /// Replaces the handlers of the scopes around it; an empty list removes them.
  explicit OperatorModeScope(OperatorHandlers handlers);
  /// Removes the handlers of one order.
  [[nodiscard]] static OperatorModeScope without(OperatorOrder order);
  ~OperatorModeScope();
  OperatorModeScope(const OperatorModeScope&) = delete;
  OperatorModeScope& operator=(const OperatorModeScope&) = delete;

 private:
  friend const OperatorHandlers& current_operator_handlers();
  friend bool is_backward_of_operator_scope();
  class Carried;

  const std::shared_ptr<Carried> carried_;
  const c10::DebugInfoGuard in_thread_;
  const bool was_included_;
};

/// The product of a linear layer: input x weight^T + bias.
/// Shapes: input [..., in], weight [out, in], bias [out] or undefined.
struct LinearProduct {
  at::Tensor input, weight, bias;
};

/// The product of a linear layer that an operator is about to compute, which is what
/// torch::nn::Linear, F::linear and at::linear come down to; absent for other operators.
std::optional<LinearProduct> linear_product(const OperatorCall& call);

/// A handler that computes the Linear layers of a forward pass.
///
/// A module holds its layers in typed members, so none of them can be replaced by a layer of
/// another type. What can be replaced is the product that a layer asks for: inside an
/// OperatorModeScope this handler is offered each linear_product, and computes it or leaves it to
/// the next handler. All other operators pass.
/// The product comes before autograd and automatic mixed precision, so both still apply to what the
/// handler computes.
class LinearHandler : public OperatorHandler {
 public:
  LinearHandler() : OperatorHandler(OperatorOrder::kLinearProducts) {}

  /// input x weight^T + bias; nothing if the handler does not compute this weight's products.
  /// Shapes: input [..., in], weight [out, in], bias [out] or undefined.
  virtual std::optional<at::Tensor> linear(const at::Tensor& input, const at::Tensor& weight,
                                           const at::Tensor& bias) = 0;

  void call(const OperatorCall& call) final;
};

}  // namespace accelerate
