/// More random bits where a tracker was given 64: for names of runs and times of retries.
///
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace accelerate::trackers {

/// The next of a sequence; `state` begins with random bits (SplitMix64).
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
