#include "accelerate/dispatch/offloaded_state.h"

#include <algorithm>
#include <memory>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/dispatch/dispatched_model.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using Models = std::vector<std::shared_ptr<DispatchedModel>>;

struct Found {
  const DispatchedModel* model = nullptr;
  const DispatchedModel::Offloaded* offloaded = nullptr;  // null: it is in memory
};

Found find(const Models& models, const at::Tensor& tensor) {
  for (const auto& each : models) {
    if (const auto* offloaded = each->find_offloaded(tensor)) return {each.get(), offloaded};
  }
  return {};
}

// Gradients of offloaded parameters are at their homes.
void rebind_with_gradient(const at::Tensor& tensor, const at::Tensor& values, bool is_offloaded) {
  const bool has_gradient = !is_offloaded && tensor.is_leaf() && tensor.grad().defined();
  const at::Tensor gradient = has_gradient ? tensor.grad() : at::Tensor();
  internal::rebind(tensor, values);
  if (has_gradient) tensor.mutable_grad() = gradient.to(values.device());
}

// What is kept of its parameters included, in their place.
std::vector<internal::ModuleSlot> own_tensors(const torch::nn::Module& module) {
  return internal::module_slots(module, /*recurse=*/false);
}

}  // namespace

std::vector<std::shared_ptr<DispatchedModel>> internal::dispatched_within(
    const torch::nn::Module& module) {
  const Models models = internal::dispatched_models();
  Models found;
  if (models.empty()) return found;
  const auto add = [&](const torch::nn::Module& each) {
    for (const auto& model : models) {
      if (model->module().get() == &each && std::ranges::count(found, model) == 0) {
        found.push_back(model);
      }
    }
  };
  // `modules()` with the module itself would need an owner of it.
  add(module);
  for (const auto& each : module.modules(/*include_self=*/false)) add(*each);
  return found;
}

bool has_offloaded_params(const torch::nn::Module& module) {
  const Models models = internal::dispatched_models();
  return std::ranges::any_of(own_tensors(module), [&](const auto& each) {
    return find(models, each.tensor).offloaded != nullptr;
  });
}

bool verify_device_map(const torch::nn::Module& module) {
  return std::ranges::any_of(internal::dispatched_within(module),
                             [](const auto& each) { return each->device_map().size() > 1; });
}

ModuleOnDevice::ModuleOnDevice(const torch::nn::Module& module,
                               std::optional<c10::Device> execution_device) {
  const at::NoGradGuard no_grad;
  const Models models = internal::dispatched_models();
  try {
    for (const internal::ModuleSlot& slot : own_tensors(module)) {
      const at::Tensor& tensor = slot.tensor;
      const auto [model, offloaded] = find(models, tensor);
      if (offloaded == nullptr && (!execution_device || tensor.device() == *execution_device)) {
        continue;
      }
      const at::Tensor values =
          offloaded != nullptr
              ? offloaded->values().to(execution_device.value_or(model->main_device()))
              : tensor.to(*execution_device);
      kept_.push_back({tensor, tensor.detach(), offloaded != nullptr});
      rebind_with_gradient(tensor, values, offloaded != nullptr);
    }
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      if (find_maker(parameter) == nullptr) continue;
      made_.push_back(parameter);
      update_device_from_kept(parameter);
    }
  } catch (...) {
    restore();
    throw;
  }
}

ModuleOnDevice::~ModuleOnDevice() { restore(); }

void ModuleOnDevice::restore() {
  const at::NoGradGuard no_grad;
  for (const Kept& each : kept_) {
    rebind_with_gradient(each.tensor,
                         each.is_offloaded ? each.was : each.tensor.to(each.was.device()),
                         each.is_offloaded);
  }
  kept_.clear();
  for (const at::Tensor& parameter : made_) update_device_from_kept(parameter);
}

NamedTensors get_state_dict_offloaded_model(const torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  const Models models = internal::dispatched_models();
  NamedTensors tensors;
  std::vector<std::string> without_values;
  for (const internal::ModuleSlot& slot : internal::module_slots(model)) {
    const auto [found, offloaded] = find(models, slot.tensor);
    if (offloaded == nullptr && slot.tensor.is_meta()) {
      without_values.push_back(slot.name);
      continue;
    }
    tensors.emplace_back(
        slot.name, offloaded != nullptr ? offloaded->values() : slot.tensor.detach().to(at::kCPU));
  }
  TORCH_CHECK_VALUE(without_values.empty(),
                    "get_state_dict_offloaded_model: these tensors are on the meta device and have "
                    "no values: ",
                    absl::StrJoin(without_values, ", "));
  return tensors;
}

NamedTensors get_state_dict_from_offload(const torch::nn::Module& module,
                                         const std::string& module_name, NamedTensors state_dict,
                                         c10::Device device_to_put_offload) {
  const at::NoGradGuard no_grad;
  const Models models = internal::dispatched_models();
  const std::string root =
      module_name.substr(0, std::min(module_name.rfind('.'), module_name.size()));
  for (const internal::ModuleSlot& slot : own_tensors(module)) {
    const std::string key = absl::StrCat(root, ".", slot.name);
    const auto entry = std::ranges::find(state_dict, key, &NamedTensors::value_type::first);
    if (entry == state_dict.end()) continue;
    const auto [model, offloaded] = find(models, slot.tensor);
    entry->second =
        offloaded != nullptr ? offloaded->values().to(device_to_put_offload) : slot.tensor.detach();
  }
  return state_dict;
}

}  // namespace accelerate
