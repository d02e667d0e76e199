/// A module's parameters and buffers themselves, in the order of its state dict.
///
/// Threads: the rank's thread.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate::internal {

struct ModuleSlot {
  std::string name;
  /// The parameter or buffer, not a copy of its handle's metadata as in module_state_dict.
  at::Tensor tensor;
  bool is_buffer = false;
};

/// In the order of module_state_dict: names and positions are the same. Local.
std::vector<ModuleSlot> module_slots(const torch::nn::Module& module);

}  // namespace accelerate::internal
