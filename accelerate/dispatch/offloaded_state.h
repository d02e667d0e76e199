/// The values of a dispatched model, wherever they are.
///
/// Errors:  CheckpointError naming a file that cannot be read.
/// Local. Threads: the rank's thread.
/// Mirrors: accelerate utils/modeling.py and utils/other.py, the functions of the same names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// Whether a tensor of the module itself is in memory only while it is used.
bool has_offloaded_params(const torch::nn::Module& module);

/// Whether the module, or one inside of it, was dispatched by a map with several entries.
bool verify_device_map(const torch::nn::Module& module);

/// While it lives, the tensors of the module itself, not of those below, are on a device.
///
/// Offloaded ones have their values there; what is written to them is lost at the end. Others are
/// moved, and move back with what they have then; their gradients move along, and what backward
/// passes add to them stays. Without a device, only offloaded ones come, to the main device.
/// Errors: c10::ValueError in a pass of the model.
class [[nodiscard]] ModuleOnDevice {
 public:
  ModuleOnDevice(const torch::nn::Module& module, std::optional<c10::Device> execution_device);
  ~ModuleOnDevice();
  ModuleOnDevice(const ModuleOnDevice&) = delete;
  ModuleOnDevice& operator=(const ModuleOnDevice&) = delete;

 private:
  struct Kept {
    at::Tensor tensor;
    at::Tensor was;  // another tensor of its memory
    bool is_offloaded;
  };
  void restore();

  std::vector<Kept> kept_;
  std::vector<at::Tensor> made_;  // parameters whose values are made of some of these
};

inline ModuleOnDevice align_module_device(
    const torch::nn::Module& module, std::optional<c10::Device> execution_device = std::nullopt) {
  return ModuleOnDevice(module, execution_device);
}

/// The model's whole state dict on the CPU, in host memory of its own for what is elsewhere.
/// Differs: tensors of the root itself are in it; tensors without values are an error that names
///          them, in place of a warning.
NamedTensors get_state_dict_offloaded_model(const torch::nn::Module& model);

/// Sets the entries of the state dict that are the module's own: of an offloaded module their
/// values on a device, of another the tensors as they are. `module_name` is a tensor's name, of
/// which the part before the last dot is the module's.
NamedTensors get_state_dict_from_offload(const torch::nn::Module& module,
                                         const std::string& module_name, NamedTensors state_dict,
                                         c10::Device device_to_put_offload = c10::kCPU);

}  // namespace accelerate
