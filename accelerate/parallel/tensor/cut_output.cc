#include "accelerate/parallel/tensor/cut_output.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/variable.h>

#include "accelerate/operators/managed_storage.h"

namespace accelerate {
namespace {

// What is computed of logits and needs all of them. The largest number and sums of exponentials may
// be those of a part, as in parallel_cross_entropy.
bool needs_all(std::string_view name) {
  constexpr auto kNames = std::to_array<std::string_view>({"aten::cross_entropy_loss",
                                                           "aten::nll_loss",
                                                           "aten::nll_loss_nd",
                                                           "aten::nll_loss2d",
                                                           "aten::multi_margin_loss",
                                                           "aten::multilabel_margin_loss",
                                                           "aten::ctc_loss",
                                                           "aten::log_softmax",
                                                           "aten::_log_softmax",
                                                           "aten::softmax",
                                                           "aten::_softmax",
                                                           "aten::logsumexp",
                                                           "aten::logcumsumexp",
                                                           "aten::argmax",
                                                           "aten::argmin",
                                                           "aten::max",
                                                           "aten::min",
                                                           "aten::aminmax",
                                                           "aten::cummax",
                                                           "aten::cummin",
                                                           "aten::topk",
                                                           "aten::kthvalue",
                                                           "aten::median",
                                                           "aten::nanmedian",
                                                           "aten::mode",
                                                           "aten::sort",
                                                           "aten::argsort",
                                                           "aten::multinomial",
                                                           "aten::mean",
                                                           "aten::nanmean",
                                                           "aten::std",
                                                           "aten::std_mean",
                                                           "aten::var",
                                                           "aten::var_mean",
                                                           "aten::prod",
                                                           "aten::cumprod",
                                                           "aten::cumsum",
                                                           "aten::norm",
                                                           "aten::linalg_vector_norm",
                                                           "aten::layer_norm",
                                                           "aten::rms_norm",
                                                           "aten::cosine_similarity",
                                                           "aten::mse_loss",
                                                           "aten::l1_loss",
                                                           "aten::smooth_l1_loss",
                                                           "aten::huber_loss",
                                                           "aten::binary_cross_entropy",
                                                           "aten::binary_cross_entropy_with_logits",
                                                           "aten::kl_div"});
  return std::ranges::count(kNames, name) > 0;
}

class CutOutput final : public StorageOwner {
 public:
  explicit CutOutput(std::string text) : text_(std::move(text)) {}

  void acquire(const at::Tensor& /*tensor*/, const c10::OperatorHandle& op,
               bool /*writes*/) override {
    const std::string& name = op.schema().name();
    TORCH_CHECK_VALUE(!needs_all(name), name, text_);
    // An operator may be the last that has the tensor.
    c10::intrusive_ptr<CutOutput>::reclaim_copy(this).release();
  }

  void release() override { c10::intrusive_ptr<CutOutput>::reclaim(this); }

 private:
  const std::string text_;
};

}  // namespace

at::Tensor cut_output(const at::Tensor& part, std::string text) {
  namespace autograd = torch::autograd::impl;
  if (!part.is_contiguous()) {
    // In the order of memory, as where the classes were moved to dim 1.
    std::vector<int64_t> order(static_cast<size_t>(part.dim())), back(order.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](int64_t dim) { return part.stride(dim); });
    const at::Tensor in_order = part.permute(order);
    if (!in_order.is_contiguous()) return part;
    for (size_t i = 0; i < order.size(); ++i) {
      back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
    }
    at::Tensor output = cut_output(in_order, std::move(text)).permute(back);
    output.unsafeGetTensorImpl()->set_backend_meta(
        part.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr());
    return output;
  }
  if (part.is_inference() || part.is_leaf() != !part.requires_grad()) {
    return part;
  }
  const auto owner = c10::make_intrusive<CutOutput>(std::move(text));
  at::Tensor output = owner->make_absent(part, part.device());
  owner->share_memory(output.storage(), part);
  // Changes in place are those of the part, which the graph may have saved.
  autograd::set_version_counter(output, autograd::version_counter(part));
  if (part.requires_grad()) autograd::set_gradient_edge(output, autograd::gradient_edge(part));
  output.unsafeGetTensorImpl()->set_backend_meta(
      part.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr());
  return output;
}

}  // namespace accelerate
