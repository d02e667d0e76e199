#include "accelerate/data/index_batches.h"

#include <utility>

#include <c10/util/Exception.h>

#include "absl/log/absl_check.h"

namespace accelerate {

IndexBatches::IndexBatches(at::Tensor order, const Layout& layout, at::Tensor last)
    : order_(std::move(order)), layout_(layout), last_(std::move(last)) {
  TORCH_CHECK_VALUE(order_.dim() == 1 && order_.scalar_type() == at::kLong &&
                        order_.device().is_cpu() && order_.is_contiguous(),
                    "a sampler's indices must be a contiguous int64 vector on the CPU, got ",
                    order_.scalar_type(), order_.sizes(), " on ", order_.device());
}

at::Tensor IndexBatches::operator[](int64_t i) const {
  ABSL_CHECK_GE(i, 0);
  if (i < layout_.count) {
    return order_.narrow(0, layout_.first + i * layout_.stride, layout_.length);
  }
  ABSL_CHECK_LT(i, size());
  return last_;
}

}  // namespace accelerate
