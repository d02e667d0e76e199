#include "accelerate/runtime/env_parsing.h"

#include <optional>
#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Environment with(const char* value) {
  Environment environment;
  environment.set("KEY", value);
  return environment;
}

template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(EnvParsing, ReadsTheUsualWordsForTrueAndFalse) {
  for (const char* text : {"y", "YES", "t", "True", "on", "1"}) {
    EXPECT_TRUE(str_to_bool(text)) << text;
    EXPECT_TRUE(parse_flag_from_env("KEY", false, with(text))) << text;
  }
  for (const char* text : {"n", "NO", "f", "False", "off", "0"}) {
    EXPECT_FALSE(str_to_bool(text)) << text;
    EXPECT_FALSE(parse_flag_from_env("KEY", true, with(text))) << text;
  }
  EXPECT_TRUE(parse_flag_from_env("KEY", true, Environment()));
  EXPECT_FALSE(parse_flag_from_env("KEY", false, Environment()));
}

TEST(EnvParsing, RefusesOtherWordsAndNamesTheVariable) {
  for (const char* text : {"", "maybe", " true", "2", "-1"}) {
    EXPECT_THROW(str_to_bool(text), c10::ValueError) << text;
    EXPECT_THROW(parse_flag_from_env("KEY", true, with(text)), c10::ValueError) << text;
  }
  EXPECT_THAT(error_of([] { parse_flag_from_env("KEY", true, with("maybe")); }),
              HasSubstr("KEY=\"maybe\" is neither true nor false"));
}

TEST(EnvParsing, ReadsChoicesAsTheyAre) {
  EXPECT_EQ(parse_choice_from_env("KEY", "no", with(" Bf16")), " Bf16");
  EXPECT_EQ(parse_choice_from_env("KEY", "no", with("")), "");
  EXPECT_EQ(parse_choice_from_env("KEY", "no", Environment()), "no");
}

TEST(EnvParsing, ReadsWholeNumbers) {
  EXPECT_EQ(parse_int_from_env("KEY", with("4")), 4);
  EXPECT_EQ(parse_int_from_env("KEY", with(" -1_000 ")), -1000);
  EXPECT_EQ(parse_int_from_env("KEY", with("+7")), 7);
  EXPECT_EQ(parse_int_from_env("KEY", Environment()), std::nullopt);
  for (const char* text :
       {"", "4x", "x", "1.5", "99999999999999999999", "+-1", "1__0", "_1", "1_"}) {
    EXPECT_THROW(parse_int_from_env("KEY", with(text)), c10::ValueError) << text;
  }
  EXPECT_THAT(error_of([] { parse_int_from_env("KEY", with("4x")); }),
              HasSubstr("KEY=\"4x\" is not a whole number"));
}

TEST(EnvParsing, TakesTheFirstNumberThatIsNotNegative) {
  Environment environment;
  environment.set("NEGATIVE", "-3");
  environment.set("ZERO", "0");
  environment.set("FOUR", "4");
  EXPECT_EQ(get_int_from_env({"UNSET", "NEGATIVE", "ZERO", "FOUR"}, 7, environment), 0);
  EXPECT_EQ(get_int_from_env({"FOUR", "ZERO"}, 7, environment), 4);
  EXPECT_EQ(get_int_from_env({"UNSET", "NEGATIVE"}, 7, environment), 7);
  EXPECT_EQ(get_int_from_env({}, std::nullopt, environment), std::nullopt);
}

TEST(EnvParsing, WritesOnlyEntriesThatNeedNoQuotes) {
  EXPECT_THAT(convert_dict_to_env_variables({{"B", "2"},
                                             {"A", "x=y"},
                                             {"SPACE", "a b"},
                                             {"INJECTED", "1;reboot"},
                                             {"LINE", "1\nOTHER=2"},
                                             {"FILE", "<in"},
                                             {"OTHER_FILE", "a>out"},
                                             {"BAD KEY", "1"},
                                             {"EMPTY", ""},
                                             {"", "1"}}),
              ElementsAre("B=2\n", "A=x=y\n"));
}

}  // namespace
}  // namespace accelerate
