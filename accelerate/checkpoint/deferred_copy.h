/// Copies of tensors that are made behind training, at the latest before the tensors change.
///
/// Threads: copy() and finish() any, add() before both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "accelerate/optim/accelerated_optimizer.h"

namespace accelerate::internal {

/// Copies byte by byte, with several threads.
class TensorCopies {
 public:
  /// Whether it can be copied so: memory of the host without gaps.
  static bool can_copy(const at::Tensor& tensor);

  /// \pre Both can be copied, and are alike.
  void add(at::Tensor to, at::Tensor from) { pairs_.push_back({std::move(to), std::move(from)}); }
  void run(int threads) const;

 private:
  struct Pair {
    at::Tensor to, from;
  };
  std::vector<Pair> pairs_;
};

class DeferredCopy final : public OptimizerStateReader {
 public:
  /// Copies with so many threads.
  explicit DeferredCopy(int threads) : threads_(threads) {}

  /// Whether a change of it would be noticed.
  static bool can_watch(const at::Tensor& tensor);

  /// \pre Both can be copied, and `from` can be watched. From now on it must not change before the
  ///      copy is finished. `name` is for errors.
  void add(std::string name, at::Tensor to, at::Tensor from);

  /// Returns when all is copied.
  void copy();

  /// Also looks whether something has changed meanwhile, and forgets what was to be copied.
  void finish() override;

  /// After finish(). Errors: FailedPrecondition naming the first tensor that changed too early: its
  /// copy may be of both.
  absl::Status status() const;

 private:
  struct Watched {
    std::string name;
    at::Tensor tensor;
    uint32_t version;
  };

  void copy_once() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int threads_;
  mutable absl::Mutex mutex_;
  bool is_copied_ ABSL_GUARDED_BY(mutex_) = false;
  TensorCopies copies_ ABSL_GUARDED_BY(mutex_);
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mutex_);
  std::string changed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace accelerate::internal
