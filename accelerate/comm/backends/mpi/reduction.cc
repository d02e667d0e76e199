#include "accelerate/comm/backends/mpi/reduction.h"

#include <ATen/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

#include "accelerate/comm/backends/elementwise.h"

namespace accelerate::internal {
namespace {

using c10d::ReduceOp;

// Below it a loop is over before LibTorch has found its kernel.
constexpr int64_t kFewElements = 64;

at::Tensor view(const char* data, int64_t numel, at::ScalarType dtype) {
  return at::from_blob(const_cast<char*>(data), {numel}, at::TensorOptions().dtype(dtype));
}

template <typename T>
void add_few(char* total, const char* value, int64_t numel) {
  T* sum = reinterpret_cast<T*>(total);
  const T* term = reinterpret_cast<const T*>(value);
  for (int64_t i = 0; i < numel; ++i) sum[i] += term[i];
}

}  // namespace

void Reduction::add(char* total, const char* value, int64_t numel) const {
  if (numel <= kFewElements && (op == ReduceOp::SUM || op == ReduceOp::AVG)) {
    if (dtype == at::kFloat) return add_few<float>(total, value, numel);
    if (dtype == at::kDouble) return add_few<double>(total, value, numel);
    if (dtype == at::kLong) return add_few<int64_t>(total, value, numel);
  }
  const at::AutoDispatchBelowAutograd guard;
  at::Tensor sum = view(total, numel, dtype);
  const at::Tensor term = view(value, numel, dtype);
  accumulate(sum, term, op);
}

void Reduction::finish(char* total, int64_t numel, int count) const {
  if (op != ReduceOp::AVG) return;
  const at::AutoDispatchBelowAutograd guard;
  at::Tensor sum = view(total, numel, dtype);
  average(sum, count);
}

}  // namespace accelerate::internal
