#include "accelerate/parallel/residency/shard_memory.h"

#include <ATen/ops/empty.h>

namespace accelerate::internal {

int64_t rows_of(const at::Tensor& parameter) {
  return parameter.dim() == 0 ? 1 : parameter.size(0);
}

ShardRows rows_of_rank(const at::Tensor& parameter, const ProcessGroupPtr& group) {
  return shard_rows(rows_of(parameter), size_of(group), rank_of(group));
}

at::TensorOptions shard_place(const ShardingOptions& options, c10::Device device, bool on_host) {
  if (!on_host) return at::TensorOptions(device);
  return at::TensorOptions(at::kCPU).pinned_memory(options.pin_memory && !device.is_cpu());
}

int64_t padded_numel(const at::Tensor& parameter, int ranks) {
  const int64_t rows = rows_of(parameter);
  return shard_rows(rows, ranks, /*rank=*/0).count * (parameter.numel() / rows);
}

at::Tensor flat(int64_t numel, at::TensorOptions options, MemoryKind kind) {
  at::Tensor memory = at::empty({numel}, options);
  tag_memory(memory, kind);
  return memory;
}

at::Tensor padded_to(const at::Tensor& elements, int64_t numel, at::TensorOptions options,
                     MemoryKind kind) {
  at::Tensor padded = flat(numel, options, kind);
  padded.narrow(0, 0, elements.numel()).copy_(elements);
  padded.narrow(0, elements.numel(), numel - elements.numel()).zero_();
  return padded;
}

at::Tensor unpadded(const at::Tensor& padded, const at::Tensor& parameter, const ShardRows& rows) {
  std::vector<int64_t> sizes = parameter.sizes().vec();
  if (sizes.empty()) sizes.push_back(0);
  sizes[0] = rows.count;
  return padded.narrow(0, 0, parameter.numel() / rows_of(parameter) * rows.count).view(sizes);
}

at::Tensor flat_rows(const at::Tensor& parameter, const ShardRows& rows) {
  const int64_t row = parameter.numel() / rows_of(parameter);
  return parameter.view({-1}).narrow(0, row * rows.first, row * rows.count);
}

}  // namespace accelerate::internal
