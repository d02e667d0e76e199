#include "accelerate/base/byte_text.h"

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(ByteText, HasAtMostTwoDecimals) {
  EXPECT_EQ(byte_text(int64_t{0}), "0 bytes");
  EXPECT_EQ(byte_text(int64_t{1023}), "1023 bytes");
  EXPECT_EQ(byte_text(int64_t{1024}), "1.0 KB");
  EXPECT_EQ(byte_text(int64_t{1} << 60), "1024.0 PB");
  EXPECT_EQ(byte_text(512.0), "512.0 bytes");
  EXPECT_EQ(byte_text(0.5), "0.5 bytes");
  EXPECT_EQ(byte_text(413.184 * 1024 * 1024), "413.18 MB");
}

TEST(ByteText, IsAsAllocatorsWriteIt) {
  EXPECT_EQ(binary_byte_text(1023), "1023 bytes");
  EXPECT_EQ(binary_byte_text(1536), "1.50 KiB");
  EXPECT_EQ(binary_byte_text(int64_t{1} << 50), "1024.00 TiB");
}

}  // namespace
}  // namespace accelerate
