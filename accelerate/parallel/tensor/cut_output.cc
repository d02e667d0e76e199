#include "accelerate/parallel/tensor/cut_output.h"

#include <algorithm>
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

#include "absl/strings/string_view.h"
#include "accelerate/base/words.h"
#include "accelerate/operators/managed_storage.h"

namespace accelerate {
namespace {

// What is computed of logits and needs all of them. The largest number and sums of exponentials may
// be those of a part, as in parallel_cross_entropy.
bool needs_all(std::string_view name) {
  constexpr std::string_view kSpace = "aten::";
  static const auto& words = *new WordMap<bool>(word_map<bool>({
      {true,
       "cross_entropy_loss nll_loss nll_loss_nd nll_loss2d multi_margin_loss "
       "multilabel_margin_loss ctc_loss log_softmax _log_softmax softmax _softmax logsumexp "
       "logcumsumexp argmax argmin max min aminmax cummax cummin topk kthvalue median nanmedian "
       "mode sort argsort multinomial mean nanmean std std_mean var var_mean prod cumprod cumsum "
       "norm linalg_vector_norm layer_norm rms_norm cosine_similarity mse_loss l1_loss "
       "smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div"},
  }));
  if (!name.starts_with(kSpace)) return false;
  name.remove_prefix(kSpace.size());
  return words.contains(absl::string_view(name.data(), name.size()));
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
