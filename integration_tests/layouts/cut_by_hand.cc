#include "integration_tests/layouts/cut_by_hand.h"

#include <cstdint>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

namespace accelerate {

at::Tensor in_box(const at::Tensor& tensor, const Box& box) {
  at::Tensor view = tensor;
  for (size_t dim = 0; dim < box.offsets.size(); ++dim) {
    view = view.narrow(static_cast<int64_t>(dim), box.offsets[dim], box.lengths[dim]);
  }
  return view;
}

at::Tensor cut_part(const at::Tensor& whole, const TensorPlacement& placement, const Mesh& mesh,
                    int rank) {
  TensorPlacement cut = placement;
  cut.rows = {};
  const at::Tensor part = at::empty(cut_shape(cut, mesh, rank), whole.options());
  for (const PlacedBox& box : boxes_of(cut, mesh, rank)) {
    in_box(part, box.part).copy_(in_box(whole, box.whole));
  }
  return part;
}

void cut_by_hand(const std::shared_ptr<torch::nn::Module>& module,
                 const std::shared_ptr<const ModelLayout>& layout, int rank) {
  const at::NoGradGuard no_grad;
  for (const auto& item : module->named_parameters()) {
    const TensorPlacement* placement = layout->find(item.key());
    if (placement == nullptr || placement->cuts.empty()) continue;
    item.value().set_data(cut_part(item.value().detach(), *placement, layout->mesh(), rank));
  }
  internal::give_layout(module, layout);
}

}  // namespace accelerate
