#include "trackers/swanlab/swanlab_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trackers/testing/fake_package.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;

TEST(SwanLabTrackerTest, CallsThePackage) {
  FakePackages fake;
  fake.add_recorder("swanlab");
  const auto tracker = make_swanlab_tracker(fake.setup({{"mode", "offline"}}));
  tracker->start();
  tracker->store_init_configuration({{"lr", 0.1}});
  tracker->log({{"loss", 0.5}, {"both", {{"a", 1}}}, {"list", TrackerList{1, 2}}}, {.step = 7});
  tracker->log({}, {});
  tracker->flush();
  tracker->finish();
  EXPECT_THAT(fake.calls(),
              ElementsAre("swanlab.init(project='run', mode='offline')",
                          "swanlab.config['FRAMEWORK'] = '🤗Accelerate'",
                          "swanlab.config.update({'lr': 0.1}, allow_val_change=True)",
                          "swanlab.init().log({'loss': 0.5, 'both': {'a': 1}, 'list': [1, 2]}, "
                          "step=7)",
                          "swanlab.init().log({}, step=None)", "swanlab.init().finish()"));
}

TEST(SwanLabTrackerTest, MakesImagesOfItsOwn) {
  FakePackages fake;
  fake.add("swanlab", R"python(
import recorder
config = {}
class Image:
    def __init__(self, data): self.text = f"Image({data[-4:]})"
    def __repr__(self): return self.text
def init(project): return recorder.Recorder("run")
)python");
  const auto tracker = make_swanlab_tracker(fake.setup());
  tracker->start();
  const TrackerImage image{.height = 1, .width = 1, .channels = 1, .pixels = {1}};
  tracker->log_images({{"one", {image}}, {"two", {image, image}}, {"none", {}}}, {.step = 2});
  tracker->finish();
  EXPECT_THAT(fake.calls(), ElementsAre("run.log({'one': [Image(.png)]}, step=2)",
                                        "run.log({'two': [Image(.png), Image(.png)]}, step=2)",
                                        "run.log({'none': []}, step=2)", "run.finish()"));
}

}  // namespace
}  // namespace accelerate::trackers
