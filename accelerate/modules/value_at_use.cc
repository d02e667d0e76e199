#include "accelerate/modules/value_at_use.h"

#include <cstdint>
#include <exception>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

// What makers do is not recorded by autograd, and in the dtypes that they choose. Managed tensors
// among what they keep are brought.
struct NoTrainingScope {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
};

class ValueAtUse final : public StorageOwner {
 public:
  ValueAtUse(std::unique_ptr<ValueMaker> maker, std::string name)
      : maker_(std::move(maker)), name_(std::move(name)) {}

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
      const NoTrainingScope guard;
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
  const std::string& name() const { return name_; }

 private:
  static int64_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference() ? 0 : tensor._version();
  }

  void bring(const at::Tensor& tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    {
      const NoTrainingScope guard;
      values_ = maker_->make();
      tag_memory(values_, MemoryKind::kGatheredParameter);
    }
    self_ = c10::intrusive_ptr<ValueAtUse>::reclaim_copy(this);
    storage_ = tensor.storage();
    storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::DataPtr(values_.mutable_data_ptr(), values_.device()));
  }

  const std::unique_ptr<ValueMaker> maker_;
  const std::string name_;
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

// Without memory, in the parameter's place.
at::Tensor absent_tensor_of(ValueAtUse& owner, c10::Device device, const at::Tensor& parameter,
                            at::ScalarType dtype) {
  const c10::InferenceMode mode(parameter.is_inference());
  const at::Tensor like = at::empty(parameter.sizes(), at::TensorOptions(at::kMeta).dtype(dtype));
  at::Tensor absent = owner.make_absent(like, device);
  set_absent_text(absent, absl::StrCat("absent parameter \"", owner.name(), "\""));
  return absent;
}

at::Tensor absent_on(c10::Device device, const at::Tensor& parameter, const std::string& name,
                     at::ScalarType dtype, std::unique_ptr<ValueMaker> maker) {
  return absent_tensor_of(*c10::make_intrusive<ValueAtUse>(std::move(maker), name), device,
                          parameter, dtype);
}

ValueAtUse* owner_of(const at::Tensor& tensor) {
  return dynamic_cast<ValueAtUse*>(storage_owner(tensor));
}

}  // namespace

void make_at_use(const at::Tensor& parameter, const std::string& name, at::ScalarType dtype,
                 std::unique_ptr<ValueMaker> maker) {
  TORCH_CHECK_VALUE(storage_owner(parameter) == nullptr, "parameter \"", name,
                    "\" is brought into memory by another mechanism already, such as shards or "
                    "layerwise casting");
  internal::rebind(parameter,
                   absent_on(parameter.device(), parameter, name, dtype, std::move(maker)));
}

ValueMaker* find_maker(const at::Tensor& tensor) {
  const ValueAtUse* const owner = owner_of(tensor);
  return owner == nullptr ? nullptr : owner->maker();
}

std::vector<at::Tensor> ValueMaker::encode(const at::Tensor& /*values*/) const {
  TORCH_INTERNAL_ASSERT(false, "this maker keeps the parameter's elements");
}

std::vector<KeptTensor> kept_tensors(const std::string& name, const at::Tensor& tensor) {
  const ValueMaker* const maker = find_maker(tensor);
  return maker != nullptr ? maker->kept(name) : std::vector<KeptTensor>{{name, tensor}};
}

std::vector<at::Tensor> kept_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& parameter : module.parameters()) {
    for (KeptTensor& each : kept_tensors("weight", parameter)) {
      tensors.push_back(std::move(each.tensor));
    }
  }
  return tensors;
}

void update_device_from_kept(const at::Tensor& parameter) {
  ValueAtUse* const owner = owner_of(parameter);
  if (owner == nullptr) return;
  const c10::Device device = owner->maker()->kept(owner->name()).front().tensor.device();
  if (device.is_meta() || device == parameter.device()) return;
  const at::NoGradGuard no_grad;
  internal::rebind(parameter, absent_tensor_of(*owner, device, parameter, parameter.scalar_type()));
}

void move_module(torch::nn::Module& module, c10::Device device) {
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.device() == device || owner_of(parameter) == nullptr) continue;
    internal::rebind(parameter, internal::moved_to(parameter, device));
  }
  module.to(device);
}

at::Tensor internal::moved_to(const at::Tensor& tensor, c10::Device device) {
  const at::NoGradGuard no_grad;
  const ValueAtUse* const owner = owner_of(tensor);
  if (owner == nullptr) return tensor.detach().to(device);
  return absent_on(device, tensor, owner->name(), tensor.scalar_type(),
                   owner->maker()->on_device(device));
}

}  // namespace accelerate
