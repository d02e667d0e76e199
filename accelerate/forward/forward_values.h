/// The tensors among the inputs of a forward call, or in what it returns.
///
/// The arguments of a C++ forward have types, so they are seen as a tree of tensors (see
/// tensors/tree.h): each tensor may be looked at and replaced, and all of them sent to a device.
/// Other values pass unchanged. See forward_call.h for whose tensors are replaced.
/// Threads: that of the call.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "absl/functional/function_ref.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

class ForwardValues {
 public:
  /// Calls fn for each tensor, in the order of the arguments and, inside of one, of tree_for_each;
  /// assigning to it replaces it. Tensors may be undefined.
  virtual void for_each_tensor(absl::FunctionRef<void(at::Tensor&)> fn) = 0;
  /// The same tensors, as they are.
  virtual void for_each_tensor(absl::FunctionRef<void(const at::Tensor&)> fn) const = 0;
  /// As accelerate::send_to_device of each argument. Map entries under one of `skip_keys` stay.
  virtual void send_to_device(c10::Device device, const SendToDeviceOptions& options = {}) = 0;

  /// The tensors, in the order of for_each_tensor.
  std::vector<at::Tensor> tensors() const;
  /// Replaces them, in that order. Errors: c10::Error for another number of tensors.
  void set_tensors(std::vector<at::Tensor> tensors);

  /// That of the first tensor; absent without tensors.
  std::optional<c10::Device> find_device() const;

 protected:
  ~ForwardValues() = default;
};

}  // namespace accelerate
