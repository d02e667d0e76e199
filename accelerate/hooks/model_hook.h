/// Hooks: objects that act before and after the forward passes of a module.
///
///   class Log final : public ModelHook {
///     void post_forward(torch::nn::Module& module, ForwardValues& output) override { ... }
///   };
///   add_hook_to_module(*net->block, std::make_shared<Log>());  // attach_hook.h
///
/// LibTorch's modules have no hooks, and their forward is an ordinary function, so a module has
/// hooks where its calls can be seen: one that is declared as Hooked (hooked.h), and a model that
/// is called by a HookedModel. Such a module has one hook; a SequentialHook is several.
///
/// Errors:  c10::ValueError for a hook on another module, saying how to declare it. A hook that
///          cannot be initialised is not attached, and the module's parameters and buffers are
///          where they were. Hooks are not changed while a forward pass of the module runs.
/// Threads: that of the model's forward passes, one at a time where there are hooks.
/// Mirrors: accelerate hooks.py, ModelHook and SequentialHook.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/forward/forward_values.h"

namespace accelerate {

class ForwardCall;

/// What a hook does; by default nothing. A function that throws leaves things as they were before
/// it was called.
class ModelHook {
 public:
  ModelHook() = default;
  virtual ~ModelHook() = default;
  ModelHook(const ModelHook&) = delete;
  ModelHook& operator=(const ModelHook&) = delete;

  /// The hook is being attached.
  virtual void init_hook(torch::nn::Module& /*module*/) {}
  /// A forward pass begins. The hook may change what it gets.
  virtual void pre_forward(torch::nn::Module& /*module*/, ForwardValues& /*arguments*/) {}
  /// The pass has ended. The hook may change what it returns.
  virtual void post_forward(torch::nn::Module& /*module*/, ForwardValues& /*output*/) {}
  /// An exception ended the pass after pre_forward; post_forward is not called.
  virtual void forward_failed(torch::nn::Module& /*module*/) noexcept {}
  /// The hook is being removed. Afterwards the module has none, and may be used without it.
  virtual void detach_hook(torch::nn::Module& /*module*/) {}

  /// Whether forward runs without gradients; hooks themselves may have them.
  virtual bool no_grad() const { return false; }
};

/// Hooks that act one after the other, the first one first, also after the pass.
class SequentialHook final : public ModelHook {
 public:
  /// Errors: c10::ValueError for null.
  explicit SequentialHook(std::vector<std::shared_ptr<ModelHook>> hooks);

  void init_hook(torch::nn::Module& module) override;
  void pre_forward(torch::nn::Module& module, ForwardValues& arguments) override;
  void post_forward(torch::nn::Module& module, ForwardValues& output) override;
  void forward_failed(torch::nn::Module& module) noexcept override;
  void detach_hook(torch::nn::Module& module) override;
  /// Whether one of them says so.
  bool no_grad() const override;

  const std::vector<std::shared_ptr<ModelHook>>& hooks() const { return hooks_; }

 private:
  const std::vector<std::shared_ptr<ModelHook>> hooks_;
};

class HookSlot;

namespace internal {

class HookPlan;

// Runs the call, a forward pass of the module, inside the slot's hook, which is not null.
void run_in_hook(HookSlot& slot, torch::nn::Module& module, ForwardCall& call);

}  // namespace internal

/// Where a module's hook is kept. A copy of a module has no hook.
class HookSlot {
 public:
  /// The module's own if it is Hooked, else a new one.
  static std::shared_ptr<HookSlot> of(const std::shared_ptr<torch::nn::Module>& module);

  HookSlot() = default;
  /// Has a hook that needs no init_hook().
  explicit HookSlot(std::shared_ptr<ModelHook> hook) : hook_(std::move(hook)) {}
  HookSlot(const HookSlot& /*other*/) {}
  HookSlot& operator=(const HookSlot& /*other*/) { return *this; }
  virtual ~HookSlot() = default;

  /// Null if there is none.
  const std::shared_ptr<ModelHook>& hook() const { return hook_; }

 private:
  friend void internal::run_in_hook(HookSlot& slot, torch::nn::Module& module, ForwardCall& call);
  friend class internal::HookPlan;

  std::shared_ptr<ModelHook> hook_;
  int passes_ = 0;  // that run with the hook
};

/// A module and its slot: from any module, and from a HookedModel.
class HookTarget {
 public:
  HookTarget(torch::nn::Module& module);
  HookTarget(torch::nn::Module& module, HookSlot& slot) : module_(&module), slot_(&slot) {}

  torch::nn::Module& module() const { return *module_; }
  /// Null for a module that runs no hooks.
  HookSlot* slot() const { return slot_; }

 private:
  torch::nn::Module* module_;
  HookSlot* slot_;
};

/// The module's hook; null if it has none.
std::shared_ptr<ModelHook> find_hook(HookTarget module);

}  // namespace accelerate
