#include "simulator/hardware/quantity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::HasSubstr;

TEST(Quantity, ReadsUnitsExactly) {
  struct Case {
    const char* text;
    Dimension dimension;
    double value;
  };
  for (const Case& c : {
           Case{"81", Dimension::kBytes, 81},
           Case{"80MiB", Dimension::kBytes, 80.0 * 1024 * 1024},
           Case{"1.5GiB", Dimension::kBytes, 1.5 * 1024 * 1024 * 1024},
           Case{"80GB", Dimension::kBytes, 80e9},
           Case{"200Gbps", Dimension::kBytesPerSecond, 25e9},
           Case{"25GB/s", Dimension::kBytesPerSecond, 25e9},
           Case{"3.35TB/s", Dimension::kBytesPerSecond, 3.35e12},
           Case{"5us", Dimension::kNanoseconds, 5000},
           Case{"0.3us", Dimension::kNanoseconds, 300},
           Case{"1ms", Dimension::kNanoseconds, 1e6},
           Case{"0us", Dimension::kNanoseconds, 0},
           Case{"989.5TFLOPS", Dimension::kFlopsPerSecond, 989.5e12},
       }) {
    const Quantity quantity = parse_quantity(c.text, c.dimension);
    EXPECT_TRUE(quantity.ok()) << c.text << ": " << quantity.expected;
    EXPECT_EQ(quantity.value, c.value) << c.text;
  }
}

TEST(Quantity, SaysWhatIsWrongAndWhere) {
  struct Case {
    const char* text;
    Dimension dimension;
    size_t position;
    const char* expected;
  };
  for (const Case& c : {
           Case{"", Dimension::kBytes, 0, "a size such as 80GiB"},
           Case{"-5us", Dimension::kNanoseconds, 0, "a time such as 5us"},
           Case{"nan", Dimension::kBytesPerSecond, 0, "a bandwidth"},
           Case{"inf", Dimension::kBytesPerSecond, 0, "a bandwidth"},
           Case{"25", Dimension::kBytesPerSecond, 2, "a unit: TB/s"},
           Case{"25GB", Dimension::kBytesPerSecond, 2, "a unit: TB/s"},
           Case{"5.us", Dimension::kNanoseconds, 1, "a unit: s, ms, us, ns"},
           Case{"1e3us", Dimension::kNanoseconds, 1, "a unit"},
           Case{"-0us", Dimension::kNanoseconds, 0, "a time such as 5us"},
           Case{"0.0GB", Dimension::kBytes, 0, "above zero"},
           Case{"0GB/s", Dimension::kBytesPerSecond, 0, "above zero"},
           Case{"0TFLOPS", Dimension::kFlopsPerSecond, 0, "above zero"},
           Case{"0.5ns", Dimension::kNanoseconds, 0, "a whole number of nanoseconds"},
           Case{"1.5B", Dimension::kBytes, 0, "a whole number of bytes"},
           Case{"99999999TiB", Dimension::kBytes, 0, "at most 8192TiB"},
           Case{"2000000s", Dimension::kNanoseconds, 0, "at most 3600s"},
       }) {
    const Quantity quantity = parse_quantity(c.text, c.dimension);
    EXPECT_EQ(quantity.position, c.position) << c.text;
    EXPECT_THAT(quantity.expected, HasSubstr(c.expected)) << c.text;
  }
  // The largest quantities that the errors above name.
  EXPECT_TRUE(parse_quantity("8192TiB", Dimension::kBytes).ok());
  EXPECT_TRUE(parse_quantity("3600s", Dimension::kNanoseconds).ok());
  EXPECT_FALSE(parse_quantity("3600000000001ns", Dimension::kNanoseconds).ok());
  EXPECT_FALSE(parse_quantity(std::string(1000, '9') + "GB/s", Dimension::kBytesPerSecond).ok());
}

TEST(Quantity, WritesWhatItReads) {
  struct Case {
    double value;
    Dimension dimension;
    const char* text;
  };
  for (const Case& c : {
           Case{80.0 * 1024 * 1024, Dimension::kBytes, "80MiB"},
           Case{1234567, Dimension::kBytes, "1234567B"},
           Case{3.35e12, Dimension::kBytesPerSecond, "3.35TB/s"},
           Case{450e9, Dimension::kBytesPerSecond, "450GB/s"},
           Case{0, Dimension::kNanoseconds, "0ns"},
           Case{300, Dimension::kNanoseconds, "300ns"},
           Case{5000, Dimension::kNanoseconds, "5us"},
           Case{989.5e12, Dimension::kFlopsPerSecond, "989.5TFLOPS"},
       }) {
    EXPECT_EQ(format_quantity(c.value, c.dimension), c.text);
  }
  for (double value : {1.0 / 3, 1e9 / 7, 3.3e12 / 7, 12345.678}) {
    const std::string text = format_quantity(value, Dimension::kBytesPerSecond);
    EXPECT_EQ(parse_quantity(text, Dimension::kBytesPerSecond).value, value) << text;
  }
}

}  // namespace
}  // namespace accelerate::simulator
