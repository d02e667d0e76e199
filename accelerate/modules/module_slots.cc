#include "accelerate/modules/module_slots.h"

#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/modules/value_at_use.h"

namespace accelerate::internal {
namespace {

void append_slots(const torch::nn::Module& module, const std::string& prefix, bool recurse,
                  std::vector<ModuleSlot>& slots) {
  for (const bool is_buffer : {false, true}) {
    const auto tensors = is_buffer ? module.named_buffers(/*recurse=*/false)
                                   : module.named_parameters(/*recurse=*/false);
    for (const auto& item : tensors) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined()) continue;
      const std::string name = prefix + item.key();
      if (find_maker(tensor) == nullptr) {
        slots.push_back({.name = name, .tensor = tensor, .is_buffer = is_buffer});
        continue;
      }
      for (KeptTensor& kept : kept_tensors(name, tensor)) {
        slots.push_back({.name = std::move(kept.name),
                         .tensor = std::move(kept.tensor),
                         .is_buffer = is_buffer || !kept.is_values,
                         .is_text = kept.is_text,
                         .made_parameter = tensor,
                         .made_name = name});
      }
    }
  }
  if (!recurse) return;
  for (const auto& child : module.named_children()) {
    if (!child.value()) continue;
    append_slots(*child.value(), absl::StrCat(prefix, child.key(), "."), recurse, slots);
  }
}

}  // namespace

std::vector<ModuleSlot> module_slots(const torch::nn::Module& module, bool recurse) {
  std::vector<ModuleSlot> slots;
  append_slots(module, "", recurse, slots);
  return slots;
}

}  // namespace accelerate::internal
