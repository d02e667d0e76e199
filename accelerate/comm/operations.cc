#include "accelerate/comm/operations.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace {

at::Tensor as_rows(const at::Tensor& tensor) {
  return (tensor.dim() == 0 ? tensor.reshape({1}) : tensor).contiguous();
}

std::vector<int64_t> rows_shape(const at::Tensor& rows, int64_t count) {
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = count;
  return shape;
}

at::Tensor all_gather_rows(const ProcessGroupPtr& group, at::Tensor rows) {
  at::Tensor output = at::empty(rows_shape(rows, rows.size(0) * group->getSize()), rows.options());
  group->_allgather_base(output, rows)->wait();
  return output;
}

}  // namespace

at::Tensor gather_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor) {
  if (!group) return tensor;
  at::NoGradGuard no_grad;
  return all_gather_rows(group, as_rows(tensor));
}

at::Tensor gather_ragged_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor) {
  if (!group) return tensor;
  at::NoGradGuard no_grad;
  const at::Tensor rows = as_rows(tensor);
  const at::Tensor sizes =
      all_gather_rows(group,
                      at::full({1}, rows.size(0), at::dtype(at::kLong).device(rows.device())))
          .cpu();
  const int64_t* counts = sizes.const_data_ptr<int64_t>();
  const int64_t most = *std::max_element(counts, counts + sizes.numel());
  at::Tensor padded = at::empty(rows_shape(rows, most), rows.options());
  padded.narrow(0, 0, rows.size(0)).copy_(rows);
  const at::Tensor gathered = all_gather_rows(group, padded);
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < sizes.numel(); ++rank) {
    parts.push_back(gathered.narrow(0, rank * most, counts[rank]));
  }
  return at::cat(parts);
}

at::Tensor reduce_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor,
                         Reduction reduction) {
  TORCH_CHECK_VALUE(reduction == Reduction::kSum || !at::isIntegralType(tensor.scalar_type(), true),
                    "reduce: the mean of ", tensor.scalar_type(), " is not a ",
                    tensor.scalar_type(), "; convert it to a floating dtype first");
  if (!group) return tensor;
  at::NoGradGuard no_grad;
  at::Tensor total = tensor.clone(at::MemoryFormat::Contiguous);
  std::vector<at::Tensor> tensors{total};
  group->allreduce(tensors)->wait();
  if (reduction == Reduction::kMean) total.div_(group->getSize());
  return total;
}

uint64_t broadcast_integer(const ProcessGroupPtr& group, uint64_t value) {
  if (!group) return value;
  std::vector<at::Tensor> tensors{at::full({1}, static_cast<int64_t>(value), at::dtype(at::kLong))};
  group->broadcast(tensors)->wait();
  return static_cast<uint64_t>(tensors[0].item<int64_t>());
}

}  // namespace accelerate
