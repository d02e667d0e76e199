#include "trackers/comet_ml/comet_ml_tracker.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trackers/testing/fake_package.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(CometMlTrackerTest, CallsThePackage) {
  FakePackages fake;
  fake.add_recorder("comet_ml");
  const auto tracker = make_comet_ml_tracker(fake.setup({{"online", false}}));
  tracker->start();
  tracker->store_init_configuration({{"lr", 0.1}, {"model", {{"layers", 2}}}});
  tracker->log({{"loss", 0.5},
                {"flag", true},
                {"note", "hello"},
                {"both", {{"a", 1}, {"b", 2}}},
                {"list", TrackerList{1}},
                {"none", TrackerValue()}},
               {.step = 7});
  tracker->log({{"loss", 0.25}, {"note", "x"}}, {.kwargs = {{"epoch", 2}}});
  tracker->log_table("rows", {.columns = {"a", "b"}, .rows = {{1, "x"}, {2, "y"}}}, {.step = 8});
  tracker->log_histograms({{"weights", TensorValue{{2}, "float32", {1, 2}}}}, {.step = 9});
  tracker->flush();
  tracker->finish();
  EXPECT_THAT(
      fake.calls(),
      ElementsAre(
          "comet_ml.start(project_name='run', online=False)",
          "comet_ml.start().log_parameters({'lr': 0.1, 'model': {'layers': 2}})",
          "comet_ml.start().set_step(7)", "comet_ml.start().log_metric('loss', 0.5, step=7)",
          "comet_ml.start().log_metric('flag', True, step=7)",
          "comet_ml.start().log_other('note', 'hello')",
          "comet_ml.start().log_metrics({'a': 1, 'b': 2}, step=7)",
          "comet_ml.start().log_metric('loss', 0.25, epoch=2, step=None)",
          "comet_ml.start().log_other('note', 'x', epoch=2)", "comet_ml.start().set_step(8)",
          "comet_ml.start().log_table('rows.csv', tabular_data=[[1, 'x'], [2, 'y']], "
          "headers=['a', 'b'])",
          "comet_ml.start().log_histogram_3d([1.0, 2.0], step=9, name='weights')",
          "comet_ml.start().end()"));
}

TEST(CometMlTrackerTest, GivesImagesOneByOne) {
  FakePackages fake;
  fake.add("comet_ml", R"python(
import recorder
class Experiment:
    def set_step(self, step): pass
    def log_image(self, data, name, step): recorder.note(f"{data[-4:]} {name} {step}")
    def end(self): recorder.note("end")
def start(project_name): return Experiment()
)python");
  const auto tracker = make_comet_ml_tracker(fake.setup());
  tracker->start();
  const TrackerImage image{.height = 1, .width = 1, .channels = 3, .pixels = {1, 2, 3}};
  tracker->log_images({{"img", {image, image}}}, {.step = 2});
  tracker->finish();
  EXPECT_THAT(fake.calls(), ElementsAre(".png img 2", ".png img 2", "end"));
}

TEST(CometMlTrackerTest, SaysWhyItCannotStart) {
  FakePackages fake;
  fake.add("comet_ml", "def start(project_name): raise ValueError('no API key')\n");
  const auto tracker = make_comet_ml_tracker(fake.setup());
  tracker->start();
  EXPECT_THAT([&] { tracker->flush(); },
              ThrowsMessage<std::runtime_error>("comet_ml: comet_ml.start raised ValueError: no "
                                                "API key"));
  EXPECT_THAT([&] { tracker->finish(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("comet_ml.start() has not succeeded")));
}

TEST(CometMlTrackerTest, OneThatWasNeverStartedEnds) {
  FakePackages fake;
  fake.environment().set("ACCELERATE_PYTHON", "/no/such/python");
  const auto tracker = make_comet_ml_tracker(fake.setup());
  EXPECT_THAT([&] { tracker->start(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("/no/such/python")));
  EXPECT_THAT([&] { tracker->finish(); }, ThrowsMessage<std::runtime_error>(HasSubstr("started")));
}

}  // namespace
}  // namespace accelerate::trackers
