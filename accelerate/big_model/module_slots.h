/// A module's tensors themselves, and other memory for one of them.
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

/// Lets `tensor` have the memory, device and dtype of `memory`, which has its sizes and is no part
/// of a graph. The tensor stays the same object, so everything that holds it sees the new memory:
/// typed members of modules, tied modules, optimizers. Whether it requires a gradient stays; a
/// gradient that it has is dropped, because it would be of another device or dtype. Both the old
/// and the new device may be meta. Local.
void give_memory(const at::Tensor& tensor, const at::Tensor& memory);

}  // namespace accelerate::internal
