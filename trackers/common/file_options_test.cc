#include "trackers/common/file_options.h"

#include <string>

#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

TEST(SafePathTest, LeavesOrdinaryNames) {
  EXPECT_EQ(safe_path("loss"), "loss");
  EXPECT_EQ(safe_path("train/loss"), "train/loss");
  EXPECT_EQ(safe_path("a b,\"c\" d\xc3\xa9"), "a b,\"c\" d\xc3\xa9");
  EXPECT_EQ(safe_path(".hidden..x"), ".hidden..x");
}

TEST(SafePathTest, StaysBelowItsFolder) {
  EXPECT_EQ(safe_path("../../etc/passwd"), "%2E./%2E./etc/passwd");
  EXPECT_EQ(safe_path("/abs//x/"), "abs/x");
  EXPECT_EQ(safe_path("./a/."), "%2E/a/%2E");
  EXPECT_EQ(safe_path(""), "_");
  EXPECT_EQ(safe_path("///"), "_");
  EXPECT_EQ(safe_path(std::string("a\nb\0c", 5)), "a%0Ab%00c");
}

TEST(SafePathTest, CutsLongNamesApart) {
  const std::string first = safe_path(std::string(300, 'x') + "1");
  const std::string second = safe_path(std::string(300, 'x') + "2");
  EXPECT_NE(first, second);
  EXPECT_LT(first.size(), 200u);
}

}  // namespace
}  // namespace accelerate::trackers
