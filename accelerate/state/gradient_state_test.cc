#include "accelerate/state/gradient_state.h"

#include <memory>
#include <optional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GradientState, SynchronisesEveryStepUnlessToldOtherwise) {
  GradientState state;
  EXPECT_TRUE(state.sync_gradients());
  EXPECT_EQ(state.num_steps(), 1);
  state.set_sync_gradients(false);
  state.set_num_steps(4);
  EXPECT_FALSE(state.sync_gradients());
  EXPECT_EQ(state.num_steps(), 4);
}

TEST(GradientState, KnowsNothingOutsideOfLoops) {
  GradientState state;
  EXPECT_FALSE(state.in_dataloader());
  EXPECT_FALSE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), -1);
}

TEST(GradientState, IsAnsweredByTheInnermostLoader) {
  GradientState state;
  GradientState::LoaderScope train(state, 3);
  train.set_end_of_dataloader(true);
  {
    GradientState::LoaderScope eval(state, 5);
    EXPECT_FALSE(state.end_of_dataloader());
    EXPECT_EQ(state.remainder(), 5);
  }
  EXPECT_TRUE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), 3);
}

TEST(GradientState, LetsInterleavedLoadersEndInAnyOrder) {
  GradientState state;
  auto first = std::make_unique<GradientState::LoaderScope>(state, 1);
  auto second = std::make_unique<GradientState::LoaderScope>(state, 2);
  first.reset();
  EXPECT_EQ(state.remainder(), 2);
  second.reset();
  EXPECT_FALSE(state.in_dataloader());
}

TEST(GradientState, ShowsThePassesThatRun) {
  GradientState state;
  EXPECT_EQ(state.active_dataloader(), nullptr);
  EXPECT_THAT(state.dataloader_references(), IsEmpty());
  GradientState::LoaderScope train(state);
  {
    GradientState::LoaderScope eval(state);
    EXPECT_EQ(state.active_dataloader(), &eval);
    EXPECT_THAT(state.dataloader_references(), ElementsAre(&train, &eval));
  }
  EXPECT_EQ(state.active_dataloader(), &train);
  EXPECT_THAT(state.dataloader_references(), ElementsAre(&train));
}

TEST(GradientState, ShowsWhatWasAskedOfItsPlugin) {
  using Json = nlohmann::ordered_json;
  GradientState state;
  EXPECT_EQ(state.plugin_kwargs(), Json::object());
  state.set_plugin({.num_steps = 2, .sync_each_batch = true});
  EXPECT_EQ(state.plugin_kwargs(), (Json{{"num_steps", 2}, {"sync_each_batch", true}}));
  state.set_num_steps(3);
  EXPECT_EQ(state.plugin_kwargs(), (Json{{"num_steps", 3}, {"sync_each_batch", true}}));
}

TEST(GradientState, ForgetsALoaderWhenAnExceptionLeavesItsLoop) {
  GradientState state;
  try {
    GradientState::LoaderScope loader(state);
    throw std::runtime_error("in the loop");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(state.in_dataloader());
}

TEST(GradientState, MayGoBeforeItsLoaders) {
  std::optional<GradientState> state(std::in_place);
  GradientState::LoaderScope loader(*state);
  state.reset();
  loader.set_end_of_dataloader(true);
}

}  // namespace
}  // namespace accelerate
