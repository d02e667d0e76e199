#include "simulator/device/shapes.h"

#include <cmath>

#include <ATen/core/Tensor.h>
#include <ATen/native/SparseTensorUtils.h>

#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

// The block of a device's tensor; null if it has none.
MemoryBlock* block_of_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone() || !tensor.has_storage()) return nullptr;
  return block_of(tensor.storage().data_ptr());
}

bool has(const at::Tensor& tensor, Contents least) {
  if (tensor.defined() && tensor.is_privateuseone() && tensor.is_sparse()) {
    const at::SparseTensorImpl* sparse = at::sparse::get_sparse_impl(tensor);
    return has(sparse->indices(), least) && has(sparse->values(), least);
  }
  const MemoryBlock* block = block_of_tensor(tensor);
  return block == nullptr || block->contents <= least;
}

}  // namespace

bool is_hollow(const at::Tensor& tensor) { return !has(tensor, Contents::kUnknown); }

bool has_values(const at::Tensor& tensor) { return has(tensor, Contents::kValues); }

void note_written(const at::Tensor& tensor, bool with_values) {
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
