/// Lets something else compute the Linear layers of a forward pass.
///
/// A module holds its layers in typed members, so none of them can be replaced by a layer of
/// another type. What can be replaced is the product they ask for: inside a LinearModeScope a
/// handler is shown each product of an input with a parameter's transpose, which is what
/// torch::nn::Linear, F::linear and at::linear come down to, and computes it or lets it pass.
/// Scopes nest; the innermost handler is asked first. Outside of all scopes operators cost nothing
/// more.
///
/// Mechanism: a dispatch key that only the scope includes, with kernels for linear, matmul and
/// addmm and a fallthrough for everything else. It comes before autograd and automatic mixed
/// precision, whose keys are still ahead when a handler is called.
/// Threads: a scope acts on its own thread. A backward pass may compute layers again on another
///          one: take current_linear_handlers() along and install them there.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace accelerate {

class LinearHandler {
 public:
  virtual ~LinearHandler() = default;

  /// input x weight^T + bias, or nothing where the weight is none of its own.
  /// Shapes: input [..., in], weight [out, in], bias [out] or undefined.
  virtual std::optional<at::Tensor> linear(const at::Tensor& input, const at::Tensor& weight,
                                           const at::Tensor& bias) = 0;
};

/// Outermost first.
using LinearHandlers = std::vector<std::shared_ptr<LinearHandler>>;

/// Those that are installed on this thread.
const LinearHandlers& current_linear_handlers();

/// Installs handlers for a scope.
class LinearModeScope {
 public:
  /// Asked before those of the scopes around it. Null: changes nothing.
  explicit LinearModeScope(std::shared_ptr<LinearHandler> handler);
  /// In place of those of the scopes around it; none of them: layers are computed as usual.
  explicit LinearModeScope(LinearHandlers handlers);
  ~LinearModeScope();
  LinearModeScope(const LinearModeScope&) = delete;
  LinearModeScope& operator=(const LinearModeScope&) = delete;

 private:
  LinearHandlers previous_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> include_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> exclude_;
};

/// Computes layers as usual for a scope. For the handlers themselves.
class LinearModeOff {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::TESTING_ONLY_GenericMode};
};

}  // namespace accelerate
