#include "accelerate/report/environment_report.h"

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::internal {
namespace {

TEST(KernelWarning, NamesOldKernels) {
  EXPECT_THAT(kernel_warning("Linux", "5.4.0-150-generic").value_or(""),
              testing::AllOf(testing::HasSubstr("Linux 5.4.0"), testing::HasSubstr("5.5.0")));
  EXPECT_TRUE(kernel_warning("Linux", "3.10.0-1160.el7.x86_64"));
}

TEST(KernelWarning, IsSilentAboutOthers) {
  EXPECT_EQ(kernel_warning("Linux", "5.5.0"), std::nullopt);
  EXPECT_EQ(kernel_warning("Linux", "5.15.0-91-generic"), std::nullopt);
  EXPECT_EQ(kernel_warning("Linux", "6.1.0+"), std::nullopt);
  EXPECT_EQ(kernel_warning("Darwin", "4.0.0"), std::nullopt);
  EXPECT_EQ(kernel_warning("Linux", "unknown"), std::nullopt);
}

}  // namespace
}  // namespace accelerate::internal
