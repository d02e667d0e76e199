#include "trackers/aim/aim_tracker.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trackers/testing/fake_package.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(AimTrackerTest, CallsThePackage) {
  FakePackages fake;
  fake.add_recorder("aim");
  const auto tracker = make_aim_tracker(fake.setup({{"experiment", "x"}}));
  tracker->start();
  tracker->store_init_configuration({{"lr", 0.1}, {"none", TrackerValue()}});
  tracker->log({{"loss", 0.5}, {"text", "x"}}, {.step = 7, .kwargs = {{"epoch", 1}}});
  tracker->log({{"loss", TensorValue{{}, "float32", {2.5}}}}, {});
  tracker->log_histograms({{"w", TensorValue{{2}, "float32", {1, 2}}}}, {.step = 8});
  tracker->flush();
  tracker->finish();
  EXPECT_THAT(
      fake.calls(),
      ElementsAre("aim.Run(repo='logs', experiment='x')", "aim.Run().name = 'run'",
                  "aim.Run()['hparams'] = {'lr': 0.1, 'none': None}",
                  "aim.Run().track(0.5, epoch=1, name='loss', step=7)",
                  "aim.Run().track('x', epoch=1, name='text', step=7)",
                  "aim.Run().track(2.5, name='loss', step=None)", "aim.Distribution([1.0, 2.0])",
                  "aim.Run().track(<aim.Distribution()>, name='w', step=8)", "aim.Run().close()"));
}

TEST(AimTrackerTest, MakesImagesOfItsOwn) {
  FakePackages fake;
  fake.add("aim", R"python(
import recorder
class Image:
    def __init__(self, data, caption, quality=90):
        self.text = f"Image({data[-4:]}, {caption!r}, {quality})"
    def __repr__(self): return self.text
def Run(repo): return recorder.Recorder("run")
)python");
  const auto tracker = make_aim_tracker(fake.setup());
  tracker->start();
  const TrackerImage image{.height = 1, .width = 1, .channels = 1, .pixels = {1}};
  tracker->log_images({{"one", {image}}, {"two", {image, image}}}, {.step = 2});
  tracker->log_images({{"one", {image}}},
                      {.kwargs = {{"kwargs",
                                   {{"aim_image", {{"caption", "c"}, {"quality", 5}}},
                                    {"track", {{"epoch", 3}}}}}}});
  tracker->finish();
  EXPECT_THAT(
      fake.calls(),
      ElementsAre("run.name = 'run'", "run.track(Image(.png, '', 90), name='one', step=2)",
                  "run.track([Image(.png, '', 90), Image(.png, '', 90)], name='two', "
                  "step=2)",
                  "run.track(Image(.png, 'c', 5), epoch=3, name='one', step=None)", "run.close()"));
}

TEST(AimTrackerTest, RefusalOfAValueLosesThatValueOnly) {
  FakePackages fake;
  fake.add("aim", R"python(
import recorder
class Run:
    def __init__(self, repo): pass
    def track(self, value, name, step):
        if not isinstance(value, (int, float)): raise TypeError(f"cannot track {value!r}")
        recorder.note(name)
    def close(self): pass
)python");
  const auto tracker = make_aim_tracker(fake.setup());
  tracker->start();
  tracker->log({{"a", "x"}}, {});
  EXPECT_THAT([&] { tracker->flush(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("TypeError: cannot track 'x'")));
  tracker->log({{"b", 1}}, {});
  tracker->finish();
  EXPECT_THAT(fake.calls(), ElementsAre("b"));
}

}  // namespace
}  // namespace accelerate::trackers
