#include "accelerate/parallel/tensor/managed_parts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "accelerate/base/words.h"
#include "accelerate/comm/differentiable.h"
#include "accelerate/operators/managed_storage.h"

namespace accelerate {
namespace {

class GatheredInput final : public StorageOwner {
 public:
  GatheredInput(const at::Tensor& part, int64_t dim, ProcessGroupPtr group, at::ScalarType dtype)
      : part_(part.detach()),
        version_(part._version()),
        dim_(dim),
        group_(std::move(group)),
        dtype_(dtype) {
    // What is put together of it is whole.
    part_.unsafeGetTensorImpl()->set_backend_meta(c10::intrusive_ptr<c10::BackendMeta>());
  }

  void acquire(const at::Tensor& tensor, const c10::OperatorHandle& /*op*/,
               bool /*writes*/) override {
    if (!begin_use(tensor)) return;
    // Without the mutex: the thread that lets go of the part may have locks that a collective
    // needs.
    try {
      share_memory(tensor.storage(), gathered());
    } catch (...) {
      release();
      throw;
    }
  }

  void release() override {
    // The operator may have been the last that had the tensor.
    const auto self = c10::intrusive_ptr<GatheredInput>::reclaim_copy(this);
    const absl::MutexLock lock(&mutex_);
    if (--users_ == 0) self_.reset();
  }

  void drop(const at::Tensor& tensor) {
    const absl::MutexLock lock(&mutex_);
    if (users_ == 0 && !is_gathered_again_) drop_memory(tensor.storage());
  }

 private:
  // Whether ranks gather, which must not depend on when the part ended. From here on drop() leaves
  // the memory alone.
  bool begin_use(const at::Tensor& tensor) {
    const absl::MutexLock lock(&mutex_);
    const bool begins_backward =
        !is_gathered_again_ && torch::autograd::get_current_node() != nullptr;
    is_gathered_again_ |= begins_backward;
    if (users_++ == 0) self_ = c10::intrusive_ptr<GatheredInput>::reclaim_copy(this);
    return begins_backward || is_absent(tensor);
  }

  at::Tensor gathered() const {
    TORCH_CHECK(part_._version() == version_, "rank ", rank_of(group_),
                " along tp: the input of a column layer has changed in place since the forward "
                "pass, so that it cannot be put together again for the backward pass; change a "
                "copy, or set keep_gathered_inputs in the plan");
    const at::NoGradGuard no_grad;
    return all_gather_along(part_.to(dtype_), dim_, group_).contiguous();
  }

  const at::Tensor part_;
  const int64_t version_;
  const int64_t dim_;
  const ProcessGroupPtr group_;
  const at::ScalarType dtype_;
  absl::Mutex mutex_;
  int users_ ABSL_GUARDED_BY(mutex_) = 0;
  // From its first use in a backward pass on, which gathers.
  bool is_gathered_again_ ABSL_GUARDED_BY(mutex_) = false;
  // While there are users.
  c10::intrusive_ptr<GatheredInput> self_ ABSL_GUARDED_BY(mutex_);
};

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

at::Tensor gathered_at_use(const at::Tensor& whole, at::ScalarType dtype, const at::Tensor& part,
                           int64_t dim, const ProcessGroupPtr& group) {
  const auto owner = c10::make_intrusive<GatheredInput>(part, dim, group, dtype);
  const at::Tensor values = whole.tensor_data().to(dtype).contiguous();
  at::Tensor managed = owner->make_absent(values, values.device());
  set_absent_text(managed, "absent input of a column layer");
  owner->share_memory(managed.storage(), values);
  torch::autograd::impl::set_gradient_edge(managed, torch::autograd::impl::gradient_edge(whole));
  return managed;
}

void drop_gathered(const at::Tensor& whole) {
  auto* const owner = dynamic_cast<GatheredInput*>(storage_owner(whole));
  if (owner != nullptr) owner->drop(whole);
}

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
