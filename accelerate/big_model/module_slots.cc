#include "accelerate/big_model/module_slots.h"

#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"

namespace accelerate::internal {
namespace {

void append_slots(const torch::nn::Module& module, const std::string& prefix,
                  std::vector<ModuleSlot>& slots) {
  for (const bool is_buffer : {false, true}) {
    const auto tensors = is_buffer ? module.named_buffers(/*recurse=*/false)
                                   : module.named_parameters(/*recurse=*/false);
    for (const auto& item : tensors) {
      if (item.value().defined()) slots.push_back({prefix + item.key(), item.value(), is_buffer});
    }
  }
  for (const auto& child : module.named_children()) {
    if (child.value()) append_slots(*child.value(), absl::StrCat(prefix, child.key(), "."), slots);
  }
}

}  // namespace

std::vector<ModuleSlot> module_slots(const torch::nn::Module& module) {
  std::vector<ModuleSlot> slots;
  append_slots(module, "", slots);
  return slots;
}

}  // namespace accelerate::internal
