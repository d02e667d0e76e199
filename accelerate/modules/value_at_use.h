/// Parameters whose values are made for each operator that uses them, from what is in memory in
/// another form, as in a narrower dtype.
///
/// Where Residency is for values that are fetched, these are made on the spot: when an operator is
/// about to use the parameter, its maker makes the values, and they go when the operator ends. So
/// no forward pass has to be announced, and any operator may use the parameter at any time, in
/// backward passes and outside of passes too. One that writes to it changes what the maker keeps.
/// The parameter stays the same tensor; its ties, views, and what autograd saves share its storage.
/// See operators/managed_storage.h.
///
/// What the maker keeps lives as long as the parameter's storage. It is in ordinary tensors, which
/// are in the module's state dict in the parameter's place, and which a device map may offload, or
/// ranks divide: then they are brought into memory for the maker.
/// Errors:  what the maker throws reaches the caller of the operator; of store() that of the next
///          operator that uses the parameter.
/// Threads: any, one operator of the parameter after the other; on an accelerator those that use
///          one stream.
/// Mirrors: nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

/// A tensor that is kept in a parameter's place.
struct KeptTensor {
  /// Its name in the state dict of the module that has the parameter.
  std::string name;
  /// The tensor itself, not a copy: new memory for this tensor changes the kept values.
  at::Tensor tensor;
  /// The values; false: statistics, which are small and stay in memory, as buffers do.
  bool is_values = true;
  /// The bytes of a text, which may have another length in a checkpoint.
  bool is_text = false;
};

class ValueMaker {
 public:
  virtual ~ValueMaker() = default;

  /// The values: contiguous, on the device of what is kept, in the parameter's dtype, in memory of
  /// their own. What is kept may be absent outside of operators.
  virtual at::Tensor make() = 0;
  /// An operator has changed the values.
  virtual void store(const at::Tensor& values) = 0;
  /// What is kept of the parameter with this name; the first one has the values.
  virtual std::vector<KeptTensor> kept(const std::string& name) const = 0;
  /// Whether what is kept is the parameter in another dtype, so that values are loaded by a copy.
  virtual bool keeps_elements() const { return true; }
  /// The kept form of other values, in the order of kept(). Only if keeps_elements() is false.
  /// Shapes: values on the CPU, of the parameter's sizes, in any floating-point dtype.
  virtual std::vector<at::Tensor> encode(const at::Tensor& values) const;
  /// A maker of the same values on that device, for a parameter that moves.
  virtual std::unique_ptr<ValueMaker> on_device(c10::Device device) const = 0;
};

/// Lets the maker make the parameter's values from now on. The parameter becomes absent, contiguous
/// and of `dtype`; a gradient of another dtype is dropped. `name` is for messages.
/// Errors: c10::ValueError for a parameter that is brought into memory otherwise already.
void make_at_use(const at::Tensor& parameter, const std::string& name, at::ScalarType dtype,
                 std::unique_ptr<ValueMaker> maker);

/// The maker of the tensor's values; null for other tensors.
ValueMaker* find_maker(const at::Tensor& tensor);

/// What is kept of a parameter or buffer with this name; of an ordinary one, itself.
std::vector<KeptTensor> kept_tensors(const std::string& name, const at::Tensor& tensor);

/// A module's parameters, or what is kept of them, each once.
std::vector<at::Tensor> kept_parameters(const torch::nn::Module& module);

/// What is kept was given memory elsewhere: the parameter is on that device as well, from now on.
/// The parameter's device does not change if the memory is on "meta".
void update_device_from_kept(const at::Tensor& parameter);

/// As module.to(device), but values that are made at use stay so, and what makers keep moves.
void move_module(torch::nn::Module& module, c10::Device device);

namespace internal {

/// The tensor on the device, for rebind(): a copy, or, where its values are made at use, an absent
/// tensor with a maker there.
at::Tensor moved_to(const at::Tensor& tensor, c10::Device device);

}  // namespace internal

}  // namespace accelerate
