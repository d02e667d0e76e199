#include "accelerate/parallel/tensor/gathered_input.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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

}  // namespace accelerate
