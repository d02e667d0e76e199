/// Activations follow parameters: the rule by which a model whose parameters are on several devices
/// computes without a change to its code.
///
/// In an operator with a tensor of the model, its other tensors are copied to that tensor's device.
/// Without one, it runs where its tensors are; if they are on several devices, on the device of the
/// last operator with a tensor of the model if one of them is there, else on the first accelerator
/// among theirs. A tensor that the operator writes to, and running statistics, never move: the
/// others come to it. Copies are recorded by autograd, so gradients take the way back.
///
/// What follows from it:
///   - Where a model is cut, an activation is copied for each operator that uses it beyond the cut:
///     a residual connection for its first norm and for its sum. Without gradients, one copy serves
///     all operators until the tensor is changed or freed, and so does a mask's in any case.
///   - `x += f(x)` keeps x where it is, so with a cut before f each such sum copies f's result
///   back.
///     `x = x + f(x)` goes on where f is.
///   - A tensor made on the input's device, as by arange or zeros, is copied where it meets others.
///   - Copies and casts between devices that the model asks for itself stay as they are.
///   - A norm that LibTorch composes of several operators (rms_norm) is placed operator by operator
///     where gradients are wanted, so that they add up in the order that they have on one device.
///   - A number on the CPU (no dims) stays there, as LibTorch's operators take it.
///
/// A parameter with several names whose places are different accelerators has a copy on each of
/// them: an operator uses the one on the device of the last operator with a tensor of the model.
/// Gradients of all copies add up in the parameter. Without gradients a copy stays until the
/// parameter changes.
///
/// Threads: as OperatorHandler.
/// Mirrors: AlignDevicesHook of accelerate hooks.py, in purpose.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "accelerate/operators/operator_mode.h"

namespace accelerate::internal {

/// Where a model's tensors are, by the memory that they have.
/// Threads: any, but refresh() while no pass runs.
class ModelPlaces {
 public:
  /// `others`: the devices, beside the tensor's own, that have copies of it.
  void add(const at::Tensor& tensor, std::vector<c10::Device> others = {});
  /// Follows tensors that were given other memory since.
  void refresh();

  struct KeptCopy {
    c10::Device device;
    int64_t version;
    const void* storage;
    at::Tensor values;
  };
  struct Place {
    at::Tensor tensor;
    const void* storage = nullptr;
    std::vector<c10::Device> others = {};
    std::vector<KeptCopy> kept = {};  // under the mutex

    bool has_copy_on(c10::Device device) const { return std::ranges::count(others, device) > 0; }
  };
  /// Null for a tensor that is not the model's, nor a view of one.
  Place* find(const at::Tensor& tensor) const;

  /// The copy, for an operator without gradients, of a tensor with copies; undefined: no copy
  /// belongs on that device. Errors: those of the device.
  at::Tensor kept_copy(const at::Tensor& tensor, Place& place, c10::Device device);

 private:
  std::vector<Place> places_;
  absl::flat_hash_map<const void*, Place*> by_storage_;
  absl::Mutex mutex_;
  bool may_change_ = false;  // what is kept, since the last refresh()
};

/// The rule, for one forward pass.
class ActivationPlacement final : public OperatorHandler {
 public:
  /// Operators with tensors of a model whose pass surrounds this one are left to that pass.
  ActivationPlacement(std::shared_ptr<ModelPlaces> places, c10::Device main_device);

  void call(const OperatorCall& call) override;
  /// The pass is over: frees what was kept for it.
  void end();

  /// How many tensors it has copied.
  int64_t copies() const { return num_copies_; }

 private:
  struct Scan;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Copy {
    WeakTensor of;
    int64_t version;
    at::Tensor values;
  };

  bool is_of_outer(const OperatorCall& call) const;
  void place(const OperatorCall& call, const Scan& scan);
  at::Tensor moved(const at::Tensor& tensor, c10::Device device);
  at::Tensor tied_copy(const at::Tensor& tensor, ModelPlaces::Place& place, c10::Device device);

  const std::shared_ptr<ModelPlaces> places_;
  std::vector<std::shared_ptr<ModelPlaces>> outer_;
  absl::Mutex mutex_;
  // Where the last operator with a tensor of the model ran.
  std::atomic<c10::Device> current_;
  std::atomic<int64_t> num_copies_ = 0;
  std::vector<Copy> copies_ ABSL_GUARDED_BY(mutex_);
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace accelerate::internal
