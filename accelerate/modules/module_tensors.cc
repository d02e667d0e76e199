#include "accelerate/modules/module_tensors.h"

#include <memory>

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using torch::nn::Module;

// The buffers of one Runtime that no state dict needs.
class NonPersistentBuffers {
 public:
  void add(const at::Tensor& buffer) {
    if (buffers_.size() >= limit_) {
      absl::erase_if(buffers_, [](const auto& each) { return each.second.expired(); });
      limit_ = 2 * buffers_.size() + 16;
    }
    buffers_.insert_or_assign(buffer.unsafeGetTensorImpl(), Weak(buffer.getIntrusivePtr()));
  }

  // A dead tensor's address is not another's as long as it is in the map.
  bool has(const at::Tensor& buffer) const {
    return buffers_.contains(buffer.unsafeGetTensorImpl());
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  absl::flat_hash_map<const c10::TensorImpl*, Weak> buffers_;
  size_t limit_ = 16;  // when dead ones are dropped
};

enum class Kind { kParameter, kBuffer };

// Calls visit(full name, last part of the name, tensor).
template <typename Visit>
void for_each(const Module& module, Kind kind, bool recurse, const std::string& prefix,
              const Visit& visit) {
  const auto own = kind == Kind::kParameter ? module.named_parameters(/*recurse=*/false)
                                            : module.named_buffers(/*recurse=*/false);
  for (const auto& item : own) {
    if (item.value().defined()) visit(absl::StrCat(prefix, item.key()), item.key(), item.value());
  }
  if (!recurse) return;
  for (const auto& child : module.named_children()) {
    if (child.value()) {
      for_each(*child.value(), kind, recurse, absl::StrCat(prefix, child.key(), "."), visit);
    }
  }
}

void append_bottom_up(const Module& module, const std::string& name,
                      std::vector<std::pair<std::string, const Module*>>& modules) {
  for (const auto& child : module.named_children()) {
    if (!child.value()) continue;
    append_bottom_up(*child.value(),
                     name.empty() ? child.key() : absl::StrCat(name, ".", child.key()), modules);
  }
  modules.emplace_back(name, &module);
}

at::Tensor find_tensor(const Module& module, const std::string& name) {
  const Module* at = &module;
  std::shared_ptr<Module> child;
  size_t begin = 0;
  for (size_t dot; (dot = name.find('.', begin)) != std::string::npos; begin = dot + 1) {
    const auto children = at->named_children();
    const auto* const found = children.find(name.substr(begin, dot - begin));
    TORCH_CHECK_VALUE(found != nullptr && *found, module.name(), " has no module ",
                      name.substr(0, dot), ", so there is no tensor ", name);
    child = *found;
    at = child.get();
  }
  const std::string last = name.substr(begin);
  const auto parameters = at->named_parameters(/*recurse=*/false);
  if (const auto* const found = parameters.find(last)) return *found;
  const auto buffers = at->named_buffers(/*recurse=*/false);
  if (const auto* const found = buffers.find(last)) return *found;
  TORCH_CHECK_VALUE(false, module.name(), " does not have a parameter or a buffer named ", name);
}

bool is_float(at::ScalarType dtype) { return !at::isIntegralType(dtype, /*includeBool=*/true); }

// What is kept of a quantised parameter becomes these tensors, which are in its order.
void set_kept(const at::Tensor& parameter, const std::vector<KeptTensor>& kept,
              const std::vector<at::Tensor>& parts, c10::Device device) {
  for (size_t i = 0; i < kept.size(); ++i) internal::rebind(kept[i].tensor, parts[i].to(device));
  update_device_from_kept(parameter);
}

// The codes of a weight in 8 bits, and its rows' statistics.
void set_codes(const at::Tensor& parameter, const std::string& name, c10::Device device,
               const SetModuleTensorOptions& options) {
  const at::Tensor& codes = options.value;
  const at::Tensor& statistics = options.fp16_statistics;
  const std::vector<KeptTensor> kept = kept_tensors(name, parameter);
  std::vector<at::Tensor> parts;
  bool has_statistics = false;
  for (const KeptTensor& each : kept) {
    const bool is_scb = absl::EndsWith(each.name, "SCB");
    has_statistics = has_statistics || is_scb;
    parts.push_back(each.is_values ? codes
                    : is_scb       ? statistics.detach().to(at::kFloat)
                                   : each.tensor);
  }
  TORCH_CHECK_VALUE(
      has_statistics, "fp16_statistics: ", name,
      " is not kept in 8 bits; quantize_weight or replace_with_bnb_layers makes it so");
  TORCH_CHECK_VALUE(
      codes.defined() && codes.scalar_type() == at::kChar && codes.sizes() == parameter.sizes(),
      "fp16_statistics: the value of ", name, " has to be its codes, int8 of shape ",
      parameter.sizes());
  TORCH_CHECK_VALUE(statistics.is_floating_point() && statistics.dim() == 1 &&
                        statistics.size(0) == codes.size(0),
                    "fp16_statistics: ", name, " has ", codes.size(0),
                    " rows, each with a floating-point number, not the shape ", statistics.sizes());
  set_kept(parameter, kept, parts, device);
}

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

bool internal::is_non_persistent(const at::Tensor& buffer) {
  const Runtime* const runtime = Runtime::find_current();
  if (runtime == nullptr) return false;
  const auto* const buffers = runtime->find_shared<NonPersistentBuffers>();
  return buffers != nullptr && buffers->has(buffer);
}

NamedTensors named_module_tensors(const Module& module, const NamedModuleTensorsOptions& options) {
  NamedTensors tensors;
  absl::flat_hash_set<const c10::TensorImpl*> seen;
  for (const Kind kind : {Kind::kParameter, Kind::kBuffer}) {
    if (kind == Kind::kBuffer && !options.include_buffers) continue;
    seen.clear();
    for_each(module, kind, options.recurse, "",
             [&](std::string name, const std::string&, const at::Tensor& tensor) {
               if (options.remove_duplicate && !seen.insert(tensor.unsafeGetTensorImpl()).second) {
                 return;
               }
               if (kind == Kind::kBuffer && options.remove_non_persistent &&
                   internal::is_non_persistent(tensor)) {
                 return;
               }
               tensors.emplace_back(std::move(name), tensor);
             });
  }
  return tensors;
}

at::Tensor non_persistent(at::Tensor buffer) {
  TORCH_CHECK_VALUE(buffer.defined(), "non_persistent: the buffer is undefined");
  Runtime::current()
      .shared<NonPersistentBuffers>([] { return std::make_shared<NonPersistentBuffers>(); })
      .add(buffer);
  return buffer;
}

std::set<std::string> get_non_persistent_buffers(const Module& module, bool recurse, bool fqns) {
  std::set<std::string> names;
  for_each(module, Kind::kBuffer, recurse, "",
           [&](const std::string& name, const std::string& last, const at::Tensor& tensor) {
             if (internal::is_non_persistent(tensor)) names.insert(fqns ? name : last);
           });
  return names;
}

std::vector<std::pair<std::string, const Module*>> get_module_children_bottom_up(
    const Module& module) {
  std::vector<std::pair<std::string, const Module*>> modules;
  append_bottom_up(module, "", modules);
  return modules;
}

NamedTensors extract_submodules_state_dict(const NamedTensors& state_dict,
                                           const std::vector<std::string>& submodule_names) {
  NamedTensors extracted;
  std::vector<bool> taken(state_dict.size(), false);
  for (const std::string& submodule : submodule_names) {
    const std::string prefix = absl::StrCat(submodule, ".");
    for (size_t i = 0; i < state_dict.size(); ++i) {
      const std::string& name = state_dict[i].first;
      if (taken[i] || (name != submodule && !absl::StartsWith(name, prefix))) continue;
      taken[i] = true;
      extracted.push_back(state_dict[i]);
    }
  }
  return extracted;
}

TensorStorageId id_tensor_storage(const at::Tensor& tensor) {
  return {tensor.device(), storage_of(tensor), tensor.storage().nbytes()};
}

bool check_device_same(c10::Device first, c10::Device second) {
  const auto index = [](c10::Device device) {
    return device.has_index() ? device.index() : c10::DeviceIndex{0};
  };
  return first.type() == second.type() && (first.is_cpu() || index(first) == index(second));
}

template <typename Views>
auto TiedParamsMap::copies_of(Views& views, const at::Tensor& tensor) {
  const auto of_storage = views.find(storage_of(tensor));
  decltype(of_storage->second.data()) copies = nullptr;
  if (of_storage == views.end()) return copies;
  for (auto& each : of_storage->second) {
    if (internal::are_identical_views(each.original, tensor)) copies = &each;
  }
  return copies;
}

void TiedParamsMap::add(const at::Tensor& tensor) {
  if (copies_of(views_, tensor) != nullptr) return;
  views_[storage_of(tensor)].push_back({tensor.detach(), {}});
}

at::Tensor TiedParamsMap::find(const at::Tensor& tensor, c10::Device device) const {
  const Copies* const copies = copies_of(views_, tensor);
  if (copies == nullptr) return {};
  for (const at::Tensor& copy : copies->elsewhere) {
    if (check_device_same(copy.device(), device)) return copy;
  }
  return {};
}

void TiedParamsMap::moved(const at::Tensor& from, const at::Tensor& to) {
  Copies* const copies = copies_of(views_, from);
  if (copies == nullptr || find(from, to.device()).defined()) return;
  copies->elsewhere.push_back(to.detach());
}

void TiedParamsMap::forget(const at::Tensor& tensor, c10::Device device) {
  Copies* const copies = copies_of(views_, tensor);
  if (copies == nullptr) return;
  std::erase_if(copies->elsewhere, [device](const at::Tensor& copy) {
    return check_device_same(copy.device(), device);
  });
}

void set_module_tensor_to_device(Module& module, const std::string& tensor_name, c10::Device device,
                                 const SetModuleTensorOptions& options) {
  internal::set_tensor_to_device(find_tensor(module, tensor_name), tensor_name, device, options);
}

void internal::set_tensor_to_device(const at::Tensor& tensor, const std::string& tensor_name,
                                    c10::Device device, const SetModuleTensorOptions& options) {
  const torch::NoGradGuard no_grad;
  if (options.fp16_statistics.defined()) return set_codes(tensor, tensor_name, device, options);
  at::Tensor value = options.value;
  const ValueMaker* const maker = find_maker(tensor);
  // What the values are copied from.
  const at::Tensor original = value.defined() ? value : tensor.detach();
  if (options.tied_params_map != nullptr) {
    const at::Tensor there = options.tied_params_map->find(original, device);
    if (there.defined() && there.sizes() == tensor.sizes()) {
      internal::rebind(tensor, there);
      return;
    }
  }
  TORCH_CHECK_VALUE(!tensor.is_meta() || device.is_meta() || value.defined(), tensor_name,
                    " is on the meta device, so it needs a value to be put on ", device);
  if (value.defined()) {
    TORCH_CHECK_VALUE(value.sizes() == tensor.sizes(), "a value of shape [",
                      absl::StrJoin(value.sizes(), ", "), "] does not fit ", tensor_name,
                      ", which has shape [", absl::StrJoin(tensor.sizes(), ", "), "]");
    value = value.detach();
    if (maker != nullptr && !maker->keeps_elements()) {
      if (device.is_meta()) return internal::rebind(tensor, internal::moved_to(tensor, device));
      if (options.dtype) value = value.to(*options.dtype);
      return set_kept(tensor, maker->kept(tensor_name), maker->encode(value.to(at::kCPU)), device);
    }
    if (!options.dtype) {
      value = value.to(tensor.scalar_type(), options.non_blocking);
    } else if (is_float(value.scalar_type())) {
      value = value.to(*options.dtype, options.non_blocking);
    }
  } else {
    if (check_device_same(tensor.device(), device) && !device.is_meta()) return;
    if (maker != nullptr && !maker->keeps_elements()) {
      return internal::rebind(tensor, internal::moved_to(tensor, device));
    }
    value = tensor.detach();
    if (options.dtype && device.is_meta() && is_float(tensor.scalar_type())) {
      value = at::empty_like(value, value.options().dtype(*options.dtype).device(device));
    }
  }
  value = value.to(device, options.non_blocking);
  internal::rebind(tensor, value);
  if (options.tied_params_map != nullptr) options.tied_params_map->moved(original, tensor);
  if (options.clear_cache && !device.is_cpu() && !device.is_meta()) {
    if (Runtime* const runtime = Runtime::find_current()) runtime->empty_device_cache();
  }
}

}  // namespace accelerate
