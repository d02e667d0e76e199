#include "accelerate/data/index_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
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

IndexBatches::IndexBatches(IndexOrder order, const Layout& layout, std::vector<int64_t> last)
    : order_(std::move(order)), layout_(layout), last_(std::move(last)) {}

IndexBatches::IndexBatches(IndexOrder order, std::vector<Span> spans)
    : order_(std::move(order)), spans_(std::move(spans)) {
  for (const Span& span : spans_) {
    TORCH_CHECK_VALUE(
        span.begin >= 0 && span.length >= 0 && span.begin + span.length <= order_.size(),
        "a batch of ", span.length, " samples at position ", span.begin, " is outside an order of ",
        order_.size());
  }
}

IndexBatches IndexBatches::from_lists(const std::vector<std::vector<int64_t>>& lists) {
  std::vector<Span> spans;
  int64_t samples = 0;
  for (const auto& list : lists) {
    spans.push_back({.begin = samples, .length = static_cast<int64_t>(list.size())});
    samples += spans.back().length;
  }
  at::Tensor indices = at::empty({samples}, at::kLong);
  int64_t* out = indices.mutable_data_ptr<int64_t>();
  for (const auto& list : lists) out = std::copy(list.begin(), list.end(), out);
  return IndexBatches(IndexOrder(std::move(indices)), std::move(spans));
}

int64_t IndexBatches::length(int64_t i) const {
  ABSL_CHECK_GE(i, 0);
  ABSL_CHECK_LT(i, size());
  if (i == regular_count()) return static_cast<int64_t>(last_.size());
  return is_regular() ? layout_.length : spans_[static_cast<size_t>(i)].length;
}

void IndexBatches::copy(int64_t i, int64_t* out) const {
  const int64_t count = length(i);
  if (i == regular_count()) {
    std::copy(last_.begin(), last_.end(), out);
  } else if (is_regular()) {
    order_.copy(layout_.first + i * layout_.stride, count, out);
  } else {
    order_.copy(spans_[static_cast<size_t>(i)].begin, count, out);
  }
}

at::Tensor IndexBatches::operator[](int64_t i) const {
  at::Tensor indices = at::empty({length(i)}, at::kLong);
  copy(i, indices.mutable_data_ptr<int64_t>());
  return indices;
}

}  // namespace accelerate
