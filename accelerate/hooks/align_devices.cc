#include "accelerate/hooks/align_devices.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "accelerate/hooks/attach_hook.h"
#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

using torch::nn::Module;

std::string child_name(const std::string& module, const std::string& child) {
  return module.empty() ? child : absl::StrCat(module, ".", child);
}

// Calls visit(name, tensor, is_buffer) for the tensors that a hook of the module serves.
template <typename Visit>
void for_each_served(const Module& module, bool all, const std::string& prefix,
                     const Visit& visit) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined()) visit(child_name(prefix, item.key()), item.value(), false);
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (item.value().defined()) visit(child_name(prefix, item.key()), item.value(), true);
  }
  for (const auto& child : module.named_children()) {
    if (!child.value() || (!all && HookTarget(*child.value()).slot() != nullptr)) continue;
    for_each_served(*child.value(), all, child_name(prefix, child.key()), visit);
  }
}

bool serves_tensors(const Module& module) {
  bool any = false;
  for_each_served(module, /*all=*/false, "",
                  [&any](const std::string&, const at::Tensor&, bool) { any = true; });
  return any;
}

// A backward pass through the output would need tensors that were taken off.
void refuse_backward(const Module& module, ForwardValues& output) {
  if (!at::GradMode::is_enabled()) return;
  output.for_each_tensor([&](at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.requires_grad() || tensor.is_leaf()) return;
    tensor.register_hook([name = module_class_name(module)](const at::Tensor& /*gradient*/) {
      TORCH_CHECK(false, "a backward pass needs the parameters of a module (", name,
                  ") that an AlignDevicesHook with offload took off its execution device after the "
                  "forward pass; train without offload, or compute under torch::NoGradGuard");
    });
  });
}

}  // namespace

AlignDevicesHook::AlignDevicesHook(AlignDevicesHookOptions options) : options_(std::move(options)) {
  TORCH_CHECK_VALUE(!options_.offload || options_.execution_device,
                    "AlignDevicesHook: offload needs an execution_device, to which tensors are "
                    "brought");
}

// The tensors, where they are, and for those that are to be taken off their values.
void AlignDevicesHook::collect(Module& module) {
  std::vector<Served> served;
  absl::flat_hash_map<const c10::TensorImpl*, size_t> positions;
  const at::NoGradGuard no_grad;
  const WeightsMap* const map = options_.weights_map.get();
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    const auto [known, is_new] = positions.emplace(tensor.unsafeGetTensorImpl(), served.size());
    if (!is_new) {
      // The map may have a tied tensor under another name.
      std::string& first = served[known->second].name;
      if (map != nullptr && !map->contains(first) && map->contains(name)) first = name;
      return;
    }
    const bool is_cast = internal::is_cast(tensor);
    TORCH_CHECK_VALUE(is_cast || storage_owner(tensor) == nullptr, "AlignDevicesHook: parameter \"",
                      name, "\" is brought into memory by another mechanism, such as shards");
    const bool is_offloaded =
        options_.offload &&
        (!is_buffer || (options_.offload_buffers && !internal::is_non_persistent(tensor)));
    at::Tensor host;
    if (is_offloaded && is_cast) {
      TORCH_CHECK_VALUE(map == nullptr, "AlignDevicesHook: parameter \"", name,
                        "\" is stored in another dtype by layerwise casting, so it does not come "
                        "from a weights_map; leave that out");
    } else if (is_offloaded && map == nullptr) {
      TORCH_CHECK_VALUE(!tensor.is_meta(), "AlignDevicesHook: \"", name,
                        "\" has no values (it is on the meta device), and there is no weights_map");
      host = tensor.detach().to(at::kCPU);
    }
    served.push_back({name, tensor, tensor.device(), is_buffer, is_offloaded, is_cast, host});
  };
  for_each_served(module, options_.place_submodules, "", add);
  for (const Served& each : served) {
    TORCH_CHECK_VALUE(!each.is_offloaded || map == nullptr || map->contains(each.name),
                      "AlignDevicesHook: the weights_map has no \"", each.name, "\"");
  }
  served_ = std::move(served);
  collected_ = &module;
}

void AlignDevicesHook::init_hook(Module& module) {
  TORCH_CHECK_VALUE(collected_ == nullptr || collected_ == &module,
                    "AlignDevicesHook: the hook serves another module already");
  if (collected_ == nullptr) collect(module);
  for (const Served& each : served_) place(each);
}

void AlignDevicesHook::place(const Served& served) const {
  if (!served.is_offloaded && !options_.execution_device) return;
  if (served.is_cast) {
    const c10::Device device = served.is_offloaded ? at::kCPU : *options_.execution_device;
    internal::rebind(served.tensor, internal::moved_to(served.tensor, device));
  } else if (served.is_offloaded) {
    internal::set_tensor_to_device(served.tensor, served.name, at::kMeta);
  } else {
    internal::set_tensor_to_device(served.tensor, served.name, *options_.execution_device,
                                   {.tied_params_map = options_.tied_params_map.get()});
  }
}

at::Tensor AlignDevicesHook::value_of(const Served& served) const {
  if (served.host.defined()) return served.host;
  at::Tensor value = options_.weights_map->get(served.name);
  // A forward pass may write to a buffer, but not to what the map has.
  return served.is_buffer ? value.clone() : value;
}

void AlignDevicesHook::load(const Served& served, Pass& pass) {
  const c10::Device device = *options_.execution_device;
  if (check_device_same(served.tensor.device(), device)) return;
  if (served.is_cast) {
    const at::Tensor there = internal::moved_to(served.tensor, device);
    pass.brought.push_back({&served, served.tensor.detach(), {}});
    internal::rebind(served.tensor, there);
    return;
  }
  at::Tensor value;
  if (served.is_offloaded) {
    value = value_of(served);
  } else if (served.tensor.is_meta()) {
    return;  // as it was placed
  } else {
    value = served.tensor.detach();  // another hook has placed it
  }
  TiedParamsMap* const tied = options_.tied_params_map.get();
  const bool was_there = tied != nullptr && tied->find(value, device).defined();
  pass.brought.push_back({&served, served.tensor.detach(), {}});
  internal::set_tensor_to_device(served.tensor, served.name, device,
                                 {.value = value, .tied_params_map = tied});
  // Copies of tensors that stay in memory stay as well.
  if (served.is_offloaded && tied != nullptr && !was_there) pass.brought.back().tied = value;
}

// What forward changed.
void AlignDevicesHook::save_buffers(const Pass& pass) const {
  const at::NoGradGuard no_grad;
  for (const Brought& each : pass.brought) {
    if (each.served->is_buffer && each.served->host.defined()) {
      each.served->host.copy_(each.served->tensor);
    }
  }
}

void AlignDevicesHook::free_copies(Pass& pass) const noexcept {
  for (auto each = pass.brought.rbegin(); each != pass.brought.rend(); ++each) {
    internal::rebind(each->served->tensor, each->before);
    if (each->tied.defined()) {
      options_.tied_params_map->forget(each->tied, *options_.execution_device);
    }
  }
  pass.brought.clear();
}

void AlignDevicesHook::pre_forward(Module& /*module*/, ForwardValues& arguments) {
  Pass pass;
  if (options_.io_same_device) pass.input_device = arguments.find_device();
  try {
    if (options_.execution_device) {
      for (const Served& each : served_) load(each, pass);
      arguments.send_to_device(*options_.execution_device, {.skip_keys = options_.skip_keys});
    }
  } catch (...) {
    free_copies(pass);
    throw;
  }
  passes_.push_back(std::move(pass));
}

void AlignDevicesHook::post_forward(Module& module, ForwardValues& output) {
  Pass pass = std::move(passes_.back());
  passes_.pop_back();
  if (!pass.brought.empty()) {
    const absl::Cleanup taken_off = [&] { free_copies(pass); };
    if (module.is_training()) save_buffers(pass);
    refuse_backward(module, output);
  }
  if (pass.input_device) {
    output.send_to_device(*pass.input_device, {.skip_keys = options_.skip_keys});
  }
}

void AlignDevicesHook::forward_failed(Module& /*module*/) noexcept {
  free_copies(passes_.back());
  passes_.pop_back();
}

void AlignDevicesHook::detach_hook(Module& /*module*/) {
  std::vector<std::pair<at::Tensor, at::Tensor>> values;
  for (const Served& each : served_) {
    if (!options_.offload || each.original.is_meta()) continue;
    if (!each.is_offloaded) {
      // A buffer that is on the execution device, unless the program has moved it since.
      if (check_device_same(each.tensor.device(), *options_.execution_device)) {
        values.emplace_back(each.tensor, each.tensor.detach().to(each.original));
      }
      continue;
    }
    if (each.is_cast) {
      values.emplace_back(each.tensor, internal::moved_to(each.tensor, each.original));
      continue;
    }
    // What a map gives may not be written to.
    values.emplace_back(each.tensor, value_of(each).to(each.original, each.tensor.scalar_type(),
                                                       /*non_blocking=*/false,
                                                       /*copy=*/!each.host.defined()));
  }
  for (const auto& [tensor, value] : values) internal::rebind(tensor, value);
  served_.clear();
  collected_ = nullptr;
}

// ---- Attachment: first which module gets which hook, then all of them.

class AlignDevicesPlan {
 public:
  void align(HookTarget target, const AttachAlignDeviceOptions& options, const std::string& name,
             bool is_served) {
    Module& module = target.module();
    const std::string class_name = module_class_name(module);
    const bool whole =
        options.offload && std::ranges::count(options.preload_module_classes, class_name) > 0;
    is_served = expect_served(target, name, is_served || whole);
    if (target.slot() != nullptr || whole) {
      if (whole || serves_tensors(module)) {
        add(target, name,
            {.execution_device = options.execution_device,
             .offload = options.offload,
             .weights_map = prefixed(options.weights_map, name),
             .offload_buffers = options.offload_buffers,
             .place_submodules = whole,
             .skip_keys = options.skip_keys,
             .tied_params_map = options.tied_params_map},
            /*append=*/true);
      }
    }
    if (whole) return;
    for (const auto& child : module.named_children()) {
      if (child.value()) align(*child.value(), options, child_name(name, child.key()), is_served);
    }
  }

  void execute(HookTarget target, c10::Device device, const AttachExecutionDeviceOptions& options,
               const std::string& name, bool is_served) {
    Module& module = target.module();
    is_served = expect_served(target, name, is_served);
    if (target.slot() != nullptr && !plan_.has_hook(target) &&
        !named_module_tensors(module, {.recurse = true}).empty()) {
      add(target, name,
          {.execution_device = device,
           .skip_keys = options.skip_keys,
           .tied_params_map = options.tied_params_map},
          /*append=*/false);
    }
    if (std::ranges::count(options.preload_module_classes, module_class_name(module)) > 0) return;
    for (const auto& child : module.named_children()) {
      if (!child.value()) continue;
      execute(*child.value(), device, options, child_name(name, child.key()), is_served);
    }
  }

  void blocks(HookTarget target, const AttachAlignDeviceOnBlocksOptions& options,
              const std::string& name) {
    const auto device = value_of(options.execution_device, options.offload, name);
    const auto offload = value_of(options.offload, options.execution_device, name);
    const bool is_block = device && offload;
    AlignDevicesHookOptions hook = {.execution_device = std::nullopt,
                                    .io_same_device = name.empty(),
                                    .skip_keys = options.skip_keys,
                                    .tied_params_map = options.tied_params_map};
    if (is_block) hook.execution_device = *device;
    if (is_block && !*offload) {
      hook.offload_buffers = options.offload_buffers;
      hook.place_submodules = true;
      add(target, name, std::move(hook), /*append=*/false);
    } else if (is_block) {
      align(target, align_options(options, *device), name, /*is_served=*/false);
      if (!plan_.has_hook(target)) add(target, name, std::move(hook), /*append=*/false);
    } else if (name.empty()) {
      if (device) hook.execution_device = *device;
      add(target, name, std::move(hook), /*append=*/false);
    }
    if (is_block && *device) {
      execute(target, **device,
              {.skip_keys = options.skip_keys,
               .preload_module_classes =
                   *offload ? options.preload_module_classes : std::vector<std::string>(),
               .tied_params_map = options.tied_params_map},
              name, /*is_served=*/true);
    }
    for (const auto& child : target.module().named_children()) {
      if (!child.value()) continue;
      blocks(*child.value(), options, child_name(name, child.key()));
    }
  }

  static AttachAlignDeviceOptions align_options(const AttachAlignDeviceOnBlocksOptions& options,
                                                std::optional<c10::Device> device) {
    return {.execution_device = device,
            .offload = true,
            .weights_map = options.weights_map,
            .offload_buffers = options.offload_buffers,
            .skip_keys = options.skip_keys,
            .preload_module_classes = options.preload_module_classes,
            .tied_params_map = options.tied_params_map};
  }

  void add(HookTarget target, const std::string& name, AlignDevicesHookOptions options,
           bool append) {
    // A module under several names has one hook.
    if (plan_.is_planned(target)) return;
    auto hook = std::make_shared<AlignDevicesHook>(std::move(options));
    plan_.add(target, name, hook, append);
    // Before any tensor is taken off, which others may serve as well.
    hook->collect(target.module());
  }

  void attach() { plan_.attach(); }

 private:
  // The block's value; one for all blocks is that of the blocks which the other option names.
  template <typename T, typename Other>
  static std::optional<T> value_of(const PerBlock<T>& values, const PerBlock<Other>& others,
                                   const std::string& name) {
    if (const auto* const by_name = std::get_if<std::map<std::string, T>>(&values)) {
      const auto found = by_name->find(name);
      return found == by_name->end() ? std::nullopt : std::optional<T>(found->second);
    }
    const bool is_named = std::get<std::map<std::string, Other>>(others).contains(name);
    return is_named ? std::optional<T>(std::get<T>(values)) : std::nullopt;
  }

  // Whether a hook serves what the module has itself, given whether one above does.
  static bool expect_served(HookTarget target, const std::string& name, bool is_served) {
    if (is_served || target.slot() != nullptr) return true;
    Module& module = target.module();
    const NamedTensors own = named_module_tensors(module);
    TORCH_CHECK_VALUE(own.empty(), "\"", child_name(name, own.front().first),
                      "\": no hook would bring it, because neither its module (",
                      module_class_name(module),
                      ") nor one around it that gets a hook can have "
                      "one: it ",
                      internal::how_to_hook(module),
                      ", or let dispatch_model place the model, which needs no hooks");
    return false;
  }

  static std::shared_ptr<const WeightsMap> prefixed(std::shared_ptr<const WeightsMap> map,
                                                    const std::string& name) {
    if (map == nullptr || name.empty()) return map;
    return std::make_shared<PrefixedDataset>(std::move(map), absl::StrCat(name, "."));
  }

  internal::HookPlan plan_;
};

void attach_execution_device_hook(HookTarget module, c10::Device execution_device,
                                  const AttachExecutionDeviceOptions& options) {
  AlignDevicesPlan plan;
  plan.execute(module, execution_device, options, "", /*is_served=*/false);
  plan.attach();
}

void attach_align_device_hook(HookTarget module, const AttachAlignDeviceOptions& options) {
  AlignDevicesPlan plan;
  plan.align(module, options, options.module_name, /*is_served=*/false);
  plan.attach();
}

void attach_align_device_hook_on_blocks(HookTarget module,
                                        const AttachAlignDeviceOnBlocksOptions& options) {
  AlignDevicesPlan plan;
  const auto* const device = std::get_if<std::optional<c10::Device>>(&options.execution_device);
  const auto* const offload = std::get_if<bool>(&options.offload);
  if (device == nullptr || offload == nullptr) {
    plan.blocks(module, options, options.module_name);
  } else if (*offload) {
    plan.align(module, AlignDevicesPlan::align_options(options, *device), options.module_name,
               /*is_served=*/false);
  } else {
    plan.add(module, options.module_name,
             {.execution_device = *device,
              .io_same_device = true,
              .place_submodules = true,
              .skip_keys = options.skip_keys,
              .tied_params_map = options.tied_params_map},
             /*append=*/false);
  }
  plan.attach();
}

}  // namespace accelerate
