/// A module's tensors by name, as PyTorch's state_dict has them.
///
/// Order: of each module its parameters, its buffers, then its children, each as it was registered.
/// Tied tensors stand under each of their names. Undefined parameters and buffers are left out.
/// A parameter whose values are made at use (value_at_use.h) is there as what is kept of it, such
/// as codes and statistics of a quantised weight. Values of the parameter's sizes may be loaded in
/// their place.
///
/// Errors:  CheckpointError for a state dict that does not fit: all that is missing, unexpected or
///          of another size, at once, with the module's class; the module is unchanged then.
///          c10::ValueError for a module whose tensors are on the meta device, naming them.
/// Threads: the rank's thread.
/// Mirrors: torch.nn.Module, state_dict and load_state_dict.
/// Differs: a missing name is not an error if its tensor is tied to an existing one; names may
///          begin with the `module.` that wrapped models save.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// The module's own tensors, detached: writing to them writes to the module. Local.
NamedTensors module_state_dict(const torch::nn::Module& module);

struct LoadModuleStateDictOptions {
  /// Whether missing and unexpected names are errors. Other sizes always are.
  bool strict = true;
};

struct IncompatibleKeys {
  /// In the module's order.
  std::vector<std::string> missing_keys;
  /// In the state dict's.
  std::vector<std::string> unexpected_keys;
};

/// Copies values into the module's tensors, in place, across devices and dtypes. Local.
IncompatibleKeys load_module_state_dict(torch::nn::Module& module, const NamedTensors& state,
                                        const LoadModuleStateDictOptions& options = {});

namespace internal {

/// One of a module's parameters and buffers.
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

struct StateDictMatchOptions {
  /// Whether tensors on the meta device are an error, because they cannot be read into.
  bool needs_memory = true;
  /// The module's tensors that are matched; the others are neither missing nor unexpected. Null:
  /// all of them.
  std::function<bool(const std::string& name)> wanted;
  /// The sizes of the whole tensor of which the module has this part or all. Null: it has all of
  /// each.
  std::function<std::vector<int64_t>(const at::Tensor& tensor)> whole_sizes = nullptr;
};

/// Matches the tensors of a state dict with those of a module, before any of them is read.
class StateDictMatch {
 public:
  /// `slots`: the module's.
  StateDictMatch(const torch::nn::Module& module, std::span<const ModuleSlot> slots,
                 StateDictMatchOptions options = {});

  struct Match {
    /// Among the slots; the first one of what is kept, if the values are converted.
    size_t position;
    /// They are a made parameter's values, of which something else is kept.
    bool is_converted;
    /// They are the bytes of a made parameter's codes, in a dtype of another size.
    bool is_packed = false;
  };
  /// The module's tensor for a stored one; absent if there is none for it, or one of another size
  /// that is not a text.
  /// Errors report the name as stored.
  std::optional<Match> find(const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype);
  /// A stored value that cannot be loaded: unexpected, or, if the module has a tensor of its name,
  /// an error of finish(), which says what `why` says.
  void add_unreadable(const std::string& name, const std::string& why);

  /// After the last `find`. Errors: see above.
  IncompatibleKeys finish(bool strict) const;

 private:
  std::map<std::string, size_t>::const_iterator position_of(const std::string& name) const;
  std::vector<std::string> missing() const;
  bool is_converted(const ModuleSlot& slot, at::IntArrayRef sizes, at::ScalarType dtype) const;
  static bool is_packed(const ModuleSlot& slot, at::IntArrayRef sizes, at::ScalarType dtype);

  const std::string class_name_;
  const StateDictMatchOptions options_;
  const std::span<const ModuleSlot> slots_;
  const NamedTensors tensors_;
  std::map<std::string, size_t> positions_;
  std::vector<bool> found_;  // of tensors_
  std::vector<std::string> unexpected_;
  std::vector<std::string> other_sizes_;
  std::vector<std::string> unreadable_;
};

/// For each tensor the position of the first identical view; often its own.
std::vector<size_t> first_identical_views(const NamedTensors& tensors);

}  // namespace internal
}  // namespace accelerate
