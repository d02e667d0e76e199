#include "accelerate/data/index_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/arange.h>
#include <c10/util/Exception.h>

#include "absl/log/absl_check.h"

namespace accelerate {

IndexOrder IndexOrder::range(int64_t size) {
  ABSL_CHECK_GE(size, 0);
  IndexOrder order;
  order.size_ = size;
  return order;
}

IndexOrder::IndexOrder(at::Tensor indices) : indices_(std::move(indices)) {
  TORCH_CHECK_VALUE(indices_.defined() && indices_.dim() == 1 &&
                        indices_.scalar_type() == at::kLong && indices_.device().is_cpu() &&
                        indices_.is_contiguous(),
                    "a sampler's indices must be a contiguous int64 vector on the CPU, got ",
                    indices_.toString(), indices_.defined() ? indices_.sizes() : c10::IntArrayRef(),
                    indices_.defined() ? " on " + indices_.device().str() : "");
  size_ = indices_.numel();
}

void IndexOrder::copy(int64_t begin, int64_t count, int64_t* out) const {
  ABSL_CHECK_GE(begin, 0);
  ABSL_CHECK_LE(begin + count, size_);
  if (indices_.defined()) {
    std::copy_n(indices_.const_data_ptr<int64_t>() + begin, count, out);
  } else {
    std::iota(out, out + count, begin);
  }
}

at::Tensor IndexOrder::tensor() const {
  return indices_.defined() ? indices_ : at::arange(size_, at::kLong);
}

}  // namespace accelerate
