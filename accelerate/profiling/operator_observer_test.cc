#include "accelerate/profiling/operator_observer.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using Kind = ProfileEvent::Kind;
using ::testing::Contains;
using ::testing::Not;

// A clock that goes on by a microsecond whenever it is looked at.
class TickingRuntime : public FakeRuntime {
 public:
  absl::Time now() override { return absl::FromUnixMicros(++ticks_); }
  void observe_device(std::function<void(const DeviceWork&)> observer) override {
    observer_ = std::move(observer);
  }

  std::function<void(const DeviceWork&)> observer_;

 private:
  int64_t ticks_ = 0;
};

std::vector<std::string> names(const std::vector<ProfileEvent>& events) {
  std::vector<std::string> names;
  for (const ProfileEvent& event : events) names.push_back(event.name);
  return names;
}

TEST(OperatorObserver, TellsTimeByTheRuntime) {
  TickingRuntime runtime;
  const at::Tensor a = at::ones({2, 3});
  const at::Tensor b = at::ones({3, 4});
  OperatorObserver observer(runtime, {.shapes = true, .flops = true});
  at::mm(a, b);
  const std::vector<ProfileEvent> events = observer.finish();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events[0].name, "aten::mm");
  EXPECT_EQ(events[0].start_ns, 1'000);
  EXPECT_EQ(events[0].shapes, (std::vector<std::vector<int64_t>>{{2, 3}, {3, 4}}));
  EXPECT_EQ(events[0].flops, 2 * 2 * 3 * 4);
  EXPECT_EQ(events[0].end_ns, 2'000 * static_cast<int64_t>(events.size()));
  for (size_t i = 1; i < events.size(); ++i) EXPECT_EQ(events[i].parent, 0) << events[i].name;
}

TEST(OperatorObserver, SeesMemoryWithinItsOperator) {
  TickingRuntime runtime;
  OperatorObserver observer(runtime, {.memory = true});
  {
    const at::Tensor tensor = at::empty({100});
  }
  const std::vector<ProfileEvent> events = observer.finish();
  ASSERT_THAT(names(events), testing::ElementsAre("aten::empty", "[memory]", "[memory]"));
  EXPECT_EQ(events[1].bytes, 400);
  EXPECT_EQ(events[1].parent, 0);
  EXPECT_EQ(events[2].bytes, -400);
  EXPECT_FALSE(events[2].parent);
}

// Whether LibTorch tells of such a free depends on which addresses it remembers.
TEST(OperatorObserver, DoesNotSeeOlderMemoryFreed) {
  TickingRuntime runtime;
  c10::ProfiledCPUMemoryReporter& reporter = c10::profiledCPUMemoryReporter();
  int block = 0;
  {
    OperatorObserver observer(runtime, {.memory = true});
    reporter.New(&block, 8);
    EXPECT_THAT(names(observer.finish()), testing::ElementsAre("[memory]"));
  }
  OperatorObserver observer(runtime, {.memory = true});
  reporter.Delete(&block);
  EXPECT_THAT(names(observer.finish()), testing::IsEmpty());
}

TEST(OperatorObserver, SeesNothingAfterItsEnd) {
  TickingRuntime runtime;
  {
    OperatorObserver observer(runtime, {.device_work = true});
    EXPECT_TRUE(runtime.observer_);
    observer.finish();
    at::ones({2});
    EXPECT_TRUE(observer.finish().empty());
  }
  EXPECT_FALSE(runtime.observer_);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  OperatorObserver next(runtime, {});
  at::ones({2});
  EXPECT_THAT(names(next.finish()), Contains("aten::ones"));
}

TEST(OperatorObserver, EndsWhatIsOpenWhenItEnds) {
  TickingRuntime runtime;
  OperatorObserver observer(runtime, {});
  std::vector<ProfileEvent> events;
  {
    at::RecordFunction scope(at::RecordScope::USER_SCOPE);
    scope.before("epoch");
    at::ones({2});
    events = observer.finish();
  }
  EXPECT_EQ(events[0].name, "epoch");
  EXPECT_EQ(events[0].kind, Kind::kAnnotation);
  EXPECT_GT(events[0].end_ns, events.back().end_ns);
  EXPECT_EQ(events[1].parent, 0);
}

TEST(OperatorObserver, PutsDevicesLastInTheOrderOfTime) {
  TickingRuntime runtime;
  OperatorObserver observer(runtime, {.device_work = true});
  auto work = [](const char* name, int64_t start_us, bool from_operator) {
    return DeviceWork{.name = name,
                      .device = {c10::kPrivateUse1, 3},
                      .start = absl::FromUnixMicros(start_us),
                      .end = absl::FromUnixMicros(start_us + 1),
                      .from_operator = from_operator};
  };
  {
    at::RecordFunction scope(at::RecordScope::USER_SCOPE);
    scope.before("step");
    runtime.observer_(work("late", 9, true));
    runtime.observer_(work("all_reduce", 5, false));
  }
  const std::vector<ProfileEvent> events = observer.finish();
  EXPECT_THAT(names(events), testing::ElementsAre("step", "all_reduce", "late"));
  EXPECT_EQ(events[1].device_index, 3);
  EXPECT_FALSE(events[1].parent);
  EXPECT_EQ(events[2].parent, 0);
}

TEST(OperatorObserver, SpreadsModulesByParentAndSequenceNumber) {
  std::vector<ProfileEvent> events = {
      {.name = "linear", .sequence_nr = 4, .module = "fc1"},
      {.name = "t", .parent = 0, .sequence_nr = 4},
      {.name = "relu", .sequence_nr = 5},
      {.name = "ReluBackward0", .kind = Kind::kBackward, .sequence_nr = 5},
      {.name = "TBackward0", .kind = Kind::kBackward, .sequence_nr = 4},
      {.name = "mm", .parent = 4},
  };
  propagate_modules(events);
  std::vector<std::string> modules;
  for (const ProfileEvent& event : events) modules.push_back(event.module);
  EXPECT_THAT(modules, testing::ElementsAre("fc1", "fc1", "", "", "fc1", "fc1"));
}

[[gnu::noinline]] at::Tensor users_function() { return at::ones({2}).add(1); }

TEST(OperatorObserver, NamesTheUsersFunctions) {
  TickingRuntime runtime;
  OperatorObserver observer(runtime, {.stack = true});
  users_function();
  for (const ProfileEvent& event : observer.finish()) {
    std::string stack;
    for (const std::string& name : event.stack) stack += name + ";";
    EXPECT_THAT(stack, testing::AllOf(testing::HasSubstr("users_function"),
                                      testing::HasSubstr("main;"), Not(testing::HasSubstr("at::"))))
        << event.name;
  }
}

}  // namespace
}  // namespace accelerate
