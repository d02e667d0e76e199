/// A module's parameters and buffers themselves, in the order of its state dict.
///
/// Threads: the rank's thread.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate::internal {

struct ModuleSlot {
  std::string name;
  /// The parameter or buffer, not a copy of its handle's metadata as in module_state_dict; or a
  /// tensor that is kept in a parameter's place (value_at_use.h).
  at::Tensor tensor;
  /// A buffer, or statistics that are kept.
  bool is_buffer = false;
  /// As KeptTensor::is_text.
  bool is_text = false;
  /// Where `tensor` is kept in its place, the parameter, and its name. Undefined for others.
  at::Tensor made_parameter = {};
  std::string made_name = {};

  /// The name by which a device map places it.
  const std::string& placed_name() const { return made_parameter.defined() ? made_name : name; }
};

/// In the order of module_state_dict: names and positions are the same. Without `recurse` those of
/// the module itself alone. Local.
std::vector<ModuleSlot> module_slots(const torch::nn::Module& module, bool recurse = true);

}  // namespace accelerate::internal
