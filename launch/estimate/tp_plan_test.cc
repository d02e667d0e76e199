#include "launch/estimate/architecture.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::launcher::estimate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TpPlan, HasTheRulesInTheirOrder) {
  const auto plan = parse_tp_plan(R"({"b.*": "rowwise_rep", "a": "embedding_rowwise"})");
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> rules;
  for (const TpRule& rule : *plan) rules.push_back(rule.pattern + " " + rule.word);
  EXPECT_THAT(rules, ElementsAre("b.* rowwise_rep", "a embedding_rowwise"));
}

TEST(TpPlan, NamesTheWordThatIsNone) {
  const auto error_of = [](const char* text) {
    return std::string(parse_tp_plan(text).status().message());
  };
  EXPECT_THAT(error_of(R"({"a": "colwise", "b": "rowise"})"),
              AllOf(HasSubstr("expected a word of a plan (did you mean \"rowwise\""),
                    HasSubstr("at \"/b\", found \"rowise\"")));
  EXPECT_THAT(error_of(R"({"a": 1})"), HasSubstr("at \"/a\", found 1"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object of patterns and words"));
  EXPECT_THAT(error_of("{"), HasSubstr("it is not JSON"));
}

}  // namespace
}  // namespace accelerate::launcher::estimate
