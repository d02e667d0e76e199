#include "simulator/device/shapes.h"

#include <cmath>

#include <ATen/core/Tensor.h>
#include <ATen/native/SparseTensorUtils.h>

#include "simulator/device/caching_allocator.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

bool has_device_storage(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone() && tensor.has_storage();
}

// The block of a device's tensor; null if it has none. A storage may be over the memory of another
// one, as where parameters lie in the memory of their group; then it does not own the block.
MemoryBlock* block_of_tensor(const at::Tensor& tensor) {
  if (!has_device_storage(tensor)) return nullptr;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  MemoryBlock* const block = block_of(data);
  if (block != nullptr || data.get() == nullptr || AddressRange::contains(data.get())) return block;
  DeviceMemory& memory = SimDevice::of(tensor.device().index()).memory();
  return memory.computes_shapes() ? memory.find(data.get()) : nullptr;
}

bool has(const at::Tensor& tensor, Contents least) {
  if (tensor.defined() && tensor.is_privateuseone() && tensor.is_sparse()) {
    const at::SparseTensorImpl* sparse = at::sparse::get_sparse_impl(tensor);
    return has(sparse->indices(), least) && has(sparse->values(), least);
  }
  if (has_device_storage(tensor) && AddressRange::contains(tensor.storage().data())) return false;
  const MemoryBlock* block = block_of_tensor(tensor);
  return block == nullptr || block->contents <= least;
}

}  // namespace

bool is_hollow(const at::Tensor& tensor) { return !has(tensor, Contents::kUnknown); }

bool has_values(const at::Tensor& tensor) { return has(tensor, Contents::kValues); }

void mark_written(const at::Tensor& tensor, bool with_values) {
  MemoryBlock* block = block_of_tensor(tensor);
  if (block == nullptr || block->contents == Contents::kHollow) return;
  if (!with_values) {
    block->contents = Contents::kUnknown;
  } else if (block->contents == Contents::kUnknown && tensor.is_non_overlapping_and_dense() &&
             tensor.nbytes() == tensor.storage().nbytes()) {
    block->contents = Contents::kValues;
  }
}

c10::Scalar unknown_scalar(c10::ScalarType dtype, double value) {
  if (c10::isFloatingType(dtype) || c10::isComplexType(dtype)) return value;
  if (!std::isfinite(value)) value = 0;
  if (dtype == c10::ScalarType::Bool) return value != 0;
  return static_cast<int64_t>(value);
}

}  // namespace accelerate::simulator
