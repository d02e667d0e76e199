#include "accelerate/base/number_text.h"

#include <cmath>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(NumberText, ReadsFloats) {
  EXPECT_EQ(parse_float("1"), 1.0);
  EXPECT_EQ(parse_float(" +.5 "), 0.5);
  EXPECT_EQ(parse_float("-5."), -5.0);
  EXPECT_EQ(parse_float("1_000.2_5e1"), 10002.5);
  EXPECT_EQ(parse_float("1e999"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_float("1e-999"), 0.0);
  EXPECT_EQ(parse_float("-Infinity"), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(parse_float("NaN").value()));
  for (const char* text : {"", " ", "x", "1x", "0x10", "+-1", "1 2", "_1", "1_", "1__0", "1_.5",
                           "nan(1)", "e5", "--1", "."}) {
    EXPECT_EQ(parse_float(text), std::nullopt) << text;
  }
}

TEST(NumberText, ReadsIntegersOf64Bits) {
  EXPECT_EQ(parse_int("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parse_int("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parse_int("007"), 7);
  for (const char* text : {"9223372036854775808", "1.0", "0x1", "1e3", "", "+-1", "- 1"}) {
    EXPECT_EQ(parse_int(text), std::nullopt) << text;
  }
}

TEST(NumberText, WritesTheShortestFloat) {
  EXPECT_EQ(float_text(1.0), "1.0");
  EXPECT_EQ(float_text(-0.0), "-0.0");
  EXPECT_EQ(float_text(0.1), "0.1");
  EXPECT_EQ(float_text(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(float_text(1e15), "1000000000000000.0");
  EXPECT_EQ(float_text(1e16), "1e+16");
  EXPECT_EQ(float_text(1.5e300), "1.5e+300");
  EXPECT_EQ(float_text(0.0001), "0.0001");
  EXPECT_EQ(float_text(0.00001), "1e-05");
  EXPECT_EQ(float_text(std::nan("")), "nan");
  EXPECT_EQ(float_text(-std::numeric_limits<double>::infinity()), "-inf");
}

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

TEST(ByteSize, HasAUnitOfBytesOrBits) {
  EXPECT_EQ(parse_byte_size("1KB"), 1000);
  EXPECT_EQ(parse_byte_size("1kB"), 1000);
  EXPECT_EQ(parse_byte_size("1Kb"), 125) << "bits";
  EXPECT_EQ(parse_byte_size("1MB"), 1'000'000);
  EXPECT_EQ(parse_byte_size("2Gb"), 250'000'000);
  EXPECT_EQ(parse_byte_size("1KiB"), 1024);
  EXPECT_EQ(parse_byte_size("1kib"), 1024) << "powers of 1024 are bytes always";
  EXPECT_EQ(parse_byte_size("1MiB"), 1 << 20);
  EXPECT_EQ(parse_byte_size(" 1.5 GiB"), int64_t{3} << 29);
  EXPECT_EQ(parse_byte_size("0.0019KB"), 1) << "fractions are cut off";
  EXPECT_EQ(parse_byte_size("9223372036GB"), 9223372036000000000);
  for (const char* text : {"9223372037GB", "-1KB", "nanKB", "infKB", "KB", "1", "", "1TB", "1B"}) {
    EXPECT_EQ(parse_byte_size(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace accelerate
