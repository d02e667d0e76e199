#include "accelerate/profiling/module_names.h"

#include <torch/nn/module.h>

namespace accelerate {

ModuleNames::ModuleNames(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  for (const auto& root : modules) {
    for (const auto& module : root->named_modules()) {
      const std::string& name = module.key().empty() ? module.value()->name() : module.key();
      auto remember = [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return;
        name_by_tensor_.try_emplace(tensor.unsafeGetTensorImpl(), name);
        if (tensor.has_storage()) {
          name_by_storage_.try_emplace(tensor.storage().unsafeGetStorageImpl(), name);
        }
      };
      for (const at::Tensor& tensor : module.value()->parameters(/*recurse=*/false)) {
        remember(tensor);
      }
      for (const at::Tensor& tensor : module.value()->buffers(/*recurse=*/false)) remember(tensor);
    }
  }
}

const std::string& ModuleNames::of(const at::Tensor& tensor) const {
  static const std::string kNone;
  if (!tensor.defined()) return kNone;
  const auto by_tensor = name_by_tensor_.find(tensor.unsafeGetTensorImpl());
  if (by_tensor != name_by_tensor_.end()) return by_tensor->second;
  if (!tensor.has_storage()) return kNone;
  const auto by_storage = name_by_storage_.find(tensor.storage().unsafeGetStorageImpl());
  return by_storage == name_by_storage_.end() ? kNone : by_storage->second;
}

}  // namespace accelerate
