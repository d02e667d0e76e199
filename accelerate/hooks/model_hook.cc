#include "accelerate/hooks/model_hook.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/cleanup/cleanup.h"
#include "accelerate/forward/forward_call.h"

namespace accelerate {

SequentialHook::SequentialHook(std::vector<std::shared_ptr<ModelHook>> hooks)
    : hooks_(std::move(hooks)) {
  for (const auto& hook : hooks_)
    TORCH_CHECK_VALUE(hook != nullptr, "SequentialHook: a hook is null");
}

void SequentialHook::init_hook(torch::nn::Module& module) {
  for (const auto& hook : hooks_) hook->init_hook(module);
}

void SequentialHook::pre_forward(torch::nn::Module& module, ForwardValues& arguments) {
  size_t begun = 0;
  try {
    for (; begun < hooks_.size(); ++begun) hooks_[begun]->pre_forward(module, arguments);
  } catch (...) {
    while (begun-- > 0) hooks_[begun]->forward_failed(module);
    throw;
  }
}

void SequentialHook::post_forward(torch::nn::Module& module, ForwardValues& output) {
  size_t ended = 0;
  try {
    for (; ended < hooks_.size(); ++ended) hooks_[ended]->post_forward(module, output);
  } catch (...) {
    for (size_t i = hooks_.size() - 1; i > ended; --i) hooks_[i]->forward_failed(module);
    throw;
  }
}

void SequentialHook::forward_failed(torch::nn::Module& module) noexcept {
  for (size_t i = hooks_.size(); i-- > 0;) hooks_[i]->forward_failed(module);
}

void SequentialHook::detach_hook(torch::nn::Module& module) {
  size_t detached = 0;
  try {
    for (; detached < hooks_.size(); ++detached) hooks_[detached]->detach_hook(module);
  } catch (...) {
    while (detached-- > 0) hooks_[detached]->init_hook(module);
    throw;
  }
}

bool SequentialHook::no_grad() const {
  return std::ranges::any_of(hooks_, [](const auto& hook) { return hook->no_grad(); });
}

std::shared_ptr<HookSlot> HookSlot::of(const std::shared_ptr<torch::nn::Module>& module) {
  if (auto own = std::dynamic_pointer_cast<HookSlot>(module)) return own;
  return std::make_shared<HookSlot>();
}

HookTarget::HookTarget(torch::nn::Module& module)
    : module_(&module), slot_(dynamic_cast<HookSlot*>(&module)) {}

std::shared_ptr<ModelHook> find_hook(HookTarget module) {
  return module.slot() == nullptr ? nullptr : module.slot()->hook();
}

void internal::run_in_hook(HookSlot& slot, torch::nn::Module& module, ForwardCall& call) {
  const std::shared_ptr<ModelHook> hook = slot.hook_;
  bool runs = false;  // between pre_forward and post_forward
  const absl::Cleanup failed = [&] {
    if (runs) hook->forward_failed(module);
  };
  ++slot.passes_;
  const absl::Cleanup ended = [&slot] { --slot.passes_; };
  hook->pre_forward(module, call.inputs());
  runs = true;
  {
    const at::AutoGradMode gradients(at::GradMode::is_enabled() && !hook->no_grad());
    call.run(/*input_dtype=*/std::nullopt);
  }
  runs = false;
  hook->post_forward(module, call.outputs());
}

}  // namespace accelerate
