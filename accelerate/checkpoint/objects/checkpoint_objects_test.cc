#include "accelerate/checkpoint/objects/checkpoint_objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

namespace accelerate {
namespace {

struct Values {
  int number = 3;
  StateDict state_dict() const { return {.values = {{"number", number}}}; }
  void load_state_dict(const StateDict& state) { number = state.values.at("number"); }
};

struct Json {
  int number = 4;
  nlohmann::ordered_json state_dict() const { return {{"number", number}}; }
  void load_state_dict(const nlohmann::ordered_json& state) { number = state.at("number"); }
};

struct Neither {
  int state_dict() const { return 0; }
};

static_assert(Checkpointable<Values> && Checkpointable<Json>);
static_assert(Checkpointable<torch::nn::LinearImpl> && Checkpointable<torch::optim::SGD>);
static_assert(!Checkpointable<Neither> && !Checkpointable<int>);

template <typename T>
void carry_over(T& from, T& to) {
  internal::checkpointed(to).load_state_dict(internal::checkpointed(from).state_dict());
}

TEST(CheckpointedObject, OfAnyKindComesBack) {
  Values values, other_values{.number = 0};
  carry_over(values, other_values);
  EXPECT_EQ(other_values.number, 3);
  Json json, other_json{.number = 0};
  carry_over(json, other_json);
  EXPECT_EQ(other_json.number, 4);
  torch::nn::Linear linear(2, 3), other_linear(2, 3);
  carry_over(*linear, *other_linear);
  EXPECT_TRUE(linear->weight.equal(other_linear->weight));
  torch::optim::SGD sgd(linear->parameters(), 0.5), other_sgd(other_linear->parameters(), 0.1);
  carry_over(sgd, other_sgd);
  EXPECT_EQ(other_sgd.param_groups()[0].options().get_lr(), 0.5);
}

TEST(HookList, CallsInOrderAndNoLongerWhatWasRemoved) {
  std::vector<std::string> called;
  HookList<LoadStatePreHook> hooks;
  auto handle = hooks.add([&](Modules&, const std::string&) { called.push_back("first"); });
  hooks.add([&](Modules&, const std::string& dir) {
    called.push_back(dir);
    handle.remove();
  });
  Modules none;
  hooks.call(none, "here");
  hooks.call(none, "there");
  EXPECT_THAT(called, testing::ElementsAre("first", "here", "there"));
  handle.remove();
}

}  // namespace
}  // namespace accelerate
