#include "accelerate/data/sampler.h"

#include <memory>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Batches = std::vector<std::vector<int64_t>>;

Batches begun(BatchSampler& sampler) {
  const IndexBatches batches = sampler.begin_pass();
  Batches all;
  for (int64_t i = 0; i < batches.size(); ++i) {
    std::vector<int64_t>& batch = all.emplace_back(static_cast<size_t>(batches.length(i)));
    batches.copy(i, batch.data());
  }
  return all;
}

Batches batches_of(int64_t samples, int64_t batch_size, bool drop_last) {
  FixedSizeBatchSampler sampler(std::make_shared<SequentialSampler>(samples), batch_size,
                                drop_last);
  Batches all = begun(sampler);
  EXPECT_EQ(all.size(), sampler.size());
  EXPECT_EQ(sampler.num_samples(), samples);
  return all;
}

TEST(FixedSizeBatchSampler, KeepsTheShortTailBatch) {
  EXPECT_THAT(batches_of(5, 2, false),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_THAT(batches_of(4, 2, false), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(batches_of(1, 4, false), ElementsAre(ElementsAre(0)));
}

TEST(FixedSizeBatchSampler, DropsTheShortTailBatchWhenAsked) {
  EXPECT_THAT(batches_of(5, 2, true), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(batches_of(1, 2, true), IsEmpty());
}

TEST(FixedSizeBatchSampler, HasNoBatchesWithoutSamples) {
  EXPECT_THAT(batches_of(0, 2, false), IsEmpty());
}

TEST(FixedSizeBatchSampler, RefusesABatchSizeThatIsNotPositiveAndNoSampler) {
  EXPECT_THROW(batches_of(5, 0, false), c10::ValueError);
  EXPECT_THROW(batches_of(5, -3, false), c10::ValueError);
  EXPECT_THROW(FixedSizeBatchSampler(nullptr, 2), c10::ValueError);
}

TEST(FixedSizeBatchSampler, RefusesASamplerWhoseIndicesAreNoInt64Vector) {
  struct FloatSampler : Sampler {
    IndexOrder begin_pass() override { return IndexOrder(at::tensor({0.0, 1.0})); }
    int64_t size() const override { return 2; }
  };
  FixedSizeBatchSampler sampler(std::make_shared<FloatSampler>(), 2);
  EXPECT_THROW(sampler.begin_pass(), c10::ValueError);
}

// Calls on the batch sampler reach its sampler.
TEST(FixedSizeBatchSampler, PassesOnToItsSampler) {
  auto seedable =
      std::make_shared<SeedableRandomSampler>(10, SeedableRandomSamplerOptions{.data_seed = 1});
  FixedSizeBatchSampler sampler(seedable, 4);
  sampler.set_epoch(5);
  EXPECT_EQ(seedable->epoch(), 5);
  const Batches pass = begun(sampler);
  const nlohmann::json state = sampler.state_dict();
  EXPECT_EQ(state, seedable->state_dict());
  sampler.end_pass();
  EXPECT_EQ(seedable->epoch(), 6);
  EXPECT_NE(begun(sampler), pass);
  sampler.load_state_dict(state);
  EXPECT_EQ(begun(sampler), pass);
  EXPECT_EQ(sampler.generator(), nullptr);

  auto random = std::make_shared<RandomSampler>(10);
  FixedSizeBatchSampler shuffled(random, 4);
  *shuffled.generator() = at::detail::createCPUGenerator(3);
  EXPECT_TRUE(random->generator()->defined());
}

TEST(ListBatchSampler, GivesItsBatchesInEveryPass) {
  const Batches given{{3, 1}, {0}, {2, 2, 2}};
  ListBatchSampler sampler(given);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(begun(sampler), given);
    sampler.end_pass();
  }
  EXPECT_EQ(sampler.size(), 3);
  EXPECT_EQ(sampler.num_samples(), 6);
  EXPECT_EQ(sampler.batch_size(), std::nullopt);
  EXPECT_FALSE(sampler.drop_last());
  EXPECT_EQ(sampler.generator(), nullptr);
}

TEST(ListBatchSampler, SaysWhatItIsToldToPromise) {
  ListBatchSampler sampler({{0, 1}, {2}}, {.batch_size = 2, .drop_last = true});
  EXPECT_EQ(sampler.batch_size(), 2);
  EXPECT_TRUE(sampler.drop_last());
  EXPECT_THAT(begun(sampler), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THROW(ListBatchSampler({{0}}, {.batch_size = 0}), c10::ValueError);
}

// Growing batches: a sampler of one's own need say no more than this.
TEST(BatchSampler, CanBeDerivedFrom) {
  struct Growing : BatchSampler {
    std::optional<int64_t> batch_size() const override { return std::nullopt; }
    bool drop_last() const override { return false; }
    int64_t size() const override { return 3; }
    IndexBatches begin_pass() override {
      return IndexBatches::from_lists({{0}, {1, 2}, {3, 4, 5}});
    }
  };
  Growing sampler;
  EXPECT_THAT(begun(sampler), ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3, 4, 5)));
  sampler.end_pass();
  sampler.set_epoch(3);
  EXPECT_EQ(sampler.num_samples(), std::nullopt);
  EXPECT_EQ(sampler.generator(), nullptr);
  EXPECT_EQ(sampler.state_dict(), nlohmann::json::object());
  sampler.load_state_dict(nlohmann::json::object());
}

}  // namespace
}  // namespace accelerate
