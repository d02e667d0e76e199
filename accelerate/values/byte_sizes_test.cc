#include "accelerate/values/byte_sizes.h"

#include <limits>
#include <string>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(ConvertFileSizeToInt, KnowsUnitsOf1000AndOf1024) {
  EXPECT_EQ(convert_file_size_to_int("1KB"), 1000);
  EXPECT_EQ(convert_file_size_to_int("0.1mB"), 100'000);
  EXPECT_EQ(convert_file_size_to_int(" 1 GB"), 1'000'000'000);
  EXPECT_EQ(convert_file_size_to_int("1.5KiB"), 1536);
  EXPECT_EQ(convert_file_size_to_int("2mib"), 2 << 20);
  EXPECT_EQ(convert_file_size_to_int("1GIB"), 1 << 30);
  EXPECT_EQ(convert_file_size_to_int("1e3MB"), 1'000'000'000);
  EXPECT_EQ(convert_file_size_to_int("8000000000GiB"), int64_t{8'000'000'000} << 30);
}

TEST(ConvertFileSizeToInt, ReadsASmallBAsBits) {
  EXPECT_EQ(convert_file_size_to_int("1Gb"), 125'000'000);
  EXPECT_EQ(convert_file_size_to_int("1kb"), 125);
  EXPECT_EQ(convert_file_size_to_int("0.015Kb"), 1);
  EXPECT_EQ(convert_file_size_to_int("1kib"), 1024);
}

TEST(ConvertFileSizeToInt, RefusesEverythingElse) {
  for (const char* text : {"", "400", "GB", "1TB", "1TiB", "1B", "-1GB", "nanMB", "infGB", "x1MB",
                           "1e30GB", "8589934592GiB", "1 G B"}) {
    EXPECT_THROW(convert_file_size_to_int(text), c10::ValueError) << text;
  }
}

template <typename T>
concept IsSize = requires(T size) { convert_file_size_to_int(size); };
static_assert(IsSize<int> && IsSize<const char*> && IsSize<std::string>);
static_assert(!IsSize<double>, "half a byte is not a size");

TEST(ConvertFileSizeToInt, TakesPlainNumbersAsBytes) {
  EXPECT_EQ(convert_file_size_to_int(0), 0);
  EXPECT_EQ(convert_file_size_to_int(int64_t{1} << 40), int64_t{1} << 40);
  EXPECT_THROW(convert_file_size_to_int(-1), c10::ValueError);
}

TEST(ConvertBytes, PicksTheUnit) {
  EXPECT_EQ(convert_bytes(0), "0 bytes");
  EXPECT_EQ(convert_bytes(int64_t{-5}), "-5 bytes");
  EXPECT_EQ(convert_bytes(int64_t{1023}), "1023 bytes");
  EXPECT_EQ(convert_bytes(int64_t{1024}), "1.0 KB");
  EXPECT_EQ(convert_bytes(int64_t{1048575}), "1024.0 KB");
  EXPECT_EQ(convert_bytes(int64_t{123456789}), "117.74 MB");
  EXPECT_EQ(convert_bytes(int64_t{1} << 30), "1.0 GB");
  EXPECT_EQ(convert_bytes(int64_t{5} << 39), "2.5 TB");
  EXPECT_EQ(convert_bytes(int64_t{3} << 50), "3.0 PB");
  EXPECT_EQ(convert_bytes(std::numeric_limits<int64_t>::max()), "8192.0 PB");
  EXPECT_EQ(convert_bytes(512.125), "512.12 bytes");
  EXPECT_EQ(convert_bytes(1000.0), "1000.0 bytes");
}

TEST(DtypeByteSize, CountsBytesPerElement) {
  EXPECT_EQ(dtype_byte_size(c10::kFloat), 4);
  EXPECT_EQ(dtype_byte_size(c10::kBFloat16), 2);
  EXPECT_EQ(dtype_byte_size(c10::kLong), 8);
  EXPECT_EQ(dtype_byte_size(c10::kComplexDouble), 16);
  EXPECT_EQ(dtype_byte_size(c10::kFloat8_e4m3fn), 1);
}

TEST(DtypeByteSize, CountsFractionsWhereElementsShareAByte) {
  EXPECT_EQ(dtype_byte_size(c10::kBool), 0.125);
  EXPECT_EQ(dtype_byte_size(c10::ScalarType::UInt4), 0.5);
  EXPECT_EQ(dtype_byte_size(c10::kQUInt2x4), 0.25);
  EXPECT_EQ(dtype_byte_size(CustomDtype::kFp8), 1);
  EXPECT_EQ(dtype_byte_size(CustomDtype::kInt4), 0.5);
  EXPECT_EQ(dtype_byte_size(CustomDtype::kInt2), 0.25);
}

}  // namespace
}  // namespace accelerate
