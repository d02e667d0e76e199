/// Attaches hooks to modules, and removes them: see model_hook.h.
///
/// Errors:  those of model_hook.h.
/// Threads: that of the model's forward passes.
/// Mirrors: accelerate hooks.py, add_hook_to_module, remove_hook_from_module and
///          remove_hook_from_submodules.
#pragma once

#include <memory>

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

}  // namespace accelerate
