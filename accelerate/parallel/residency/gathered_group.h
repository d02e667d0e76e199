/// Where the values of a group of divided parameters come from: all ranks' rows, gathered. For
/// shards.cc.
///
/// Collective and threads: as ParameterSource.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/parallel/residency/packed_parameters.h"
#include "accelerate/parallel/residency/part_after_forward.h"
#include "accelerate/parallel/residency/residency.h"
#include "accelerate/parallel/residency/shard_memory.h"
#include "accelerate/parallel/residency/shards.h"
#include "accelerate/parallel/residency/side_stream.h"
#include "accelerate/parallel/residency/step_comparison.h"

namespace accelerate {

class ShardedParameters::GatheredGroup final : public ParameterSource {
 public:
  struct Memory {
    // By parameter: this rank's rows, padded, and the dtype in which they are gathered.
    std::vector<at::Tensor> padded;
    std::vector<at::ScalarType> dtypes;
    // What is gathered into, [ranks * padded]; `padded` may be parts of it. Empty: what each gather
    // allocates.
    std::vector<at::Tensor> whole = {};
    // Whether rows are kept as they are gathered as well.
    bool keeps_cast = false;
    // Those that are gathered as bytes, in place of `dtypes`; null: none.
    std::shared_ptr<PackedParameters> packed = nullptr;
  };

  // `copies`: null where the rows are on the device.
  GatheredGroup(const ShardGroups& groups, std::vector<Shard> shards, Memory memory,
                c10::Device device, std::shared_ptr<internal::SideStream> copies)
      : group_(groups.shards),
        shards_(std::move(shards)),
        padded_(std::move(memory.padded)),
        dtypes_(std::move(memory.dtypes)),
        whole_(std::move(memory.whole)),
        packed_(std::move(memory.packed)),
        device_(device),
        copies_(std::move(copies)),
        purpose_(text_of_parameters(shards_.front().name, shards_.back().name)),
        part_(groups.after_forward) {
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (is_packed(i)) dtypes_[i] = at::kByte;
    }
    if (!memory.keeps_cast || !whole_.empty()) return;
    for (size_t i = 0; i < padded_.size(); ++i) {
      cast_.push_back(internal::flat(padded_[i].numel(), place_of(i), MemoryKind::kParameter));
    }
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
    for (size_t i = 0; i < shards_.size(); ++i) {
      const at::Tensor& parameter = shards_[i].parameter;
      values[i] = values[i].narrow(0, 0, parameter.numel()).view(parameter.sizes());
      // Without the padding, where code saves the whole storage.
      values[i].storage().unsafeGetStorageImpl()->set_nbytes(values[i].nbytes());
    }
    return values;
  }

  void drop() override {
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

  void keep_for_backward(const std::vector<at::Tensor>& values) override { part_.keep(values); }
  void forget_backward() override { part_.drop(); }

  bool is_current() const override {
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (shards_[i].shard._version() != versions_[i]) return false;
    }
    return true;
  }

  // A parameter's version is its shard's, but code that changes it does not change the shard.
  void set_writable(bool writable) override {
    for (const Shard& each : shards_) {
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

  static void share_version(const Shard& shard) {
    if (shard.parameter.is_inference()) return;
    torch::autograd::impl::set_version_counter(shard.parameter,
                                               torch::autograd::impl::version_counter(shard.shard));
  }

  void check_store() const override {
    for (size_t i = 0; i < shards_.size(); ++i) {
      TORCH_CHECK_VALUE(
          shards_[i].shard._version() == versions_[i], "full_parameters: the shard of parameter \"",
          shards_[i].name, "\" on rank ", group_->getRank(),
          " was changed inside the scope, as by an optimizer's step, which writing the scope's "
          "values back would undo; step outside of it, or let its options have writeback = false. "
          "The scope's own changes are dropped");
    }
  }

  void store() override {
    for (size_t i = 0; i < shards_.size(); ++i) {
      const Shard& each = shards_[i];
      each.shard.view({-1}).copy_(
          internal::flat_rows(each.parameter, internal::rows_of_rank(each.parameter, *group_)));
      versions_[i] = each.shard._version();
    }
    part_.drop();
  }

 private:
  // Where this rank's rows of a parameter are when they are gathered.
  at::TensorOptions place_of(size_t i) const {
    return at::TensorOptions(device_).dtype(dtypes_[i]);
  }

  // The tensor lives as long as what is returned.
  static c10::DataPtr shared_memory(const at::Tensor& tensor) {
    return {tensor.data_ptr(), new at::Tensor(tensor),
            [](void* held) { delete static_cast<at::Tensor*>(held); }, tensor.device()};
  }

  void start(bool as_kept) {
    const CollectivePurpose purpose(purpose_);
    versions_.clear();
    for (const Shard& each : shards_) versions_.push_back(each.shard._version());
    std::vector<at::Tensor> gathered, parts;
    for (size_t i = 0; i < shards_.size(); ++i) {
      const at::ScalarType dtype = as_kept ? padded_[i].scalar_type() : dtypes_[i];
      const bool in_place = !as_kept && !whole_.empty();
      gathered.push_back(in_place ? whole_[i]
                                  : internal::flat(padded_[i].numel() * group_->getSize(),
                                                   at::TensorOptions(device_).dtype(dtype),
                                                   MemoryKind::kGatheredParameter));
    }
    std::optional<internal::SideStream::Scope> copies;
    if (copies_ != nullptr) copies.emplace(*copies_);
    for (size_t i = 0; i < shards_.size(); ++i) {
      parts.push_back(as_kept ? on_device(padded_[i]) : part_to_gather(i));
    }
    if (!as_kept) cast_versions_ = versions_;
    if (copies_ != nullptr) copied_.emplace(*copies_);
    works_ = internal::for_each_dtype(gathered, parts, [&](auto& outputs, auto& inputs) {
      return group_->allgather_into_tensor_coalesced(outputs, inputs);
    });
    gathered_ = std::move(gathered);
    parts_ = std::move(parts);
  }

  bool is_packed(size_t i) const {
    return packed_ != nullptr && packed_->packs(shards_[i].parameter);
  }

  at::Tensor part_to_gather(size_t i) {
    const at::Tensor& padded = padded_[i];
    at::Tensor kept;
    if (is_packed(i)) {
      const at::Tensor part = packed_->pack(shards_[i].parameter, on_device(padded));
      note_memory(part, MemoryKind::kGatheredParameter);
      return part.view(at::kByte);
    }
    if (!whole_.empty()) {
      kept = whole_[i].narrow(0, padded.numel() * group_->getRank(), padded.numel());
      if (kept.is_alias_of(padded)) return kept;
    } else if (!cast_.empty()) {
      kept = cast_[i];
      if (cast_versions_ == versions_) return kept;
    }
    // The device casts what is copied.
    const at::Tensor part = on_device(padded);
    if (kept.defined()) return kept.copy_(part, /*non_blocking=*/true);
    return part.scalar_type() == dtypes_[i] ? part : copied(part, place_of(i));
  }

  at::Tensor on_device(const at::Tensor& part) const {
    return copies_ == nullptr ? part : copied(part, at::TensorOptions(device_).dtype(part.dtype()));
  }

  static at::Tensor copied(const at::Tensor& part, at::TensorOptions options) {
    at::Tensor copy = internal::flat(part.numel(), options, MemoryKind::kGatheredParameter);
    return copy.copy_(part, /*non_blocking=*/true);
  }

  // An optimizer may change what is on the host as soon as the values are there.
  void wait_for_copies() {
    parts_.clear();
    if (auto copied = std::exchange(copied_, std::nullopt)) copied->wait();
  }

  std::vector<at::Tensor> end() {
    std::vector<at::Tensor> gathered = std::exchange(gathered_, {});
    for (const auto& work : std::exchange(works_, {})) work->wait();
    wait_for_copies();
    return gathered;
  }

  const ProcessGroupPtr group_;
  const std::vector<Shard> shards_;
  std::vector<at::Tensor> padded_;
  std::vector<at::ScalarType> dtypes_;
  const std::vector<at::Tensor> whole_;             // empty: each gather allocates it
  const std::shared_ptr<PackedParameters> packed_;  // may be null
  std::vector<at::Tensor> cast_;  // padded_ in dtypes_, on the device; empty: not kept
  const c10::Device device_;
  const std::shared_ptr<internal::SideStream> copies_;
  const std::string purpose_;
  internal::PartAfterForward part_;
  // On their way: what is gathered, and this rank's part of it.
  std::vector<at::Tensor> gathered_, parts_;
  std::optional<internal::SideStream::Mark> copied_;  // the parts are on the device
  std::vector<int64_t> versions_;                     // of the shards that were gathered
  std::vector<int64_t> cast_versions_;                // of the shards that are in cast_
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace accelerate
