#include "accelerate/files/tensor_ranges.h"

#include <algorithm>
#include <set>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "absl/functional/function_ref.h"
#include "accelerate/operators/managed_storage.h"

namespace accelerate::internal {
namespace {

// Calls `take` with views that hold the elements first..first+count-1 together, and with the
// number that each view's first one has among them.
void for_each_view(const at::Tensor& tensor, int64_t first, int64_t count, int64_t position,
                   absl::FunctionRef<void(const at::Tensor&, int64_t)> take) {
  if (count == 0) return;
  if (tensor.is_contiguous()) {
    take(tensor.view({-1}).narrow(0, first, count), position);
    return;
  }
  const int64_t row_size = tensor.numel() / tensor.size(0);
  int64_t row = first / row_size;
  const int64_t skipped = first % row_size;
  if (skipped > 0 || count < row_size) {
    const int64_t head = std::min(count, row_size - skipped);
    for_each_view(tensor.select(0, row), skipped, head, position, take);
    count -= head;
    position += head;
    ++row;
  }
  const int64_t rows = count / row_size;
  if (rows > 0) {
    take(tensor.narrow(0, row, rows), position);
    count -= rows * row_size;
    position += rows * row_size;
  }
  if (count > 0) for_each_view(tensor.select(0, row + rows), 0, count, position, take);
}

}  // namespace

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj() &&
         is_in_memory(tensor);
}

void read_range(const at::Tensor& tensor, int64_t first, const at::Tensor& out) {
  for_each_view(tensor, first, out.numel(), 0, [&](const at::Tensor& view, int64_t position) {
    out.narrow(0, position, view.numel()).view(view.sizes()).copy_(view);
  });
}

void write_range(const at::Tensor& tensor, int64_t first, const at::Tensor& values) {
  for_each_view(tensor, first, values.numel(), 0, [&](const at::Tensor& view, int64_t position) {
    view.copy_(values.narrow(0, position, view.numel()).view(view.sizes()));
  });
}

void wait_for_devices(absl::Span<const at::Tensor> tensors) {
  std::set<std::pair<c10::DeviceType, c10::DeviceIndex>> done;
  for (const at::Tensor& tensor : tensors) {
    const c10::Device device = tensor.device();
    if (device.is_cpu() || !done.emplace(device.type(), device.index()).second) continue;
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  }
}

}  // namespace accelerate::internal
