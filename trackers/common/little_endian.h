/// Whole numbers in binary formats, the lowest byte first.
///
///   append_little_endian(&record, length, 8);
///
/// Threads: any, on different texts.
#pragma once

#include <cstdint>
#include <string>

namespace accelerate::trackers {

/// Appends the lowest `bytes` bytes of `number`, at most 8.
inline void append_little_endian(std::string* out, uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(number >> (8 * i)));
}

}  // namespace accelerate::trackers
