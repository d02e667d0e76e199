/// A module's tensors by name: which there are, which a state dict leaves out, where one lies, and
/// how one is moved or replaced.
///
/// Names are dotted paths, as in "layers.0.weight"; "" is the module itself. Local, all of it.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/modeling.py and utils/offload.py, the functions of the same names.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "absl/container/flat_hash_map.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct NamedModuleTensorsOptions {
  bool include_buffers = true;
  /// Whether those of modules below count.
  bool recurse = false;
  bool remove_non_persistent = false;
  /// Whether a tied tensor stands under its first name only.
  bool remove_duplicate = true;
};

/// The tensors themselves: parameters, each module before its children, then buffers as well.
/// Differs: remove_non_persistent also works below the module; HF Accelerate compares the last part
///          of a name with the whole.
NamedTensors named_module_tensors(const torch::nn::Module& module,
                                  const NamedModuleTensorsOptions& options = {});

/// Marks a buffer that no state dict needs, as `persistent=False` does in PyTorch; LibTorch has no
/// such flag. The mark belongs to the tensor and to the current Runtime.
///
///     mask_ = non_persistent(register_buffer("mask", make_mask(length)));
///
/// Errors: c10::ValueError for an undefined tensor; c10::Error without a Runtime.
at::Tensor non_persistent(at::Tensor buffer);

/// The names of buffers that were so marked. Without `fqns` only their last parts.
/// Differs: a full name of the module's own buffer does not begin with a dot.
std::set<std::string> get_non_persistent_buffers(const torch::nn::Module& module,
                                                 bool recurse = false, bool fqns = false);

/// A module and all below it, children before parents and in order.
std::vector<std::pair<std::string, const torch::nn::Module*>> get_module_children_bottom_up(
    const torch::nn::Module& module);

/// The entries with these names or below them, in the order of `submodule_names`, each once.
NamedTensors extract_submodules_state_dict(const NamedTensors& state_dict,
                                           const std::vector<std::string>& submodule_names);

/// What tensors that share memory have in common, on any device, "meta" included.
struct TensorStorageId {
  c10::Device device;
  const void* storage;
  size_t bytes;

  friend bool operator==(const TensorStorageId&, const TensorStorageId&) = default;
};
TensorStorageId id_tensor_storage(const at::Tensor& tensor);

/// Whether two devices are the same; an accelerator without an index is its first.
bool check_device_same(c10::Device first, c10::Device second);

/// Tied tensors that were moved: by the view of memory that they were, the tensors on other
/// devices. Who makes the map enters the views that are tied; the map keeps their memory alive.
class TiedParamsMap {
 public:
  /// The tensor, and all that are the same view of the same memory, are of interest.
  void add(const at::Tensor& tensor);
  /// Its values on a device; undefined if they are not there yet.
  at::Tensor find(const at::Tensor& tensor, c10::Device device) const;
  /// Does nothing for a tensor that is of no interest.
  void moved(const at::Tensor& from, const at::Tensor& to);
  /// The values on that device, if there are some, are not given again.
  void forget(const at::Tensor& tensor, c10::Device device);

 private:
  struct Copies {
    at::Tensor original;  // so that the memory is not another tensor's
    std::vector<at::Tensor> elsewhere;
  };

  // Null for a tensor that is of no interest.
  template <typename Views>
  static auto copies_of(Views& views, const at::Tensor& tensor);

  absl::flat_hash_map<const void*, std::vector<Copies>> views_;  // by storage
};

struct SetModuleTensorOptions {
  /// The new value; undefined: the tensor's own.
  at::Tensor value = {};
  /// What a new value becomes, unless it is integers or booleans; without a value, the tensor's new
  /// dtype on "meta". Absent: a value becomes what the tensor is.
  std::optional<at::ScalarType> dtype = {};
  /// The largest absolute value of each row, `SCB`, of a weight that is kept in 8 bits: `value` has
  /// its codes, as int8.
  at::Tensor fp16_statistics = {};
  /// Values that are on the device already are shared, and others entered.
  TiedParamsMap* tied_params_map = nullptr;
  /// Whether copies may go on after the call.
  bool non_blocking = false;
  /// Whether unused memory of the device's allocator is given back; slow in a loop.
  bool clear_cache = false;
};

/// Moves a parameter or buffer to a device or gives it a new value there. It stays the same tensor,
/// so typed members, tied names and optimizers see the change. Whether it requires a gradient
/// stays; a gradient of another device or dtype is dropped. A weight that is kept quantised stays
/// so: its codes move, and a new value is quantised (value_at_use.h).
/// Errors: c10::ValueError for a name that there is not, a value of another shape, a tensor on
///         "meta" that is to have memory and no value, and statistics that do not fit or are of a
///         weight that is not kept in 8 bits. The module is unchanged then.
/// Differs: a tied tensor moves under all of its names. The cache is not cleared by default.
void set_module_tensor_to_device(torch::nn::Module& module, const std::string& tensor_name,
                                 c10::Device device, const SetModuleTensorOptions& options = {});

namespace internal {

/// The same for the tensor itself; the name is for messages.
void set_tensor_to_device(const at::Tensor& tensor, const std::string& tensor_name,
                          c10::Device device, const SetModuleTensorOptions& options = {});

/// Whether the buffer was marked by non_persistent().
bool is_non_persistent(const at::Tensor& buffer);

}  // namespace internal

}  // namespace accelerate
