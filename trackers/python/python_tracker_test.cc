#include "trackers/python/python_tracker.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/tracking/tracker.h"
#include "trackers/testing/fake_package.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr char kTracker[] = R"python(
import recorder
class Small:
    def __init__(self, *args, **kwargs): recorder.note(f"made {args} {kwargs}")
    def store_init_configuration(self, values): recorder.note(f"config {values}")
    def log(self, values, step=None, **kwargs): recorder.note(f"log {values} {step} {kwargs}")
class Large(Small):
    def start(self): recorder.note("start")
    def log_images(self, values, step=None):
        recorder.note(f"images {[(name, len(of)) for name, of in values.items()]} {step}")
    def log_table(self, table_name, columns=None, data=None, step=None):
        recorder.note(f"table {table_name} {columns} {data} {step}")
    def finish(self): recorder.note("finish")
)python";

TEST(PythonTrackerTest, CallsAClassOfAModule) {
  FakePackages fake;
  fake.add("mine", kTracker);
  const TrackerClass made = python_tracker("large", {.module = "mine", .class_name = "Large"});
  EXPECT_EQ(made.unavailable(fake.services()), "");
  const auto tracker = made.tracker(fake.setup({{"color", "red"}}));
  tracker->start();
  tracker->store_init_configuration({{"lr", 0.1}});
  tracker->log({{"loss", 0.5}}, {.step = 7, .kwargs = {{"epoch", 1}}});
  const TrackerImage image = {.height = 1, .width = 1, .channels = 1, .pixels = {1}};
  tracker->log_images({{"img", {image, image}}, {"one", {image}}}, {.step = 8});
  tracker->log_table("rows", {.columns = {"a"}, .rows = {{1}}}, {});
  tracker->flush();
  tracker->finish();
  EXPECT_THAT(fake.calls(),
              ElementsAre("made ('run',) {'color': 'red'}", "start", "config {'lr': 0.1}",
                          "log {'loss': 0.5} 7 {'epoch': 1}", "images [('img', 2), ('one', 1)] 8",
                          "table rows ['a'] [[1]] None", "finish"));
}

TEST(PythonTrackerTest, CallsAClassOfAFile) {
  FakePackages fake;
  fake.add("my-trackers", kTracker);
  const TrackerClass made = python_tracker("small", {.module = fake.path("my-trackers.py"),
                                                     .class_name = "Small",
                                                     .requires_logging_directory = true});
  EXPECT_TRUE(*made.requires_logging_directory);
  const auto tracker = made.tracker(fake.setup());
  tracker->start();
  tracker->log({{"a", 1}}, {});
  tracker->finish();
  EXPECT_THAT(fake.calls(), ElementsAre("made ('run', 'logs') {}", "log {'a': 1} None {}"));
}

TEST(PythonTrackerTest, SaysWhatIsMissing) {
  FakePackages fake;
  fake.add("mine", kTracker);
  const TrackerClass made = python_tracker("small", {.module = "mine", .class_name = "Small"});
  const auto tracker = made.tracker(fake.setup());
  tracker->start();
  tracker->log_table("rows", {}, {});
  EXPECT_THAT([&] { tracker->finish(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("no attribute 'log_table'")));

  const auto no_file = python_tracker("x", {.module = fake.path("none.py"), .class_name = "X"})
                           .tracker(fake.setup());
  // The call that makes the instance may tell what happened to the file.
  EXPECT_THAT(
      [&] {
        no_file->start();
        no_file->flush();
      },
      ThrowsMessage<std::runtime_error>(HasSubstr("FileNotFoundError")));

  EXPECT_THROW(python_tracker("x", {.module = "mine"}).tracker(fake.setup()),
               std::invalid_argument);
}

TEST(PythonTrackerTest, MayBeForTheMainProcessAlone) {
  PythonTrackerOptions options = {.module = "mine", .class_name = "Small"};
  EXPECT_EQ(python_tracker("small", options).main_process_only, true);
  options.main_process_only = false;
  EXPECT_EQ(python_tracker("small", options).main_process_only, false);
}

TEST(PythonTrackerTest, AVariableNamesTheOneOfProgramsThatKnowNone) {
  FakePackages fake;
  fake.add("mine", kTracker);
  const TrackerClass* python = TrackerRegistry::linked().find("python");
  ASSERT_NE(python, nullptr);
  for (const char* wrong : {"", "mine", ":Small", "mine:"}) {
    fake.environment().set("ACCELERATE_PYTHON_TRACKER", wrong);
    EXPECT_THAT(python->unavailable(fake.services()), HasSubstr("ACCELERATE_PYTHON_TRACKER"));
  }
  fake.environment().set("ACCELERATE_PYTHON_TRACKER", "mine:Small");
  EXPECT_EQ(python->unavailable(fake.services()), "");
  const auto tracker = python->tracker(fake.setup());
  tracker->start();
  tracker->finish();
  EXPECT_THAT(fake.calls(), ElementsAre("made ('run',) {}"));
}

}  // namespace
}  // namespace accelerate::trackers
