#include "accelerate/files/deferred_copy.h"

#include <cstring>
#include <exception>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/tensor_ranges.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace accelerate::internal {

#ifdef __SSE2__

void stream_copy(std::byte* to, const std::byte* from, size_t size) {
  constexpr size_t kWord = sizeof(__m128i);
  constexpr size_t kLine = 4 * kWord;
  // Words that go past the caches must be aligned where they go to.
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
  if (size < head + kLine) {
    std::memcpy(to, from, size);
    return;
  }
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= size; at += kLine) {
    const auto load = [&](size_t word) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + word * kWord));
    };
    const auto store = [&](size_t word, __m128i value) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + word * kWord), value);
    };
    const __m128i first = load(0);
    const __m128i second = load(1);
    const __m128i third = load(2);
    const __m128i fourth = load(3);
    store(0, first);
    store(1, second);
    store(2, third);
    store(3, fourth);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, size - at);
}

#else

void stream_copy(std::byte* to, const std::byte* from, size_t size) { std::memcpy(to, from, size); }

#endif

bool TensorCopies::can_copy(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && is_plain_memory(tensor);
}

void TensorCopies::add(at::Tensor to, at::Tensor from) {
  const int64_t begin = pieces_.empty() ? 0 : pieces_.back().end;
  const auto size = static_cast<int64_t>(from.nbytes());
  pieces_.push_back({begin, begin + size, static_cast<int64_t>(from.element_size())});
  pairs_.push_back({std::move(to), std::move(from)});
}

void TensorCopies::copy(const FileChunk& chunk) const {
  for (const FileChunk::Part& part : chunk.parts) {
    const auto& [to, from] = pairs_[part.piece];
    const int64_t offset = part.begin - pieces_[part.piece].begin;
    stream_copy(static_cast<std::byte*>(to.data_ptr()) + offset,
                static_cast<const std::byte*>(from.const_data_ptr()) + offset,
                part.end - part.begin);
  }
}

void TensorCopies::run(int threads) {
  // The bytes that one thread copies at a time; measured.
  constexpr int64_t kCopyBytes = int64_t{4} << 20;
  {
    absl::MutexLock lock(&mutex_);
    if (taken_ == nullptr) {
      chunks_ = cut_into_chunks(pieces_, kCopyBytes);
      taken_ = std::make_unique<std::atomic_flag[]>(chunks_.size());
    }
  }
  check_ok(run_chunks(chunks_, threads, [this](FileChunk& chunk, ChunkBuffer&) {
    if (taken_[&chunk - chunks_.data()].test_and_set()) return absl::OkStatus();
    copy(chunk);
    absl::MutexLock lock(&mutex_);
    ++copied_;
    return absl::OkStatus();
  }));
  // Copies that other calls have begun are waited for.
  absl::MutexLock lock(&mutex_);
  const auto all = [this] {
    mutex_.AssertHeld();
    return copied_ == chunks_.size();
  };
  mutex_.Await(absl::Condition(&all));
}

bool DeferredCopy::can_watch(const at::Tensor& tensor) { return !tensor.is_inference(); }

void DeferredCopy::add(std::string name, at::Tensor to, const at::Tensor& from) {
  absl::MutexLock lock(&mutex_);
  watched_.push_back({std::move(name), from.unsafeGetTensorImpl()->version_counter(),
                      static_cast<uint32_t>(from._version())});
  copies_->add(std::move(to), from);
}

void DeferredCopy::copy() noexcept {
  std::shared_ptr<TensorCopies> copies;
  {
    absl::MutexLock lock(&mutex_);
    copies = copies_;
  }
  if (copies == nullptr) return;
  absl::Status status;
  try {
    copies->run(threads_);
  } catch (const std::exception& error) {
    status = absl::InternalError(absl::StrCat("the state could not be copied: ", error.what()));
  }
  absl::MutexLock lock(&mutex_);
  status_.Update(status);
  copies_ = nullptr;
}

void DeferredCopy::finish() noexcept {
  copy();
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, version, before] : std::exchange(watched_, {})) {
    if (version.current_version() == before) continue;
    status_.Update(absl::FailedPreconditionError(
        absl::StrCat("\"", name,
                     "\" changed while it was saved behind training, and not by the step() of a "
                     "prepared optimizer, which waits")));
  }
}

absl::Status DeferredCopy::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

}  // namespace accelerate::internal
