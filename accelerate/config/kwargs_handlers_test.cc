#include "accelerate/config/kwargs_handlers.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "accelerate/base/enums.h"
#include "accelerate/platform/environment.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

struct Inner {
  int64_t steps = 1;
};
ACCELERATE_FIELDS(Inner, steps)

struct Everything {
  bool flag = false;
  int64_t count = 3;
  double factor = 0.5;
  std::string text = "a";
  PrecisionType precision = PrecisionType::kNo;
  absl::Duration time = absl::Milliseconds(1500);
  std::optional<int64_t> absent = std::nullopt;
  std::optional<RNGType> type = RNGType::kTorch;
  std::vector<PrecisionType> list = {PrecisionType::kFp8, PrecisionType::kBf16};
  std::map<std::string, double> map = {{"x", 1}};
  std::function<void()> callback = nullptr;
  Inner inner = {};
};
ACCELERATE_FIELDS(Everything, flag, count, factor, text, precision, time, absent, type, list, map,
                  callback, inner)

TEST(ToDict, WritesEveryKindOfFieldInOrder) {
  EXPECT_EQ(to_dict(Everything()).dump(),
            R"({"flag":false,"count":3,"factor":0.5,"text":"a","precision":"no","time":1.5,)"
            R"("absent":null,"type":"torch","list":["fp8","bf16"],"map":{"x":1.0},)"
            R"("inner":{"steps":1}})");
}

TEST(ToKwargs, GivesTheFieldsThatDifferFromTheDefault) {
  EXPECT_EQ(to_kwargs(Everything()).dump(), "{}");
  EXPECT_EQ(
      to_kwargs(Everything{.count = 3, .text = "b", .type = std::nullopt, .inner = {2}}).dump(),
      R"({"text":"b","type":null,"inner":{"steps":2}})");
}

TEST(ToKwargs, KnowsTheHandlers) {
  EXPECT_EQ(to_kwargs(DistributedDataParallelKwargs{}), Json::object());
  EXPECT_EQ(
      to_kwargs(DistributedDataParallelKwargs{.bucket_cap_mb = 10, .find_unused_parameters = true}),
      (Json{{"bucket_cap_mb", 10.0}, {"find_unused_parameters", true}}));
  EXPECT_EQ(to_kwargs(InitProcessGroupKwargs{.timeout = absl::Seconds(800)}),
            (Json{{"timeout", 800.0}}));
  EXPECT_EQ(to_kwargs(GradientAccumulationPlugin{.num_steps = 2, .sync_each_batch = true}),
            (Json{{"num_steps", 2}, {"sync_each_batch", true}}));
  EXPECT_EQ(to_kwargs(GradientAccumulationPlugin{.num_steps = 2, .adjust_scheduler = false}),
            (Json{{"num_steps", 2}, {"adjust_scheduler", false}}));
}

TEST(InitProcessGroupKwargs, WaitsAsLongAsIsUsualForItsBackend) {
  EXPECT_EQ(InitProcessGroupKwargs{}.effective_timeout(), absl::Minutes(30));
  EXPECT_EQ(InitProcessGroupKwargs{.backend = "gloo"}.effective_timeout(), absl::Minutes(30));
  EXPECT_EQ(InitProcessGroupKwargs{.backend = "nccl"}.effective_timeout(), absl::Minutes(10));
  EXPECT_EQ(
      (InitProcessGroupKwargs{.backend = "nccl", .timeout = absl::Seconds(5)}).effective_timeout(),
      absl::Seconds(5));
}

// The error of check_init_method.
std::string init_error(const std::string& init_method, const Environment& environment) {
  try {
    check_init_method({.init_method = init_method}, environment);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(InitProcessGroupKwargs, OnlyRepeatsHowRanksMeet) {
  Environment environment;
  environment.unset(env::kMasterAddr);
  environment.unset(env::kMasterPort);
  EXPECT_EQ(init_error("env://", environment), "");
  EXPECT_EQ(init_error("tcp://10.0.0.1:29500", environment), "");
  EXPECT_THAT(init_error("file:///tmp/x", environment),
              AllOf(HasSubstr("\"file:///tmp/x\""), HasSubstr("env://")));
  environment.set(env::kMasterAddr, "10.0.0.1");
  environment.set(env::kMasterPort, "29500");
  check_init_method({}, environment);
  EXPECT_EQ(init_error("env://", environment), "");
  EXPECT_EQ(init_error("tcp://10.0.0.1:29500", environment), "");
  EXPECT_THAT(init_error("tcp://10.0.0.2:29500", environment),
              HasSubstr("(\"tcp://10.0.0.1:29500\")"));
  // An IPv6 address has brackets where a port follows.
  environment.set(env::kMasterAddr, "fe80::1%eth0");
  EXPECT_EQ(init_error("tcp://[fe80::1%eth0]:29500", environment), "");
  EXPECT_THAT(init_error("tcp://fe80::1%eth0:29500", environment),
              HasSubstr("(\"tcp://[fe80::1%eth0]:29500\")"));
}

TEST(KwargsHandlers, TakeOneOfEachClass) {
  const auto handlers =
      KwargsHandlers::from_list({InitProcessGroupKwargs{.backend = "gloo"},
                                 DistributedDataParallelKwargs{.bucket_cap_mb = 1}});
  EXPECT_EQ(handlers.ddp.bucket_cap_mb, 1);
  EXPECT_EQ(handlers.init->backend, "gloo");
  EXPECT_THROW(
      KwargsHandlers::from_list({DistributedDataParallelKwargs{}, DistributedDataParallelKwargs{}}),
      c10::ValueError);
}

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
