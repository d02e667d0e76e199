#include "accelerate/data/sampler.h"

#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Lists = std::vector<std::vector<int64_t>>;

IndexOrder squares() { return IndexOrder(at::tensor({0, 1, 4, 9, 16, 25}, at::kLong)); }

// The batches, each by copy and by tensor, which must agree.
Lists lists(const IndexBatches& batches) {
  Lists all;
  for (int64_t i = 0; i < batches.size(); ++i) {
    std::vector<int64_t> batch(static_cast<size_t>(batches.length(i)));
    batches.copy(i, batch.data());
    const at::Tensor tensor = batches[i];
    const auto* data = tensor.const_data_ptr<int64_t>();
    EXPECT_EQ(std::vector<int64_t>(data, data + tensor.numel()), batch);
    all.push_back(batch);
  }
  return all;
}

TEST(IndexBatches, IsEmptyByDefault) {
  EXPECT_EQ(IndexBatches().size(), 0);
  EXPECT_TRUE(IndexBatches().is_regular());
}

TEST(IndexBatches, CutsEquallyLongBatchesAtEqualDistances) {
  const IndexBatches batches(squares(), {.first = 1, .stride = 3, .length = 2, .count = 2});
  EXPECT_TRUE(batches.is_regular());
  EXPECT_THAT(lists(batches), ElementsAre(ElementsAre(1, 4), ElementsAre(16, 25)));
}

TEST(IndexBatches, KeepsALastBatchThatDiffersApart) {
  const IndexBatches batches(IndexOrder::range(10), {.stride = 4, .length = 4, .count = 2}, {8, 7});
  EXPECT_THAT(lists(batches),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7), ElementsAre(8, 7)));
  EXPECT_THAT(lists(IndexBatches(IndexOrder(), {.length = 4}, {3})), ElementsAre(ElementsAre(3)));
}

TEST(IndexBatches, TakesSpansOfAnyLengthsInAnyOrder) {
  const IndexBatches batches(squares(), {{.begin = 4, .length = 2},
                                         {.begin = 0, .length = 3},
                                         {.begin = 6, .length = 0},
                                         {.begin = 5, .length = 1}});
  EXPECT_FALSE(batches.is_regular());
  EXPECT_THAT(lists(batches),
              ElementsAre(ElementsAre(16, 25), ElementsAre(0, 1, 4), IsEmpty(), ElementsAre(25)));
}

TEST(IndexBatches, RefusesASpanOutsideTheOrder) {
  using Span = IndexBatches::Span;
  for (const Span& span : {Span{.begin = 5, .length = 2}, Span{.begin = -1, .length = 1},
                           Span{.begin = 2, .length = -1}, Span{.begin = 7, .length = 0}}) {
    EXPECT_THROW(IndexBatches(squares(), {span}), c10::ValueError) << span.begin;
  }
}

TEST(IndexBatches, GivesTheListsItWasMadeOf) {
  const Lists given{{3, 3}, {}, {0, 2, 1}};
  EXPECT_EQ(lists(IndexBatches::from_lists(given)), given);
  EXPECT_THAT(lists(IndexBatches::from_lists({})), IsEmpty());
}

TEST(IndexBatches, OwnsTheMemoryOfABatch) {
  const IndexBatches batches(squares(), {.stride = 2, .length = 2, .count = 3});
  batches[1].fill_(-1);
  EXPECT_THAT(lists(batches),
              ElementsAre(ElementsAre(0, 1), ElementsAre(4, 9), ElementsAre(16, 25)));
}

TEST(IndexOrder, IsARangeOrGivenIndices) {
  int64_t out[3];
  IndexOrder::range(1'000'000'000'000).copy(999'999'999'997, 3, out);
  EXPECT_THAT(out, ElementsAre(999'999'999'997, 999'999'999'998, 999'999'999'999));
  squares().copy(2, 3, out);
  EXPECT_THAT(out, ElementsAre(4, 9, 16));
  EXPECT_EQ(IndexOrder().size(), 0);
  EXPECT_EQ(IndexOrder().tensor().numel(), 0);
  EXPECT_TRUE(at::equal(IndexOrder::range(3).tensor(), at::tensor({0, 1, 2}, at::kLong)));
}

TEST(IndexOrder, RefusesWhatIsNoContiguousInt64VectorOnTheCpu) {
  const at::Tensor good = at::tensor({0, 1, 2, 3}, at::kLong);
  for (const at::Tensor& bad : {at::Tensor(), good.to(at::kInt), good.view({2, 2}),
                                good.slice(0, 0, 4, 2), good.to(c10::kMeta)}) {
    EXPECT_THROW(IndexOrder{bad}, c10::ValueError);
  }
  EXPECT_EQ(IndexOrder(good).size(), 4);
}

}  // namespace
}  // namespace accelerate
