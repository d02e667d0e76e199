#include "accelerate/checkpoint/tensor_files/stream_copy.h"

#include <cstdint>
#include <cstring>

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

}  // namespace accelerate::internal
