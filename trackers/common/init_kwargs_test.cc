#include "trackers/common/init_kwargs.h"

#include <functional>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;

std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(InitKwargsTest, ReadsEachType) {
  const TrackerDict values{{"flag", true},
                           {"count", 3},
                           {"rate", 0.5},
                           {"whole", 2},
                           {"name", "run"},
                           {"tags", TrackerList{"a", "b"}},
                           {"tag", "a"},
                           {"settings", {{"x", 1}}},
                           {"nothing", std::nullopt}};
  InitKwargs kwargs("csv", values);
  EXPECT_EQ(kwargs.boolean("flag"), true);
  EXPECT_EQ(kwargs.integer("count"), 3);
  EXPECT_EQ(kwargs.number("rate"), 0.5);
  EXPECT_EQ(kwargs.number("whole"), 2.0);
  EXPECT_EQ(kwargs.text("name"), "run");
  EXPECT_THAT(kwargs.texts("tags").value(), ElementsAre("a", "b"));
  EXPECT_THAT(kwargs.texts("tag").value(), ElementsAre("a"));
  EXPECT_EQ(kwargs.texts("tags")->size(), 2u);
  EXPECT_EQ(kwargs.dict("settings"), (TrackerDict{{"x", 1}}));
  EXPECT_EQ(kwargs.any("count"), TrackerValue(3));
  EXPECT_EQ(kwargs.text("nothing"), std::nullopt);
  EXPECT_EQ(kwargs.text("absent"), std::nullopt);
  EXPECT_EQ(kwargs.any("nothing"), std::nullopt);
  kwargs.finish();
}

TEST(InitKwargsTest, TheLastOfTwoCounts) {
  const TrackerDict values{{"count", 3}, {"count", 4}};
  EXPECT_EQ(InitKwargs("csv", values).integer("count"), 4);
}

TEST(InitKwargsTest, RefusesAWrongType) {
  const TrackerDict values{
      {"count", "three"}, {"flag", 1}, {"truth", true}, {"tags", TrackerList{"a", 1}}};
  EXPECT_EQ(error_of([&] { InitKwargs("csv", values).integer("count"); }),
            "tracker csv: `count` in its init_kwargs must be a whole number, not \"three\" of type "
            "str");
  EXPECT_EQ(error_of([&] { InitKwargs("csv", values).boolean("flag"); }),
            "tracker csv: `flag` in its init_kwargs must be True or False, not 1 of type int");
  EXPECT_EQ(error_of([&] { InitKwargs("csv", values).number("truth"); }),
            "tracker csv: `truth` in its init_kwargs must be a number, not True of type bool");
  EXPECT_EQ(
      error_of([&] { InitKwargs("csv", values).integer("truth"); }),
      "tracker csv: `truth` in its init_kwargs must be a whole number, not True of type bool");
  EXPECT_EQ(error_of([&] { InitKwargs("csv", values).texts("tags"); }),
            "tracker csv: `tags` in its init_kwargs must be a list of texts, not ['a', 1] of type "
            "list");
}

TEST(InitKwargsTest, RefusesUnknownNames) {
  const TrackerDict values{{"dir", "a"}, {"dri", "b"}};
  InitKwargs kwargs("csv", values);
  EXPECT_EQ(kwargs.text("dir"), "a");
  kwargs.boolean("resume");
  EXPECT_EQ(error_of([&] { kwargs.finish(); }),
            "tracker csv: `dri` in its init_kwargs is not known; it knows dir, resume");
  const TrackerDict one{{"x", std::nullopt}};
  EXPECT_EQ(error_of([&] { InitKwargs("csv", one).finish(); }),
            "tracker csv: `x` in its init_kwargs is not known; it knows none");
}

TEST(InitKwargsTest, ShowsNoSecretsAndNoNovels) {
  const TrackerDict values{{"api_key", TrackerList{"hunter2"}}, {"text", std::string(500, 'x')}};
  EXPECT_EQ(error_of([&] { InitKwargs("csv", values).text("api_key"); }),
            "tracker csv: `api_key` in its init_kwargs must be a text, not a list");
  EXPECT_LT(error_of([&] { InitKwargs("csv", values).integer("text"); }).size(), 200u);
}

}  // namespace
}  // namespace accelerate::trackers
