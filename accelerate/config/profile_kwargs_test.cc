#include "accelerate/config/profile_kwargs.h"

#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const ProfileKwargs& kwargs) {
  try {
    check(kwargs);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(ProfileKwargs, RecordsTheLeastByDefault) {
  const ProfileKwargs kwargs;
  EXPECT_TRUE(kwargs.activities.empty());
  EXPECT_FALSE(kwargs.schedule_option);
  EXPECT_FALSE(kwargs.on_trace_ready);
  EXPECT_FALSE(kwargs.record_shapes || kwargs.profile_memory || kwargs.with_stack ||
               kwargs.with_flops || kwargs.with_modules);
  EXPECT_FALSE(kwargs.output_trace_dir);
  EXPECT_EQ(error_of(kwargs), "");
}

TEST(ProfileKwargs, ShowsItsFieldsUnderThePeersNames) {
  std::vector<std::string> names;
  visit_fields(ProfileKwargs(), [&](const char* name, const auto&) { names.push_back(name); });
  EXPECT_THAT(names, testing::ElementsAre("activities", "schedule_option", "on_trace_ready",
                                          "record_shapes", "profile_memory", "with_stack",
                                          "with_flops", "with_modules", "output_trace_dir"));
}

TEST(ProfileKwargs, TellsWhetherThereIsACallback) {
  auto has_callback = [](const ProfileKwargs& kwargs) {
    bool found = false;
    visit_fields(kwargs, [&](std::string_view name, const auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, bool>) {
        if (name == "on_trace_ready") found = value;
      }
    });
    return found;
  };
  EXPECT_FALSE(has_callback({}));
  EXPECT_TRUE(has_callback({.on_trace_ready = [](Profiler&) {}}));
}

TEST(ProfileKwargs, KnowsFiveActivities) {
  EXPECT_EQ(error_of({.activities = {"cpu", "cuda", "hpu", "mtia", "xpu"}}), "");
  EXPECT_THAT(error_of({.activities = {"cpu", "tpu"}}),
              AllOf(HasSubstr("\"tpu\""), HasSubstr("cpu, cuda, hpu, mtia, xpu")));
  EXPECT_THAT(error_of({.activities = {"CPU"}}), HasSubstr("\"CPU\""));
}

TEST(ProfileKwargs, NamesTheWrongNumberOfASchedule) {
  EXPECT_EQ(error_of({.schedule_option = ProfileSchedule{.active = 1}}), "");
  EXPECT_THAT(error_of({.schedule_option = ProfileSchedule{}}), HasSubstr("active=0"));
  EXPECT_THAT(error_of({.schedule_option = ProfileSchedule{.active = -1}}), HasSubstr("active=-1"));
  EXPECT_THAT(error_of({.schedule_option = ProfileSchedule{.skip_first = -1, .active = 1}}),
              HasSubstr("skip_first=-1"));
  EXPECT_THAT(error_of({.schedule_option = ProfileSchedule{.wait = -2, .active = 1}}),
              HasSubstr("wait=-2"));
  EXPECT_THAT(error_of({.schedule_option = ProfileSchedule{.warmup = -3, .active = 1}}),
              HasSubstr("warmup=-3"));
  EXPECT_THAT(error_of({.schedule_option = ProfileSchedule{.active = 1, .repeat = -4}}),
              HasSubstr("repeat=-4"));
}

}  // namespace
}  // namespace accelerate
