#include "accelerate/pipeline/partition.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string message_of(const absl::StatusOr<StageCuts>& cuts) {
  EXPECT_EQ(cuts.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(cuts.status().message());
}

std::vector<std::string> blocks() { return {"embed", "blocks.0", "blocks.1", "blocks.2", "head"}; }

TEST(CutByCount, GivesTheFirstStagesMore) {
  EXPECT_THAT(cut_by_count(8, 4).value(), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(cut_by_count(10, 4).value(), ElementsAre(0, 3, 6, 8));
  EXPECT_THAT(cut_by_count(3, 3).value(), ElementsAre(0, 1, 2));
  EXPECT_THAT(cut_by_count(7, 1).value(), ElementsAre(0));
}

TEST(CutByCount, RefusesMoreStagesThanParts) {
  EXPECT_EQ(message_of(cut_by_count(12, 16)),
            "a model of 12 parts cannot have 16 stages; it can have 12 at most");
  EXPECT_EQ(message_of(cut_by_count(12, 0)), "a pipeline has at least 1 stage, but got 0");
  EXPECT_THAT(message_of(cut_by_weight({1, 2}, 3)), HasSubstr("it can have 2 at most"));
}

TEST(CutByWeight, OfEqualPartsIsTheCutByCount) {
  for (size_t parts = 1; parts <= 20; ++parts) {
    for (int stages = 1; stages <= static_cast<int>(parts); ++stages) {
      EXPECT_EQ(cut_by_weight(std::vector<int64_t>(parts, 7), stages).value(),
                cut_by_count(parts, stages).value());
    }
  }
}

TEST(CutByWeight, MakesTheLargestStageAsSmallAsCanBe) {
  // A large embedding and head around equal blocks.
  EXPECT_THAT(cut_by_weight({50, 10, 10, 10, 10, 10, 10, 10, 40}, 4).value(),
              ElementsAre(0, 1, 5, 8));
  // The stages but for the largest one are equal as well, not as full as can be.
  EXPECT_THAT(cut_by_weight({1, 1, 1, 1, 6}, 3).value(), ElementsAre(0, 2, 4));
}

TEST(CutByWeight, LeavesNoStageWithoutParts) {
  EXPECT_THAT(cut_by_weight({0, 0, 0, 9}, 4).value(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(cut_by_weight({9, 0, 0}, 3).value(), ElementsAre(0, 1, 2));
}

// The largest stage and the sum of squares of the best of all cuts.
class AllCuts {
 public:
  explicit AllCuts(const std::vector<int64_t>& weights) : weights_(weights) {}

  using Score = std::tuple<int64_t, int64_t>;

  Score score(const StageCuts& cuts) const {
    int64_t largest = 0;
    int64_t squares = 0;
    for (size_t i = 0; i < cuts.size(); ++i) {
      int64_t size = 0;
      const size_t end = i + 1 < cuts.size() ? cuts[i + 1] : weights_.size();
      for (size_t part = cuts[i]; part < end; ++part) size += weights_[part];
      largest = std::max(largest, size);
      squares += size * size;
    }
    return {largest, squares};
  }

  Score best(int stages) {
    best_ = {std::numeric_limits<int64_t>::max(), 0};
    StageCuts cuts = {0};
    extend(cuts, static_cast<size_t>(stages));
    return best_;
  }

 private:
  void extend(StageCuts& cuts, size_t stages) {
    if (cuts.size() == stages) {
      best_ = std::min(best_, score(cuts));
      return;
    }
    for (size_t next = cuts.back() + 1; next < weights_.size(); ++next) {
      cuts.push_back(next);
      extend(cuts, stages);
      cuts.pop_back();
    }
  }

  const std::vector<int64_t> weights_;
  Score best_;
};

TEST(CutByWeight, IsTheBestOfAllCuts) {
  std::mt19937 draw(3);
  for (int i = 0; i < 200; ++i) {
    std::vector<int64_t> weights(draw() % 10 + 1);
    for (int64_t& weight : weights) weight = static_cast<int64_t>(draw() % 12);
    const int stages = static_cast<int>(draw() % weights.size()) + 1;
    const StageCuts cuts = cut_by_weight(weights, stages).value();
    ASSERT_EQ(cuts.size(), static_cast<size_t>(stages));
    EXPECT_EQ(cuts.front(), 0U);
    EXPECT_EQ(std::ranges::adjacent_find(cuts, std::greater_equal<>()), cuts.end());
    AllCuts all(weights);
    EXPECT_EQ(all.score(cuts), all.best(stages));
  }
}

// Squares of bytes of large models are beyond 64 bits: those that wrap around are all 0 here.
TEST(CutByWeight, ComparesSquaresOfTheLargestNumbers) {
  constexpr int64_t kUnit = int64_t{1} << 59;
  EXPECT_THAT(cut_by_weight({kUnit, kUnit, kUnit, kUnit, 6 * kUnit}, 3).value(),
              ElementsAre(0, 2, 4));
}

TEST(CutByWeight, TakesTheLargestNumbersAndRefusesWhatIsNotAWeight) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(cut_by_weight({kMost / 2, kMost / 4, kMost / 4}, 2).value(), ElementsAre(0, 1));
  EXPECT_EQ(message_of(cut_by_weight({kMost, 1}, 2)),
            "the weights of the parts are more than 2^63 - 1 together");
  EXPECT_EQ(message_of(cut_by_weight({1, -3}, 2)), "part 1 has the weight -3");
}

TEST(CutByNames, BeginsAStageAtEachName) {
  const std::vector<std::string> parts = blocks();
  EXPECT_THAT(cut_by_names(parts, {"blocks.1", "head"}).value(), ElementsAre(0, 2, 4));
  EXPECT_THAT(cut_by_names(parts, {}).value(), ElementsAre(0));
}

TEST(CutByNames, NamesWhatIsWrong) {
  const std::vector<std::string> parts = blocks();
  EXPECT_EQ(message_of(cut_by_names(parts, {"block.1"})),
            "a stage is to begin at \"block.1\", which is not a part of the model; did you mean "
            "\"blocks.1\" or \"blocks.0\" or \"blocks.2\"?");
  EXPECT_EQ(message_of(cut_by_names(parts, {"embed"})),
            "a stage is to begin at \"embed\", the first part, at which the first stage begins "
            "anyway; name later parts");
  EXPECT_EQ(message_of(cut_by_names(parts, {"head", "blocks.1"})),
            "a stage is to begin at \"blocks.1\" behind one that begins at \"head\"; name parts "
            "once and in the model's order");
  EXPECT_THAT(message_of(cut_by_names(parts, {"blocks.1", "blocks.1"})),
              HasSubstr("name parts once"));
}

}  // namespace
}  // namespace accelerate::pipeline
