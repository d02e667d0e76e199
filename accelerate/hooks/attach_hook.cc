#include "accelerate/hooks/attach_hook.h"

#include <utility>

#include <torch/nn/module.h>

#include "accelerate/hooks/hook_plan.h"
#include "accelerate/hooks/layerwise_casting.h"

namespace accelerate {

void add_hook_to_module(HookTarget module, std::shared_ptr<ModelHook> hook, bool append) {
  internal::HookPlan plan;
  plan.add(module, "", std::move(hook), append);
  plan.attach();
}

void remove_hook_from_module(HookTarget module, bool recurse) {
  internal::HookPlan::detach(module);
  internal::end_casts(module.module());
  if (!recurse) return;
  for (const auto& child : module.module().children()) remove_hook_from_module(*child, recurse);
}

void remove_hook_from_submodules(HookTarget module) {
  remove_hook_from_module(module, /*recurse=*/true);
}

}  // namespace accelerate
