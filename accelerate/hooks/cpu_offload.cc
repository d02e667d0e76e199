#include "accelerate/hooks/cpu_offload.h"

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using torch::nn::Module;

// Where the first tensor is; all of a model are on one device. Absent without tensors.
std::optional<c10::Device> device_of(const Module& module) {
  for (const auto& tensors :
       {module.named_parameters(/*recurse=*/false), module.named_buffers(/*recurse=*/false)}) {
    for (const auto& item : tensors) {
      if (item.value().defined()) return item.value().device();
    }
  }
  for (const auto& child : module.children()) {
    if (const auto device = device_of(*child)) return device;
  }
  return std::nullopt;
}

bool is_on(const Module& module, c10::Device device) {
  const std::optional<c10::Device> now = device_of(module);
  return !now || check_device_same(*now, device);
}

// Moves all tensors, with their gradients, or none.
void move(const NamedTensors& tensors, c10::Device device) {
  const at::NoGradGuard no_grad;
  const std::vector<size_t> firsts = internal::first_identical_views(tensors);
  std::vector<at::Tensor> moved(tensors.size()), gradients(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].second;
    if (check_device_same(tensor.device(), device)) continue;
    moved[i] = firsts[i] == i ? internal::moved_to(tensor, device) : moved[firsts[i]];
    if (tensor.is_leaf() && tensor.grad().defined()) gradients[i] = tensor.grad().to(device);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].second;
    if (!moved[i].defined()) continue;
    internal::rebind(tensor, moved[i]);
    if (gradients[i].defined()) tensor.mutable_grad() = gradients[i];
  }
}

void move_to(const Module& module, c10::Device device) {
  const NamedTensors tensors = named_module_tensors(module, {.recurse = true});
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(!tensor.is_meta(), "CpuOffload: \"", name,
                      "\" has no values (it is on the meta device); load the model first");
    TORCH_CHECK_VALUE(internal::is_cast(tensor) || storage_owner(tensor) == nullptr,
                      "CpuOffload: parameter \"", name,
                      "\" is brought into memory by another mechanism, such as shards");
  }
  move(tensors, device);
}

}  // namespace

UserCpuOffloadHook::UserCpuOffloadHook(std::shared_ptr<Module> model,
                                       std::shared_ptr<HookSlot> slot,
                                       std::shared_ptr<ModelHook> hook)
    : model_(std::move(model)), slot_(std::move(slot)), hook_(std::move(hook)) {}

void UserCpuOffloadHook::offload() const { hook_->init_hook(*model_); }

void UserCpuOffloadHook::remove() const { remove_hook_from_module(HookTarget(*model_, *slot_)); }

CpuOffload::CpuOffload(std::optional<c10::Device> execution_device,
                       std::optional<UserCpuOffloadHook> prev_module_hook)
    : execution_device_(execution_device ? *execution_device : Runtime::current().device()),
      prev_module_hook_(std::move(prev_module_hook)) {}

void CpuOffload::init_hook(Module& module) { move_to(module, at::kCPU); }

void CpuOffload::pre_forward(Module& module, ForwardValues& arguments) {
  if (prev_module_hook_ && !is_on(prev_module_hook_->model(), at::kCPU)) {
    prev_module_hook_->offload();
    if (Runtime* const runtime = Runtime::find_current()) runtime->empty_device_cache();
  }
  if (!is_on(module, execution_device_)) move_to(module, execution_device_);
  arguments.send_to_device(execution_device_);
}

}  // namespace accelerate
