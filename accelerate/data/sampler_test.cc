#include "accelerate/data/sampler.h"

#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> values(const at::Tensor& tensor) {
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + tensor.numel());
}

TEST(SequentialSampler, CountsUpInEveryEpoch) {
  SequentialSampler sampler(4);
  EXPECT_THAT(values(sampler.indices(0)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(values(sampler.indices(9)), ElementsAre(0, 1, 2, 3));
  EXPECT_THROW(SequentialSampler(-1), c10::ValueError);
}

// The peer's SeedableRandomSampler with data_seed 1000000 over five samples.
TEST(RandomSampler, GivesThePeersPermutations) {
  RandomSampler sampler(5, 1000000);
  EXPECT_THAT(values(sampler.indices(0)), ElementsAre(0, 4, 2, 1, 3));
  EXPECT_THAT(values(sampler.indices(7)), ElementsAre(3, 2, 1, 0, 4));
}

TEST(RandomSampler, DoesNotTouchTheDefaultGenerator) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(1);
  const uint64_t expected = draw_seed();
  generator.set_current_seed(1);
  RandomSampler(100, 3).indices(0);
  EXPECT_EQ(draw_seed(), expected);
}

TEST(DrawSeed, IsOneInt64DrawOfTheDefaultGenerator) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(7);
  const int64_t first = at::empty({}, at::kLong).random_().item<int64_t>();
  const int64_t second = at::empty({}, at::kLong).random_().item<int64_t>();
  generator.set_current_seed(7);
  EXPECT_EQ(draw_seed(), static_cast<uint64_t>(first));
  EXPECT_EQ(draw_seed(), static_cast<uint64_t>(second));
}

}  // namespace
}  // namespace accelerate
