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
/// What the maker keeps lives as long as the parameter's storage.
/// Errors:  what the maker throws reaches the caller of the operator; of store() that of the next
///          operator that uses the parameter.
/// Threads: any, one operator of the parameter after the other; on an accelerator those that use
///          one stream.
/// Mirrors: nothing.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

class ValueMaker {
 public:
  virtual ~ValueMaker() = default;

  /// The values: contiguous, on the parameter's device, in its dtype, in memory of their own.
  virtual at::Tensor make() = 0;
  /// An operator has changed them.
  virtual void store(const at::Tensor& values) = 0;
  /// What the maker keeps, if that is the parameter in another dtype; else undefined.
  virtual at::Tensor stored() const { return {}; }
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

/// The tensor that has the parameter's values, in another dtype perhaps: what its maker keeps, or
/// the parameter itself. Writing to it changes the parameter.
at::Tensor stored_tensor(const at::Tensor& parameter);

/// As module.to(device), but values that are made at use stay so, and what makers keep moves.
void move_module(torch::nn::Module& module, c10::Device device);

namespace internal {

/// The tensor on the device, for rebind(): a copy, or, where its values are made at use, an absent
/// tensor with a maker there.
at::Tensor moved_to(const at::Tensor& tensor, c10::Device device);

}  // namespace internal

}  // namespace accelerate
