/// The memory of shards, and of what ranks send of them: padded, so that all ranks' parts of a
/// parameter have the same size.
///
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/base/shard_rows.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/residency/sharding_options.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate::internal {

/// A parameter without dims has one row.
int64_t rows_of(const at::Tensor& parameter);

/// Those that this rank has of a parameter which the ranks of `group` divide; all where it is null.
ShardRows rows_of_rank(const at::Tensor& parameter, const ProcessGroupPtr& group);

/// Where a group's shards and their gradients are: on `device`, or on the host.
at::TensorOptions shard_place(const ShardingOptions& options, c10::Device device, bool on_host);

/// The elements that each rank's part has in a collective.
int64_t padded_numel(const at::Tensor& parameter, int ranks);

/// Memory for so many elements, which is noted as of this kind.
at::Tensor flat(int64_t numel, at::TensorOptions options, MemoryKind kind);

/// A copy that ends with zeros. Shapes: elements [n], with n up to `numel`.
at::Tensor padded_to(const at::Tensor& elements, int64_t numel, at::TensorOptions options,
                     MemoryKind kind);

/// The shard's part of memory that is padded to all ranks' size.
at::Tensor unpadded(const at::Tensor& padded, const at::Tensor& parameter, const ShardRows& rows);

/// Some rows of a contiguous tensor, as a view without dims but one.
at::Tensor flat_rows(const at::Tensor& parameter, const ShardRows& rows);

/// Calls `begin` for the tensors of each dtype: backends take tensors of one dtype in a collective.
template <typename Begin>
std::vector<c10::intrusive_ptr<c10d::Work>> for_each_dtype(const std::vector<at::Tensor>& a,
                                                           const std::vector<at::Tensor>& b,
                                                           Begin begin) {
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> by_dtype;
  for (size_t i = 0; i < a.size(); ++i) {
    auto& [first, second] = by_dtype[a[i].scalar_type()];
    first.push_back(a[i]);
    second.push_back(b[i]);
  }
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (auto& [dtype, tensors] : by_dtype) works.push_back(begin(tensors.first, tensors.second));
  return works;
}

}  // namespace accelerate::internal
