/// Hooks that are attached together: all of them, or none.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerate/hooks/model_hook.h"

namespace accelerate::internal {

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

}  // namespace accelerate::internal
