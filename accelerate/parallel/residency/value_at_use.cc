#include "accelerate/parallel/residency/value_at_use.h"

#include <cstdint>
#include <exception>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

// What makers do is not recorded by autograd.
struct OutsideOfTraining {
  const UnwatchedOperators unwatched;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
};

class ValueAtUse final : public StorageOwner {
 public:
  explicit ValueAtUse(std::unique_ptr<ValueMaker> maker) : maker_(std::move(maker)) {}

  void acquire(const at::Tensor& tensor, const c10::OperatorHandle& /*op*/, bool writes) override {
    const absl::MutexLock lock(&mutex_);
    if (lost_ != nullptr) std::rethrow_exception(std::exchange(lost_, nullptr));
    if (users_ == 0) bring(tensor);
    ++users_;
    if (writes && !written_.defined()) {
      written_ = tensor;
      version_ = version_of(tensor);
    }
  }

  void release() override {
    // The storage keeps this only as long as it has no memory.
    const auto self = c10::intrusive_ptr<ValueAtUse>::reclaim_copy(this);
    const absl::MutexLock lock(&mutex_);
    if (--users_ > 0) return;
    const at::Tensor written = std::exchange(written_, at::Tensor());
    if (written.defined() && (version_of(written) != version_ || written.is_inference())) {
      const OutsideOfTraining guard;
      try {
        maker_->store(values_);
      } catch (...) {
        lost_ = std::current_exception();
      }
    }
    drop_memory(storage_);
    storage_ = c10::Storage();
    values_ = at::Tensor();
    self_.reset();
  }

  ValueMaker* maker() const { return maker_.get(); }

 private:
  static int64_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference() ? 0 : tensor._version();
  }

  void bring(const at::Tensor& tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    {
      const OutsideOfTraining guard;
      values_ = maker_->make();
      note_memory(values_, MemoryKind::kGatheredParameter);
    }
    self_ = c10::intrusive_ptr<ValueAtUse>::reclaim_copy(this);
    storage_ = tensor.storage();
    storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::DataPtr(values_.mutable_data_ptr(), values_.device()));
  }

  const std::unique_ptr<ValueMaker> maker_;
  absl::Mutex mutex_;
  int users_ ABSL_GUARDED_BY(mutex_) = 0;
  // While there are users.
  at::Tensor values_ ABSL_GUARDED_BY(mutex_);
  c10::Storage storage_ ABSL_GUARDED_BY(mutex_);
  c10::intrusive_ptr<ValueAtUse> self_ ABSL_GUARDED_BY(mutex_);
  // What the first writing operator got, and its version before.
  at::Tensor written_ ABSL_GUARDED_BY(mutex_);
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  // A change that could not be stored.
  std::exception_ptr lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

void make_at_use(const at::Tensor& parameter, const std::string& name, at::ScalarType dtype,
                 std::unique_ptr<ValueMaker> maker) {
  TORCH_CHECK_VALUE(storage_owner(parameter) == nullptr, "parameter \"", name,
                    "\" is brought into memory by another mechanism already, such as shards or "
                    "layerwise casting");
  internal::rebind(parameter, internal::absent_at_use(parameter, name, dtype, parameter.device(),
                                                      std::move(maker)));
}

at::Tensor internal::absent_at_use(const at::Tensor& parameter, const std::string& name,
                                   at::ScalarType dtype, c10::Device device,
                                   std::unique_ptr<ValueMaker> maker) {
  const c10::InferenceMode mode(parameter.is_inference());
  const at::Tensor like = at::empty(parameter.sizes(), at::TensorOptions(at::kMeta).dtype(dtype));
  at::Tensor absent = c10::make_intrusive<ValueAtUse>(std::move(maker))->make_absent(like, device);
  set_absent_text(absent, absl::StrCat("absent parameter \"", name, "\""));
  return absent;
}

ValueMaker* find_maker(const at::Tensor& tensor) {
  auto* const owner = dynamic_cast<ValueAtUse*>(storage_owner(tensor));
  return owner == nullptr ? nullptr : owner->maker();
}

at::Tensor stored_tensor(const at::Tensor& parameter) {
  const ValueMaker* const maker = find_maker(parameter);
  at::Tensor stored = maker == nullptr ? at::Tensor() : maker->stored();
  return stored.defined() ? stored : parameter;
}

}  // namespace accelerate
