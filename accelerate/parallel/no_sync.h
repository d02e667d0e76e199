/// Backward passes that leave gradients on their rank.
///
/// Mirrors: accelerate accelerator.py, Accelerator.no_sync.
#pragma once

#include <utility>

#include <c10/util/SmallVector.h>

namespace accelerate {

class DistributedDataParallel;

/// While it lives, the models it was made for do not synchronise gradients. See no_sync.
class NoSyncScope {
 public:
  explicit NoSyncScope(c10::SmallVector<DistributedDataParallel*, 4> models);
  ~NoSyncScope();
  NoSyncScope(NoSyncScope&& other) noexcept : models_(std::exchange(other.models_, {})) {}
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  c10::SmallVector<DistributedDataParallel*, 4> models_;
};

}  // namespace accelerate
