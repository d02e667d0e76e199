/// The part that a rank keeps of gathered parameters from their use in a forward pass until the
/// backward pass has made their gradients, where fewer ranks divide them in between: those of a
/// node, which gather them without the network between nodes. For gathered_group.h.
///
/// A parameter of n elements has ceil(n / ranks) on each.
/// Collective: begin(). Threads: as ParameterSource.
/// Mirrors: torch.distributed.fsdp.fully_shard with a number for reshard_after_forward; ZeRO++'s
///          hpZ.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/residency/shard_memory.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate::internal {

class PartAfterForward {
 public:
  /// `group`: null keeps nothing.
  explicit PartAfterForward(ProcessGroupPtr group) : group_(std::move(group)) {}

  bool is_there() const { return !parts_.empty(); }
  void drop() { parts_.clear(); }

  /// `values`: whole parameters, contiguous.
  void keep(const std::vector<at::Tensor>& values) {
    if (group_ == nullptr || is_there()) return;
    std::vector<at::Tensor> parts;
    for (const at::Tensor& each : values) {
      // Not every backend knows fp8.
      const at::Tensor all =
          each.element_size() == 1 ? each.view({-1}).view(at::kByte) : each.view({-1});
      const int64_t numel = all.numel(), ranks = group_->getSize();
      const int64_t most = (numel + ranks - 1) / ranks;
      const int64_t first = std::min(numel, most * group_->getRank());
      parts.push_back(padded_to(all.narrow(0, first, std::min(most, numel - first)), most,
                                all.options(), MemoryKind::kGatheredParameter));
    }
    parts_ = std::move(parts);
  }

  const std::vector<at::Tensor>& parts() const { return parts_; }
  /// Begins to gather the parts into `whole`, which it appends, each at least of its parameter's
  /// size.
  std::vector<c10::intrusive_ptr<c10d::Work>> begin(std::vector<at::Tensor>& whole) const {
    for (const at::Tensor& each : parts_) {
      whole.push_back(
          flat(each.numel() * group_->getSize(), each.options(), MemoryKind::kGatheredParameter));
    }
    return for_each_dtype(whole, parts_, [&](auto& outputs, auto& inputs) {
      return group_->allgather_into_tensor_coalesced(outputs, inputs);
    });
  }

 private:
  const ProcessGroupPtr group_;
  std::vector<at::Tensor> parts_;
};

}  // namespace accelerate::internal
