#include "accelerate/checkpoint/deferred_copy.h"

#include <cstddef>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/checkpoint/checkpoint_error.h"
#include "accelerate/checkpoint/file_chunks.h"
#include "accelerate/checkpoint/stream_copy.h"

namespace accelerate::internal {
namespace {

// What one thread copies in one go; measured.
constexpr int64_t kCopyBytes = int64_t{4} << 20;

}  // namespace

bool TensorCopies::can_copy(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous();
}

void TensorCopies::run(int threads) const {
  // All of it as pieces of one long row.
  std::vector<FilePiece> pieces;
  int64_t bytes = 0;
  for (const auto& [to, from] : pairs_) {
    const auto size = static_cast<int64_t>(from.nbytes());
    pieces.push_back({bytes, bytes + size, from.element_size()});
    bytes += size;
  }
  std::vector<FileChunk> chunks = cut_into_chunks(pieces, kCopyBytes);
  check_ok(run_chunks(chunks, threads, [&](FileChunk& chunk, ChunkBuffer&) {
    for (const FileChunk::Part& part : chunk.parts) {
      const auto& [to, from] = pairs_[part.piece];
      const int64_t offset = part.begin - pieces[part.piece].begin;
      stream_copy(static_cast<std::byte*>(to.data_ptr()) + offset,
                  static_cast<const std::byte*>(from.const_data_ptr()) + offset,
                  part.end - part.begin);
    }
    return absl::OkStatus();
  }));
}

bool DeferredCopy::can_watch(const at::Tensor& tensor) { return !tensor.is_inference(); }

void DeferredCopy::add(std::string name, at::Tensor to, at::Tensor from) {
  absl::MutexLock lock(&mutex_);
  TORCH_CHECK(!is_copied_, "\"", name, "\" comes after the copy");
  watched_.push_back({std::move(name), from, static_cast<uint32_t>(from._version())});
  copies_.add(std::move(to), std::move(from));
}

void DeferredCopy::copy_once() {
  if (std::exchange(is_copied_, true)) return;
  std::exchange(copies_, {}).run(threads_);
}

void DeferredCopy::copy() {
  absl::MutexLock lock(&mutex_);
  copy_once();
}

void DeferredCopy::finish() {
  absl::MutexLock lock(&mutex_);
  copy_once();
  for (const auto& [name, tensor, version] : std::exchange(watched_, {})) {
    if (changed_.empty() && tensor._version() != version) changed_ = name;
  }
}

absl::Status DeferredCopy::status() const {
  absl::MutexLock lock(&mutex_);
  if (changed_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("\"", changed_,
                   "\" changed while it was saved behind training, and not by the step() of a "
                   "prepared optimizer, which waits"));
}

}  // namespace accelerate::internal
