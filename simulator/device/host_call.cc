#include "simulator/device/host_call.h"

#include <cstring>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>

#include "simulator/device/shapes.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

constexpr c10::DispatchKeySet kHostKeys(c10::DispatchKey::CPU);
constexpr c10::DispatchKeySet kMetaKeys(c10::DispatchKey::Meta);
constexpr c10::DispatchKeySet kDeviceKeys(c10::DispatchKey::PrivateUse1);

// In place of the number of bytes that a host storage had before the kernel.
constexpr size_t kOfResult = SIZE_MAX;

// A tensor over `storage` that equals `model` in everything but its device.
at::Tensor rewrapped(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& model) {
  // A tensor of zeros without memory has a key of its own.
  if (model._is_zerotensor()) keys = keys.add(c10::DispatchKey::ZeroTensor);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), keys, model.unsafeGetTensorImpl()->dtype());
  c10::TensorImpl* to = tensor.unsafeGetTensorImpl();
  const c10::TensorImpl* from = model.unsafeGetTensorImpl();
  if (from->dim() != 1 || from->sizes()[0] != 0 || from->storage_offset() != 0) {
    to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  }
  if (from->is_wrapped_number()) to->set_wrapped_number(true);
  if (from->is_conj()) to->_set_conj(true);
  if (from->is_neg()) to->_set_neg(true);
  return tensor;
}

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Whether the memory of a tensor is the result of an operator with gradients. A view has a history
// of its own, also one of a parameter.
bool is_computed(const at::Tensor& tensor) {
  if (tensor.is_leaf()) return false;
  if (!tensor.is_view()) return true;
  const at::TensorBase& whole = tensor._base();
  return !(whole.requires_grad() && whole.is_leaf());
}

bool same_geometry(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.storage_offset() == b.storage_offset();
}

// The data of a host storage for a device's storage, which becomes the owner.
c10::DataPtr moved_data(c10::StorageImpl& host, SimDevice& device) {
  const c10::Device target = torch_device(device.index());
  c10::DataPtr data = host.set_data_ptr(c10::DataPtr());
  if (data.get_deleter() == &DeviceMemory::release) {
    void* handle = device.memory().charge_result(data.get_context(), KernelScope::operation());
    data.release_context();
    return block_data(handle, target);
  }
  void* begin = data.get();
  c10::DeleterFnPtr deleter = data.get_deleter();
  void* context = data.release_context();
  return {begin, context, deleter, target};
}

// Fresh memory of `device` whose values were not computed.
c10::DataPtr data_without_values(size_t bytes, SimDevice& device) {
  void* handle = device.memory().allocate(bytes, KernelScope::operation());
  if (handle != nullptr) {
    MemoryBlock* block = MemoryBlock::of(handle);
    if (block->contents == Contents::kValues) {
      block->contents = Contents::kUnknown;
      // No operator may use these, but one that does must find the same in every run.
      std::memset(block->data(), 0xFF, bytes);
    }
  }
  return block_data(handle, torch_device(device.index()));
}

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

// Storages of earlier calls of this thread. To make and to destroy one for each argument would be a
// tenth of an operator's cost.
std::vector<StoragePtr>& spare_storages() {
  thread_local std::vector<StoragePtr> storages;
  return storages;
}
constexpr size_t kMostSpareStorages = 16;

// A host storage over memory that it does not own.
StoragePtr storage_over(void* data, size_t bytes) {
  c10::DataPtr pointer(data, c10::Device(c10::kCPU));
  std::vector<StoragePtr>& spare = spare_storages();
  if (spare.empty()) {
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                 std::move(pointer), c10::GetCPUAllocator(),
                                                 /*resizable=*/true);
  }
  StoragePtr storage = std::move(spare.back());
  spare.pop_back();
  storage->set_data_ptr_noswap(std::move(pointer));
  storage->set_nbytes(bytes);
  return storage;
}

StoragePtr meta_storage(size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
                                               c10::GetAllocator(c10::kMeta), /*resizable=*/true);
}

// A storage of the host that shares a device's bytes and keeps them alive.
c10::Storage host_storage(c10::StorageImpl* storage) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
      c10::DataPtr(
          storage->mutable_data(), new StoragePtr(StoragePtr::reclaim_copy(storage)),
          [](void* owner) { delete static_cast<StoragePtr*>(owner); }, c10::Device(c10::kCPU)),
      /*allocator=*/nullptr, /*resizable=*/false));
}

// Whether the tensor is over a block of `memory`, as nearly all of its device's are.
bool is_in(const at::Tensor& tensor, const DeviceMemory& memory) {
  if (!tensor.has_storage()) return false;
  const MemoryBlock* block = block_of(storage_of(tensor)->data_ptr());
  return block != nullptr && block->memory == &memory;
}

// The rank whose device has the tensor's memory. Memory that nothing is charged for belongs to the
// device that the tensor names.
int rank_of_memory(const at::Tensor& tensor, const SimDevice& named) {
  if (tensor.is_sparse()) {
    return rank_of_memory(at::sparse::get_sparse_impl(tensor)->values(), named);
  }
  const MemoryBlock* block = charged_block_of(tensor);
  return (block != nullptr ? block->memory->device() : &named)->rank();
}

}  // namespace

SimDevice& device_of(const at::Tensor& tensor, const char* user) {
  SimDevice& device = SimDevice::of(tensor.device().index());
  const int rank = current_rank();
  if (rank < 0 || (rank == device.rank() && is_in(tensor, device.memory()))) return device;
  const int owner = rank_of_memory(tensor, device);
  TORCH_CHECK(rank == owner, "rank ", rank, " passed a tensor on ", tensor.device(), " to ", user,
              ", but its memory is rank ", owner,
              "'s: in a real job it is in another process. Tensors move between ranks through "
              "collectives and messages only");
  return device;
}

HostCall::~HostCall() {
  tensors_.clear();  // They own storages too.
  if (stand_in_ == StandIn::kMeta) return;
  std::vector<StoragePtr>& spare = spare_storages();
  for (StoragePair& pair : storages_) {
    if (spare.size() == kMostSpareStorages) return;
    // Not the results', and not those that the kernel has kept.
    if (pair.bytes == kOfResult || pair.host.use_count() != 1) continue;
    pair.host->set_data_ptr_noswap(c10::DataPtr());
    spare.push_back(std::move(pair.host));
  }
}

void HostCall::check(const at::Tensor& tensor, size_t argument) {
  SimDevice& device = device_of(tensor, info_.name.c_str());
  if (device_ == nullptr) {
    device_ = &device;
  } else if (device_ != &device) {
    c10::impl::common_device_check_failure(torch_device(device_->index()), tensor,
                                           info_.name.c_str(),
                                           info_.argument_names[argument].c_str());
  }
}

void HostCall::check_devices() const {
  if (!host_tensor_.defined() || device_ == nullptr || tensors_.empty()) return;
  if (info_.mixes_devices) {
    TORCH_CHECK(host_argument_ != 0 || !info_.indexes, "indices should be either on cpu or on the ",
                "same device as the indexed tensor (", host_tensor_.device(), ")");
    return;
  }
  c10::impl::common_device_check_failure(torch_device(device_->index()), host_tensor_,
                                         info_.name.c_str(),
                                         info_.argument_names[host_argument_].c_str());
}

void HostCall::check_in_flight(const at::Tensor& tensor, bool written) const {
  if (!info_.runs_kernel) return;
  const auto* begin = static_cast<const char*>(storage_of(tensor)->data());
  if (begin == nullptr) return;
  begin += tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  // Not nbytes(): an expanded tensor has more elements than memory.
  const char* end =
      begin + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  for (const InFlight& memory : device_->in_flight()) {
    if (end <= memory.begin || memory.end <= begin) continue;
    TORCH_CHECK(!memory.written, info_.name, " uses memory that ", memory.owner->describe(),
                " is still writing on ", device_->name(),
                ": wait for the collective before its result is used");
    TORCH_CHECK(!written, info_.name, " writes to memory that ", memory.owner->describe(),
                " is still reading on ", device_->name(),
                ": wait for the collective before its input is changed");
  }
}

void HostCall::check_present(const at::Tensor& tensor) const {
  c10::StorageImpl* const storage = storage_of(tensor);
  if (storage->data_ptr().get() != nullptr || tensor.numel() == 0 || !info_.runs_kernel) return;
  const std::optional<std::string>& text = storage->get_extra_meta().custom_data_ptr_error_msg_;
  TORCH_CHECK(false, info_.name, " on ", device_->name(), " uses ",
              text.value_or("a tensor without memory"), ", whose values are elsewhere");
}

at::Tensor HostCall::to_host(at::Tensor tensor, size_t argument, bool written) {
  if (!tensor.defined()) return tensor;
  if (!tensor.is_privateuseone()) {
    if (tensor.dim() > 0 && !host_tensor_.defined() && tensor.is_cpu()) {
      host_tensor_ = tensor;
      host_argument_ = argument;
    }
    return stand_in_ == StandIn::kMeta ? meta_alias(tensor) : tensor;
  }
  check(tensor, argument);
  if (TensorPair* known = device_tensors_.find(tensors_, tensor.unsafeGetTensorImpl())) {
    known->written |= written;
    return known->host;
  }
  if (tensor.is_sparse()) return sparse_to_host(tensor, argument, written);
  if (tensor._is_zerotensor()) {
    return at::zeros(tensor.sizes(),
                     tensor.options().device(stand_in_ == StandIn::kMeta ? c10::kMeta : c10::kCPU));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.has_storage(), info_.name, " on ", device_->name(),
                              ": tensors of layout ", tensor.layout(), " are not supported");
  if (!device_->in_flight().empty()) check_in_flight(tensor, written);
  if (written || info_.reads(argument)) check_present(tensor);
  c10::StorageImpl* storage = storage_of(tensor);
  if (MemoryBlock* block = block_of(storage->data_ptr());
      block != nullptr && block->memory != nullptr) {
    DeviceMemory& memory = *block->memory;
    memory.on_use(*block, written && !info_.takes_lists);
    if (memory.is_guess(*block) && is_computed(tensor)) memory.on_computed(block);
  }
  StoragePtr host;
  const bool meta = stand_in_ == StandIn::kMeta;
  if (const StoragePair* known = device_storages_.find(storages_, storage)) {
    host = known->host;
  } else {
    void* const data = meta ? nullptr : storage->mutable_data();
    host = meta ? meta_storage(storage->nbytes()) : storage_over(data, storage->nbytes());
    storages_.push_back({storage, host, data, storage->nbytes()});
  }
  at::Tensor alias = rewrapped(c10::Storage(std::move(host)), meta ? kMetaKeys : kHostKeys, tensor);
  if (static_cast<int>(argument) == info_.found_inf_argument) found_inf_ = tensor;
  const std::optional<double> touched = argument == 0 ? touched_ : std::nullopt;
  if (info_.reads(argument)) count(tensor, tensor, touched, /*written=*/false, /*fresh=*/false);
  tensors_.push_back({std::move(tensor), alias, written, touched, !info_.reads(argument)});
  return alias;
}

void HostCall::count(const at::Tensor& tensor, const at::Tensor& own,
                     const std::optional<double>& touched, bool written, bool fresh) {
  const double bytes =
      touched ? *touched * static_cast<double>(tensor.itemsize()) : memory_bytes(tensor);
  traffic_.add(bytes, tensor.scalar_type(), written);
  if (device_->fuses_kernels() && own.has_storage()) {
    uses_.push_back({storage_of(own), bytes, written, fresh});
  }
}

void HostCall::update_arguments() {
  for (StoragePair& pair : storages_) {
    if (pair.bytes == kOfResult) continue;
    if (pair.host->data() == pair.data && pair.host->nbytes() == pair.bytes) continue;
    const size_t bytes = pair.host->nbytes();
    if (stand_in_ == StandIn::kMeta) {
      pair.device->set_data_ptr_noswap(data_without_values(bytes, *device_));
    } else if (pair.host->data() != pair.data) {
      void* data = pair.host->mutable_data();
      pair.device->set_data_ptr_noswap(moved_data(*pair.host, *device_));
      // The results may alias it.
      pair.host->set_data_ptr_noswap(c10::DataPtr(data, c10::Device(c10::kCPU)));
    }
    pair.device->set_nbytes(bytes);
  }
  for (const TensorPair& pair : tensors_) {
    if (pair.device.is_sparse()) {
      update_sparse(pair);
      continue;
    }
    // Its size now: the kernel may have made it larger.
    if (pair.written) count(pair.host, pair.device, pair.touched, /*written=*/true, pair.fresh);
    c10::TensorImpl* to = pair.device.unsafeGetTensorImpl();
    const c10::TensorImpl* from = pair.host.unsafeGetTensorImpl();
    if (!same_geometry(*to, *from)) {
      to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
    }
    const bool keeps_value = stand_in_ == StandIn::kMeta && pair.device.is_same(found_inf_);
    if (pair.written && device_->computes_shapes() && !keeps_value) {
      mark_written(pair.device, /*with_values=*/stand_in_ == StandIn::kHost);
    }
  }
}

at::Tensor HostCall::to_device(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_privateuseone()) return tensor;
  if (const TensorPair* known = host_tensors_.find(tensors_, tensor.unsafeGetTensorImpl())) {
    return known->device;
  }
  if (tensor.is_sparse()) return sparse_to_device(tensor);
  at::Tensor result = wrapped(tensor);
  count(tensor, result, std::nullopt, /*written=*/true, /*fresh=*/true);
  return result;
}

at::Tensor HostCall::wrapped(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided && tensor.has_storage() &&
                                  !tensor.is_quantized() && !tensor.is_nested(),
                              info_.overload, " on ", device_->name(),
                              ": simulated devices do not support ",
                              tensor.is_quantized() ? "quantized"
                              : tensor.is_nested()  ? "nested"
                                                    : "such",
                              " tensors (", tensor.layout(), ", ", tensor.scalar_type(), ")");
  c10::StorageImpl* storage = storage_of(tensor);
  if (const StoragePair* known = host_storages_.find(storages_, storage)) {
    auto device = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(known->device);
    return rewrapped(c10::Storage(std::move(device)), kDeviceKeys, tensor);
  }
  at::Tensor adopted = stand_in_ == StandIn::kMeta ? without_values(tensor, *device_)
                                                   : wrap_on_device(tensor, *device_);
  // Another result may be a view of the same memory.
  storages_.push_back({storage_of(adopted),
                       c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage), nullptr,
                       kOfResult});
  return adopted;
}

at::Tensor HostCall::sparse_to_host(const at::Tensor& tensor, size_t argument, bool written) {
  TORCH_CHECK_NOT_IMPLEMENTED(stand_in_ == StandIn::kHost, info_.name, " on ", device_->name(),
                              ": sparse tensors without values (numerics = shapes) are not "
                              "supported");
  touched_.reset();
  const at::SparseTensorImpl* sparse = at::sparse::get_sparse_impl(tensor);
  // The kernel may replace its parts, so what it writes is known afterwards.
  if (written && !device_->in_flight().empty()) {
    check_in_flight(sparse->indices(), written);
    check_in_flight(sparse->values(), written);
  }
  const at::Tensor indices = to_host(sparse->indices(), argument, /*written=*/false);
  const at::Tensor values = to_host(sparse->values(), argument, /*written=*/false);
  at::Tensor alias = at::_sparse_coo_tensor_unsafe(
      indices, values, tensor.sizes(), values.options().layout(c10::kSparse), sparse->coalesced());
  tensors_.push_back({tensor, alias, written, std::nullopt, false});
  return alias;
}

at::Tensor HostCall::sparse_to_device(const at::Tensor& tensor) {
  const at::SparseTensorImpl* host = at::sparse::get_sparse_impl(tensor);
  at::Tensor result = at::detail::make_tensor<at::SparseTensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::SparsePrivateUse1), tensor.dtype());
  at::SparseTensorImpl* impl = at::sparse::get_sparse_impl(result);
  impl->resize_(host->sparse_dim(), host->dense_dim(), tensor.sizes());
  impl->set_indices_and_values_unsafe(to_device(host->indices()), to_device(host->values()));
  impl->set_coalesced(host->coalesced());
  return result;
}

void HostCall::update_sparse(const TensorPair& pair) {
  at::SparseTensorImpl* to = at::sparse::get_sparse_impl(pair.device);
  const at::SparseTensorImpl* from = at::sparse::get_sparse_impl(pair.host);
  if (to->sizes() != from->sizes() || to->sparse_dim() != from->sparse_dim()) {
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
  }
  to->set_indices_and_values_unsafe(wrapped(from->indices()), wrapped(from->values()));
  to->set_coalesced(from->coalesced());
  if (!pair.written) return;
  traffic_.add(from->indices(), /*written=*/true);
  traffic_.add(from->values(), /*written=*/true);
}

at::Tensor host_alias(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  if (tensor.is_sparse()) {
    const at::SparseTensorImpl* sparse = at::sparse::get_sparse_impl(tensor);
    const at::Tensor values = host_alias(sparse->values());
    return at::_sparse_coo_tensor_unsafe(host_alias(sparse->indices()), values, tensor.sizes(),
                                         values.options().layout(c10::kSparse),
                                         sparse->coalesced());
  }
  return rewrapped(host_storage(storage_of(tensor)), kHostKeys, tensor);
}

void assign_sparse(const at::Tensor& tensor, const at::Tensor& host, SimDevice& device) {
  const KernelScope kernel(&device, "sparse tensor");
  at::SparseTensorImpl* to = at::sparse::get_sparse_impl(tensor);
  const at::SparseTensorImpl* from = at::sparse::get_sparse_impl(host);
  to->set_indices_and_values_unsafe(wrap_on_device(from->indices().clone(), device),
                                    wrap_on_device(from->values().clone(), device));
  to->set_coalesced(from->coalesced());
}

at::Tensor meta_alias(const at::Tensor& tensor) {
  return rewrapped(c10::Storage(meta_storage(tensor.storage().nbytes())), kMetaKeys, tensor);
}

at::Tensor without_values(const at::Tensor& tensor, SimDevice& device) {
  const size_t bytes = tensor.storage().nbytes();
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       data_without_values(bytes, device),
                                                       &device_allocator(), /*resizable=*/true);
  return rewrapped(c10::Storage(std::move(storage)), kDeviceKeys, tensor);
}

at::Tensor wrap_on_device(const at::Tensor& tensor, SimDevice& device) {
  c10::StorageImpl* storage = storage_of(tensor);
  storage->set_data_ptr_noswap(moved_data(*storage, device));
  storage->set_allocator(&device_allocator());
  return rewrapped(tensor.storage(), kDeviceKeys, tensor);
}

}  // namespace accelerate::simulator
