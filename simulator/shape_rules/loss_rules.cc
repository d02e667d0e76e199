// Losses and embeddings.
#include <ATen/core/Reduction.h>

#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator::shape_rules {
namespace {

// The first arguments of losses' gradients are the loss's gradient and the input.
Tensor gradient_in_order(const Tensor&, const Tensor& self) { return like(self); }

Tensor huber_loss(const Tensor& self, const Tensor& target, int64_t reduction) {
  return reduction == at::Reduction::None ? elementwise(self.scalar_type(), {self, target})
                                          : dense({}, self.scalar_type());
}
// The kernel shrinks the tensor of all losses, which keeps its memory.
Tensor binary_cross_entropy(const Tensor& self, const Tensor&, const Tensor&, int64_t reduction) {
  Tensor loss = like(self);
  if (reduction != at::Reduction::None) loss.resize_({});
  return loss;
}

Results nll_loss2d(const Tensor& self, const Tensor& target, const Tensor&, int64_t reduction) {
  const Dtype dtype = self.scalar_type();
  return {reduction == at::Reduction::None ? dense(target.sizes(), dtype) : dense({}, dtype),
          dense({}, dtype)};
}
Tensor loss_of_rows(const Tensor& self, const Tensor& target, int64_t reduction) {
  return reduction == at::Reduction::None && target.dim() > 0
             ? dense({target.size(0)}, self.scalar_type())
             : dense({}, self.scalar_type());
}
Tensor multi_margin_loss(const Tensor& self, const Tensor& target, const at::Scalar&,
                         const at::Scalar&, const Tensor&, int64_t reduction) {
  return loss_of_rows(self, target, reduction);
}
Results multilabel_margin_loss(const Tensor& self, const Tensor& target, int64_t reduction) {
  const Tensor is_target = dense(target.sizes(), self.scalar_type());
  if (target.dim() <= 1) return {dense({}, self.scalar_type()), is_target};
  return {loss_of_rows(self, target, reduction), is_target};
}

Tensor embedding_gradient(const Tensor& gradient, const Tensor&, int64_t num_weights) {
  return dense({num_weights, gradient.size(-1)}, gradient.scalar_type());
}

}  // namespace

Rules loss_rules() {
  return {
      {"mse_loss_backward smooth_l1_loss_backward huber_loss_backward multi_margin_loss_backward "
       "multilabel_margin_loss_backward _ctc_loss_backward _ctc_loss_backward.Tensor",
       by<second_contiguous>},
      {"huber_loss", by<huber_loss>},
      {"binary_cross_entropy", by<binary_cross_entropy>},
      {"binary_cross_entropy_backward nll_loss2d_backward", by<gradient_in_order>},
      {"nll_loss2d_forward", by<nll_loss2d>},
      {"multi_margin_loss", by<multi_margin_loss>},
      {"multilabel_margin_loss_forward", by<multilabel_margin_loss>},
      {"embedding_dense_backward", by<embedding_gradient>},
  };
}

}  // namespace accelerate::simulator::shape_rules
