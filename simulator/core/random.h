/// The simulator's source of randomness. It is specified bit for bit, so that a seed gives the same
/// run with every compiler and library; `std::` distributions do not promise that.
///
/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
/// Threads: not synchronised.
#pragma once

#include <cstdint>

namespace accelerate::simulator {

class DeterministicRandom {
 public:
  explicit DeterministicRandom(uint64_t seed) : state_(seed) {}

  /// An independent generator for a numbered part of the run (a rank, a link).
  static DeterministicRandom stream(uint64_t seed, uint64_t number) {
    DeterministicRandom mixer(seed ^ (number + 1) * 0xD1342543DE82EF95u);
    return DeterministicRandom(mixer.next());
  }

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  /// Uniform in [0, bound); bound must be positive. Lemire's multiply-shift, without rejection: the
  /// bias is below 2^-32 for the bounds in use.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace accelerate::simulator
