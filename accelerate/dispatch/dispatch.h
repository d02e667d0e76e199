/// Models larger than a device: placed by a device map, on several accelerators, in host memory and
/// in files, and called as before.
///
///     auto model = dispatch_model(net, map, {.offload_dir = "offload"});
///     const torch::Tensor logits = model(tokens);
///
/// or, from an empty model and a checkpoint,
///
///     auto model = load_checkpoint_and_dispatch(files, net, "checkpoint", {.device_map = "auto"});
///
/// Modules on an accelerator stay there, and operators follow them: see activation_placement.h.
/// What is on the CPU or the disk is in memory on the main device while operators use it, two
/// groups of modules at a time, of which the second is on its way while the first one computes: see
/// residency.h and weight_sources.h. The module is not changed: neither its class nor its typed
/// members, and tied parameters stay tied.
///
/// The module computes inside of the result's calls, and of run(). The calls copy the inputs to the
/// main device, and the outputs to the device of the first input. A call of the module itself, and
/// an operator on an offloaded parameter elsewhere, as in `to()`, is an error that names the
/// parameter.
///
/// Training works, but for parameters in files. Gradients of parameters on the CPU are there:
/// optimizers take `model.parameters()` of the result, in which such parameters are host tensors.
///
/// Errors:  c10::ValueError, with the model unchanged, for a map that leaves tensors out or names a
///          device that there is not, for tensors without values, for a tensor that would move
///          while a view of it is alive, and for a model that is dispatched already;
///          CheckpointError of files; c10::OutOfMemoryError. Files that fail in a pass throw
///          CheckpointError to its caller, and the next pass tries again.
/// Local. Threads: the rank's thread.
/// Mirrors: accelerate big_modeling.py.
/// Differs: see accelerate/docs/differences.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>
#include <torch/nn/pimpl.h>

#include "accelerate/big_model/load_checkpoint_in_model.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/device_map/max_memory.h"
#include "accelerate/dispatch/dispatched_model.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/hooks/model_hook.h"

namespace accelerate {
/// A handle to a dispatched model; copies are the same one. When the last one goes, the module is
/// an ordinary one again: what was on the CPU is there, what was in files is on "meta", and buffers
/// that were on the main device for offloaded modules are where they were before. What the map has
/// on an accelerator stays there.
/// It runs the hooks that are added to it (model_hook.h) around the module's forward, where inputs
/// and outputs are on the main device.
template <typename Module>
class Dispatched {
 public:
  Dispatched(std::shared_ptr<Module> module, std::shared_ptr<DispatchedModel> model)
      : hooked_(std::move(module), model->hooks()), model_(std::move(model)) {}

  template <typename... Inputs>
  auto forward(Inputs&&... inputs) {
    return run_with_hooks(model_->pass_hook(), *hooked_, hooked_, std::forward<Inputs>(inputs)...);
  }
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }

  /// What function(module) returns, which uses the module otherwise than by its forward, such as
  /// an encoder that is called once and a decoder that is called for each token. Inputs and outputs
  /// stay where they are; operators bring what they need.
  template <typename Function>
  decltype(auto) run(Function&& function) {
    DispatchedModel::Pass pass(*model_);
    if (!at::GradMode::is_enabled()) pass.expect_no_backward();
    return std::forward<Function>(function)(*hooked_);
  }

  Module* operator->() const { return &*hooked_; }
  Module& operator*() const { return *hooked_; }
  const std::shared_ptr<Module>& module() const { return hooked_.module(); }
  /// The same, so that prepare takes the handle as it takes the module's holder.
  const std::shared_ptr<Module>& ptr() const { return module(); }
  operator HookTarget() const { return hooked_; }

  const DeviceMap& hf_device_map() const { return model_->device_map(); }
  /// Where offloaded modules compute.
  c10::Device main_device() const { return model_->main_device(); }
  /// What optimizers train, in the module's order: each parameter, or, of one on the CPU, its host
  /// tensor. Parameters in files are left out.
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> trained;
    for (const at::Tensor& each : hooked_->parameters()) {
      const auto* const offloaded = model_->find_offloaded(each);
      if (offloaded == nullptr) {
        trained.push_back(each);
      } else if (offloaded->home.defined()) {
        trained.push_back(offloaded->home);
      }
    }
    return trained;
  }
  /// Resets the gradients of all of them.
  void zero_grad(bool set_to_none = true) { model_->zero_grad(set_to_none); }

  const std::shared_ptr<DispatchedModel>& state() const { return model_; }

 private:
  HookedModel<Module> hooked_;
  std::shared_ptr<DispatchedModel> model_;
};

/// Places the model by the map; the module's tensors keep their identity. A map with a single
/// device, unless force_hooks, moves the model there, and operators run as without a map.
template <typename Module>
[[nodiscard]] Dispatched<Module> dispatch_model(const std::shared_ptr<Module>& model,
                                                DeviceMap device_map,
                                                DispatchOptions options = {}) {
  return {model, DispatchedModel::make(model, std::move(device_map), std::move(options))};
}
template <typename Module>
[[nodiscard]] Dispatched<Module> dispatch_model(const torch::nn::ModuleHolder<Module>& model,
                                                DeviceMap device_map,
                                                DispatchOptions options = {}) {
  return dispatch_model(model.ptr(), std::move(device_map), std::move(options));
}

struct CpuOffloadOptions {
  /// Absent: where the first parameter is, or else the rank's device.
  std::optional<c10::Device> execution_device = std::nullopt;
  bool offload_buffers = false;
  NamedTensors state_dict = {};
  std::vector<std::string> preload_module_classes = {};
};

struct DiskOffloadOptions {
  /// As in CpuOffloadOptions.
  std::optional<c10::Device> execution_device = std::nullopt;
  bool offload_buffers = false;
  std::vector<std::string> preload_module_classes = {};
};

namespace internal {

// Where a model computes whose tensors are elsewhere.
c10::Device execution_device_of(const torch::nn::Module& model,
                                const std::optional<c10::Device>& given);

}  // namespace internal

/// All parameters in host memory, in use on the execution device: a dispatch_model of the whole
/// model to "cpu".
/// Differs: where the execution device is the CPU there is nothing to do.
template <typename Model>
[[nodiscard]] auto cpu_offload(const Model& model, CpuOffloadOptions options = {}) {
  return dispatch_model(
      model, DeviceMap(std::vector<DeviceMap::Entry>{{"", DevicePlacement::cpu()}}),
      {.main_device = internal::execution_device_of(*model, options.execution_device),
       .state_dict = std::move(options.state_dict),
       .offload_buffers = options.offload_buffers,
       .preload_module_classes = std::move(options.preload_module_classes)});
}

/// All parameters in files of `offload_dir`, where those that have memory are written; see
/// DispatchOptions.
template <typename Model>
[[nodiscard]] auto disk_offload(const Model& model, const std::string& offload_dir,
                                DiskOffloadOptions options = {}) {
  return dispatch_model(
      model, DeviceMap(std::vector<DeviceMap::Entry>{{"", DevicePlacement::disk()}}),
      {.main_device = internal::execution_device_of(*model, options.execution_device),
       .offload_dir = offload_dir,
       .offload_buffers = options.offload_buffers,
       .preload_module_classes = std::move(options.preload_module_classes)});
}

struct LoadCheckpointAndDispatchOptions {
  /// A map; "auto", "balanced", "balanced_low_0" or "sequential" for one that is inferred; absent:
  /// the model is loaded where it is, and not dispatched.
  std::optional<std::variant<std::string, DeviceMap>> device_map = std::nullopt;
  /// The limits of an inferred map; absent: what is free.
  std::optional<MaxMemory> max_memory = std::nullopt;
  std::vector<std::string> no_split_module_classes = {};
  std::string offload_folder = {};
  bool offload_buffers = false;
  /// As in LoadCheckpointInModelOptions.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  std::optional<bool> offload_state_dict = std::nullopt;
  std::vector<std::string> skip_keys = {};
  std::vector<std::string> preload_module_classes = {};
  bool force_hooks = false;
  bool strict = false;
  bool full_state_dict = true;
  bool broadcast_from_rank0 = false;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group = nullptr;
  std::vector<std::string> keep_in_fp32_modules = {};
  /// As in DispatchOptions.
  std::optional<c10::Device> main_device = std::nullopt;
};

namespace internal {

// Loads the model by its map; null: without one.
std::shared_ptr<DispatchedModel> load_and_dispatch(FileSystem& files,
                                                   std::shared_ptr<torch::nn::Module> model,
                                                   const std::string& checkpoint,
                                                   const LoadCheckpointAndDispatchOptions& options);

}  // namespace internal

/// load_checkpoint_in_model by the map, and dispatch_model. Without a map the handle calls the
/// module as it is.
/// Errors: also c10::ValueError for another text than those of `device_map`.
template <typename Module>
[[nodiscard]] Dispatched<Module> load_checkpoint_and_dispatch(
    FileSystem& files, const std::shared_ptr<Module>& model, const std::string& checkpoint,
    const LoadCheckpointAndDispatchOptions& options = {}) {
  return {model, internal::load_and_dispatch(files, model, checkpoint, options)};
}
template <typename Module>
[[nodiscard]] Dispatched<Module> load_checkpoint_and_dispatch(
    FileSystem& files, const torch::nn::ModuleHolder<Module>& model, const std::string& checkpoint,
    const LoadCheckpointAndDispatchOptions& options = {}) {
  return load_checkpoint_and_dispatch(files, model.ptr(), checkpoint, options);
}

}  // namespace accelerate
