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

  struct Place {
    c10::Device device;
    int with_copies = -1;  // number among those with copies
  };
  /// Null for a tensor that is not the model's, nor a view of one.
  const Place* find(const at::Tensor& tensor) const;

  /// The copy, for an operator without gradients, of a tensor with copies; undefined: no copy
  /// belongs on that device. Errors: those of the device.
  at::Tensor kept_copy(const at::Tensor& tensor, const Place& place, c10::Device device);
  bool has_copy_on(const Place& place, c10::Device device) const;

 private:
  struct Entry {
    at::Tensor tensor;
    const void* storage;
    std::vector<c10::Device> others;
  };
  struct KeptCopy {
    c10::Device device;
    int64_t version;
    const void* storage;
    at::Tensor values;
  };
  void index();

  std::vector<Entry> entries_;
  absl::flat_hash_map<const void*, Place> by_storage_;
  std::vector<std::vector<c10::Device>> others_;  // by Place::with_copies
  absl::Mutex mutex_;
  bool may_change_ = false;  // what is kept, since the last refresh()
  std::vector<std::vector<KeptCopy>> kept_ ABSL_GUARDED_BY(mutex_);  // by Place::with_copies
};

/// The rule, for one forward pass.
class ActivationPlacement final : public OperatorHandler {
 public:
  /// Operators with tensors of a model whose pass surrounds this one are left to that pass.
  ActivationPlacement(std::shared_ptr<ModelPlaces> places, c10::Device main_device);

  void call(const OperatorCall& call) override;
  /// The pass is over: frees what was kept for it.
  void end();

  /// How many tensors it has copied, and their bytes.
  int64_t copies() const;
  int64_t copied_bytes() const;

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
  at::Tensor tied_copy(const at::Tensor& tensor, const ModelPlaces::Place& place,
                       c10::Device device);

  const std::shared_ptr<ModelPlaces> places_;
  std::vector<std::shared_ptr<ModelPlaces>> outer_;
  mutable absl::Mutex mutex_;
  // Where the last operator with a tensor of the model ran.
  std::atomic<c10::Device> current_;
  std::vector<Copy> copies_ ABSL_GUARDED_BY(mutex_);
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_copies_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t copied_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace accelerate::internal
