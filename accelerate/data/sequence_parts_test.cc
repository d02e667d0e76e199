#include "accelerate/data/sequence_parts.h"

#include <cstdint>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/accumulate.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/data/sequence_reader.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::UnorderedElementsAre;

at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes)).view(sizes);
}

TEST(SequenceParts, OfANamedBatchHaveTheLabelsOfTheNextTokensAndPositions) {
  const NamedBatch batch = {
      {"input_ids", numbers({2, 6})}, {"labels", numbers({2, 6})}, {"weight", at::ones({2})}};
  for (const int index : {0, 1, 2}) {
    const NamedBatch part = part_of_sequences(batch, {.index = index, .count = 3});
    EXPECT_THAT(part, UnorderedElementsAre(Key("input_ids"), Key("position_ids"),
                                           Key("shift_labels"), Key("weight")));
    const at::Tensor own = numbers({2, 6}).narrow(1, 2 * index, 2);
    EXPECT_TRUE(at::equal(part.at("input_ids"), own));
    EXPECT_TRUE(part.at("input_ids").is_contiguous());
    EXPECT_TRUE(at::equal(part.at("position_ids"), (at::arange(2) + 2 * index).expand({2, 2})));
    at::Tensor next = own + 1;
    if (index == 2) next.select(1, 1).fill_(-100);
    EXPECT_TRUE(at::equal(part.at("shift_labels"), next));
    EXPECT_EQ(part.at("weight").size(0), 2);
  }
}

TEST(SequenceParts, KeepWhatABatchHasAlready) {
  const NamedBatch batch = {{"input_ids", numbers({1, 4})},
                            {"position_ids", numbers({1, 4}) + 10},
                            {"shift_labels", numbers({1, 4}) + 20}};
  const NamedBatch part = part_of_sequences(batch, {.index = 1, .count = 2});
  EXPECT_EQ(part.size(), 3);
  EXPECT_EQ(part.at("position_ids")[0][0].item<int64_t>(), 12);
  EXPECT_EQ(part.at("shift_labels")[0][0].item<int64_t>(), 22);
  EXPECT_EQ(batch.at("input_ids").size(1), 4) << "the batch itself stays";
}

TEST(SequenceParts, OfOtherTreesAreThoseOfEachTensor) {
  const auto [tokens, labels] =
      part_of_sequences(std::pair(numbers({2, 4}), numbers({2, 4, 3})), {.index = 1, .count = 2});
  EXPECT_TRUE(at::equal(tokens, numbers({2, 4}).narrow(1, 2, 2)));
  EXPECT_TRUE(at::equal(labels, numbers({2, 4, 3}).narrow(1, 2, 2)));
}

TEST(SequenceParts, RefuseWhatDoesNotFit) {
  const auto error_of = [](const NamedBatch& batch, int64_t length = 0) {
    return value_error_of(
        [&] { part_of_sequences(batch, {.index = 1, .count = 4, .length = length, .rank = 5}); });
  };
  EXPECT_THAT(error_of({{"input_ids", numbers({1, 130})}}),
              HasSubstr("rank 5: the sequences of a batch have 130 tokens, which do not divide "
                        "evenly among 4 ranks along sp; 128 and 132 would"));
  EXPECT_THAT(error_of({{"input_ids", numbers({1, 8})}}, 16), HasSubstr("sp_seq_length=16"));
  EXPECT_THAT(error_of({{"a", numbers({1, 4, 4})}, {"input_ids", numbers({1, 8})}}),
              HasSubstr("a tensor of sizes [1, 4, 4], but its sequences have 8 tokens"));
  EXPECT_THAT(error_of({{"input_ids", numbers({8})}}), HasSubstr("has no dim of tokens"));
  EXPECT_THAT(error_of({{"labels", numbers({1, 8})}, {"shift_labels", numbers({1, 8})}}),
              HasSubstr("a batch has \"labels\" and \"shift_labels\""));
}

// Four shares of three rows in groups of two: of 7 real rows, shares 0 and 1 have three each, and
// share 2 has one.
TEST(RoundOfMember, CountsTheRowsOfTheMembersOfAllGroups) {
  const BatchRound round{.own_rows = 3, .real_rows = 7, .shares = 3, .last = true};
  const BatchRound first = internal::round_of_member(round, 0, 2, 4, 3);
  EXPECT_EQ(first.real_rows, 4);
  EXPECT_EQ(first.shares, 2);
  EXPECT_EQ(first.own_rows, 3);
  const BatchRound second = internal::round_of_member(round, 1, 2, 4, 3);
  EXPECT_EQ(second.real_rows, 3);
  EXPECT_EQ(second.shares, 1);
  const BatchRound all = internal::round_of_member({}, 1, 2, 4, 3);
  EXPECT_EQ(all.real_rows, BatchRound::kAll);
  EXPECT_EQ(all.shares, 0);
}

}  // namespace
}  // namespace accelerate
