/// Modules that run hooks: see model_hook.h.
///
///   TORCH_MODULE_IMPL(Block, accelerate::Hooked<BlockImpl>);   // in place of TORCH_MODULE(Block)
///
///   accelerate::HookedModel net(std::make_shared<NetImpl>());  // any module, unchanged
///   net(x);
///
/// Hooked<Impl> is the module Impl with a forward that runs the module's hook, wherever the module
/// is called: by its holder, in torch::nn::Sequential, as a part of a prepared model. LibTorch's
/// layers are declared the same way: torch::nn::ModuleHolder<Hooked<torch::nn::LinearImpl>>. A
/// HookedModel runs the hook of a model that is called by it; calls of the module itself pass by.
/// Cost:    a comparison for a call without a hook.
/// Mirrors: what accelerate hooks.py does to a module's forward.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/forward/forward_call.h"
#include "accelerate/hooks/model_hook.h"

namespace accelerate {

/// forward(inputs...) inside the slot's hook, if it has one: for types that call a module on behalf
/// of a user. The output is a value, also where forward returns a reference. Hooks see arguments
/// and output as forward_call.h says.
template <typename Forward, typename... Inputs>
auto run_with_hooks(HookSlot& slot, torch::nn::Module& module, Forward&& forward,
                    Inputs&&... inputs)
    -> std::decay_t<std::invoke_result_t<Forward&, Inputs&&...>> {
  if (slot.hook() == nullptr) return std::invoke(forward, std::forward<Inputs>(inputs)...);
  ForwardCallOf<std::remove_reference_t<Forward>, Inputs...> call(forward,
                                                                  std::forward<Inputs>(inputs)...);
  internal::run_in_hook(slot, module, call);
  return call.take_output();
}

namespace internal {

// Impl::forward, past what hides it.
template <typename Impl>
struct PlainForward {
  Impl& module;

  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) const
      -> decltype(module.Impl::forward(std::forward<Inputs>(inputs)...)) {
    return module.Impl::forward(std::forward<Inputs>(inputs)...);
  }
};

template <typename Impl, typename... Inputs>
using HookedOutput = std::decay_t<std::invoke_result_t<PlainForward<Impl>&, Inputs&&...>>;

// The output and the parameters of a forward with one signature.
template <typename Result, typename... Args>
struct ForwardSignature {
  using Output = std::decay_t<Result>;
  using Inputs = std::tuple<Args...>;
};
template <typename Class, typename Result, typename... Args>
ForwardSignature<Result, Args...> signature_of(Result (Class::*)(Args...));
template <typename Class, typename Result, typename... Args>
ForwardSignature<Result, Args...> signature_of(Result (Class::*)(Args...) const);

// Whether forward can be called without the last of its parameters.
template <typename Impl, typename Inputs>
constexpr bool has_default_arguments() {
  constexpr size_t kSize = std::tuple_size_v<Inputs>;
  if constexpr (kSize == 0) {
    return false;
  } else {
    return []<size_t... I>(std::index_sequence<I...> /*but the last*/) {
      return std::is_invocable_v<PlainForward<Impl>, std::tuple_element_t<I, Inputs>...>;
    }(std::make_index_sequence<kSize - 1>());
  }
}

// Whether forward is one function without default arguments.
template <typename Impl>
constexpr bool has_plain_forward() {
  if constexpr (requires { &Impl::forward; }) {
    return !has_default_arguments<Impl, typename decltype(signature_of(&Impl::forward))::Inputs>();
  } else {
    return false;
  }
}

// With the signature of Impl's, which torch::nn::Sequential needs.
template <typename Hooked, typename Output, typename Inputs>
class HookedForward;
template <typename Hooked, typename Output, typename... Args>
class HookedForward<Hooked, Output, std::tuple<Args...>> : public HookSlot {
 public:
  Output forward(Args... inputs) {
    return static_cast<Hooked&>(*this).call(std::forward<Args>(inputs)...);
  }
};

// For several forwards and default arguments.
template <typename Hooked, typename Impl>
class HookedForwards : public HookSlot {
 public:
  template <typename... Inputs>
  auto forward(Inputs&&... inputs) -> HookedOutput<Impl, Inputs...> {
    return static_cast<Hooked&>(*this).call(std::forward<Inputs>(inputs)...);
  }
};

template <typename Hooked, typename Impl>
auto hooked_forward() {
  if constexpr (has_plain_forward<Impl>()) {
    using Signature = decltype(signature_of(&Impl::forward));
    return std::type_identity<
        HookedForward<Hooked, typename Signature::Output, typename Signature::Inputs>>();
  } else {
    return std::type_identity<HookedForwards<Hooked, Impl>>();
  }
}

}  // namespace internal

/// The module Impl, which runs hooks. It is made as an Impl is, and everything but forward is
/// Impl's; so is its class name, for options that name classes. A clone has no hook.
/// torch::nn::Sequential takes it if Impl has one forward without default arguments.
template <typename Impl>
class Hooked : public Impl, public decltype(internal::hooked_forward<Hooked<Impl>, Impl>())::type {
  using Forward = typename decltype(internal::hooked_forward<Hooked<Impl>, Impl>())::type;

 public:
  using Impl::Impl;
  Hooked() = default;
  explicit Hooked(const Impl& module) : Impl(module) {}

  using Forward::forward;
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) -> internal::HookedOutput<Impl, Inputs...> {
    return Forward::forward(std::forward<Inputs>(inputs)...);
  }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override {
    if constexpr (std::copy_constructible<Impl>) {
      const auto plain = std::dynamic_pointer_cast<Impl>(Impl::clone(device));
      TORCH_CHECK(plain != nullptr, "clone of a module gave a module of another class");
      return std::make_shared<Hooked>(*plain);
    } else {
      return Impl::clone(device);
    }
  }

 private:
  friend Forward;

  template <typename... Inputs>
  auto call(Inputs&&... inputs) -> internal::HookedOutput<Impl, Inputs...> {
    return run_with_hooks(*this, *this, internal::PlainForward<Impl>{*this},
                          std::forward<Inputs>(inputs)...);
  }
};

/// A model that runs its hook when it is called by this. Everything else is reached by `->`. A
/// HookedModel is a handle: copies are the same model with the same hook.
/// Errors: c10::ValueError for null.
template <typename Module>
class HookedModel {
 public:
  explicit HookedModel(std::shared_ptr<Module> module)
      : HookedModel(module, HookSlot::of(module)) {}
  /// `hooks`: that of the module, if it is Hooked.
  HookedModel(std::shared_ptr<Module> module, std::shared_ptr<HookSlot> hooks)
      : module_(std::move(module)), hooks_(std::move(hooks)) {
    TORCH_CHECK_VALUE(module_ != nullptr, "HookedModel: there is no module");
  }
  /// From a class that TORCH_MODULE made.
  template <typename Holder>
    requires requires(const Holder& holder) {
      { holder.ptr() } -> std::convertible_to<std::shared_ptr<Module>>;
    }
  explicit HookedModel(const Holder& holder) : HookedModel(holder.ptr()) {}

  template <typename... Inputs>
  auto forward(Inputs&&... inputs) const -> internal::HookedOutput<Module, Inputs...> {
    if constexpr (std::is_base_of_v<HookSlot, Module>) {
      return module_->forward(std::forward<Inputs>(inputs)...);
    } else {
      return run_with_hooks(*hooks_, *module_, internal::PlainForward<Module>{*module_},
                            std::forward<Inputs>(inputs)...);
    }
  }
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) const -> internal::HookedOutput<Module, Inputs...> {
    return forward(std::forward<Inputs>(inputs)...);
  }

  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  const std::shared_ptr<Module>& module() const { return module_; }

  const std::shared_ptr<HookSlot>& hooks() const { return hooks_; }
  operator HookTarget() const { return HookTarget(*module_, *hooks_); }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<HookSlot> hooks_;
};
template <typename Holder>
HookedModel(const Holder&) -> HookedModel<typename Holder::ContainedType>;

}  // namespace accelerate
