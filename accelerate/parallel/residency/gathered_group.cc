#include "accelerate/parallel/residency/gathered_group.h"

#include <limits>

#include <ATen/core/grad_mode.h>

#include "accelerate/operators/managed_storage.h"

namespace accelerate::internal {
namespace {

at::Tensor copied(const at::Tensor& rows, at::TensorOptions options) {
  at::Tensor copy = flat(rows.numel(), options, MemoryKind::kGatheredParameter);
  return copy.copy_(rows, /*non_blocking=*/true);
}

}  // namespace

RowsToGather::RowsToGather(std::vector<ParameterShard> shards, Memory memory, c10::Device device,
                           std::shared_ptr<SideStream> copies)
    : shards_(std::move(shards)),
      memory_(std::move(memory)),
      device_(device),
      copies_(std::move(copies)) {
  const bool have_values = memory_.disks != nullptr;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (is_packed(i)) memory_.dtypes[i] = at::kByte;
    kept_versions_.push_back(have_values ? shards_[i].shard._version() : kStale);
  }
}

std::vector<at::Tensor> RowsToGather::begin(bool as_kept) {
  versions_.clear();
  for (const ParameterShard& each : shards_) versions_.push_back(each.shard._version());
  if (memory_.disks != nullptr) generation_ = memory_.disks->generation();
  std::vector<at::Tensor> rows;
  try {
    if (kept_disk() != nullptr && !as_kept) {
      rows = from_disk();
    } else {
      for (size_t i = 0; i < shards_.size(); ++i) {
        rows.push_back(as_kept ? on_device(values_of(i)) : as_gathered(i));
      }
    }
    if (!as_kept) kept_versions_ = versions_;
  } catch (const std::exception&) {
    if (memory_.disks == nullptr) throw;
    memory_.disks->record_failure(std::current_exception());
    rows.clear();
    for (size_t i = 0; i < shards_.size(); ++i) rows.push_back(without_values(i, as_kept));
  }
  if (copies_ != nullptr) copied_.emplace(*copies_);
  return rows;
}

void RowsToGather::end() {
  if (auto copied = std::exchange(copied_, std::nullopt)) copied->wait();
}

void RowsToGather::expect() {
  if (kept_disk() == nullptr) return;
  try {
    kept_disk()->expect(memory_.kept);
  } catch (const std::exception&) {
    // begin() asks again.
  }
}

bool RowsToGather::is_current(size_t i) const {
  return shards_[i].shard._version() == versions_[i];
}

bool RowsToGather::are_current() const {
  if (memory_.disks != nullptr && generation_ != memory_.disks->generation()) return false;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!is_current(i)) return false;
  }
  return true;
}

void RowsToGather::store(size_t i, const at::Tensor& values) {
  if (memory_.disks == nullptr) return overwrite(i, values);
  try {
    overwrite(i, values);
  } catch (const std::exception&) {
    memory_.disks->record_failure(std::current_exception());
  }
}

void RowsToGather::overwrite(size_t i, const at::Tensor& values) {
  const at::Tensor& shard = shards_[i].shard;
  if (padded_disk() == nullptr) {
    shard.view({-1}).copy_(values);
  } else if (values.numel() > 0) {
    padded_disk()->store(shard.detach().view({-1}),
                         values.to(at::TensorOptions(at::kCPU).dtype(shard.dtype()),
                                   /*non_blocking=*/false, /*copy=*/true));
    shard.unsafeGetTensorImpl()->bump_version();
  }
  versions_[i] = shard._version();
}

void RowsToGather::mark_stepped(size_t i) {
  const at::NoGradGuard no_grad;
  const UnwatchedOperators unwatched;
  keep(i, memory_.padded[i]);
  kept_versions_[i] = shards_[i].shard._version();
}

bool RowsToGather::is_packed(size_t i) const {
  return memory_.packed != nullptr && memory_.packed->packs(shards_[i].parameter);
}

// The rows in the shards' dtype, on the shards' device.
at::Tensor RowsToGather::values_of(size_t i) const {
  const at::Tensor& padded = memory_.padded[i];
  const bool on_disk = padded_disk() != nullptr && padded_disk()->has(padded);
  return on_disk ? padded_disk()->copy_of(padded) : padded;
}

// Keeps the rows' values as they are gathered.
void RowsToGather::keep(size_t i, const at::Tensor& values) {
  if (kept_disk() == nullptr) {
    memory_.kept[i].copy_(values);
  } else if (values.numel() > 0) {
    kept_disk()->store(memory_.kept[i],
                       values.to(at::TensorOptions(at::kCPU).dtype(memory_.dtypes[i]),
                                 /*non_blocking=*/false, /*copy=*/true));
  }
}

std::vector<at::Tensor> RowsToGather::from_disk() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!is_kept(i)) keep(i, values_of(i));
  }
  std::vector<at::Tensor> rows = kept_disk()->fetch(memory_.kept);
  // The disk's buffer has the next group's soon, so the copies are done when this returns.
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = flat(rows[i].numel(), place_of(i), MemoryKind::kGatheredParameter).copy_(rows[i]);
  }
  return rows;
}

at::Tensor RowsToGather::without_values(size_t i, bool as_kept) {
  at::Tensor rows = flat(numel(i), at::TensorOptions(device_).dtype(dtype(i, as_kept)),
                         MemoryKind::kGatheredParameter);
  return rows.is_floating_point() ? rows.fill_(std::numeric_limits<double>::quiet_NaN())
                                  : rows.zero_();
}

at::Tensor RowsToGather::as_gathered(size_t i) {
  if (is_packed(i)) {
    const at::Tensor rows = memory_.packed->pack(shards_[i].parameter, on_device(values_of(i)));
    tag_memory(rows, MemoryKind::kGatheredParameter);
    return rows.view(at::kByte);
  }
  const at::Tensor kept = memory_.kept.empty() ? at::Tensor() : memory_.kept[i];
  if (!kept.defined()) {
    // The device casts what is copied.
    const at::Tensor rows = on_device(values_of(i));
    return rows.scalar_type() == memory_.dtypes[i] ? rows : copied(rows, place_of(i));
  }
  if (!is_kept(i) && !kept.is_alias_of(memory_.padded[i])) {
    // As above, unless the rows are kept on the host.
    kept.copy_(kept.device() == device_ ? on_device(values_of(i)) : values_of(i),
               /*non_blocking=*/kept.device() == device_);
  }
  return kept.device() == device_ ? kept : on_device(kept);
}

at::Tensor RowsToGather::on_device(const at::Tensor& rows) const {
  return copies_ == nullptr ? rows : copied(rows, at::TensorOptions(device_).dtype(rows.dtype()));
}

}  // namespace accelerate::internal
