/// SGD, Adam and AdamW, each of which updates all parameters in one call of LibTorch's fused
/// kernel.
///
/// They derive from torch::optim's classes of the same names and compute the same: options, state
/// and archives are the same, so a checkpoint of either continues with the other. Parameters for
/// which the device has no fused kernel (or a wrong one: SGD in half precision on a CPU), and those
/// whose gradient is laid out otherwise in memory, are updated one by one. In half precision Adam's
/// kernels round once per step, and LibTorch's loops after each operation. Complex parameters are
/// trained as pairs of real ones, as PyTorch does; LibTorch's Adam squares complex numbers.
/// Errors:  c10::Error in Adam's and AdamW's step() naming the parameter whose gradient is sparse;
///          nothing has changed then. SGD takes sparse gradients.
/// Threads: one at a time.
/// Mirrors: torch.optim.SGD, Adam and AdamW with fused=True.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

namespace accelerate::internal {

/// A list of tensors that others keep alive while it is used. Counts no references.
class BorrowedTensors {
 public:
  BorrowedTensors() = default;
  BorrowedTensors(BorrowedTensors&&) = default;
  BorrowedTensors& operator=(BorrowedTensors&&) = delete;
  ~BorrowedTensors() { clear(); }

  void add(const at::Tensor& tensor) {
    using Pointer = c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
    tensors_.push_back(at::Tensor(Pointer::reclaim(tensor.unsafeGetTensorImpl())));
  }
  void clear() {
    for (at::Tensor& tensor : tensors_) tensor.unsafeReleaseTensorImpl();
    tensors_.clear();
  }
  at::TensorList list() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

/// What one call takes: tensors of one group, device and dtype that are at the same step.
struct FusedBatch {
  static constexpr size_t kMaxStates = 3;

  c10::Device device;
  at::ScalarType dtype;
  int64_t step;
  BorrowedTensors parameters;
  BorrowedTensors grads;
  BorrowedTensors states[kMaxStates];
  /// The batch's step number as the kernels want it: a float tensor on the device for each
  /// parameter, here the same one.
  BorrowedTensors steps;
  at::Tensor step_tensor;
};

/// Parameters sorted into the lists that one call of a fused kernel takes.
///
/// The lists are filled anew in every step, so they cannot be out of date when parameters,
/// gradients, groups or state change. That is cheap because they borrow the tensors and keep their
/// memory. Between steps they hold no tensor.
class FusedBatches {
 public:
  /// `op` is the fused kernel's operator.
  explicit FusedBatches(const c10::OperatorHandle& op) : op_(op) {}

  void begin_step() { used_ = group_begin_ = 0; }
  void begin_group() { group_begin_ = used_; }

  /// The current group's batch for a parameter; null where the device has no fused kernel for it.
  FusedBatch* find(const at::Tensor& parameter, int64_t step);

  /// Marks what the group's batches change as changed in place, then calls run(batch) for each. In
  /// this order, who reads a state at the same time cannot overlook that it changes.
  template <typename Run>
  void run_group(Run&& run) {
    for (size_t i = group_begin_; i < used_; ++i) {
      mark_changed(batches_[i]);
      run(batches_[i]);
      finish(batches_[i]);
    }
  }

  /// Sets `batch.steps` to the step number of each parameter.
  static void fill_steps(FusedBatch& batch);

 private:
  static void mark_changed(FusedBatch& batch);
  static void finish(FusedBatch& batch);

  c10::OperatorHandle op_;
  std::vector<FusedBatch> batches_;
  size_t used_ = 0;
  size_t group_begin_ = 0;
};

/// Whether a kernel that walks through the memory of both in step sees corresponding elements.
bool same_layout(const at::Tensor& parameter, const at::Tensor& other);

/// Warns on the first rank where a class of LibTorch's that squares complex gradients as complex
/// numbers, which PyTorch's does not, has complex parameters. Local.
void warn_of_complex_parameters(const torch::optim::Optimizer& optimizer);

/// The closure's loss, computed with gradients on; undefined without a closure.
at::Tensor call_closure(const torch::optim::Optimizer::LossClosure& closure);

/// Errors: c10::Error naming the parameter whose gradient is sparse.
void check_gradients_are_dense(const char* optimizer,
                               const std::vector<torch::optim::OptimizerParamGroup>& groups);

/// One of torch::optim's classes with a step by a fused kernel.
template <typename Base, typename Options>
class Fused : public Base {
 public:
  explicit Fused(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                 Options defaults = {})
      : Base(param_groups, std::move(defaults)), batches_(kernel()) {}
  explicit Fused(std::vector<at::Tensor> parameters, Options defaults = {})
      : Base(std::move(parameters), std::move(defaults)), batches_(kernel()) {}

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;

 private:
  static c10::OperatorHandle kernel();

  FusedBatches batches_;
};

}  // namespace accelerate::internal

namespace accelerate::optim {

class SGD : public internal::Fused<torch::optim::SGD, torch::optim::SGDOptions> {
 public:
  using Fused::Fused;
};

class Adam : public internal::Fused<torch::optim::Adam, torch::optim::AdamOptions> {
 public:
  using Fused::Fused;
};

class AdamW : public internal::Fused<torch::optim::AdamW, torch::optim::AdamWOptions> {
 public:
  using Fused::Fused;
};

}  // namespace accelerate::optim
