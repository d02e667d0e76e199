#include "accelerate/base/checksum.h"

#include <array>
#include <bit>
#include <cstring>

#include "absl/crc/crc32c.h"
#include "absl/strings/str_format.h"
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

namespace accelerate {
namespace {

constexpr size_t kBlockBytes = 64;

// The first 32 bits behind the point of the square roots of the first primes, and of their cube
// roots.
constexpr std::array<uint32_t, 8> kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

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
    const uint32_t first = h + mixed_e + ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
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
  std::array<uint32_t, 8> hash = kStart;
  for (size_t i = 0; i < text.size(); i += kBlockBytes) add_block(text.data() + i, hash);
  std::string hex;
  for (uint32_t word : hash) hex += absl::StrFormat("%08x", word);
  return hex;
}

}  // namespace accelerate
