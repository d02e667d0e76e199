#include "accelerate/data/batch_sampler.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::vector<int64_t>> batches_of(int64_t samples, int64_t batch_size, bool drop_last) {
  BatchSampler sampler(std::make_shared<SequentialSampler>(samples), batch_size, drop_last);
  const IndexBatches batches = sampler.batches(/*epoch=*/0);
  EXPECT_EQ(batches.size(), sampler.size());
  std::vector<std::vector<int64_t>> all;
  for (int64_t i = 0; i < batches.size(); ++i) {
    const at::Tensor batch = batches[i];
    const int64_t* data = batch.const_data_ptr<int64_t>();
    all.emplace_back(data, data + batch.numel());
  }
  return all;
}

TEST(BatchSampler, KeepsTheShortTailBatch) {
  EXPECT_THAT(batches_of(5, 2, false),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
}

TEST(BatchSampler, DropsTheShortTailBatchWhenAsked) {
  EXPECT_THAT(batches_of(5, 2, true), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(batches_of(1, 2, true), IsEmpty());
}

TEST(BatchSampler, HasNoBatchesWithoutSamples) { EXPECT_THAT(batches_of(0, 2, false), IsEmpty()); }

TEST(BatchSampler, RefusesABatchSizeThatIsNotPositive) {
  EXPECT_THROW(batches_of(5, 0, false), c10::ValueError);
  EXPECT_THROW(batches_of(5, -3, false), c10::ValueError);
}

TEST(BatchSampler, RefusesASamplerWhoseIndicesAreNoInt64Vector) {
  struct FloatSampler : Sampler {
    at::Tensor indices(int64_t) const override {
      return SequentialSampler(4).indices(0).to(at::kFloat);
    }
    int64_t size() const override { return 4; }
  };
  EXPECT_THROW(BatchSampler(std::make_shared<FloatSampler>(), 2).batches(0), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
