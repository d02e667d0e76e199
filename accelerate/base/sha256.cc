#include "accelerate/base/sha256.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_format.h"

namespace accelerate {
namespace {

constexpr size_t kBlockBytes = 64;

std::vector<uint32_t> first_primes(size_t count) {
  std::vector<uint32_t> primes;
  for (uint32_t candidate = 2; primes.size() < count; ++candidate) {
    bool is_prime = true;
    for (uint32_t prime : primes) is_prime = is_prime && candidate % prime != 0;
    if (is_prime) primes.push_back(candidate);
  }
  return primes;
}

// The first 32 bits after the point. Long doubles have the 35 bits that this takes.
uint32_t fraction_of(long double value) {
  return static_cast<uint32_t>((value - std::floor(value)) * 4294967296.0L);
}

struct Constants {
  std::array<uint32_t, 8> start;
  std::array<uint32_t, 64> rounds;
};

const Constants& constants() {
  static const Constants kConstants = [] {
    Constants made;
    const std::vector<uint32_t> primes = first_primes(64);
    for (size_t i = 0; i < 64; ++i) {
      const auto prime = static_cast<long double>(primes[i]);
      made.rounds[i] = fraction_of(std::cbrt(prime));
      if (i < 8) made.start[i] = fraction_of(std::sqrt(prime));
    }
    return made;
  }();
  return kConstants;
}

// The bytes, a one bit, zeros, and the number of bits, in whole blocks.
std::string padded(const std::string& bytes) {
  std::string text = bytes + '\x80';
  text.append((2 * kBlockBytes - 8 - text.size() % kBlockBytes) % kBlockBytes, '\0');
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) text.push_back(static_cast<char>(bits >> shift));
  return text;
}

std::array<uint32_t, 64> schedule_of(const char* block) {
  std::array<uint32_t, 64> words{};
  for (size_t i = 0; i < kBlockBytes; ++i) {
    words[i / 4] = words[i / 4] << 8 | static_cast<uint8_t>(block[i]);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = words[i - 15];
    const uint32_t b = words[i - 2];
    words[i] = words[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + words[i - 7] +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  return words;
}

void add_block(const char* block, std::array<uint32_t, 8>& hash) {
  const std::array<uint32_t, 64> words = schedule_of(block);
  auto [a, b, c, d, e, f, g, h] = hash;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t mixed_e = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t mixed_a = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t first = h + mixed_e + ((e & f) ^ (~e & g)) + constants().rounds[i] + words[i];
    const uint32_t second = mixed_a + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < hash.size(); ++i) hash[i] += added[i];
}

}  // namespace

std::string sha256(const std::string& bytes) {
  const std::string text = padded(bytes);
  std::array<uint32_t, 8> hash = constants().start;
  for (size_t i = 0; i < text.size(); i += kBlockBytes) add_block(text.data() + i, hash);
  std::string hex;
  for (uint32_t word : hash) hex += absl::StrFormat("%08x", word);
  return hex;
}

}  // namespace accelerate
