#include "accelerate/values/versions.h"

#include <optional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Each before the next, whatever the number of its release is.
TEST(CompareVersions, OrdersReleasesAndTheirSuffixes) {
  const std::vector<std::string> ascending = {
      "0.9",         "1.0.dev3",    "1.0a1.dev1", "1.0a1",        "1.0a2",  "1.0b1",
      "1.0rc1.dev1", "1.0rc1",      "1.0rc2",     "1.0rc2.post1", "1.0",    "1.0+abc.5",
      "1.0+abc.7",   "1.0+abd",     "1.0+5",      "1.0+5.1",      "1.0+10", "1.0.post1.dev1",
      "1.0.post1",   "1.0.post1+x", "1.0.0.1",    "1.1.dev1",     "1.1",    "1.10",
      "1!0.1"};
  for (size_t i = 0; i < ascending.size(); ++i) {
    for (size_t j = 0; j < ascending.size(); ++j) {
      EXPECT_EQ(compare_versions(ascending[i], "<", ascending[j]), i < j)
          << ascending[i] << " < " << ascending[j];
      EXPECT_EQ(compare_versions(ascending[i], "==", ascending[j]), i == j)
          << ascending[i] << " == " << ascending[j];
    }
  }
}

TEST(CompareVersions, KnowsOtherSpellings) {
  const std::vector<std::vector<std::string>> same = {
      {"2.6", "2.6.0", "2.6.0.0", " v2.6\n", "0!2.6", "02.6"},
      {"1.0a1", "1.0alpha1", "1.0-Alpha.1", "1.0_a_1", "1.0.A1"},
      {"1.0b2", "1.0beta2", "1.0-b2"},
      {"1.0rc0", "1.0c", "1.0rc", "1.0pre0", "1.0-preview-0"},
      {"1.0.post1", "1.0-1", "1.0post1", "1.0-rev.1", "1.0r1"},
      {"1.0.dev0", "1.0dev", "1.0-DEV-0"},
      {"1.0+cpu.1", "1.0+CPU-1", "1.0+cpu_01"}};
  for (const auto& spellings : same) {
    for (const std::string& spelling : spellings) {
      EXPECT_TRUE(compare_versions(spelling, "==", spellings[0])) << spelling;
    }
  }
}

TEST(CompareVersions, KnowsEveryOperation) {
  struct {
    const char* operation;
    bool below, equal, above;
  } cases[] = {{"<", true, false, false}, {"<=", true, true, false}, {"==", false, true, false},
               {"!=", true, false, true}, {">=", false, true, true}, {">", false, false, true}};
  for (const auto& one : cases) {
    EXPECT_EQ(compare_versions("1.9", one.operation, "1.10"), one.below) << one.operation;
    EXPECT_EQ(compare_versions("1.10", one.operation, "1.10"), one.equal) << one.operation;
    EXPECT_EQ(compare_versions("2", one.operation, "1.10"), one.above) << one.operation;
  }
}

TEST(CompareVersions, RefusesWhatIsNoVersionOrOperation) {
  for (const char* operation : {"=", "~=", "", "=>", "is"}) {
    EXPECT_THROW(compare_versions("1", operation, "1"), c10::ValueError) << operation;
  }
  for (const char* text : {"", "x", "1.", "1..0", ".1", "1.0+", "1.0+a..b", "1.0 2", "numpy", "1.x",
                           "1.0rc1a", "1-", "1!", "99999999999999999999"}) {
    EXPECT_THROW(compare_versions(text, "<", "1"), c10::ValueError) << text;
    EXPECT_THROW(compare_versions("1", "<", text), c10::ValueError) << text;
  }
}

TEST(CompareVersions, TakesTheVersionOfALibrary) {
  EXPECT_TRUE(compare_versions("torch", "==", TORCH_VERSION));
  EXPECT_TRUE(compare_versions("torch", ">=", "2.6"));
  EXPECT_TRUE(compare_versions("accelerate", "==", *library_version("accelerate")));
  EXPECT_TRUE(compare_versions("accelerate", "<", "1000"));
  EXPECT_EQ(library_version("numpy"), std::nullopt);
  EXPECT_THROW(compare_versions("2.6", "==", "torch"), c10::ValueError) << "not a requirement";
  try {
    compare_versions("numpy", ">=", "1.0");
    FAIL() << "this library has no NumPy";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("numpy"), HasSubstr("accelerate and torch")));
  }
}

TEST(IsTorchVersion, ComparesLibTorchsRelease) {
  EXPECT_TRUE(is_torch_version(">=", "2.6"));
  EXPECT_FALSE(is_torch_version("<", "2.6"));
  EXPECT_TRUE(is_torch_version("<", "1000"));
  // The release of a build of 2.6.0+cpu or 2.6.0a0 is 2.6.0.
  EXPECT_TRUE(is_torch_version("==", std::string(TORCH_VERSION).substr(0, 5)));
}

}  // namespace
}  // namespace accelerate
