#include "accelerate/checkpoint/objects/training_state_dict.h"

#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/comm/random.h"
#include "accelerate/state/seed.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

class RngStateDictTest : public ::testing::Test {
 protected:
  void SetUp() override { set_seed(5); }
  static double draw() { return at::randn({}).item<double>(); }

  FakeRuntime runtime_;
  RuntimeScope scope_{runtime_};
  at::Generator own_ = at::detail::createCPUGenerator(9);
};

TEST_F(RngStateDictTest, DrawsTheSameAgain) {
  draw();  // The second normal number of a pair is kept.
  const NamedGenerators generators = {{"sampler", own_}};
  const StateDict saved = rng_state_dict(capture_rng_state(generators));
  ASSERT_EQ(saved.tensors.size(), 2);
  EXPECT_EQ(saved.tensors[1].first, "torch");
  EXPECT_EQ(saved.tensors[1].second.scalar_type(), at::kByte);
  // PyTorch's generator has as many bytes, and the same in them.
  EXPECT_EQ(saved.tensors[1].second.numel(), 5056);
  const double next = draw();
  draw();
  restore_rng_state(rng_state_of(saved), generators);
  EXPECT_EQ(draw(), next);
}

TEST_F(RngStateDictTest, RefusesWhatIsNoState) {
  EXPECT_THAT(value_error_of([] { rng_state_of({{{"torch", at::zeros({5056})}}, {}}); }),
              HasSubstr("generator \"torch\" is not a vector of bytes"));
  EXPECT_THAT(value_error_of([] { rng_state_of({{{"torch", at::Tensor()}}, {}}); }),
              HasSubstr("not a vector of bytes"));
  const at::Tensor bytes = at::zeros({4}, at::kByte);
  EXPECT_THAT(value_error_of([&] { rng_state_of({{{"a", bytes}, {"a", bytes}}, {}}); }),
              HasSubstr("two states of generator \"a\""));
}

TEST_F(RngStateDictTest, DerivesAStateForEachRank) {
  const RngState rank0 = capture_rng_state();
  std::set<double> drawn;
  for (int rank = 1; rank < 40; ++rank) {
    restore_rng_state(derive_rng_state(rank0, rank));
    const double first = draw();
    drawn.insert(first);
    restore_rng_state(derive_rng_state(rank0, rank));
    EXPECT_EQ(draw(), first);
  }
  EXPECT_EQ(drawn.size(), 39);
  // It follows from where rank 0 was, not from its seed alone.
  restore_rng_state(rank0);
  draw();
  EXPECT_FALSE(at::equal(derive_rng_state(capture_rng_state(), 1).states.at("torch"),
                         derive_rng_state(rank0, 1).states.at("torch")));
  // One that rank 0 did not have comes from its "torch".
  const NamedGenerators generators = {{"sampler", own_}};
  const RngState derived = derive_rng_state(rank0, 1, generators);
  EXPECT_EQ(derived.states.size(), 2);
  restore_rng_state(derived, generators);
  EXPECT_THAT(value_error_of([] { derive_rng_state({}, 1); }), HasSubstr("rank 0 has no state"));
  EXPECT_THAT(value_error_of([&] { derive_rng_state(rank0, -1); }), HasSubstr("rank -1"));
}

TEST_F(RngStateDictTest, DerivingChangesNoGenerator) {
  const RngState before = capture_rng_state();
  derive_rng_state(before, 3);
  EXPECT_TRUE(at::equal(capture_rng_state().states.at("torch"), before.states.at("torch")));
}

}  // namespace
}  // namespace accelerate
