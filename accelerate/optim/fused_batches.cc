#include "accelerate/optim/fused_batches.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>

namespace accelerate::internal {
namespace {

bool is_fusable(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 ||
         dtype == at::kHalf;
}

}  // namespace

FusedBatch* FusedBatches::find(const at::Tensor& parameter, int64_t step) {
  const c10::Device device = parameter.device();
  const at::ScalarType dtype = parameter.scalar_type();
  for (size_t i = used_; i-- > group_begin_;) {
    FusedBatch& batch = batches_[i];
    if (batch.step == step && batch.dtype == dtype && batch.device == device) return &batch;
  }
  const c10::DispatchKey key =
      parameter.key_set().highestBackendKey() == c10::BackendComponent::InvalidBit
          ? c10::DispatchKey::Undefined
          : c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense,
                                                     parameter.key_set().highestBackendKey());
  if (!is_fusable(dtype) || !op_.hasComputedKernelForDispatchKey(key)) return nullptr;
  if (used_ == batches_.size()) {
    batches_.push_back(FusedBatch{.device = device, .dtype = dtype, .step = step});
  }
  FusedBatch& batch = batches_[used_++];
  // Also what a step that ended in an error has left.
  batch.parameters.clear();
  batch.grads.clear();
  for (BorrowedTensors& state : batch.states) state.clear();
  batch.steps.clear();
  batch.device = device;
  batch.dtype = dtype;
  batch.step = step;
  return &batch;
}

void FusedBatches::fill_steps(FusedBatch& batch) {
  if (!batch.step_tensor.defined() || batch.step_tensor.device() != batch.device) {
    batch.step_tensor = at::empty({}, at::TensorOptions(batch.device).dtype(at::kFloat));
  }
  batch.step_tensor.fill_(batch.step);
  for (size_t i = 0; i < batch.parameters.list().size(); ++i) batch.steps.add(batch.step_tensor);
}

void FusedBatches::mark_changed(FusedBatch& batch) {
  for (const BorrowedTensors* changed :
       {&batch.parameters, &batch.states[0], &batch.states[1], &batch.states[2]}) {
    for (const at::Tensor& tensor : changed->list()) {
      // Those made in inference mode have no version.
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

void FusedBatches::finish(FusedBatch& batch) {
  batch.parameters.clear();
  batch.grads.clear();
  for (BorrowedTensors& state : batch.states) state.clear();
  batch.steps.clear();
}

bool same_layout(const at::Tensor& parameter, const at::Tensor& other) {
  if (!other.defined() || other.layout() != at::kStrided || parameter.layout() != at::kStrided ||
      other.scalar_type() != parameter.scalar_type() || other.device() != parameter.device() ||
      other.sizes() != parameter.sizes()) {
    return false;
  }
  if (parameter.is_contiguous() && other.is_contiguous()) return true;
  return parameter.is_non_overlapping_and_dense() && other.strides() == parameter.strides();
}

at::Tensor call_closure(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  at::AutoGradMode enable_grad(true);
  return closure();
}

void check_gradients_are_dense(const char* optimizer,
                               const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (size_t group = 0; group < groups.size(); ++group) {
    const std::vector<at::Tensor>& parameters = groups[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& grad = parameters[i].grad();
      TORCH_CHECK(!grad.defined() || grad.layout() == at::kStrided, optimizer,
                  " does not support sparse gradients: that of parameter ", i, " of group ", group,
                  " is");
    }
  }
}

}  // namespace accelerate::internal
