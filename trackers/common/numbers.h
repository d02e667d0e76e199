/// Numbers as the formats of trackers have them, and random ones.
///
///   event.set_wall_time(unix_seconds(when));
///   append_little_endian(&record, length, 8);
///
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace accelerate::trackers {

/// Seconds since 1970-01-01 00:00 UTC, with the fraction that a double keeps.
inline double unix_seconds(absl::Time time) {
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

/// Appends the lowest `bytes` bytes of `number`, at most 8, the lowest first.
inline void append_little_endian(std::string* out, uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(number >> (8 * i)));
}

/// The next number of a SplitMix64 sequence; `state` begins with random bits.
inline uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// 16 digits, from 0 to f.
inline std::string next_hex(uint64_t& state) {
  return absl::StrCat(absl::Hex(next_random(state), absl::kZeroPad16));
}

}  // namespace accelerate::trackers
