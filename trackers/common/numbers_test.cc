#include "trackers/common/numbers.h"

#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HistogramTest, CountsBetweenEdges) {
  const Histogram histogram = make_histogram({0, 1, 2, 3, 4, 1.5}, 4);
  EXPECT_THAT(histogram.edges, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(histogram.counts, ElementsAre(1, 2, 1, 2));
}

TEST(HistogramTest, OneValueIsInTheMiddle) {
  const Histogram histogram = make_histogram({3, 3}, 2);
  EXPECT_THAT(histogram.edges, ElementsAre(2.5, 3, 3.5));
  EXPECT_THAT(histogram.counts, ElementsAre(0, 2));
}

TEST(HistogramTest, LeavesOutWhatIsNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Histogram histogram = make_histogram({std::nan(""), kInfinity, -kInfinity, 1, 2}, 1);
  EXPECT_EQ(histogram.nan, 1);
  EXPECT_EQ(histogram.infinite, 2);
  EXPECT_THAT(histogram.counts, ElementsAre(2));
  EXPECT_THAT(make_histogram({}).counts, IsEmpty());
  EXPECT_THAT(make_histogram({kInfinity}).edges, IsEmpty());
}

// Beside such numbers a half is lost in rounding.
TEST(HistogramTest, OneLargeValueHasBinsAroundItToo) {
  for (const double value : {1e17, -1e17}) {
    const Histogram histogram = make_histogram({value, value}, 2);
    ASSERT_EQ(histogram.edges.size(), 3u);
    EXPECT_LT(histogram.edges[0], histogram.edges[1]);
    EXPECT_LT(histogram.edges[1], histogram.edges[2]);
    EXPECT_LT(histogram.edges[0], value);
    EXPECT_GT(histogram.edges[2], value);
  }
}

TEST(HistogramTest, TheWholeRangeOfNumbers) {
  constexpr double kMax = std::numeric_limits<double>::max();
  const Histogram histogram = make_histogram({-kMax, 0, 1, kMax, 1e30});
  EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(), int64_t{0}), 5);
  for (size_t i = 1; i < histogram.edges.size(); ++i) {
    EXPECT_GT(histogram.edges[i], histogram.edges[i - 1]);
  }
}

}  // namespace
}  // namespace accelerate::trackers
