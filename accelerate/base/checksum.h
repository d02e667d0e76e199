/// Checksums of bytes.
///
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate {

/// SHA-256 (FIPS 180-4) in hexadecimal: a name for contents. For nothing that must be secret or
/// fast.
std::string sha256(const std::string& bytes);

namespace internal {

/// CRC-32C at the speed of memory. Abseil's is the same function, and several times slower where it
/// was built for processors of any age, as distributions do.
uint32_t crc32c(absl::Span<const std::byte> bytes);
inline uint32_t crc32c(absl::string_view text) {
  return crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

/// The checksum of two runs of bytes together, from the checksums of both; `second_size` is the
/// size of the second run in bytes.
uint32_t concat_crc32c(uint32_t first, uint32_t second, int64_t second_size);

}  // namespace internal
}  // namespace accelerate
