#include "trackers/common/csv_text.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;

TEST(CsvTextTest, QuotesWhatNeedsIt) {
  EXPECT_EQ(csv_row({"a", "b c", ""}), "a,b c,\r\n");
  EXPECT_EQ(csv_row({"a,b", "say \"x\"", "two\nlines", "\r"}),
            "\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\"\r\"\r\n");
  EXPECT_EQ(csv_row({"a\tb", "c,d"}, '\t', "\n"), "\"a\tb\"\tc,d\n");
  EXPECT_EQ(csv_row({""}), "\"\"\r\n");
}

TEST(CsvTextTest, ReadsBackWhatItWrote) {
  const std::vector<std::string> fields{"", "a", ",", "\"", "\"\"", "x\r\ny", " ", "\xc3\xa9"};
  const std::string row = csv_row(fields);
  EXPECT_EQ(csv_row_size(row + "next"), row.size());
  EXPECT_EQ(csv_fields(row), fields);
  EXPECT_EQ(csv_fields(csv_row(fields, '\t', "\n"), '\t'), fields);
}

TEST(CsvTextTest, ARecordWithoutItsEnd) {
  EXPECT_EQ(csv_row_size("a,b"), 0u);
  EXPECT_EQ(csv_row_size("a,\"b\n"), 0u);
  EXPECT_EQ(csv_row_size("\n"), 1u);
  EXPECT_THAT(csv_fields("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(csv_fields("\n"), ElementsAre(""));
}

}  // namespace
}  // namespace accelerate::trackers
