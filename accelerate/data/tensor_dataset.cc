#include "accelerate/data/tensor_dataset.h"

#include <vector>

#include <c10/util/Exception.h>

namespace accelerate::internal {

int64_t common_rows(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.dim() > 0, "TensorDataset: tensor ", sizes.size(),
                      " has no rows; it is ", tensor.defined() ? "a scalar" : "undefined");
    sizes.push_back(tensor.size(0));
  }
  for (int64_t size : sizes) {
    TORCH_CHECK_VALUE(size == sizes[0],
                      "TensorDataset: the tensors differ in their rows: ", c10::IntArrayRef(sizes));
  }
  return sizes[0];
}

at::Tensor gather_rows(const at::Tensor& tensor, const at::Tensor& indices) {
  if (tensor.device() == indices.device()) return tensor.index_select(0, indices);
  return tensor.index_select(0, indices.to(tensor.device()));
}

}  // namespace accelerate::internal
