#include "accelerate/data/batch_rows.h"

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/example.h>

namespace user {

struct Batch {
  at::Tensor images;
  std::vector<std::string> names;
  int version = 0;
};
auto tree_members(Batch& batch) { return std::tie(batch.images, batch.names, batch.version); }

}  // namespace user

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Values = std::vector<int64_t>;
using Names = std::vector<std::string>;
using Example = torch::data::Example<>;

Values values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const int64_t* data = flat.const_data_ptr<int64_t>();
  return Values(data, data + flat.numel());
}

at::Tensor range(int64_t begin, int64_t end) { return at::arange(begin, end); }

TEST(BatchRows, CountsTheRowsOfTheFirstLeafThatHasThem) {
  EXPECT_EQ(batch_rows(range(0, 3)), 3);
  EXPECT_EQ(batch_rows(std::tuple(at::Tensor(), at::zeros({}), range(0, 2))), 2);
  EXPECT_EQ(batch_rows(std::pair(5, Names{"a", "b"})), 2);
  EXPECT_EQ(batch_rows(std::map<std::string, at::Tensor>{{"x", at::zeros({4, 2})}}), 4);
  EXPECT_EQ(batch_rows(Example(range(0, 5), range(0, 5))), 5);
  EXPECT_EQ(batch_rows(user::Batch{range(0, 2), {"a", "b"}, 1}), 2);
  EXPECT_EQ(batch_rows(c10::IValue(c10::List<at::Tensor>({range(0, 6)}))), 6);
  EXPECT_EQ(batch_rows(std::optional<at::Tensor>(at::zeros({0, 3}))), 0);
}

TEST(BatchRows, CountsSamplesThatAreNotYetStacked) {
  EXPECT_EQ(batch_rows(Names{"a", "b", "c"}), 3);
  EXPECT_EQ(batch_rows(std::vector<Example>(4)), 4);
  EXPECT_EQ(batch_rows(std::vector<bool>(2)), 2);
  EXPECT_EQ(batch_rows(std::vector<at::Tensor>{range(0, 7), range(0, 7)}), 7) << "not a list";
}

TEST(BatchRows, FindsNoneWhereThereAreNone) {
  EXPECT_EQ(batch_rows(std::string("text")), std::nullopt);
  EXPECT_EQ(batch_rows(std::tuple(1, at::zeros({}))), std::nullopt);
  EXPECT_EQ(batch_rows(std::vector<at::Tensor>()), std::nullopt);
  EXPECT_EQ(batch_rows(std::optional<at::Tensor>()), std::nullopt);
}

TEST(SliceRows, CutsTensorsAndListsAlike) {
  const user::Batch cut = slice_rows(user::Batch{range(0, 5), {"a", "b", "c", "d", "e"}, 7}, 1, 3);
  EXPECT_THAT(values(cut.images), ElementsAre(1, 2));
  EXPECT_THAT(cut.names, ElementsAre("b", "c"));
  EXPECT_EQ(cut.version, 7) << "it belongs to the batch as a whole";
  const auto map =
      slice_rows(std::map<std::string, std::vector<at::Tensor>>{{"x", {range(0, 4)}}}, 2, 4);
  EXPECT_THAT(values(map.at("x")[0]), ElementsAre(2, 3));
  const Example example = slice_rows(Example(range(0, 3), range(5, 8)), 0, 1);
  EXPECT_THAT(values(example.target), ElementsAre(5));
  const c10::IValue value = slice_rows(c10::IValue(range(0, 3)), 1, 2);
  EXPECT_THAT(values(value.toTensor()), ElementsAre(1));
}

TEST(SliceRows, StopsAtTheEnd) {
  EXPECT_THAT(values(slice_rows(range(0, 3), 2, 9)), ElementsAre(2));
  EXPECT_EQ(slice_rows(at::zeros({3, 2}), 5, 9).sizes(), (std::vector<int64_t>{0, 2}));
  EXPECT_THAT(slice_rows(Names{"a", "b"}, 1, 5), ElementsAre("b"));
  EXPECT_THAT(slice_rows(Names{"a", "b"}, 3, 5), IsEmpty());
}

TEST(SliceRows, LeavesWhatHasNoRows) {
  auto [scalar, none] = slice_rows(std::tuple(at::scalar_tensor(3), at::Tensor()), 0, 1);
  EXPECT_EQ(scalar.item<int>(), 3);
  EXPECT_FALSE(none.defined());
}

TEST(SliceRows, GivesViewsAndLeavesItsArgument) {
  const std::vector<at::Tensor> batch{range(0, 4)};
  const auto cut = slice_rows(batch, 1, 2);
  EXPECT_TRUE(cut[0].is_alias_of(batch[0]));
  EXPECT_EQ(batch[0].size(0), 4);
}

TEST(SliceRows, CutsListsOfSamples) {
  const std::vector<Example> samples{{range(0, 2), range(0, 1)}, {range(2, 4), range(1, 2)}};
  const std::vector<Example> cut = slice_rows(samples, 1, 2);
  ASSERT_EQ(cut.size(), 1);
  EXPECT_THAT(values(cut[0].data), ElementsAre(2, 3)) << "a sample stays whole";
}

TEST(ConcatenateRows, JoinsTensorsAndListsInOrder) {
  const user::Batch joined = concatenate_rows(std::vector<user::Batch>{
      {range(0, 2), {"a", "b"}, 1}, {range(2, 3), {"c"}, 2}, {range(3, 5), {"d", "e"}, 3}});
  EXPECT_THAT(values(joined.images), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(joined.names, ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_EQ(joined.version, 1) << "the first batch's";
}

TEST(ConcatenateRows, JoinsEachListWithTheOnesInItsPlace) {
  using Batch = std::tuple<Names, at::Tensor, std::map<int, Names>, std::vector<int>>;
  const auto [first, tensor, map, numbers] =
      concatenate_rows(std::vector<Batch>{{{"a"}, range(0, 1), {{1, {"b"}}, {2, {"c"}}}, {10}},
                                          {{"d"}, range(1, 2), {{1, {"e"}}, {2, {"f"}}}, {20}}});
  EXPECT_THAT(first, ElementsAre("a", "d"));
  EXPECT_THAT(map.at(1), ElementsAre("b", "e"));
  EXPECT_THAT(map.at(2), ElementsAre("c", "f"));
  EXPECT_THAT(numbers, ElementsAre(10, 20));
  EXPECT_THAT(values(tensor), ElementsAre(0, 1));
}

TEST(ConcatenateRows, JoinsListsOfSamplesExamplesAndIValues) {
  EXPECT_THAT(concatenate_rows(std::vector<Names>{{"a"}, {}, {"b", "c"}}),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(concatenate_rows(std::vector<std::vector<bool>>{{true}, {false, true}}),
              ElementsAre(true, false, true));
  const Example example = concatenate_rows(
      std::vector<Example>{{range(0, 1), range(5, 6)}, {range(1, 2), range(6, 7)}});
  EXPECT_THAT(values(example.data), ElementsAre(0, 1));
  EXPECT_THAT(values(example.target), ElementsAre(5, 6));
  const c10::IValue value = concatenate_rows(std::vector<c10::IValue>{range(0, 2), range(2, 3)});
  EXPECT_THAT(values(value.toTensor()), ElementsAre(0, 1, 2));
}

TEST(ConcatenateRows, GivesALoneBatchAsItIs) {
  const at::Tensor batch = range(0, 2);
  EXPECT_TRUE(concatenate_rows(std::vector<at::Tensor>{batch}).is_same(batch));
}

TEST(ConcatenateRows, IsTheInverseOfSlicing) {
  const user::Batch batch{range(0, 5), {"a", "b", "c", "d", "e"}, 7};
  for (int64_t cut = 0; cut <= 5; ++cut) {
    const user::Batch joined = concatenate_rows(
        std::vector<user::Batch>{slice_rows(batch, 0, cut), slice_rows(batch, cut, 5)});
    EXPECT_EQ(values(joined.images), values(batch.images));
    EXPECT_EQ(joined.names, batch.names);
  }
}

TEST(ConcatenateRows, RefusesNothing) {
  EXPECT_THROW(concatenate_rows(std::vector<at::Tensor>()), c10::ValueError);
}

TEST(ConcatenateRows, RefusesBatchesOfDifferentStructures) {
  using Tensors = std::vector<at::Tensor>;
  const Tensors one{range(0, 1)};
  const Tensors two{range(0, 1), range(0, 1)};
  EXPECT_THROW(concatenate_rows(std::vector<Tensors>{one, two}), c10::ValueError);
  EXPECT_THROW(concatenate_rows(std::vector<Tensors>{two, one}), c10::ValueError);
  EXPECT_THROW(concatenate_rows(std::vector<at::Tensor>{at::zeros({1, 2}), at::zeros({1, 3})}),
               c10::Error);
}

TEST(ConcatenateRows, RefusesBatchesOfWhichOneLacksAList) {
  using Batch = std::tuple<at::Tensor, std::optional<Names>>;
  const Batch with{range(0, 1), Names{"a"}};
  const Batch without{range(0, 1), std::nullopt};
  EXPECT_THROW(concatenate_rows(std::vector<Batch>{with, without}), c10::ValueError);
  EXPECT_THROW(concatenate_rows(std::vector<Batch>{without, with}), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
