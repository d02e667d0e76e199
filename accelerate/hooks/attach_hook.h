/// Attaches hooks to modules, and removes them: see model_hook.h.
///
/// Errors:  those of model_hook.h.
/// Threads: that of the model's forward passes.
/// Mirrors: accelerate hooks.py, add_hook_to_module, remove_hook_from_module and
///          remove_hook_from_submodules.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerate/hooks/model_hook.h"

namespace accelerate {

/// Attaches a hook. With `append` the new hook runs after the present one; otherwise the present
/// hook is detached and replaced.
void add_hook_to_module(HookTarget module, std::shared_ptr<ModelHook> hook, bool append = false);

/// Detaches the hook, if there is one; with `recurse` also those of all modules below. The casts of
/// attach_layerwise_casting_hooks count as hooks of their layers.
void remove_hook_from_module(HookTarget module, bool recurse = false);
/// The same with `recurse`.
void remove_hook_from_submodules(HookTarget module);

namespace internal {

/// Hooks that are attached together: all of them, or none.
class HookPlan {
 public:
  /// `name` is the module's in the model, for messages.
  /// Errors: c10::ValueError for a module that runs no hooks, and for null.
  void add(HookTarget module, const std::string& name, std::shared_ptr<ModelHook> hook,
           bool append);
  bool is_planned(HookTarget module) const;
  /// Whether the module has a hook, or is to have one.
  bool has_hook(HookTarget module) const;

  /// Errors: those of the hooks. No hook is attached then, hooks that were to be replaced are
  ///         attached again, and tensors are where they were.
  void attach();

  /// Errors: those of the hook, which stays attached then.
  static void detach(HookTarget module);

 private:
  struct Change {
    HookTarget module;
    std::shared_ptr<ModelHook> hook;
    bool append;
    std::shared_ptr<ModelHook> before = nullptr;
  };

  void roll_back(size_t begun);

  std::vector<Change> changes_;
};

/// "accelerate::Hooked<ClassImpl>", and what else helps a module that runs no hooks.
std::string how_to_hook(const torch::nn::Module& module);

}  // namespace internal
}  // namespace accelerate
