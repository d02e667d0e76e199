// A rank in a process of its own, profiled by LibTorch.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "accelerate/platform/host_files.h"
#include "accelerate/process/real_runtime.h"
#include "integration_tests/profile/training.h"

namespace accelerate {
namespace {

using ::accelerate::testing::fresh_folder;
using ::accelerate::testing::modules_of;
using ::accelerate::testing::names_of;
using ::accelerate::testing::read_text;
using ::accelerate::testing::trace_events;
using ::accelerate::testing::Training;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class RealProfile : public ::testing::Test {
 protected:
  std::unique_ptr<RealRuntime> runtime_ = *RealRuntime::from_environment(Environment());
  RuntimeScope scope_{*runtime_};
  Training training_;

  std::string error_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  }
};

TEST_F(RealProfile, SeesForwardBackwardAndOptimizer) {
  Profiler profiler(training_.state());
  training_.step();
  profiler.end();
  EXPECT_THAT(
      names_of(profiler.events()),
      AllOf(Contains("aten::addmm"), Contains("AddmmBackward0"), Contains("aten::addcdiv_")));
  const EventAverages averages = profiler.key_averages();
  for (const EventAverage& row : averages) {
    EXPECT_LE(row.self_cpu_time_total, row.cpu_time_total) << row.key;
    EXPECT_EQ(row.flops + row.cpu_memory_usage, 0) << row.key;
    if (row.key == "aten::addmm") {
      EXPECT_EQ(row.count, 2);
      EXPECT_GT(row.self_cpu_time_total, 0);
      EXPECT_GT(row.cpu_time_total, row.self_cpu_time_total);
    }
  }
  for (const ProfileEvent& event : profiler.events()) {
    EXPECT_TRUE(event.shapes.empty() && event.stack.empty() && event.module.empty()) << event.name;
  }
  const std::string table = averages.table({.sort_by = "self_cpu_time_total"});
  EXPECT_THAT(table, AllOf(HasSubstr("aten::addmm"), HasSubstr("# of Calls"),
                           HasSubstr("Self CPU time total: "), Not(HasSubstr("Mem"))));
}

TEST_F(RealProfile, FillsEveryColumnAskedFor) {
  const std::string folder = fresh_folder("real_columns");
  Profiler profiler(training_.state(),
                    {.activities = {"cpu"},
                     .record_shapes = true,
                     .profile_memory = true,
                     .with_stack = true,
                     .with_flops = true,
                     .with_modules = true,
                     .output_trace_dir = folder},
                    training_.modules());
  training_.step();
  profiler.end();
  const EventAverages averages = profiler.key_averages({.group_by_input_shape = true});
  bool found = false;
  for (const EventAverage& row : averages) {
    if (row.key != "aten::addmm" || row.input_shapes[0] != std::vector<int64_t>{64}) continue;
    found = true;
    EXPECT_EQ(row.input_shapes[1], (std::vector<int64_t>{4, 32}));
    EXPECT_EQ(row.flops, 2 * 4 * 32 * 64);
    EXPECT_EQ(row.self_cpu_memory_usage, 4 * 64 * sizeof(float));
  }
  EXPECT_TRUE(found);
  EXPECT_THAT(averages.table(), AllOf(HasSubstr("CPU Mem"), HasSubstr("Input Shapes"),
                                      HasSubstr("FLOPs"), HasSubstr("[4, 32]")));
  EXPECT_THAT(modules_of(profiler.events(), "aten::addmm"), ElementsAre("fc1", "fc2"));
  EXPECT_THAT(modules_of(profiler.events(), "AddmmBackward0"), ElementsAre("fc1", "fc2"));
  EXPECT_THAT(modules_of(profiler.events(), "aten::relu"), ElementsAre(""));

  const auto trace = trace_events(read_text(folder + "/profile_0.json"));
  EXPECT_EQ(trace.at("process_name")[0]["args"]["name"], "rank 0 of 1");
  const nlohmann::json arguments = trace.at("aten::addmm")[0]["args"];
  EXPECT_EQ(arguments["Module Hierarchy"], "fc1");
  EXPECT_EQ(arguments["Input Dims"][1], nlohmann::json({4, 32}));
  EXPECT_THAT(std::string(arguments["Call stack"]),
              AllOf(HasSubstr("NetImpl::forward"), HasSubstr("TestBody"), Not(HasSubstr("c10::"))));
  EXPECT_GE(trace.at("[memory]").size(), 2);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST_F(RealProfile, FollowsItsSchedule) {
  std::vector<int64_t> steps;
  std::vector<std::set<std::string>> names;
  Profiler profiler(
      training_.state(),
      {.schedule_option =
           ProfileSchedule{.skip_first = 1, .wait = 1, .warmup = 1, .active = 2, .repeat = 2},
       .on_trace_ready = [&](Profiler& ready) {
         steps.push_back(ready.step_num());
         names.push_back(names_of(ready.events()));
       }});
  for (int i = 0; i < 12; ++i) {
    training_.step();
    profiler.step();
  }
  profiler.end();
  EXPECT_THAT(steps, ElementsAre(5, 9));
  EXPECT_THAT(names[0], AllOf(Contains("ProfilerStep#3"), Contains("ProfilerStep#4"),
                              Not(Contains("ProfilerStep#2")), Not(Contains("ProfilerStep#5"))));
  EXPECT_THAT(names[1], AllOf(Contains("ProfilerStep#7"), Contains("ProfilerStep#8")));
  EXPECT_EQ(profiler.step_num(), 12);
  EXPECT_EQ(profiler.current_action(), ProfileAction::kNone);
}

TEST_F(RealProfile, HandsOverACycleThatTheEndCutsShort) {
  int calls = 0;
  {
    Profiler profiler(
        training_.state(),
        {.schedule_option = ProfileSchedule{.active = 3}, .on_trace_ready = [&](Profiler& ready) {
           ++calls;
           EXPECT_THAT(names_of(ready.events()), Contains("aten::addmm"));
         }});
    training_.step();
    profiler.step();
  }
  EXPECT_EQ(calls, 1);
}

TEST_F(RealProfile, WritesATraceOfNothing) {
  const std::string folder = fresh_folder("real_nothing");
  int calls = 0;
  {
    Profiler profiler(training_.state(),
                      {.schedule_option = ProfileSchedule{.wait = 5, .active = 1},
                       .on_trace_ready = [&](Profiler&) { ++calls; },
                       .output_trace_dir = folder});
    EXPECT_TRUE(profiler.events().empty());
  }
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(trace_events(read_text(folder + "/profile_0.json")).contains("aten::addmm"));
  {  // Warmed up, but over before its first recorded step.
    Profiler profiler(training_.state(),
                      {.schedule_option = ProfileSchedule{.warmup = 5, .active = 1}});
    training_.step();
  }
  EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
  Profiler again(training_.state());
  again.end();
}

TEST_F(RealProfile, EndsWithAnException) {
  const std::string folder = fresh_folder("real_exception");
  EXPECT_THROW(
      {
        Profiler profiler(training_.state(), {.output_trace_dir = folder});
        training_.step();
        throw std::runtime_error("the loop's own");
      },
      std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
  Profiler profiler(training_.state());
  training_.step();
  profiler.end();
  EXPECT_THAT(names_of(profiler.events()), Contains("aten::addmm"));
}

TEST_F(RealProfile, OutlivesAFailingCallback) {
  Profiler profiler(training_.state(),
                    {.schedule_option = ProfileSchedule{.active = 1},
                     .on_trace_ready = [](Profiler&) { throw std::runtime_error("callback"); }});
  training_.step();
  EXPECT_THROW(profiler.step(), std::runtime_error);
  EXPECT_THAT(names_of(profiler.events()), Contains("aten::addmm"));
  profiler.end();
}

TEST_F(RealProfile, RefusesASecondProfiler) {
  {
    Profiler profiler(training_.state());
    EXPECT_THAT(error_of([&] { Profiler second(training_.state()); }),
                HasSubstr("rank 0 is being profiled already"));
    training_.step();
    profiler.end();
    EXPECT_THAT(names_of(profiler.events()), Contains("aten::addmm"));
  }
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> cpu = {
      torch::profiler::impl::ActivityType::CPU};
  torch::autograd::profiler::prepareProfiler(config, cpu);
  torch::autograd::profiler::enableProfiler(config, cpu);
  EXPECT_THAT(error_of([&] { Profiler second(training_.state()); }),
              HasSubstr("LibTorch's profiler, of which a process has one"));
  training_.step();
  EXPECT_GT(torch::autograd::profiler::disableProfiler()->events().size(), 0);
  Profiler profiler(training_.state());
}

TEST_F(RealProfile, SaysWhatItCannotWrite) {
  const std::string folder = fresh_folder("real_unwritable");
  std::ofstream(folder) << "a file";
  const std::string error = error_of([&] {
    Profiler profiler(training_.state(), {.output_trace_dir = folder});
    training_.step();
  });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 0 cannot write its trace"),
                           HasSubstr(folder + "/profile_0.json")));
  // A disk without space.
  Profiler profiler(training_.state());
  training_.step();
  profiler.end();
  std::filesystem::create_directories(fresh_folder("real_full"));
  const std::string full = fresh_folder("real_full") + "/trace.json";
  std::filesystem::create_directories(std::filesystem::path(full).parent_path());
  std::filesystem::create_symlink("/dev/full", HostFiles().temporary_name(full));
  EXPECT_THAT(error_of([&] { profiler.export_chrome_trace(full); }),
              AllOf(HasSubstr("No space left"), HasSubstr(full)));
  EXPECT_FALSE(std::filesystem::exists(full));
  // LibTorch returns a trace once; the exported trace can be written again.
  const std::string good = fresh_folder("real_good") + "/trace.json";
  profiler.export_chrome_trace(good);
  profiler.export_chrome_trace(good);
  EXPECT_TRUE(trace_events(read_text(good)).contains("aten::addmm"));
}

TEST_F(RealProfile, RejectsBadOptions) {
  EXPECT_THROW(Profiler(training_.state(), {.activities = {"tpu"}}), c10::ValueError);
  EXPECT_THROW(Profiler(training_.state(), {.schedule_option = ProfileSchedule{.wait = 1}}),
               c10::ValueError);
  Profiler profiler(training_.state());
  profiler.end();
  EXPECT_THAT(error_of([&] { profiler.step(); }), HasSubstr("after its end"));
}

}  // namespace
}  // namespace accelerate
