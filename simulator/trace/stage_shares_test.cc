#include "simulator/trace/step_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Four ranks, of which the first two have stage 0.
class StageShares : public ::testing::Test {
 protected:
  void slice(int rank, int64_t start_ns, int64_t end_ns, SliceKind kind = SliceKind::kKernel,
             int stream = 0) {
    recorder_.slice({.start_ns = start_ns,
                     .end_ns = end_ns,
                     .rank = rank,
                     .stream = stream,
                     .name = recorder_.intern("aten::mm"),
                     .kind = kind});
  }
  void train() {
    recorder_.step(100);
    slice(0, 90, 130);
    slice(0, 120, 140, SliceKind::kCopy, 1);
    slice(0, 140, 190, SliceKind::kWait, 2);
    slice(1, 150, 170);
    slice(2, 110, 120);
    slice(2, 180, 220);
    slice(3, 130, 150, SliceKind::kMessage, 2);
    recorder_.step(200);
  }

  Recorder recorder_{{.world_size = 4}};
};

TEST_F(StageShares, AreTheMeansOfTheirRanks) {
  const int pp = recorder_.axis("pp");
  recorder_.place_along(pp, {0, 2});
  recorder_.place_along(pp, {1, 3});
  train();
  slice(3, 200, 210);  // of the next step
  EXPECT_THAT(stage_shares(recorder_.finish({.device = "h100"})),
              ElementsAre(StageShare{.stage = 0, .ranks = 2, .busy_ns = 30, .bubble_ns = 70},
                          StageShare{.stage = 1, .ranks = 2, .busy_ns = 15, .bubble_ns = 85}));
}

// Neither the first step nor the last one, which take less and more.
TEST_F(StageShares, AreThoseOfTheStepThatTakesTheMedian) {
  recorder_.place_along(recorder_.axis("pp"), {0, 1});
  recorder_.step(100);
  slice(0, 100, 199);
  recorder_.step(200);
  slice(0, 220, 270);
  slice(1, 250, 350);
  recorder_.step(400);
  slice(0, 410, 690);
  slice(1, 410, 690);
  recorder_.step(700);
  EXPECT_THAT(stage_shares(recorder_.finish({.device = "h100"})),
              ElementsAre(StageShare{.stage = 0, .ranks = 1, .busy_ns = 50, .bubble_ns = 150},
                          StageShare{.stage = 1, .ranks = 1, .busy_ns = 100, .bubble_ns = 100}));
}

TEST_F(StageShares, AreNoneWithoutAPipeline) {
  recorder_.place_along(recorder_.axis("tp"), {0, 1});
  train();
  EXPECT_THAT(stage_shares(recorder_.finish({.device = "h100"})), IsEmpty());
}

}  // namespace
}  // namespace accelerate::simulator
