#include "accelerate/precision/grad_scaler.h"

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>

#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

at::Tensor parameter(std::vector<float> values) { return at::tensor(values).requires_grad_(true); }

torch::optim::SGD sgd(const at::Tensor& weight, double lr = 1.0) {
  return torch::optim::SGD(std::vector<at::Tensor>{weight}, torch::optim::SGDOptions(lr));
}

void set_gradient(const at::Tensor& weight, std::vector<float> values) {
  weight.mutable_grad() = at::tensor(values);
}

TEST(GradScaler, ScalesTheLossAndUnscalesTheGradients) {
  GradScaler scaler({.init_scale = 8});
  at::Tensor weight = parameter({1, 2});
  auto optimizer = sgd(weight, 0.5);
  scaler.scale((weight * weight).sum()).backward();
  EXPECT_TRUE(weight.grad().equal(at::tensor({16.f, 32.f})));
  scaler.unscale_(optimizer);
  EXPECT_TRUE(weight.grad().equal(at::tensor({2.f, 4.f})));
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(weight.equal(at::tensor({0.f, 0.f})));
}

// As those of a parameter that a model conjugates.
TEST(GradScaler, UnscalesConjugatedGradients) {
  GradScaler scaler({.init_scale = 4});
  const at::Tensor weight = at::complex(at::zeros({1}), at::zeros({1})).requires_grad_(true);
  auto optimizer = sgd(weight);
  weight.mutable_grad() = at::complex(at::full({1}, 8.0), at::full({1}, 4.0)).conj();
  scaler.unscale_(optimizer);
  EXPECT_EQ(at::real(weight.grad()).item<float>(), 2);
  EXPECT_EQ(at::imag(weight.grad()).item<float>(), -1);
  EXPECT_EQ(scaler.found_inf(), 0.0);
}

// A parameter that an optimizer has twice has one gradient.
TEST(GradScaler, UnscalesTheGradientOfATiedParameterOnce) {
  GradScaler scaler({.init_scale = 8});
  at::Tensor weight = parameter({1, 2});
  torch::optim::SGD optimizer(std::vector<at::Tensor>{weight, weight},
                              torch::optim::SGDOptions(0.5));
  scaler.scale((weight * weight).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(weight.grad().equal(at::tensor({2.f, 4.f})));
}

// Gradients are looked at by dtype and device: one that is infinite counts, whichever it is.
TEST(GradScaler, FindsWhatIsInfiniteAmongGradientsOfSeveralDtypes) {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kBFloat16};
  for (size_t infinite = 0; infinite <= dtypes.size(); ++infinite) {
    GradScaler scaler({.init_scale = 8});
    std::vector<at::Tensor> weights;
    for (size_t i = 0; i < dtypes.size(); ++i) {
      weights.push_back(at::ones({2}, dtypes[i]).requires_grad_(true));
      weights[i].mutable_grad() = at::full({2}, i == infinite ? INFINITY : 1.0, dtypes[i]);
    }
    torch::optim::SGD optimizer(weights, torch::optim::SGDOptions(1));
    scaler.scale(at::ones({}));
    scaler.unscale_(optimizer);
    EXPECT_EQ(scaler.found_inf(), infinite < dtypes.size() ? 1.0 : 0.0) << infinite;
    EXPECT_EQ(scaler.step(optimizer), infinite == dtypes.size()) << infinite;
  }
}

TEST(GradScaler, ScalesEveryTensorOfATree) {
  GradScaler scaler({.init_scale = 4});
  std::map<std::string, std::vector<at::Tensor>> losses = {{"a", {at::ones({2}), at::Tensor()}},
                                                           {"b", {at::full({1}, 3.0)}}};
  const auto scaled = scaler.scale(losses);
  EXPECT_TRUE(scaled.at("a")[0].equal(at::full({2}, 4.0)));
  EXPECT_FALSE(scaled.at("a")[1].defined());
  EXPECT_TRUE(scaled.at("b")[0].equal(at::full({1}, 12.0)));
}

TEST(GradScaler, AStepWithAnInfiniteGradientIsLeftOutAndTheScaleBacksOff) {
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    GradScaler scaler({.init_scale = 8, .growth_interval = 2});
    at::Tensor weight = parameter({1, 2});
    auto optimizer = sgd(weight);
    scaler.scale(weight.sum()).backward();
    weight.mutable_grad()[1] = bad;
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
    EXPECT_TRUE(weight.equal(at::tensor({1.f, 2.f})));
    EXPECT_EQ(scaler.get_scale(), 4);
    EXPECT_EQ(scaler.get_growth_tracker(), 0);
  }
}

TEST(GetGradScaler, HasTheOptionsButNotForEnginesThatScaleByThemselves) {
  EXPECT_EQ(get_grad_scaler().get_scale(), 65536);
  EXPECT_EQ(get_grad_scaler().get_growth_interval(), 2000);
  GradScaler scaler = get_grad_scaler(DistributedType::kMultiGpu, {.init_scale = 8});
  EXPECT_EQ(scaler.get_scale(), 8);
  EXPECT_FALSE(get_grad_scaler(std::nullopt, {.enabled = false}).is_enabled());
  for (const DistributedType own : {DistributedType::kDeepSpeed, DistributedType::kMegatronLm}) {
    EXPECT_THROW(get_grad_scaler(own), c10::ValueError) << to_string(own);
  }
}

TEST(GradScaler, GrowsAfterAnIntervalOfGoodSteps) {
  GradScaler scaler({.init_scale = 8, .growth_factor = 3, .growth_interval = 3});
  at::Tensor weight = parameter({1});
  auto optimizer = sgd(weight);
  std::vector<double> scales;
  std::vector<int64_t> trackers;
  for (int i = 0; i < 7; ++i) {
    optimizer.zero_grad();
    scaler.scale(weight.sum()).backward();
    if (i == 4) weight.mutable_grad().fill_(kInf);
    scaler.step(optimizer);
    scaler.update();
    scales.push_back(scaler.get_scale());
    trackers.push_back(scaler.get_growth_tracker());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 24, 24, 12, 12, 12}));
  EXPECT_EQ(trackers, (std::vector<int64_t>{1, 2, 0, 1, 0, 1, 2}));
}

TEST(GradScaler, CallsOutOfTurnAreNamed) {
  GradScaler scaler;
  at::Tensor weight = parameter({1});
  auto optimizer = sgd(weight);
  EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("before an optimizer"));
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("has a gradient"));
  scaler.update(2.0);
  EXPECT_EQ(scaler.get_scale(), 2.0);
  scaler.scale(weight.sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }), HasSubstr("was called"));
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("step() was called"));
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }), HasSubstr("after step()"));
  scaler.update();
  EXPECT_NO_THROW(scaler.unscale_(optimizer));
}

TEST(GradScaler, Float16GradientsAreRefusedByName) {
  GradScaler scaler;
  at::Tensor first = parameter({1});
  at::Tensor second = at::ones({2, 3}, at::kHalf).requires_grad_(true);
  torch::optim::SGD optimizer(std::vector<at::Tensor>{first, second},
                              torch::optim::SGDOptions(1.0));
  set_gradient(first, {1});
  second.mutable_grad() = at::ones({2, 3}, at::kHalf);
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }),
              AllOf(HasSubstr("parameter 1 of parameter group 0"), HasSubstr("[2, 3]"),
                    HasSubstr("float32")));
}

TEST(GradScaler, OptionsOutOfRangeAreNamed) {
  EXPECT_THAT(error_of([] { GradScaler scaler({.init_scale = 0}); }), HasSubstr("more than 0"));
  EXPECT_THAT(error_of([] { GradScaler scaler({.growth_factor = 1}); }),
              HasSubstr("growth_factor"));
  EXPECT_THAT(error_of([] { GradScaler scaler({.backoff_factor = 1}); }),
              HasSubstr("backoff_factor"));
  EXPECT_THAT(error_of([] { GradScaler scaler({.growth_interval = 0}); }),
              HasSubstr("growth_interval"));
  GradScaler scaler;
  EXPECT_THAT(error_of([&] { scaler.set_growth_factor(0.5); }), HasSubstr("growth_factor"));
  EXPECT_EQ(scaler.get_growth_factor(), 2.0);
}

TEST(GradScaler, EachSetterChangesItsOwnArgument) {
  GradScaler scaler({.init_scale = 8});
  scaler.set_growth_factor(3);
  scaler.set_backoff_factor(0.25);
  scaler.set_growth_interval(1);
  EXPECT_EQ(scaler.get_growth_factor(), 3);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.25);
  EXPECT_EQ(scaler.get_growth_interval(), 1);
  at::Tensor weight = parameter({1});
  auto optimizer = sgd(weight);
  for (const bool overflows : {false, true}) {
    optimizer.zero_grad();
    scaler.scale(weight.sum()).backward();
    if (overflows) weight.mutable_grad().fill_(kInf);
    scaler.step(optimizer);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), overflows ? 6 : 24);
  }
  EXPECT_THAT(error_of([&] { scaler.set_backoff_factor(1); }), HasSubstr("backoff_factor"));
  EXPECT_THAT(error_of([&] { scaler.set_growth_interval(0); }), HasSubstr("growth_interval"));
  EXPECT_THAT(error_of([&] { scaler.update(0.0); }), HasSubstr("must be more than 0"));
  EXPECT_EQ(scaler.get_backoff_factor(), 0.25);
  EXPECT_EQ(scaler.get_growth_interval(), 1);
  EXPECT_EQ(scaler.get_scale(), 6);
}

TEST(GradScaler, WithoutBeingEnabledItOnlySteps) {
  GradScaler scaler({.enabled = false});
  at::Tensor weight = parameter({1});
  auto optimizer = sgd(weight);
  at::Tensor loss = weight.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  set_gradient(weight, {kInf});
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(weight.item<float>(), -kInf);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_TRUE(scaler.state_dict().empty());
}

TEST(GradScaler, StateGoesOnWhereItWas) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 5});
  at::Tensor weight = parameter({1});
  auto optimizer = sgd(weight);
  scaler.scale(weight.sum()).backward();
  scaler.step(optimizer);
  scaler.update();
  const auto state = scaler.state_dict();
  EXPECT_EQ(state.dump(),
            R"({"scale":8.0,"growth_factor":2.0,"backoff_factor":0.5,"growth_interval":5,)"
            R"("_growth_tracker":1})");
  GradScaler other;
  other.scale(at::ones({}));
  other.load_state_dict(state);
  EXPECT_EQ(other.state_dict(), state);

  auto without = state;
  without.erase("_growth_tracker");
  EXPECT_THAT(error_of([&] { other.load_state_dict(without); }), HasSubstr("no _growth_tracker"));
  auto wrong = state;
  wrong["scale"] = -1;
  EXPECT_THAT(error_of([&] { other.load_state_dict(wrong); }), HasSubstr("more than 0"));
  EXPECT_EQ(other.state_dict(), state);
}

// One update after finite or infinite gradients.
void update(GradScaler& scaler, bool overflows) {
  at::Tensor weight = parameter({1});
  auto optimizer = sgd(weight);
  scaler.scale(weight.sum()).backward();
  if (overflows) weight.mutable_grad().fill_(kInf);
  EXPECT_EQ(scaler.step(optimizer), !overflows);
  scaler.update();
}

// zero_objects_test.cc compares the scale with DeepSpeed's.
TEST(LossScaling, AnErrorAtTheSmallestScaleNamesTheStepAndLeavesTheScalerUsable) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 2}, nullptr, LossScaling{.min_scale = 4});
  update(scaler, false);
  update(scaler, true);
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_THAT(error_of([&] { update(scaler, true); }),
              AllOf(HasSubstr("rank 0, step 3"), HasSubstr("minimum of 4")));
  EXPECT_EQ(scaler.get_scale(), 4);
  for (int i = 0; i < 3; ++i) update(scaler, false);
  EXPECT_EQ(scaler.get_scale(), 8);
}

TEST(LossScaling, AStateBringsAllArgumentsToAScalerThatWasMadeOtherwise) {
  GradScaler scaler(
      {.init_scale = 64, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3}, nullptr,
      LossScaling{.hysteresis = 2, .consecutive_hysteresis = true, .min_scale = 4});
  update(scaler, true);
  GradScaler other({.init_scale = 16}, nullptr, LossScaling{.hysteresis = 5, .min_scale = 1});
  other.load_state_dict(scaler.state_dict());
  EXPECT_EQ(other.state_dict(), scaler.state_dict());
  for (const bool overflows : {true, false, true, true, false, false, false}) {
    update(scaler, overflows);
    update(other, overflows);
    EXPECT_EQ(other.state_dict(), scaler.state_dict());
  }
  // Both have the smallest scale of the first one by now.
  GradScaler least({.init_scale = 4}, nullptr, LossScaling{.min_scale = 1});
  least.load_state_dict(
      GradScaler({.init_scale = 4}, nullptr, LossScaling{.min_scale = 4}).state_dict());
  EXPECT_THAT(error_of([&] { update(least, true); }), HasSubstr("minimum of 4"));
}

TEST(LossScaling, StatesAreExchangedWithPyTorchsScaler) {
  const LossScaling scaling{.hysteresis = 3, .min_scale = 2};
  GradScaler scaler({.init_scale = 8, .growth_interval = 5}, nullptr, scaling);
  update(scaler, true);
  const auto state = scaler.state_dict();
  EXPECT_EQ(state.dump(),
            R"({"scale":8.0,"growth_factor":2.0,"backoff_factor":0.5,"growth_interval":5,)"
            R"("_growth_tracker":-1,"hysteresis":3,"consecutive_hysteresis":false,)"
            R"("min_scale":2.0,"cur_hysteresis":2,"cur_iter":1})");
  GradScaler plain;
  plain.load_state_dict(state);
  EXPECT_EQ(plain.get_scale(), 8);
  update(plain, true);
  EXPECT_EQ(plain.get_scale(), 4);
  GradScaler other({}, nullptr, scaling);
  other.load_state_dict(plain.state_dict());
  EXPECT_EQ(other.get_scale(), 4);
  EXPECT_EQ(other.state_dict()["cur_hysteresis"], 3);
  GradScaler fixed({.init_scale = 32}, nullptr, LossScaling{.is_static = true});
  fixed.load_state_dict(state);
  EXPECT_EQ(fixed.get_scale(), 32);
  const auto error_with = [&](const char* name, const nlohmann::ordered_json& value) {
    nlohmann::ordered_json bad = state;
    bad[name] = value;
    return error_of([&] { scaler.load_state_dict(bad); });
  };
  EXPECT_THAT(error_with("cur_hysteresis", 4), HasSubstr("cur_hysteresis is 4"));
  EXPECT_THAT(error_with("min_scale", 9), HasSubstr("min_scale must be more than 0 and at most"));
  EXPECT_THAT(error_with("consecutive_hysteresis", 1), HasSubstr("consecutive_hysteresis"));
  EXPECT_THAT(error_with("hysteresis", "x"), HasSubstr("no hysteresis"));
  EXPECT_EQ(scaler.state_dict(), state);
}

TEST(LossScaling, RanksFailTogether) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    GradScaler scaler({.init_scale = 2}, group, LossScaling{.min_scale = 2});
    at::Tensor weight = parameter({1});
    auto optimizer = sgd(weight);
    scaler.scale(weight.sum()).backward();
    if (group->getRank() == 1) weight.mutable_grad().fill_(kInf);
    EXPECT_FALSE(scaler.step(optimizer));
    EXPECT_THAT(error_of([&] { scaler.update(); }),
                HasSubstr("rank " + std::to_string(group->getRank()) + ", step 1"));
  });
}

// The rank of the job, where the group that shares the scale is a part of it.
TEST(LossScaling, AnErrorNamesTheRankOfTheJob) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int rank = 4 + group->getRank();
    FakeRuntime runtime(Topology::uniform(rank, 2, 4));
    const RuntimeScope scope(runtime);
    GradScaler scaler({.init_scale = 2}, group, LossScaling{.min_scale = 2});
    EXPECT_THAT(error_of([&] { update(scaler, true); }),
                HasSubstr("rank " + std::to_string(rank) + ", step 1"));
  });
}

TEST(LossScaling, SettingsOutOfRangeAreNamed) {
  EXPECT_THAT(error_of([] { GradScaler({}, nullptr, LossScaling{.hysteresis = 0}); }),
              HasSubstr("hysteresis must be at least 1"));
  EXPECT_THAT(error_of([] { GradScaler({.init_scale = 1}, nullptr, LossScaling{.min_scale = 2}); }),
              HasSubstr("min_scale must be more than 0 and at most the scale"));
}

TEST(GradScaler, SparseGradientsAreUnscaled) {
  GradScaler scaler({.init_scale = 4});
  at::Tensor table = at::zeros({3, 2}).requires_grad_(true);
  auto optimizer = sgd(table);
  scaler.scale(at::embedding(table, at::tensor({1, 1}), -1, false, /*sparse=*/true).sum())
      .backward();
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(table[1].equal(at::tensor({-2.f, -2.f})));
}

// Every rank in turn gets each kind of non-finite gradient.
TEST(GradScalerOnRanks, AGradientThatIsNotFiniteOnOneRankCountsOnAll) {
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (int spoiled = 0; spoiled < 3; ++spoiled) {
      run_ranks(3, [&](const ProcessGroupPtr& group) {
        GradScaler scaler({.init_scale = 8, .growth_interval = 2}, group);
        at::Tensor weight = parameter({1, 2});
        auto optimizer = sgd(weight);
        scaler.scale(weight.sum()).backward();
        if (group->getRank() == spoiled) weight.mutable_grad()[1] = bad;
        scaler.unscale_(optimizer);
        EXPECT_GT(scaler.found_inf().value_or(0), 0);
        EXPECT_FALSE(scaler.step(optimizer));
        scaler.update();
        EXPECT_TRUE(weight.equal(at::tensor({1.f, 2.f})));
        EXPECT_EQ(scaler.get_scale(), 4);

        optimizer.zero_grad();
        scaler.scale(weight.sum()).backward();
        EXPECT_TRUE(scaler.step(optimizer));
        EXPECT_EQ(scaler.found_inf(), 0.0);
        scaler.update();
        EXPECT_TRUE(weight.equal(at::tensor({0.f, 1.f})));
        EXPECT_EQ(scaler.get_scale(), 4);
        EXPECT_EQ(scaler.get_growth_tracker(), 1);
      });
    }
  }
}

TEST(GradScalerOnRanks, ARankWithoutGradientsFollowsTheOthers) {
  for (const bool spoiled : {false, true}) {
    run_ranks(2, [&](const ProcessGroupPtr& group) {
      GradScaler scaler({.init_scale = 8}, group);
      at::Tensor weight = parameter({1});
      auto optimizer = sgd(weight);
      const at::Tensor loss = scaler.scale(weight.sum());
      if (group->getRank() == 1) {
        loss.backward();
        if (spoiled) weight.mutable_grad().fill_(kInf);
      }
      EXPECT_EQ(scaler.step(optimizer), !spoiled);
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), spoiled ? 4 : 8);
      EXPECT_EQ(weight.item<float>(), group->getRank() == 1 && !spoiled ? 0 : 1);
    });
  }
}

TEST(GradScalerOnRanks, RanksOfWhichNoneScaledSaySo) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    GradScaler scaler({.init_scale = 8}, group);
    at::Tensor weight = parameter({1});
    auto optimizer = sgd(weight);
    EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }),
                HasSubstr("unscale_() before anything was scaled"));
  });
}

TEST(GradScalerOnRanks, WithoutTheirGroupRanksDecideAloneUntilTheyAdoptAState) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const bool spoiled = group->getRank() == 1;
    GradScaler scaler({.init_scale = 8, .growth_interval = 100}, group);
    scaler.set_group(nullptr);
    at::Tensor weight = parameter({1});
    auto optimizer = sgd(weight);
    scaler.scale(weight.sum()).backward();
    if (spoiled) weight.mutable_grad().fill_(kInf);
    EXPECT_EQ(scaler.step(optimizer), !spoiled);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), spoiled ? 4 : 8);
    EXPECT_EQ(scaler.get_growth_tracker(), spoiled ? 0 : 1);

    scaler.set_group(group);
    scaler.broadcast_state(/*source=*/0);
    EXPECT_EQ(scaler.get_scale(), 8);
    EXPECT_EQ(scaler.get_growth_tracker(), 1);
    scaler.update(2.0 + group->getRank());
    scaler.broadcast_state(/*source=*/1);
    EXPECT_EQ(scaler.get_scale(), 3);
  });
}

bool step(SharedScaler::User& user, torch::optim::Optimizer& optimizer) {
  return user.step([&optimizer] { optimizer.step(); });
}

TEST(SharedScaler, AdaptsOnceForAllOptimizers) {
  auto shared = std::make_shared<SharedScaler>(GradScaler({.init_scale = 8}));
  at::Tensor first = parameter({1}), second = parameter({1});
  auto one = sgd(first), two = sgd(second);
  SharedScaler::User user(shared, one), other(shared, two);
  auto iterate = [&] {
    shared->begin_backward();
    shared->scaler().scale(first.sum() + second.sum()).backward();
  };
  auto end = [&] {
    for (SharedScaler::User* each : {&user, &other}) each->clear_unscaled();
    one.zero_grad();
    two.zero_grad();
  };
  iterate();
  first.mutable_grad().fill_(kInf);
  EXPECT_FALSE(step(user, one));
  EXPECT_EQ(shared->scaler().get_scale(), 8) << "the other one is still to be unscaled";
  EXPECT_TRUE(step(other, two));
  EXPECT_EQ(shared->scaler().get_scale(), 4);
  EXPECT_EQ(second.item<float>(), 0);
  end();

  // Where one of them does not step, the iteration ends when the other is a step ahead.
  for (const int64_t tracker : {0, 0, 1, 1, 2}) {
    iterate();
    EXPECT_EQ(shared->scaler().get_growth_tracker(), tracker);
    EXPECT_TRUE(step(user, one));
    end();
  }
  {
    SharedScaler::User gone = std::move(other);
  }
  iterate();
  EXPECT_TRUE(step(user, one));
  EXPECT_EQ(shared->scaler().get_growth_tracker(), 3) << "no other optimizer is left";
}

TEST(SharedScaler, GoesOnAfterAnErrorAtTheSmallestScale) {
  auto shared = std::make_shared<SharedScaler>(
      GradScaler({.init_scale = 2}, nullptr, LossScaling{.min_scale = 2}));
  at::Tensor weight = parameter({1});
  auto optimizer = sgd(weight);
  SharedScaler::User user(shared, optimizer);
  for (const bool overflows : {true, true, false}) {
    shared->begin_backward();
    shared->scaler().scale(weight.sum()).backward();
    if (overflows) weight.mutable_grad().fill_(kInf);
    EXPECT_THAT(error_of([&] { step(user, optimizer); }),
                HasSubstr(overflows ? "at its minimum of 2" : "no error"));
    user.clear_unscaled();
    optimizer.zero_grad();
  }
  EXPECT_EQ(weight.item<float>(), 0);
}

// The same with a scale that changes between the steps.
TEST(SharedScaler, GradientsThatWereUnscaledAreScaledAgainBeforeMoreAreAdded) {
  auto shared = std::make_shared<SharedScaler>(GradScaler({.init_scale = 8, .growth_interval = 1}));
  at::Tensor weight = parameter({0}), waiting = parameter({0});
  auto optimizer = sgd(weight), waits = sgd(waiting);
  SharedScaler::User user(shared, optimizer), other(shared, waits);
  auto backward = [&](const at::Tensor& loss) {
    shared->begin_backward();
    shared->scaler().scale(loss).backward();
  };
  backward(weight.sum() + waiting.sum());
  other.unscale();
  EXPECT_EQ(waiting.grad().item<float>(), 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(step(user, optimizer));
    user.clear_unscaled();
    optimizer.zero_grad();
    backward(weight.sum());
  }
  EXPECT_EQ(shared->scaler().get_scale(), 16);
  EXPECT_EQ(waiting.grad().item<float>(), 16);
  EXPECT_TRUE(step(other, waits));
  EXPECT_EQ(waiting.item<float>(), -1);
}

TEST(SharedScaler, TheGradientOfATiedParameterIsScaledAgainOnce) {
  auto shared = std::make_shared<SharedScaler>(GradScaler({.init_scale = 8}));
  at::Tensor weight = parameter({0}), tied = parameter({0});
  auto optimizer = sgd(weight);
  torch::optim::SGD waits(std::vector<at::Tensor>{tied, tied}, torch::optim::SGDOptions(1));
  SharedScaler::User user(shared, optimizer), other(shared, waits);
  shared->begin_backward();
  shared->scaler().scale(weight.sum() + tied.sum()).backward();
  other.unscale();
  EXPECT_EQ(tied.grad().item<float>(), 1);
  EXPECT_TRUE(step(user, optimizer));
  user.clear_unscaled();
  optimizer.zero_grad();
  shared->begin_backward();
  EXPECT_EQ(tied.grad().item<float>(), 8);
}

// As whole gradients of parameters whose shards an optimizer trains.
TEST(SharedScaler, GradientsThatWaitForASynchronisationFollowTheScale) {
  auto shared = std::make_shared<SharedScaler>(GradScaler({.init_scale = 8, .growth_interval = 1}));
  at::Tensor weight = parameter({0}), shard = parameter({0}), whole = parameter({0});
  auto optimizer = sgd(weight), trains_shard = sgd(shard);
  SharedScaler::User user(shared, optimizer), other(shared, trains_shard);
  other.add_waiting(whole);
  auto backward = [&](const at::Tensor& loss) {
    shared->begin_backward();
    shared->scaler().scale(loss).backward();
  };
  backward(whole.sum());
  for (int i = 0; i < 3; ++i) {
    backward(weight.sum());
    EXPECT_TRUE(step(user, optimizer));
    user.clear_unscaled();
    optimizer.zero_grad();
  }
  EXPECT_EQ(shared->scaler().get_scale(), 16);
  EXPECT_EQ(whole.grad().item<float>(), 16);
  backward(whole.sum());
  shard.mutable_grad() = std::exchange(whole.mutable_grad(), {});
  EXPECT_TRUE(step(other, trains_shard));
  EXPECT_EQ(shard.item<float>(), -2);
}

// Two optimizers of which one steps in every second iteration only; after each iteration another
// scaler takes over.
TEST(SharedScaler, GoesOnFromItsState) {
  struct Rank {
    std::shared_ptr<SharedScaler> shared = std::make_shared<SharedScaler>(
        GradScaler({.init_scale = 64, .backoff_factor = 0.25, .growth_interval = 2}));
    at::Tensor first = parameter({1}), second = parameter({1});
    torch::optim::SGD one = sgd(first), two = sgd(second);
    SharedScaler::User user{shared, one}, other{shared, two};

    std::vector<double> iterate(int i) {
      shared->begin_backward();
      shared->scaler().scale(first.sum() + second.sum()).backward();
      if (i % 5 == 2) first.mutable_grad().fill_(kInf);
      step(user, one);
      user.clear_unscaled();
      one.zero_grad();
      if (i % 2 == 1) {
        step(other, two);
        other.clear_unscaled();
        two.zero_grad();
      }
      return {shared->scaler().get_scale(),
              static_cast<double>(shared->scaler().get_growth_tracker()), first.item<float>()};
    }
  };
  Rank whole;
  auto rank = std::make_unique<Rank>();
  for (int i = 0; i < 12; ++i) {
    const std::string saved = rank->shared->state_dict().dump();
    auto next = std::make_unique<Rank>();
    next->first.set_data(rank->first.detach());
    next->second.set_data(rank->second.detach());
    next->second.mutable_grad() = rank->second.grad();
    next->shared->load_state_dict(nlohmann::ordered_json::parse(saved));
    rank = std::move(next);
    EXPECT_EQ(rank->iterate(i), whole.iterate(i)) << "iteration " << i;
  }
}

TEST(SharedScaler, SaysWhatIsNoStateOfIts) {
  auto shared = std::make_shared<SharedScaler>(GradScaler({.init_scale = 8}));
  at::Tensor weight = parameter({1});
  auto optimizer = sgd(weight);
  SharedScaler::User user(shared, optimizer);
  const nlohmann::ordered_json saved = shared->state_dict();
  const auto error_with = [&](const char* name, const nlohmann::ordered_json& value) {
    nlohmann::ordered_json bad = saved;
    bad["accelerate"][name] = value;
    return error_of([&] { shared->load_state_dict(bad); });
  };
  EXPECT_THAT(error_with("steps", {0, 0}), HasSubstr("has 2 optimizers, this job has 1"));
  EXPECT_THAT(error_with("steps", {-1}), HasSubstr("counts -1 steps"));
  EXPECT_THAT(error_with("steps", 3), HasSubstr("\"steps\" is 3"));
  EXPECT_THAT(error_with("is_unscaled", {1}), HasSubstr("\"is_unscaled\""));
  EXPECT_THAT(error_with("found_inf", "x"), HasSubstr("\"found_inf\""));
  EXPECT_EQ(shared->state_dict(), saved);
  // HF Accelerate's state has the scaler's own fields only.
  nlohmann::ordered_json peers = saved;
  peers.erase("accelerate");
  peers["scale"] = 2.0;
  shared->load_state_dict(peers);
  EXPECT_EQ(shared->scaler().get_scale(), 2);
}

}  // namespace
}  // namespace accelerate
