/// CRC-32C at the speed of memory. Abseil's is the same function, and several times slower where it
/// was built for processors of any age, as distributions do.
///
/// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::internal {

uint32_t crc32c(absl::Span<const std::byte> bytes);
inline uint32_t crc32c(absl::string_view text) {
  return crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

/// The checksum of two runs of bytes together, from the checksums of both; `second_size` is the
/// size of the second run in bytes.
uint32_t concat_crc32c(uint32_t first, uint32_t second, int64_t second_size);

}  // namespace accelerate::internal
