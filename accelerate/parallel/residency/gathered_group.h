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
  // `padded`: this rank's rows of each parameter, padded, which are gathered in `dtypes`, or as
  // bytes where they are packed. `copies`: null where they are on the device.
  GatheredGroup(const ShardGroups& groups, std::vector<Shard> shards,
                std::vector<at::Tensor> padded, std::vector<at::ScalarType> dtypes,
                c10::Device device, std::shared_ptr<internal::SideStream> copies,
                std::shared_ptr<PackedParameters> packed)
      : group_(groups.shards),
        shards_(std::move(shards)),
        padded_(std::move(padded)),
        dtypes_(std::move(dtypes)),
        device_(device),
        copies_(std::move(copies)),
        packed_(std::move(packed)),
        purpose_(text_of_parameters(shards_.front().name, shards_.back().name)),
        part_(groups.after_forward) {
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (is_packed(i)) dtypes_[i] = at::kByte;
    }
  }

  void begin() override {
    if (!part_.is_there() || !is_current()) return start(/*as_kept=*/false);
    const CollectivePurpose purpose(purpose_);
    parts_ = part_.parts();
    works_ = part_.begin(gathered_);
  }

  std::vector<c10::DataPtr> finish() override {
    std::vector<c10::DataPtr> memory;
    for (const at::Tensor& each : end()) {
      memory.push_back(each.storage().unsafeGetStorageImpl()->set_data_ptr(
          c10::DataPtr(nullptr, each.device())));
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
  }

 private:
  void start(bool as_kept) {
    const CollectivePurpose purpose(purpose_);
    versions_.clear();
    for (const Shard& each : shards_) versions_.push_back(each.shard._version());
    std::vector<at::Tensor> gathered, parts;
    for (size_t i = 0; i < shards_.size(); ++i) {
      const at::ScalarType dtype = as_kept ? padded_[i].scalar_type() : dtypes_[i];
      gathered.push_back(internal::flat(padded_[i].numel() * group_->getSize(),
                                        at::TensorOptions(device_).dtype(dtype),
                                        MemoryKind::kGatheredParameter));
    }
    std::optional<internal::SideStream::Scope> copies;
    if (copies_ != nullptr) copies.emplace(*copies_);
    for (size_t i = 0; i < shards_.size(); ++i) {
      // The device casts what is copied.
      at::Tensor part = padded_[i];
      if (copies_ != nullptr) part = copied(part, at::TensorOptions(device_).dtype(part.dtype()));
      if (!as_kept && is_packed(i)) {
        part = packed_->pack(shards_[i].parameter, part).view(at::kByte);
        note_memory(part, MemoryKind::kGatheredParameter);
      }
      if (part.dtype() != gathered[i].dtype()) part = copied(part, gathered[i].options());
      parts.push_back(std::move(part));
    }
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
  const c10::Device device_;
  const std::shared_ptr<internal::SideStream> copies_;
  const std::shared_ptr<PackedParameters> packed_;  // may be null
  const std::string purpose_;
  internal::PartAfterForward part_;
  // On their way: what is gathered, and this rank's part of it.
  std::vector<at::Tensor> gathered_, parts_;
  std::optional<internal::SideStream::Mark> copied_;  // the parts are on the device
  std::vector<int64_t> versions_;                     // of the shards that were gathered
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace accelerate
