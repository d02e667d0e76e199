/// Numbers as the formats of trackers have them, random ones, and histograms: counts of numbers
/// between edges.
///
///   event.set_wall_time(unix_seconds(when));
///   append_little_endian(&record, length, 8);
///
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

struct Histogram {
  /// Ascending, one more than counts. Empty if no number is finite.
  std::vector<double> edges;
  /// Numbers that are at least an edge and less than the next one; the last bin includes its end.
  std::vector<int64_t> counts;
  int64_t nan = 0;
  int64_t infinite = 0;  // of either sign
};

/// Bins of equal width from the least finite number to the greatest. If both are equal, the bins
/// reach half a unit below and above it.
Histogram make_histogram(const std::vector<double>& values, int bins = 64);

}  // namespace accelerate::trackers
