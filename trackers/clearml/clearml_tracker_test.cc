#include "trackers/clearml/clearml_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trackers/testing/fake_package.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Task.current_task as it really answers: None before Task.init.
constexpr char kClearMl[] = R"python(
import recorder
class Task:
    current = EXISTING
    @classmethod
    def current_task(cls): return cls.current
    @classmethod
    def init(cls, **kwargs):
        recorder.note(f"init({kwargs})")
        cls.current = recorder.Recorder("task")
        return cls.current
)python";

std::string clearml_with(const std::string& existing) {
  std::string text = kClearMl;
  return text.replace(text.find("EXISTING"), 8, existing);
}

TEST(ClearMlTrackerTest, MakesATaskAndClosesIt) {
  FakePackages fake;
  fake.add("clearml", clearml_with("None"));
  const auto tracker = make_clearml_tracker(fake.setup({{"tags", TrackerList{"a"}}}));
  tracker->start();
  tracker->store_init_configuration({{"lr", 0.1}});
  tracker->log({{"train_loss", 1.0}, {"eval_x", 2}, {"test_", 3}, {"trainer", 4}}, {.step = 1});
  tracker->log({{"best", 5}}, {});
  tracker->log_table("eval_rows", {.columns = {"a"}, .rows = {{1}, {2}}}, {.step = 3});
  tracker->flush();
  tracker->finish();
  EXPECT_THAT(
      fake.calls(),
      ElementsAre(
          "init({'project_name': 'run', 'task_name': 'run', 'tags': ['a']})",
          "task.connect_configuration({'lr': 0.1})", "task.get_logger()",
          "task.get_logger().report_scalar(title='loss', series='train', iteration=1, value=1.0)",
          "task.get_logger().report_scalar(title='x', series='eval', iteration=1, value=2)",
          "task.get_logger().report_scalar(title='', series='test', iteration=1, value=3)",
          "task.get_logger().report_scalar(title='trainer', series='train', iteration=1, value=4)",
          "task.get_logger()", "task.get_logger().report_single_value(name='best', value=5)",
          "task.get_logger()",
          "task.get_logger().report_table(title='rows', series='eval', iteration=3, "
          "table_plot=[['a'], [1], [2]])",
          "task.close()"));
  EXPECT_THAT(fake.said(), IsEmpty());
}

TEST(ClearMlTrackerTest, LeavesATaskThatIsThereOpen) {
  FakePackages fake;
  fake.add("clearml", clearml_with("recorder.Recorder('agent')"));
  const auto tracker = make_clearml_tracker(fake.setup());
  tracker->start();
  tracker->log({{"a", 1}}, {});
  tracker->finish();
  EXPECT_THAT(fake.calls(),
              ElementsAre("agent.get_logger()",
                          "agent.get_logger().report_single_value(name='a', value=1)"));
}

TEST(ClearMlTrackerTest, VariablesNameProjectAndTask) {
  FakePackages fake;
  fake.add("clearml", clearml_with("None"));
  fake.environment().set("CLEARML_PROJECT", "p");
  fake.environment().set("CLEARML_TASK", "t");
  const auto tracker = make_clearml_tracker(fake.setup());
  tracker->start();
  tracker->finish();
  EXPECT_THAT(fake.calls(),
              ElementsAre("init({'project_name': 'p', 'task_name': 't'})", "task.close()"));
}

TEST(ClearMlTrackerTest, WarnsOfWhatIsNoNumber) {
  FakePackages fake;
  fake.add_recorder("clearml");
  const auto tracker = make_clearml_tracker(fake.setup());
  tracker->start();
  tracker->log({{"t", TensorValue{{}, "int64", {3}}}, {"s", "x"}, {"empty", TrackerList{}}}, {});
  tracker->log({{"api_key", "abcdef"}}, {});
  // A second value of a name gets no second warning.
  tracker->log({{"t", TensorValue{{}, "int64", {4}}}}, {});
  tracker->finish();
  const auto dropped = [](const std::string& value, const std::string& type,
                          const std::string& key) {
    return "warning: Accelerator is attempting to log a value of \"" + value +
           "\" of type <class '" + type + "'> for key \"" + key +
           "\" as a scalar. This invocation of ClearML logger's  report_scalar() is incorrect so "
           "we dropped this attribute.";
  };
  EXPECT_THAT(fake.said(),
              ElementsAre(dropped("3", "torch.Tensor", "t"), dropped("x", "str", "s"),
                          dropped("[]", "list", "empty"), dropped("***", "str", "api_key")));
}

TEST(ClearMlTrackerTest, SeveralImagesAreSeveralSeries) {
  FakePackages fake;
  fake.add("clearml", R"python(
import recorder
class Task:
    @classmethod
    def current_task(cls): return cls
    @classmethod
    def get_logger(cls): return cls
    @classmethod
    def report_image(cls, title, series, iteration, image):
        recorder.note(f"{title} {series} {iteration} {image[-4:]}")
)python");
  const auto tracker = make_clearml_tracker(fake.setup());
  tracker->start();
  const TrackerImage image{.height = 1, .width = 1, .channels = 1, .pixels = {1}};
  tracker->log_images({{"eval_img", {image}}, {"more", {image, image}}}, {.step = 2});
  tracker->finish();
  EXPECT_THAT(fake.calls(),
              ElementsAre("img eval 2 .png", "more train/0 2 .png", "more train/1 2 .png"));
}

}  // namespace
}  // namespace accelerate::trackers
