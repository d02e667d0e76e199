#include "accelerate/state/gradient_state.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>
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

// A pass over so many batches: 1 for each that synchronises, and the steps of the window at each.
struct Pass {
  std::string synchronised;
  std::string window;
};

Pass pass_over(GradientState& state, int batches) {
  GradientState::LoaderScope loader(state);
  Pass pass;
  for (int batch = 0; batch < batches; ++batch) {
    loader.set_end_of_dataloader(batch + 1 == batches);
    state.begin_micro_step();
    pass.synchronised += state.sync_gradients() ? '1' : '0';
    pass.window += std::to_string(state.window().steps);
  }
  return pass;
}

TEST(GradientState, SynchronisesEveryNthMicroStepAndTheLastOfAPass) {
  GradientState state;
  state.set_num_steps(3);
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Pass pass = pass_over(state, 7);
    EXPECT_EQ(pass.synchronised, "0010011");
    EXPECT_EQ(pass.window, "1231231");
    EXPECT_EQ(state.step(), 0);
  }
  EXPECT_EQ(pass_over(state, 6).synchronised, "001001");
  EXPECT_EQ(pass_over(state, 2).synchronised, "01");
}

// A window may reach from one pass into the next.
TEST(GradientState, CountsOnWhereAPassDoesNotEndAWindow) {
  GradientState state;
  state.set_plugin({.num_steps = 3, .sync_with_dataloader = false});
  Pass pass = pass_over(state, 7);
  EXPECT_EQ(pass.synchronised, "0010010");
  EXPECT_EQ(pass.window, "1231231");
  pass = pass_over(state, 7);
  EXPECT_EQ(pass.synchronised, "0100100");
  EXPECT_EQ(pass.window, "2312312");
  EXPECT_EQ(state.step(), 14);
}

// Ranks that have run out of batches synchronise with those that have not.
TEST(GradientState, GoesByTheLastBatchOfAllRanksWhileTheyJoin) {
  GradientState state;
  state.set_num_steps(4);
  state.set_joining(true);
  GradientState::LoaderScope loader(state);
  loader.set_end_of_dataloader(true);
  loader.set_round({.last = false});
  state.begin_micro_step();
  EXPECT_FALSE(state.sync_gradients()) << "another rank has more";
  loader.set_end_of_dataloader(false);
  loader.set_round({.last = true});
  state.begin_micro_step();
  EXPECT_TRUE(state.sync_gradients());
  loader.set_round({.last = false});
  state.begin_micro_step();
  EXPECT_EQ(state.step(), 1);
  state.set_joining(false);
  EXPECT_EQ(state.step(), 0) << "all ranks count from zero";
}

TEST(GradientState, TakesTheFirstRequestAndRefusesOthers) {
  GradientState state;
  state.request_plugin({.num_steps = 2});
  EXPECT_EQ(state.num_steps(), 2);
  EXPECT_NO_THROW(state.request_plugin({.num_steps = 2}));
  EXPECT_THROW(state.request_plugin({.num_steps = 3}), c10::ValueError);
  EXPECT_THROW(state.request_plugin({.num_steps = 2, .sync_each_batch = true}), c10::ValueError);
  EXPECT_EQ(state.num_steps(), 2);
  // As a setter has changed it since, or as it was.
  state.set_num_steps(5);
  EXPECT_NO_THROW(state.request_plugin({.num_steps = 5}));
  EXPECT_NO_THROW(state.request_plugin({.num_steps = 2}));
  EXPECT_EQ(state.num_steps(), 5);
  EXPECT_THROW(state.set_num_steps(0), c10::ValueError);
  EXPECT_EQ(state.num_steps(), 5);
  state.set_num_steps(1);
  EXPECT_EQ(state.num_steps(), 1);
}

TEST(GradientState, IsAsNewAfterAReset) {
  GradientState state;
  state.request_plugin({.num_steps = 2, .sync_with_dataloader = false});
  GradientState::LoaderScope loader(state, 3);
  state.begin_micro_step();
  state.window().tokens = 9;
  state.set_joining(true);
  state.set_is_xla_gradients_synced(true);
  state.restart();
  EXPECT_EQ(state.step(), 0);
  EXPECT_TRUE(state.sync_gradients());
  EXPECT_EQ(state.window().tokens, 0);
  EXPECT_EQ(state.num_steps(), 2) << "a restart keeps the plugin";
  state.reset();
  EXPECT_EQ(state.num_steps(), 1);
  EXPECT_TRUE(state.sync_with_dataloader());
  EXPECT_FALSE(state.joining());
  EXPECT_FALSE(state.is_xla_gradients_synced());
  EXPECT_EQ(state.remainder(), 3) << "the pass goes on";
  EXPECT_NO_THROW(state.request_plugin({.num_steps = 7}));
  EXPECT_EQ(state.num_steps(), 7);
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
