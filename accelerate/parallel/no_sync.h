/// Backward passes that leave gradients on their rank.
///
/// Mirrors: accelerate accelerator.py, Accelerator.no_sync.
#pragma once

#include <memory>
#include <utility>

#include <c10/util/SmallVector.h>

namespace accelerate {

class DistributedDataParallel;

/// While it lives, the models it was made for do not synchronise gradients. See no_sync. Scopes
/// that overlap, nested or not, are independent: a model synchronises again when the last one has
/// ended. A model may be freed before.
class NoSyncScope {
 public:
  explicit NoSyncScope(const c10::SmallVector<DistributedDataParallel*, 4>& models);
  ~NoSyncScope();
  NoSyncScope(NoSyncScope&& other) noexcept : silences_(std::exchange(other.silences_, {})) {}
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  c10::SmallVector<std::shared_ptr<int>, 4> silences_;  // of each model
};

}  // namespace accelerate
