#include "accelerate/base/crc32c.h"

#include <cstring>

#include "absl/crc/crc32c.h"
#include "absl/strings/string_view.h"

#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace accelerate::internal {
namespace {

uint32_t by_abseil(absl::Span<const std::byte> bytes) {
  return static_cast<uint32_t>(absl::ComputeCrc32c(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
}

#ifdef __x86_64__

uint64_t load(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// The instruction has a result every cycle, but three cycles after it began: three runs of bytes
// side by side keep it busy.
__attribute__((target("sse4.2"))) uint32_t by_instruction(absl::Span<const std::byte> bytes) {
  const size_t words = bytes.size() / (3 * sizeof(uint64_t));
  const size_t run = words * sizeof(uint64_t);
  const std::byte* const data = bytes.data();
  uint64_t first = 0xFFFFFFFF;
  uint64_t second = 0xFFFFFFFF;
  uint64_t third = 0xFFFFFFFF;
  for (size_t i = 0; i < run; i += sizeof(uint64_t)) {
    first = _mm_crc32_u64(first, load(data + i));
    second = _mm_crc32_u64(second, load(data + run + i));
    third = _mm_crc32_u64(third, load(data + 2 * run + i));
  }
  const auto finished = [](uint64_t state) { return static_cast<uint32_t>(~state); };
  const auto size = static_cast<int64_t>(run);
  const uint32_t two = concat_crc32c(finished(first), finished(second), size);
  const uint32_t three = concat_crc32c(two, finished(third), size);
  const absl::Span<const std::byte> rest = bytes.subspan(3 * run);
  return concat_crc32c(three, by_abseil(rest), static_cast<int64_t>(rest.size()));
}

#endif

}  // namespace

uint32_t crc32c(absl::Span<const std::byte> bytes) {
#ifdef __x86_64__
  // Below, putting the runs together takes longer than it saves.
  constexpr size_t kWorthwhile = 512;
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction && bytes.size() >= kWorthwhile) return by_instruction(bytes);
#endif
  return by_abseil(bytes);
}

uint32_t concat_crc32c(uint32_t first, uint32_t second, int64_t second_size) {
  return static_cast<uint32_t>(absl::ConcatCrc32c(absl::crc32c_t{first}, absl::crc32c_t{second},
                                                  static_cast<size_t>(second_size)));
}

}  // namespace accelerate::internal
