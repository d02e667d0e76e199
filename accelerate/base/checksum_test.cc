#include "accelerate/base/checksum.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/crc/crc32c.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::internal {
namespace {

std::vector<std::byte> some_bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

uint32_t reference(absl::Span<const std::byte> bytes) {
  return static_cast<uint32_t>(absl::ComputeCrc32c(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
}

TEST(Crc32c, IsTheOneThatEverybodyHas) {
  // The check value of the CRC's definition.
  const absl::string_view digits = "123456789";
  EXPECT_EQ(crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(digits.data()), 9)),
            0xE3069283);
  EXPECT_EQ(crc32c(absl::Span<const std::byte>()), 0);
}

TEST(Crc32c, IsAbseilsForAllSizesAndPositions) {
  const std::vector<std::byte> bytes = some_bytes(100'000);
  for (size_t size = 0; size < 2000; ++size) {
    const auto part = absl::MakeConstSpan(bytes).subspan(size % 13, size);
    ASSERT_EQ(crc32c(part), reference(part)) << size;
  }
  EXPECT_EQ(crc32c(bytes), reference(bytes));
}

TEST(Crc32c, OfPartsGivesThatOfTheWhole) {
  const std::vector<std::byte> bytes = some_bytes(5000);
  for (size_t cut = 0; cut <= bytes.size(); cut += 500) {
    const auto all = absl::MakeConstSpan(bytes);
    const auto rest = all.subspan(cut);
    EXPECT_EQ(concat_crc32c(crc32c(all.first(cut)), crc32c(rest), rest.size()), crc32c(all));
  }
}

// The examples that the standard's authors published.
TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace accelerate::internal
