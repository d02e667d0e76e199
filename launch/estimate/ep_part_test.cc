#include "launch/estimate/parts.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::launcher::estimate {
namespace {

using ::testing::HasSubstr;

Architecture described(const std::string& text) {
  const absl::StatusOr<Architecture> architecture = parse_architecture(text);
  EXPECT_TRUE(architecture.ok()) << architecture.status();
  return architecture.value_or(Architecture());
}

TEST(EpPart, HasStackedAndSeparateExperts) {
  const Architecture stacked = described(R"({"modules": {
      "mlp": {"modules": {"experts": {"parameters": {"up": [8, 3, 5], "down": [8, 5, 3]}},
                          "router": {"parameters": {"weight": [8, 5]}},
                          "shared_experts": {"parameters": {"up": [3, 5]}}}}}})");
  const absl::StatusOr<EpPart> part = ep_part(stacked, 4);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->experts, 4 * (240 / 4)) << "bytes in float32";
  EXPECT_EQ(model_size(part->rest).total, 4 * (40 + 15)) << "the router and the shared expert";
  const Architecture separate = described(R"({"modules": {
      "experts": {"modules": {"0": {"parameters": {"up": [6]}}, "1": {"parameters": {"up": [6]}}}},
      "head": {"parameters": {"weight": [7]}}}})");
  const absl::StatusOr<EpPart> half = ep_part(separate, 2);
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_EQ(half->experts, 4 * 6);
  EXPECT_EQ(model_size(half->rest).total, 4 * 7);
}

TEST(EpPart, IsRefusedWithTheNearestNumberOfRanks) {
  const Architecture six = described(R"({"modules": {"experts": {"parameters": {"up": [6, 4]}}}})");
  EXPECT_EQ(ep_part(six, 4).status().message(),
            "\"experts\" has 6 experts, which 4 ranks do not divide evenly; --ep_size 3 does");
  EXPECT_THAT(
      std::string(ep_part(described(R"({"parameters": {"w": [4]}})"), 2).status().message()),
      HasSubstr("has no experts for --ep_size"));
}

}  // namespace
}  // namespace accelerate::launcher::estimate
