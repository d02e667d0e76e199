#include "accelerate/comm/random.h"

#include <cstdint>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/runtime/runtime.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;

class RngStateTest : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(5); }

  double draw() { return at::randn({}).item<double>(); }
  double draw_own() { return at::randn({}, own_, at::kFloat).item<double>(); }

  // The error of restoring the state.
  std::string error_of(const RngState& state, const NamedGenerators& generators = {}) {
    try {
      restore_rng_state(state, generators);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "";
  }

  FakeRuntime runtime_;
  RuntimeScope scope_{runtime_};
  at::Generator own_ = at::detail::createCPUGenerator(9);
};

TEST_F(RngStateTest, DrawsTheSameAgain) {
  draw();  // A normal number that is kept for the next draw is part of the state.
  draw_own();
  const RngState state = capture_rng_state({{"sampler", own_}});
  EXPECT_THAT(state.states, ElementsAre(Key("sampler"), Key("torch")));
  const double next = draw();
  const double next_own = draw_own();
  for (bool through_text : {false, true}) {
    draw();
    draw_own();
    const auto kept = nlohmann::json::parse(rng_state_to_json(state).dump());
    restore_rng_state(through_text ? rng_state_from_json(kept) : state, {{"sampler", own_}});
    EXPECT_EQ(draw(), next);
    EXPECT_EQ(draw_own(), next_own);
  }
}

TEST_F(RngStateTest, IsNotChangedByWhatIsDrawnAfterwards) {
  const RngState state = capture_rng_state();
  const at::Tensor before = state.states.at("torch").clone();
  draw();
  EXPECT_TRUE(at::equal(state.states.at("torch"), before));
}

TEST_F(RngStateTest, DerivesGeneratorsFromAStateAndANumber) {
  const auto drawn = [this](const at::Tensor& state, int64_t number) {
    at::Generator derived = derived_generator(own_, state, number);
    return at::randn({}, derived, at::kFloat).item<double>();
  };
  const at::Tensor before = generator_state(own_);
  const double first = drawn(before, 0);
  EXPECT_EQ(drawn(before, 0), first);
  EXPECT_NE(drawn(before, 1), first);
  EXPECT_TRUE(at::equal(generator_state(own_), before));
  draw_own();
  EXPECT_NE(drawn(generator_state(own_), 0), first);
  EXPECT_EQ(drawn(before, 0), first);
}

TEST_F(RngStateTest, NamesWhatDoesNotFit) {
  const RngState good = capture_rng_state({{"sampler", own_}});
  EXPECT_THAT(error_of(good),
              AllOf(HasSubstr("a state of generator \"sampler\""), HasSubstr("it has torch")));
  EXPECT_THAT(error_of(capture_rng_state(), {{"sampler", own_}}),
              AllOf(HasSubstr("no state of generator \"sampler\""), HasSubstr("there are torch")));
  EXPECT_THROW(capture_rng_state({{"cuda", own_}}), c10::ValueError);
  EXPECT_THROW(capture_rng_state({{"sampler", {}}}), c10::ValueError);
}

TEST_F(RngStateTest, RefusesForeignBytesAndChangesNothing) {
  const RngState good = capture_rng_state({{"sampler", own_}});
  const at::Tensor& bytes = good.states.at("torch");
  draw_own();
  const RngState now = capture_rng_state({{"sampler", own_}});
  // "torch" comes after "sampler", which is good.
  auto expect_refused = [&](const at::Tensor& state, const char* what) {
    RngState bad = good;
    bad.states["torch"] = state;
    EXPECT_THAT(error_of(bad, {{"sampler", own_}}),
                AllOf(HasSubstr("generator \"torch\""), HasSubstr(what)));
    for (const auto& [name, unchanged] : capture_rng_state({{"sampler", own_}}).states) {
      EXPECT_TRUE(at::equal(unchanged, now.states.at(name))) << name << " after " << what;
    }
  };
  expect_refused(bytes.narrow(0, 0, 100).clone(), "has 100 bytes");
  expect_refused(at::empty({0}, at::kByte), "has 0 bytes");
  expect_refused(at::full_like(bytes, 255), "damaged");
  expect_refused(bytes.to(at::kFloat), "vector of bytes");
  expect_refused(at::Tensor(), "vector of bytes");
}

TEST_F(RngStateTest, RefusesJsonThatIsNoState) {
  auto error_of_json = [](const nlohmann::json& json) -> std::string {
    try {
      rng_state_from_json(json);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  nlohmann::json good = rng_state_to_json(capture_rng_state());
  EXPECT_EQ(error_of_json(good), "");
  EXPECT_THAT(error_of_json(nlohmann::json::array()), HasSubstr("not a state of random number"));
  EXPECT_THAT(error_of_json({{"version", 1}}), HasSubstr("states"));
  nlohmann::json other = good;
  other["version"] = 2;
  EXPECT_THAT(error_of_json(other), HasSubstr("version 2"));
  other = good;
  other["states"]["torch"] = "not base64!";
  EXPECT_THAT(error_of_json(other), AllOf(HasSubstr("\"torch\""), HasSubstr("base64")));
  other["states"]["torch"] = 3;
  EXPECT_THAT(error_of_json(other), HasSubstr("not a state of random number"));
}

}  // namespace
}  // namespace accelerate
