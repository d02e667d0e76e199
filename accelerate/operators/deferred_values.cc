#include "accelerate/operators/deferred_values.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct internal::Deferred {
  std::shared_ptr<DeferredValues> values;
  at::ScalarType dtype;
  int64_t numel;
  std::vector<WeakTensor> tensors;
};

using internal::Deferred;

namespace {

void lose_deferred(void* deferred) { delete static_cast<Deferred*>(deferred); }

}  // namespace

void defer(const std::vector<at::Tensor>& tensors, at::ScalarType dtype,
           std::shared_ptr<DeferredValues> values) {
  TORCH_INTERNAL_ASSERT(!tensors.empty());
  const at::Tensor empty =
      at::empty(tensors.front().sizes(), at::TensorOptions(at::kMeta).dtype(dtype));
  auto* const deferred = new Deferred{std::move(values), dtype, empty.numel(), {}};
  empty.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      {nullptr, deferred, &lose_deferred, c10::kMeta});
  for (const at::Tensor& tensor : tensors) {
    internal::rebind(tensor, empty);
    deferred->tensors.emplace_back(tensor.getIntrusivePtr());
  }
}

DeferredValues* deferred_values(const at::Tensor& tensor) {
  const Deferred* const deferred = internal::deferred_of(tensor);
  if (deferred == nullptr || tensor.numel() != deferred->numel || !tensor.is_contiguous()) {
    return nullptr;
  }
  return deferred->values.get();
}

const Deferred* internal::deferred_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &lose_deferred ? static_cast<const Deferred*>(data.get_context())
                                              : nullptr;
}

c10::Storage internal::read_deferred(const Deferred& deferred, c10::Device device) {
  const at::Tensor memory =
      at::empty({deferred.numel}, at::TensorOptions(device).dtype(deferred.dtype));
  deferred.values->read(0, memory);
  return memory.storage();
}

std::vector<at::Tensor> internal::deferred_together(const Deferred& deferred) {
  std::vector<at::Tensor> alive;
  for (const WeakTensor& weak : deferred.tensors) {
    auto impl = weak.lock();
    if (!impl) continue;
    at::Tensor tensor(std::move(impl));
    if (deferred_of(tensor) == &deferred) alive.push_back(std::move(tensor));
  }
  return alive;
}

}  // namespace accelerate
