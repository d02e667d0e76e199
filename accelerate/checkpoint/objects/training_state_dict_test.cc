#include "accelerate/checkpoint/objects/training_state_dict.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <nlohmann/json.hpp>

#include "accelerate/testing/value_error.h"

namespace accelerate::internal {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

class TrainingStateDictTest : public ::testing::Test {
 protected:
  TrainingStateDictTest() {
    for (int i = 0; i < 2; ++i) {
      training_.models.push_back(
          std::make_shared<ModelState>(std::make_shared<torch::nn::LinearImpl>(1, 1)));
    }
    gradients_.set_step(5);
    gradients_.window().steps = 2;
    gradients_.window().tokens = 7;
    gradients_.window().token_unit = 3;
    gradients_.window().divides_by_tokens = true;
    gradients_.window().models = {training_.models[1]->module().get()};
    gradients_.set_sync_gradients(false);
  }
  static std::string load_error(TrainingState& training, const ordered_json& values) {
    GradientState gradients;
    try {
      load_training_state_dict(training, gradients, {{}, values});
    } catch (const c10::ValueError& error) {
      EXPECT_TRUE(gradients.sync_gradients());
      return error.what_without_backtrace();
    }
    return "no error";
  }

  TrainingState training_;
  GradientState gradients_;
};

TEST_F(TrainingStateDictTest, GoesOnWhereItStood) {
  const StateDict saved = training_state_dict(training_, gradients_);
  EXPECT_EQ(saved.values, ordered_json::parse(R"({
    "step": 5, "sync_gradients": false, "is_xla_gradients_synced": false,
    "window": {"steps": 2, "rescaled": false, "divides_by_steps": false,
               "divides_by_tokens": true, "tokens": 7, "token_unit": 3,
               "tokens_are_summed": false, "models": [1]},
    "optimizers": []})"));
  EXPECT_TRUE(is_inside_window(gradients_));
  TrainingState other;
  other.models = training_.models;
  GradientState gradients;
  load_training_state_dict(other, gradients, saved);
  EXPECT_FALSE(gradients.sync_gradients());
  EXPECT_EQ(gradients.window().models[0], training_.models[1]->module().get());
  EXPECT_EQ(training_state_dict(other, gradients).values, saved.values);
}

TEST_F(TrainingStateDictTest, SaysWhatIsWrongAndChangesNothing) {
  const ordered_json saved = training_state_dict(training_, gradients_).values;
  const auto error_with = [&](const std::string& pointer, const ordered_json& value) {
    ordered_json bad = saved;
    bad[ordered_json::json_pointer(pointer)] = value;
    const std::string error = load_error(training_, bad);
    EXPECT_EQ(training_state_dict(training_, gradients_).values, saved) << error;
    return error;
  };
  EXPECT_THAT(error_with("/step", -1), HasSubstr("\"step\" is -1"));
  EXPECT_THAT(error_with("/step", 1.5), HasSubstr("\"step\" is 1.5"));
  EXPECT_THAT(error_with("/sync_gradients", 0), HasSubstr("\"sync_gradients\" is 0"));
  EXPECT_THAT(error_with("/window", nullptr), HasSubstr("not an object"));
  EXPECT_THAT(error_with("/window/tokens", -2), HasSubstr("\"tokens\" is -2"));
  EXPECT_THAT(error_with("/window/models", {-1}), HasSubstr("has model -1"));
  EXPECT_THAT(error_with("/optimizers", {1}), HasSubstr("not an object"));
  EXPECT_THAT(error_with("/optimizers", 0), HasSubstr("of 1 optimizers, prepared were 0"));
  EXPECT_THAT(load_error(training_, nullptr), HasSubstr("not an object"));
}

TEST_F(TrainingStateDictTest, GivesFewerModelsWhatIsTheirs) {
  const StateDict saved = {.values = training_state_dict(training_, gradients_).values};
  TrainingState fewer;
  fewer.models = {training_.models[0]};
  GradientState gradients;
  load_training_state_dict(fewer, gradients, saved);
  EXPECT_EQ(gradients.step(), 5);
  EXPECT_TRUE(gradients.window().models.empty());
}

TEST_F(TrainingStateDictTest, RefusesWhatNobodyCouldGoOnWith) {
  gradients_.set_joining(true);
  EXPECT_THROW(training_state_dict(training_, gradients_), c10::ValueError);
}

// A technique that the library does not have.
class Counting final : public Technique {
 public:
  explicit Counting(int64_t steps) : steps(steps) {}

  std::string_view name() const override { return "counting"; }
  void forward(ForwardPass& pass) override { pass.proceed(); }
  StateDict state_dict() const override {
    return {.tensors = {{"steps", at::full({1}, steps)}}, .values = {{"unit", "pass"}}};
  }
  void load_state_dict(const StateDict& state, bool same_ranks) override {
    EXPECT_EQ(state.values.at("unit"), "pass");
    EXPECT_FALSE(same_ranks);
    steps = state.tensors.at(0).second.item<int64_t>();
  }

  int64_t steps;
};

ModelState model_with(std::unique_ptr<Technique> technique) {
  ModelState model(std::make_shared<torch::nn::LinearImpl>(1, 1));
  Techniques techniques;
  if (technique != nullptr) techniques.push_back(std::move(technique));
  model.set_techniques(std::move(techniques));
  return model;
}

TEST(ReplicaStateDict, HasThePartsOfTheModelsTechniquesWhateverTheyAre) {
  const StateDict saved = replica_state_dict(model_with(std::make_unique<Counting>(3)));
  ASSERT_EQ(saved.tensors.size(), 1);
  EXPECT_EQ(saved.tensors[0].first, "counting.steps");
  EXPECT_EQ(saved.values, ordered_json::parse(R"({"counting": {"unit": "pass"}})"));
  ModelState resumed = model_with(std::make_unique<Counting>(0));
  load_replica_state_dict(resumed, saved, {.same_ranks = false});
  EXPECT_EQ(resumed.find_technique<Counting>()->steps, 3);
}

TEST(ReplicaStateDict, IgnoresKnownTechniquesThatAModelDoesWithout) {
  ModelState model = model_with(nullptr);
  const TechniqueRow known[] = {{.name = "ddp"}, {.name = "fp8"}};
  const auto error_with = [&](const std::string& name) {
    return value_error_of([&] {
      load_replica_state_dict(model, {.tensors = {{name, at::full({1}, 1)}}}, {.known = known});
    });
  };
  EXPECT_EQ(error_with("ddp.buffer.mean"), "no error");
  EXPECT_EQ(error_with("fp8.scales"), "no error");
  EXPECT_THAT(error_with("counting.steps"), HasSubstr("unknown tensor \"counting.steps\""));
  EXPECT_THAT(error_with("steps"), HasSubstr("unknown tensor \"steps\""));
}

}  // namespace
}  // namespace accelerate::internal
