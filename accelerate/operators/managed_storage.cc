#include "accelerate/operators/managed_storage.h"

#include <utility>

#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "accelerate/operators/call_arguments.h"

namespace accelerate {
namespace {

using c10::DispatchKey;

// PyTorch gives this key no meaning of its own. Managed tensors have it, and no others.
constexpr DispatchKey kManagedKey = DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr c10::DispatchKeySet kBelowManaged(c10::DispatchKeySet::FULL_AFTER, kManagedKey);

// Handlers of operator_mode.h may replace an operator, so values are brought for what runs instead.
static_assert(kManagedKey < DispatchKey::TESTING_ONLY_GenericMode);
// Automatic mixed precision reads weights to cast them; autograd saves them.
static_assert(kManagedKey > DispatchKey::AutocastCPU && kManagedKey > DispatchKey::AutocastCUDA &&
              kManagedKey > DispatchKey::AutocastPrivateUse1 &&
              kManagedKey > DispatchKey::AutogradFunctionality);

void lose_owner(void* owner) {
  c10::intrusive_ptr<StorageOwner>::reclaim(static_cast<StorageOwner*>(owner));
}

// What a storage keeps while it has the memory of other values.
struct Shared {
  c10::intrusive_ptr<StorageOwner> owner;
  at::Tensor values;

  static void free(void* shared) { delete static_cast<Shared*>(shared); }
};

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

void bring_arguments(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const c10::AliasInfo* first = arguments.empty() ? nullptr : arguments[0].alias_info();
  const bool is_view = first != nullptr && !first->isWrite();
  UseOfMemory uses;
  for (size_t i = 0; !is_view && i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    uses.add(torch::jit::peek(*stack, i, arguments.size()), op,
             alias != nullptr && alias->isWrite());
  }
  op.redispatchBoxed(keys & kBelowManaged, stack);
}

class Refused final : public StorageOwner {
 public:
  explicit Refused(std::string why) : why_(std::move(why)) {}

  void acquire(const at::Tensor& /*tensor*/, const c10::OperatorHandle& op,
               bool /*writes*/) override {
    TORCH_CHECK(false, op.schema().name(), " ", why_);
  }
  void release() override {}

 private:
  const std::string why_;
};

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&bring_arguments>());
}

UseOfMemory::~UseOfMemory() {
  for (StorageOwner* owner : owners_) owner->release();
}

void UseOfMemory::add(const at::Tensor& tensor, const c10::OperatorHandle& op, bool writes) {
  if (!tensor.key_set().has(kManagedKey)) return;
  StorageOwner* const owner = storage_owner(tensor);
  if (owner == nullptr) return;
  owner->acquire(tensor, op, writes);
  owners_.push_back(owner);
}

void UseOfMemory::add(const c10::IValue& value, const c10::OperatorHandle& op, bool writes) {
  for_each_tensor(value, [&](const at::Tensor& tensor) { add(tensor, op, writes); });
}

c10::DataPtr StorageOwner::nothing(c10::Device device) {
  return {nullptr, c10::intrusive_ptr<StorageOwner>::reclaim_copy(this).release(), &lose_owner,
          device};
}

at::Tensor StorageOwner::make_absent(const at::Tensor& like, c10::Device device) {
  c10::Allocator* const allocator = this;
  const at::Tensor ordinary = at::empty({0}, like.options().device(device).requires_grad(false));
  at::Tensor absent = at::detail::make_tensor<c10::TensorImpl>(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), like.nbytes(),
                                            nothing(device), allocator, /*resizable=*/false),
      ordinary.key_set().add(kManagedKey), ordinary.dtype());
  absent.unsafeGetTensorImpl()->set_sizes_contiguous(like.sizes());
  return absent;
}

void StorageOwner::share_memory(const c10::Storage& storage, const at::Tensor& values) {
  auto* const shared =
      new Shared{c10::intrusive_ptr<StorageOwner>::reclaim_copy(this), values.tensor_data()};
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
      c10::DataPtr(values.mutable_data_ptr(), shared, &Shared::free, values.device()));
}

void StorageOwner::drop_memory(const c10::Storage& storage) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(nothing(storage.device()));
}

c10::DataPtr StorageOwner::allocate(size_t bytes) {
  TORCH_CHECK(false, "a parameter that is brought into memory for each use was asked for ", bytes,
              " bytes of other memory");
}

void StorageOwner::copy_data(void* to, const void* from, size_t bytes) const {
  default_copy_data(to, from, bytes);
}

at::Tensor make_refused(const at::Tensor& like, c10::Device device, std::string why) {
  return c10::make_intrusive<Refused>(std::move(why))->make_absent(like, device);
}

StorageOwner* storage_owner(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = storage_of(tensor);
  if (storage == nullptr || storage->resizable()) return nullptr;
  return dynamic_cast<StorageOwner*>(storage->allocator());
}

bool is_absent(const at::Tensor& tensor) {
  return storage_owner(tensor) != nullptr && storage_of(tensor)->data() == nullptr;
}

bool is_in_memory(const at::Tensor& tensor) {
  const StorageOwner* const owner = storage_owner(tensor);
  return owner == nullptr || (owner->stays() && storage_of(tensor)->data() != nullptr);
}

void set_absent_text(const at::Tensor& managed, std::string text) {
  // Where LibTorch keeps what it says of storages that have no memory on purpose.
  storage_of(managed)->get_extra_meta().custom_data_ptr_error_msg_ = std::move(text);
}

UnwatchedOperators::UnwatchedOperators() : excluded_(kManagedKey) {}

}  // namespace accelerate
