/// Hooks that bring a module's parameters and buffers, and its inputs, to the device that it
/// computes on.
///
/// An AlignDevicesHook serves the tensors of its module: the module's own, and those of modules
/// below that run no hooks, so that a Hooked block serves the plain layers in it. Modules below
/// that run hooks serve their own. With `place_submodules` it serves all below.
/// Where `offload` is set the tensors have no memory (device "meta") between forward passes. A pass
/// brings them to the execution device and takes them off again; only one block at a time takes
/// memory there. The hooks do not wait for each other, so nothing is brought ahead of time.
///
/// Tensors keep their identity, so typed members, ties and optimizers need no attention. A tensor
/// that several hooks serve is brought by each for its own pass, unless it is there already. What
/// attach_layerwise_casting_hooks stores in a narrow dtype moves in it, to the host where it is
/// offloaded.
///
/// Gradients: hooks that only place tensors can be trained. A backward pass through a module whose
///          tensors a hook took off again is an error that says so.
/// Errors:  c10::ValueError where not said otherwise, naming the parameter. After an error, also
///          one of forward itself, tensors are where they were before the pass.
/// Local, all of it. Threads: as model_hook.h.
/// Mirrors: accelerate hooks.py, AlignDevicesHook and the functions of the same names.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/big_model/offload.h"
#include "accelerate/forward/forward_values.h"
#include "accelerate/hooks/model_hook.h"
#include "accelerate/modules/module_tensors.h"

namespace accelerate {

struct AlignDevicesHookOptions {
  /// Where the module computes; absent: where its tensors are.
  std::optional<c10::Device> execution_device = std::nullopt;
  /// Whether tensors have memory in forward passes only. Needs an execution device.
  bool offload = false;
  /// Whether outputs go to the device of the first tensor among the arguments.
  bool io_same_device = false;
  /// The offloaded tensors' values, by their names in the module. Null: copies that the hook makes
  /// on the host; those of tensors that are there already share their memory.
  std::shared_ptr<const WeightsMap> weights_map = nullptr;
  /// Whether `offload` concerns buffers as well; those marked by non_persistent() never. What a
  /// forward pass of a module in training mode changes in them goes to the hook's copies, and is
  /// lost with a weights_map.
  bool offload_buffers = false;
  /// Whether the hook serves all modules below, those that run hooks included.
  bool place_submodules = false;
  /// Arguments and outputs under one of these keys of a map or dict are not moved.
  std::vector<std::string> skip_keys = {};
  /// Copies of tied tensors that hooks share. Those that offloading hooks enter end with the pass.
  std::shared_ptr<TiedParamsMap> tied_params_map = nullptr;
};

class AlignDevicesHook final : public ModelHook {
 public:
  /// Errors: for `offload` without an execution device.
  explicit AlignDevicesHook(AlignDevicesHookOptions options = {});

  /// Places the tensors, or takes them off.
  /// Errors: for a tensor on "meta" that is to be placed, a name that the weights_map lacks, a
  ///         parameter that is divided among ranks, and one in a narrow dtype with a weights_map.
  void init_hook(torch::nn::Module& module) override;
  void pre_forward(torch::nn::Module& module, ForwardValues& arguments) override;
  void post_forward(torch::nn::Module& module, ForwardValues& output) override;
  void forward_failed(torch::nn::Module& module) noexcept override;
  /// Offloaded tensors return to the devices where they were, as do buffers that a hook with
  /// `offload` has placed on its execution device; what other hooks have placed stays.
  void detach_hook(torch::nn::Module& module) override;

  const AlignDevicesHookOptions& options() const { return options_; }

 private:
  friend class AlignDevicesPlan;

  struct Served {
    std::string name;
    at::Tensor tensor;
    c10::Device original;
    bool is_buffer;
    bool is_offloaded;
    bool is_cast;     // its values are made at use, from others
    at::Tensor host;  // undefined: the weights_map has it, or it is cast
  };
  // What a pass changed, and what was before.
  struct Brought {
    const Served* served;
    at::Tensor before;
    at::Tensor tied;  // entered into the map of tied tensors
  };
  struct Pass {
    std::optional<c10::Device> input_device;
    std::vector<Brought> brought;
  };

  void collect(torch::nn::Module& module);
  void place(const Served& served) const;
  at::Tensor value_of(const Served& served) const;
  void load(const Served& served, Pass& pass);
  void save_buffers(const Pass& pass) const;
  void free_copies(Pass& pass) const noexcept;

  const AlignDevicesHookOptions options_;
  const torch::nn::Module* collected_ = nullptr;  // whose tensors are in served_
  std::vector<Served> served_;
  std::vector<Pass> passes_;  // a module may be called inside of itself
};

struct AttachExecutionDeviceOptions {
  std::vector<std::string> skip_keys = {};
  /// Classes of modules whose children get no hooks.
  std::vector<std::string> preload_module_classes = {};
  std::shared_ptr<TiedParamsMap> tied_params_map = nullptr;
};

/// Attaches a hook that places tensors and inputs on a device to the module and all below that run
/// hooks, have tensors and have no hook yet.
/// Errors: also for tensors that no hook would serve. No hook is attached then; so it is with the
///         functions below.
void attach_execution_device_hook(HookTarget module, c10::Device execution_device,
                                  const AttachExecutionDeviceOptions& options = {});

struct AttachAlignDeviceOptions {
  std::optional<c10::Device> execution_device = std::nullopt;
  bool offload = false;
  /// By names in the model.
  std::shared_ptr<const WeightsMap> weights_map = nullptr;
  bool offload_buffers = false;
  /// The module's name in the model.
  std::string module_name = "";
  std::vector<std::string> skip_keys = {};
  /// Classes of modules that are brought as a whole, because their forward uses parameters of
  /// modules below without calling them.
  std::vector<std::string> preload_module_classes = {};
  std::shared_ptr<TiedParamsMap> tied_params_map = nullptr;
};

/// Appends a hook to the module, and to each module below, that serves tensors.
/// Errors: for tensors that no hook would serve, and a module of `preload_module_classes` that runs
///         no hooks.
void attach_align_device_hook(HookTarget module, const AttachAlignDeviceOptions& options = {});

/// One value for all blocks, or one by the block's name.
template <typename T>
using PerBlock = std::variant<T, std::map<std::string, T>>;

struct AttachAlignDeviceOnBlocksOptions {
  PerBlock<std::optional<c10::Device>> execution_device = std::optional<c10::Device>();
  PerBlock<bool> offload = false;
  std::shared_ptr<const WeightsMap> weights_map = nullptr;
  bool offload_buffers = false;
  std::string module_name = "";
  std::vector<std::string> skip_keys = {};
  std::vector<std::string> preload_module_classes = {};
  std::shared_ptr<TiedParamsMap> tied_params_map = nullptr;
};

/// Attaches hooks to the blocks that the maps name: one that places the block, or ones that bring
/// its tensors for each pass. The model's outputs go to the device of its inputs. Without maps the
/// model is one block.
/// Errors: also for a block that runs no hooks.
void attach_align_device_hook_on_blocks(HookTarget module,
                                        const AttachAlignDeviceOnBlocksOptions& options = {});

}  // namespace accelerate
