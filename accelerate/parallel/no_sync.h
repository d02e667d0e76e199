/// A scope in which backward passes leave gradients on their rank.
///
/// Mirrors: accelerate accelerator.py, Accelerator.no_sync.
#pragma once

#include <memory>
#include <utility>

#include <c10/util/SmallVector.h>

namespace accelerate {

/// How many scopes keep a model's gradients from being synchronised; 0: they are synchronised.
using NoSyncCount = std::shared_ptr<int>;

/// While it lives, the models it was made for do not synchronise gradients. Scopes that overlap,
/// nested or not, are independent: a model synchronises again when the last one has ended. A model
/// may be freed before the scope ends. Without counts it does nothing.
class NoSyncScope {
 public:
  using Counts = c10::SmallVector<NoSyncCount, 4>;

  explicit NoSyncScope(Counts counts = {}) : counts_(std::move(counts)) {
    for (const NoSyncCount& count : counts_) ++*count;
  }
  ~NoSyncScope() {
    for (const NoSyncCount& count : counts_) --*count;
  }
  NoSyncScope(NoSyncScope&& other) noexcept : counts_(std::exchange(other.counts_, {})) {}
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  Counts counts_;
};

}  // namespace accelerate
