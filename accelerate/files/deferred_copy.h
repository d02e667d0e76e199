/// Copies of tensors that are made behind training, at the latest before the tensors change.
///
/// Threads: run(), copy() and finish() any, several at once; add() before them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "accelerate/files/file_chunks.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

/// As std::memcpy, for much memory that is not read soon: the writes bypass the caches. An ordinary
/// copy first reads each line that it is about to overwrite, a third of its traffic; the C library
/// avoids that only for copies larger than the pieces which threads share.
/// Threads: any; the copy is complete, and visible to other threads, when it returns.
void stream_copy(std::byte* to, const std::byte* from, size_t size);

/// Copies byte by byte, with several threads.
class TensorCopies {
 public:
  /// Whether it can be copied so: memory of the host without gaps.
  static bool can_copy(const at::Tensor& tensor);

  /// \pre Both can be copied, and have equal sizes and dtypes.
  void add(at::Tensor to, at::Tensor from);

  /// Returns when all is copied. Concurrent calls share the work, so an urgent call does not wait
  /// for a slow one.
  void run(int threads);

 private:
  struct Pair {
    at::Tensor to, from;
  };
  void copy(const FileChunk& chunk) const;

  std::vector<Pair> pairs_;
  // All of it as pieces of one long row.
  std::vector<FilePiece> pieces_;
  absl::Mutex mutex_;
  // Both made by the first run().
  std::vector<FileChunk> chunks_;
  std::unique_ptr<std::atomic_flag[]> taken_;
  size_t copied_ ABSL_GUARDED_BY(mutex_) = 0;
};

class DeferredCopy final : public OptimizerStateReader {
 public:
  /// Copies with `threads` threads.
  explicit DeferredCopy(int threads) : threads_(threads) {}

  /// Whether a change of it would be noticed.
  static bool can_watch(const at::Tensor& tensor);

  /// \pre Both can be copied, and `from` can be watched. From now on it must not change before the
  ///      copy is finished. `name` is for errors.
  void add(std::string name, at::Tensor to, const at::Tensor& from);

  /// Returns when all is copied, and releases the tensors.
  void copy() noexcept;

  /// Also checks whether a tensor changed since add(); later changes do not matter.
  void finish() noexcept override;

  /// After finish(). Errors: FailedPrecondition naming the first tensor that changed too early: its
  /// copy may be of both; Internal if it could not be copied.
  absl::Status status() const;

 private:
  struct Watched {
    std::string name;
    c10::VariableVersion version;
    uint32_t before;
  };

  const int threads_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<TensorCopies> copies_ ABSL_GUARDED_BY(mutex_) = std::make_shared<TensorCopies>();
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace accelerate::internal
