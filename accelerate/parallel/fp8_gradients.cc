#include "accelerate/parallel/fp8_gradients.h"

#include <limits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include "accelerate/precision/fp8_quantize.h"

namespace accelerate {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

void quantize_gradients(const std::vector<at::Tensor>& gradients, c10d::ProcessGroup* group) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> defined, amaxes;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    defined.push_back(gradient);
    amaxes.push_back(fp8_amax(gradient));
  }
  if (defined.empty()) return;
  // NaN has no order.
  at::Tensor amax = at::stack(amaxes).nan_to_num(kInfinity, kInfinity);
  if (group != nullptr && group->getSize() > 1) {
    std::vector<at::Tensor> tensors{amax};
    c10d::AllreduceOptions maximum;
    maximum.reduceOp = c10d::ReduceOp::MAX;
    group->allreduce(tensors, maximum)->wait();
  }
  const at::Tensor scale = fp8_scale(amax, kE4M3);
  const std::vector<at::Tensor> amax_of = amax.unbind(), scale_of = scale.unbind();
  for (size_t i = 0; i < defined.size(); ++i) {
    defined[i].copy_(fp8_quantize(defined[i], scale_of[i], amax_of[i], kE4M3).dequantize());
  }
}

Fp8GradientHook::Fp8GradientHook(std::vector<at::Tensor> weights,
                                 std::unique_ptr<CommunicationHook> inner)
    : weights_(std::move(weights)), inner_(std::move(inner)) {
  for (const at::Tensor& weight : weights_) is_weight_.insert(weight.unsafeGetTensorImpl());
}

CommunicationHook::Future Fp8GradientHook::reduce(const Group& group, c10d::GradBucket& bucket) {
  const std::vector<at::Tensor>& parameters = bucket.getParameters();
  const std::vector<at::Tensor> all = bucket.getGradients();  // views of the buffer
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (is_weight_.contains(parameters[i].unsafeGetTensorImpl())) gradients.push_back(all[i]);
  }
  quantize_gradients(gradients, group.get());
  return inner_->reduce(group, bucket);
}

}  // namespace accelerate
