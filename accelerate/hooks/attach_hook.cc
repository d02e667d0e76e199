#include "accelerate/hooks/attach_hook.h"

#include <algorithm>
#include <cstddef>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/module_class.h"

namespace accelerate::internal {

std::string how_to_hook(const torch::nn::Module& module) {
  return absl::StrCat("runs no hooks; declare it as accelerate::Hooked<", module.name(),
                      ">, as in TORCH_MODULE_IMPL(", module_class_name(module),
                      ", accelerate::Hooked<", module.name(),
                      ">), or call the whole model by an accelerate::HookedModel");
}

void HookPlan::add(HookTarget module, const std::string& name, std::shared_ptr<ModelHook> hook,
                   bool append) {
  TORCH_CHECK_VALUE(hook != nullptr, "add_hook_to_module: there is no hook");
  TORCH_CHECK_VALUE(module.slot() != nullptr, "add_hook_to_module: ",
                    name.empty() ? "the module" : absl::StrCat("module \"", name, "\""), " (",
                    module_class_name(module.module()), ") ", how_to_hook(module.module()));
  TORCH_CHECK_VALUE(module.slot()->passes_ == 0,
                    "add_hook_to_module: a forward pass of the module is running");
  changes_.push_back({module, std::move(hook), append});
}

bool HookPlan::is_planned(HookTarget module) const {
  return std::ranges::any_of(
      changes_, [&](const Change& change) { return change.module.slot() == module.slot(); });
}

bool HookPlan::has_hook(HookTarget module) const {
  return find_hook(module) != nullptr || is_planned(module);
}

void HookPlan::attach() {
  size_t begun = 0;
  try {
    // All of them first, so that what they bring back is where the tensors were.
    for (Change& each : changes_) {
      each.before = each.module.slot()->hook_;
      ++begun;
      if (!each.append && each.before != nullptr) each.before->detach_hook(each.module.module());
    }
  } catch (...) {
    // The last one has refused.
    roll_back(begun - 1);
    throw;
  }
  // Where the modules' parameters and buffers are, and where they were.
  struct Before {
    at::Tensor tensor, values, gradient;
  };
  std::vector<Before> before;
  for (const Change& change : changes_) {
    for (const auto& [name, each] :
         named_module_tensors(change.module.module(), {.recurse = true})) {
      const bool is_leaf = each.requires_grad() && each.is_leaf();
      before.push_back({each, each.detach(), is_leaf ? each.grad() : at::Tensor()});
    }
  }
  try {
    for (Change& each : changes_) {
      std::shared_ptr<ModelHook>& slot = each.module.slot()->hook_;
      each.hook->init_hook(each.module.module());
      slot = each.append && slot != nullptr
                 ? std::make_shared<SequentialHook>(
                       std::vector<std::shared_ptr<ModelHook>>{slot, each.hook})
                 : each.hook;
    }
  } catch (...) {
    for (const Before& each : before) {
      if (are_identical_views(each.tensor, each.values)) continue;
      rebind(each.tensor, each.values);
      if (each.gradient.defined()) each.tensor.mutable_grad() = each.gradient;
    }
    roll_back(begun);
    throw;
  }
}

// The slots as they were before the first so many changes.
void HookPlan::roll_back(size_t begun) {
  while (begun-- > 0) {
    Change& change = changes_[begun];
    change.module.slot()->hook_ = change.before;
    if (!change.append && change.before != nullptr) {
      change.before->init_hook(change.module.module());
    }
  }
}

void HookPlan::detach(HookTarget module) {
  HookSlot* const slot = module.slot();
  if (slot == nullptr || slot->hook_ == nullptr) return;
  TORCH_CHECK_VALUE(slot->passes_ == 0,
                    "remove_hook_from_module: a forward pass of the module is running");
  slot->hook_->detach_hook(module.module());
  slot->hook_ = nullptr;
}

}  // namespace accelerate::internal

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
