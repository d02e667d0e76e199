#include "accelerate/data/collate.h"

#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

namespace accelerate::internal {

at::Tensor stack_samples(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& first = tensors.front();
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_VALUE(tensors[i].defined(), "collate: sample ", i, " of the batch has no tensor");
    TORCH_CHECK_VALUE(tensors[i].sizes() == first.sizes(),
                      "collate: samples of a batch must have one shape: sample ", i,
                      " of the batch has ", tensors[i].sizes(), ", sample 0 has ", first.sizes(),
                      "; pad them, or pass a collate function");
    TORCH_CHECK_VALUE(tensors[i].scalar_type() == first.scalar_type(),
                      "collate: samples of a batch must have one dtype: sample ", i,
                      " of the batch has ", tensors[i].scalar_type(), ", sample 0 has ",
                      first.scalar_type());
  }
  return at::stack(tensors);
}

}  // namespace accelerate::internal
