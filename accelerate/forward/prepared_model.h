/// A user's model after `Accelerator::prepare`.
///
/// The module itself is untouched: `model->parameters()`, `model->train()` and its other members
/// are reached through `->`. Calls go through `model(input)` (or `model.forward(input)`), which
/// runs the model's techniques (see technique.h); a call of the bare module is local to the rank
/// and synchronises nothing. A PreparedModel is a handle: copies are the same model.
/// Errors: c10::Error for a handle that was reset.
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/base/access.h"
#include "accelerate/forward/forward_call.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"

namespace accelerate {

template <typename Module>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<ModelState> state)
      : module_(std::move(module)), state_(std::move(state)) {}

  /// The module's own forward, inside the model's techniques: in the job's precision, for instance.
  /// Collective while gradients are synchronised. A forward that is a template over its parameters
  /// must compile for const arguments as well.
  template <typename... Inputs>
  auto forward(Inputs&&... inputs) {
    TORCH_CHECK(module_ != nullptr, "this prepared model was freed");
    if (state_->techniques().empty()) return module_->forward(std::forward<Inputs>(inputs)...);
    const internal::ModuleForward<Module> module{*module_};
    ForwardCallOf<const internal::ModuleForward<Module>, Inputs...> call(
        module, std::forward<Inputs>(inputs)...);
    ForwardPass(state_->techniques(), call).proceed();
    return call.take_output();
  }
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }

  Module* operator->() const { return &**this; }
  Module& operator*() const {
    TORCH_CHECK(module_ != nullptr, "this prepared model was freed");
    return *module_;
  }

  /// The user's module, as it was given to prepare.
  const std::shared_ptr<Module>& module() const { return module_; }

  /// Which layers are computed in fp8, and why others are not; null in other precisions.
  const Fp8Report* fp8_report() const { return state_ ? state_->fp8_report() : nullptr; }

  /// Whether it was not reset.
  explicit operator bool() const { return module_ != nullptr; }
  /// Lets go of the model; the handle is of no use afterwards.
  void reset() {
    state_.reset();
    module_.reset();
  }

 private:
  friend struct internal::Access;
  const std::shared_ptr<ModelState>& internals() const {
    TORCH_CHECK(state_ != nullptr, "this prepared model was freed");
    return state_;
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<ModelState> state_;
};

/// The model's technique of type T; null if it has none.
template <typename T, typename Module>
T* find_technique(const PreparedModel<Module>& model) {
  return internal::Access::to(model)->template find_technique<T>();
}

}  // namespace accelerate
