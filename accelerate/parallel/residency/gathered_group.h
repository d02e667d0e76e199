/// Where the values of a group of divided parameters come from: all ranks' rows, gathered. One rank
/// copies its own. For shards.cc.
///
/// Collective and threads: as ParameterSource.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/comm/process_group.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/parallel/residency/residency.h"
#include "accelerate/parallel/residency/shard.h"
#include "accelerate/parallel/residency/shard_disks.h"
#include "accelerate/parallel/residency/shard_memory.h"
#include "accelerate/parallel/residency/side_stream.h"
#include "accelerate/parallel/residency/step_comparison.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate::internal {

// This rank's rows of a group's parameters as they are gathered: cast, packed, copied from the
// host, or read from a disk. Local.
class RowsToGather {
 public:
  struct Memory {
    // By parameter: this rank's rows, padded, and the dtype in which they are gathered.
    std::vector<at::Tensor> padded;
    std::vector<at::ScalarType> dtypes;
    // By parameter: where the same rows are kept as they are gathered, on any device or on a disk,
    // with their values if either is on a disk. Empty: they are made for each gather.
    std::vector<at::Tensor> kept = {};
    // Those that are gathered as bytes, in place of `dtypes`; null: none.
    std::shared_ptr<PackedParameters> packed = nullptr;
    // Where `padded` is, and `kept` as well if `kept_on_disk`; null: in memory.
    std::shared_ptr<ShardDisks> disks = nullptr;
    bool kept_on_disk = false;
  };

  // `copies`: null where the rows are on the device.
  RowsToGather(std::vector<ParameterShard> shards, Memory memory, c10::Device device,
               std::shared_ptr<SideStream> copies);

  // Elements of this rank's part.
  int64_t numel(size_t i) const { return memory_.padded[i].numel(); }
  at::ScalarType dtype(size_t i, bool as_kept) const {
    return as_kept ? memory_.padded[i].scalar_type() : memory_.dtypes[i];
  }

  // The rows on the device, in the dtypes in which they are gathered or, if `as_kept`, in those of
  // the shards. They may be what is kept. Errors of disks are noted.
  std::vector<at::Tensor> begin(bool as_kept);
  // The rows of begin() are gathered: they go. Returns when an optimizer may change the shards.
  void end();

  // Throws on all ranks if one has no values to give; collective where something is on a disk.
  void check() const {
    if (memory_.disks != nullptr) memory_.disks->check();
  }

  // They are gathered soon: reading begins.
  void expect();
  // Whether the shards are what begin() found.
  bool are_current() const;
  bool is_current(size_t i) const;

  // The shard has these values, from `values`, elements on any device. Errors of disks are noted.
  void store(size_t i, const at::Tensor& values);
  // An optimizer has changed this shard, which was on a disk and is in memory now.
  void mark_stepped(size_t i);

 private:
  at::TensorOptions place_of(size_t i) const {
    return at::TensorOptions(device_).dtype(memory_.dtypes[i]);
  }
  // Null: in memory.
  SwappedTensors* padded_disk() const {
    return memory_.disks ? memory_.disks->shards().get() : nullptr;
  }
  SwappedTensors* kept_disk() const {
    return memory_.kept_on_disk ? memory_.disks->rows().get() : nullptr;
  }
  bool is_packed(size_t i) const;
  bool is_kept(size_t i) const { return kept_versions_[i] == versions_[i]; }
  at::Tensor values_of(size_t i) const;
  void keep(size_t i, const at::Tensor& values);
  void overwrite(size_t i, const at::Tensor& values);
  std::vector<at::Tensor> from_disk();
  at::Tensor without_values(size_t i, bool as_kept);
  at::Tensor as_gathered(size_t i);
  at::Tensor on_device(const at::Tensor& rows) const;

  const std::vector<ParameterShard> shards_;
  Memory memory_;
  const c10::Device device_;
  const std::shared_ptr<SideStream> copies_;
  std::optional<SideStream::Mark> copied_;  // the rows are on the device
  std::vector<int64_t> versions_;           // of the shards that begin() found
  int generation_ = 0;                      // of the disks then
  static constexpr int64_t kStale = -1;
  std::vector<int64_t> kept_versions_;  // of the shards whose rows are kept
};

// The part that a rank keeps of gathered parameters from their use in a forward pass until the
// backward pass has made their gradients, where fewer ranks divide them in between: those of a
// node, which gather them without the network between nodes. A parameter of n elements has
// ceil(n / ranks) on each. Collective: begin().
// Mirrors: torch.distributed.fsdp.fully_shard with a number for reshard_after_forward; ZeRO++'s
//          hpZ.
class PartAfterForward {
 public:
  // `group`: null keeps nothing.
  explicit PartAfterForward(ProcessGroupPtr group) : group_(std::move(group)) {}

  bool is_there() const { return !parts_.empty(); }
  void drop() { parts_.clear(); }

  // `values`: whole parameters, contiguous.
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
  // Begins to gather the parts into `whole`, which it appends, each at least of its parameter's
  // size.
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

class GatheredGroup final : public ParameterSource {
 public:
  // `whole`: what is gathered into, [ranks * elements of a rank's part], of which the rows may be
  // parts; empty: what each gather allocates. `copies`: null where the rows are on the device.
  GatheredGroup(const ShardGroups& groups, std::vector<ParameterShard> shards,
                RowsToGather::Memory rows, std::vector<at::Tensor> whole, c10::Device device,
                std::shared_ptr<SideStream> copies)
      : group_(groups.shards),
        shards_(std::move(shards)),
        whole_(std::move(whole)),
        device_(device),
        copies_(std::move(copies)),
        purpose_(text_of_parameters(shards_.front().name, shards_.back().name)),
        rows_(shards_, std::move(rows), device, copies_),
        part_(groups.after_forward) {}

  // An optimizer has changed this shard, which was on a disk and is in memory now.
  void mark_stepped(size_t i) { rows_.mark_stepped(i); }

  void expect() override {
    if (!part_.is_there()) rows_.expect();
  }

  void begin() override {
    if (!part_.is_there() || !is_current()) {
      part_.drop();
      return start(/*as_kept=*/false);
    }
    const CollectivePurpose purpose(purpose_);
    parts_ = part_.parts();
    works_ = part_.begin(gathered_);
  }

  std::vector<c10::DataPtr> finish() override {
    std::vector<c10::DataPtr> memory;
    for (const at::Tensor& each : end()) {
      memory.push_back(whole_.empty() ? each.storage().unsafeGetStorageImpl()->set_data_ptr(
                                            c10::DataPtr(nullptr, each.device()))
                                      : shared_memory(each));
    }
    return memory;
  }

  std::vector<at::Tensor> kept_values() override {
    start(/*as_kept=*/true);
    std::vector<at::Tensor> values = end();
    rows_.check();
    for (size_t i = 0; i < shards_.size(); ++i) {
      const at::Tensor& parameter = shards_[i].parameter;
      values[i] = values[i].narrow(0, 0, parameter.numel()).view(parameter.sizes());
      // Without the padding, where code saves the whole storage.
      values[i].storage().unsafeGetStorageImpl()->set_nbytes(values[i].nbytes());
    }
    return values;
  }

  void drop() override {
    wait_for_own();
    gathered_.clear();
    const std::vector<c10::intrusive_ptr<c10d::Work>> works = std::exchange(works_, {});
    // It reads the shards, which change in the next step of an optimizer. After an error ranks may
    // be elsewhere, and the gather may never end.
    if (std::uncaught_exceptions() > 0) return;
    try {
      for (const auto& work : works) work->wait();
      wait_for_copies();
    } catch (const std::exception&) {
      // The group has failed, which its next collective says; nothing reads these values.
    }
  }

  void save_for_backward(const std::vector<at::Tensor>& values) override { part_.keep(values); }
  void drop_kept_for_backward() override { part_.drop(); }

  bool is_current() const override { return rows_.are_current(); }

  // A parameter's version is its shard's, but code that changes it does not change the shard.
  void set_writable(bool writable) override {
    for (const ParameterShard& each : shards_) {
      if (each.parameter.is_inference()) continue;
      const int64_t version = each.parameter._version();
      if (writable) {
        torch::autograd::impl::set_version_counter(
            each.parameter, c10::VariableVersion(static_cast<uint32_t>(version)));
      } else {
        while (each.shard._version() < version) each.shard.unsafeGetTensorImpl()->bump_version();
        share_version(each);
      }
    }
  }

  static void share_version(const ParameterShard& shard) {
    if (shard.parameter.is_inference()) return;
    torch::autograd::impl::set_version_counter(shard.parameter,
                                               torch::autograd::impl::version_counter(shard.shard));
  }

  void check_store() const override {
    for (size_t i = 0; i < shards_.size(); ++i) {
      TORCH_CHECK_VALUE(
          rows_.is_current(i), "full_parameters: the shard of parameter \"", shards_[i].name,
          "\" on rank ", rank_of(group_),
          " was changed inside the scope, as by an optimizer's step, which writing the scope's "
          "values back would undo; step outside of it, or let its options have writeback = false. "
          "The scope's own changes are dropped");
    }
  }

  void store() override {
    for (size_t i = 0; i < shards_.size(); ++i) {
      const at::Tensor& parameter = shards_[i].parameter;
      rows_.store(i, flat_rows(parameter, rows_of_rank(parameter, group_)));
    }
    part_.drop();
    rows_.check();
  }

 private:
  // The tensor lives as long as what is returned.
  static c10::DataPtr shared_memory(const at::Tensor& tensor) {
    return {tensor.data_ptr(), new at::Tensor(tensor),
            [](void* held) { delete static_cast<at::Tensor*>(held); }, tensor.device()};
  }

  void start(bool as_kept) {
    const CollectivePurpose purpose(purpose_);
    std::vector<at::Tensor> gathered;
    for (size_t i = 0; i < shards_.size(); ++i) {
      const bool in_place = !as_kept && !whole_.empty();
      gathered.push_back(in_place ? whole_[i]
                                  : flat(rows_.numel(i) * size_of(group_),
                                         at::TensorOptions(device_).dtype(rows_.dtype(i, as_kept)),
                                         MemoryKind::kGatheredParameter));
    }
    std::optional<SideStream::Scope> copies;
    if (copies_ != nullptr) copies.emplace(*copies_);
    std::vector<at::Tensor> parts = rows_.begin(as_kept);
    if (group_ == nullptr) {
      copy_own(gathered, parts);
    } else {
      works_ = for_each_dtype(gathered, parts, [&](auto& outputs, auto& inputs) {
        return group_->allgather_into_tensor_coalesced(outputs, inputs);
      });
    }
    gathered_ = std::move(gathered);
    parts_ = std::move(parts);
  }

  // All rows are this rank's. Whole memory may have them already.
  void copy_own(std::vector<at::Tensor>& whole, const std::vector<at::Tensor>& rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!whole[i].is_alias_of(rows[i])) whole[i].copy_(rows[i], /*non_blocking=*/true);
    }
    if (copies_ != nullptr) copied_own_.emplace(*copies_);
  }

  // The current stream may use what was copied, or its memory, from now on.
  void wait_for_own() {
    if (auto copied = std::exchange(copied_own_, std::nullopt)) copied->block_current_stream();
  }

  // An optimizer may change what is on the host as soon as the values are there.
  void wait_for_copies() {
    parts_.clear();
    rows_.end();
  }

  std::vector<at::Tensor> end() {
    std::vector<at::Tensor> gathered = std::exchange(gathered_, {});
    for (const auto& work : std::exchange(works_, {})) work->wait();
    wait_for_own();
    wait_for_copies();
    return gathered;
  }

  const ProcessGroupPtr group_;  // null: this rank has all rows
  const std::vector<ParameterShard> shards_;
  const std::vector<at::Tensor> whole_;  // empty: each gather allocates it
  const c10::Device device_;
  const std::shared_ptr<SideStream> copies_;
  const std::string purpose_;
  RowsToGather rows_;
  PartAfterForward part_;
  // On their way: what is gathered, and this rank's part of it.
  std::vector<at::Tensor> gathered_, parts_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::optional<SideStream::Mark> copied_own_;  // this rank's rows, on the stream of the copies
};

}  // namespace accelerate::internal
