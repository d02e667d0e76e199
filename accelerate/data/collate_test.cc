#include "accelerate/data/collate.h"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/example.h>

namespace user {

struct Sample {
  at::Tensor image;
  std::map<std::string, at::Tensor> boxes;
};
auto tree_members(Sample& sample) { return std::tie(sample.image, sample.boxes); }

// Holds no tensor that anybody can see.
struct Opaque {
  int number = 0;
};

}  // namespace user

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor row(int64_t value) { return at::full({2}, value, at::kLong); }

at::Tensor rows(std::initializer_list<int64_t> values) {
  std::vector<at::Tensor> all;
  for (int64_t value : values) all.push_back(row(value));
  return at::stack(all);
}

template <typename Sample>
auto collate(const std::vector<Sample>& samples) {
  return DefaultCollate()(samples);
}

// Equal values, shape and dtype.
void expect_same(const at::Tensor& tensor, const at::Tensor& expected) {
  EXPECT_EQ(tensor.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::equal(tensor, expected)) << tensor << "\nexpected\n" << expected;
}

template <typename Sample>
std::string error_of(const std::vector<Sample>& samples) {
  try {
    collate(samples);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(DefaultCollate, StacksTensors) {
  expect_same(collate<at::Tensor>({row(1), row(2), row(3)}), rows({1, 2, 3}));
  expect_same(collate<at::Tensor>({at::scalar_tensor(1.5)}), at::tensor({1.5F}));
}

TEST(DefaultCollate, MakesTensorsOfNumbers) {
  expect_same(collate<int>({3, -1}), at::tensor({3, -1}, at::kLong));
  expect_same(collate<uint8_t>({255}), at::tensor({255}, at::kLong));
  const int64_t large = (int64_t{1} << 53) + 1;
  expect_same(collate<int64_t>({large}), at::full({1}, large, at::kLong));
  expect_same(collate<float>({0.1F, 2}), at::tensor({0.1F, 2.0F}, at::kFloat));
  expect_same(collate<double>({0.1, 2}), at::tensor({0.1, 2.0}, at::kDouble));
}

TEST(DefaultCollate, MakesATensorOfBooleans) {
  expect_same(collate<bool>({true, false, true, true, false}),
              at::tensor({1, 0, 1, 1, 0}).to(at::kBool));
  auto [flags, numbers] = collate<std::pair<bool, int>>({{true, 1}, {false, 2}});
  expect_same(flags, at::tensor({1, 0}).to(at::kBool));
  expect_same(numbers, at::tensor({1, 2}, at::kLong));
}

TEST(DefaultCollate, CollatesTuplesMemberByMember) {
  using Sample = std::tuple<at::Tensor, double, std::string>;
  auto [tensors, numbers, names] = collate<Sample>({{row(1), 0.5, "a"}, {row(2), 1.5, "b"}});
  expect_same(tensors, rows({1, 2}));
  expect_same(numbers, at::tensor({0.5, 1.5}, at::kDouble));
  static_assert(std::is_same_v<decltype(names), std::vector<std::string>>);
  EXPECT_THAT(names, ElementsAre("a", "b"));
}

TEST(DefaultCollate, KeepsTuplesInTuples) {
  using Inner = std::tuple<at::Tensor, int>;
  auto nested = collate<std::pair<Inner, int>>({{{row(1), 1}, 2}, {{row(3), 3}, 4}});
  expect_same(std::get<0>(std::get<0>(nested)), rows({1, 3}));
  expect_same(std::get<1>(std::get<0>(nested)), at::tensor({1, 3}, at::kLong));
  // A tuple of one tuple is still one.
  using Lone = decltype(collate<std::tuple<Inner>>({}));
  constexpr bool kIsNested = std::is_same_v<Lone, std::tuple<std::tuple<at::Tensor, at::Tensor>>>;
  EXPECT_TRUE(kIsNested) << "the outer tuple was lost";
}

TEST(DefaultCollate, CollatesNestedContainersInPlace) {
  using Sample = std::map<std::string, std::vector<at::Tensor>>;
  const Sample batch = collate<Sample>(
      {{{"a", {row(1), row(2)}}, {"b", {row(3)}}}, {{"a", {row(4), row(5)}}, {"b", {row(6)}}}});
  ASSERT_EQ(batch.size(), 2);
  expect_same(batch.at("a").at(0), rows({1, 4}));
  expect_same(batch.at("a").at(1), rows({2, 5}));
  expect_same(batch.at("b").at(0), rows({3, 6}));
  using Array = std::array<std::optional<at::Tensor>, 2>;
  const Array array = collate<Array>({{row(1), std::nullopt}, {row(2), std::nullopt}});
  expect_same(*array[0], rows({1, 2}));
  EXPECT_FALSE(array[1].has_value());
}

TEST(DefaultCollate, CollatesTorchsExamples) {
  using torch::data::Example;
  auto batch = collate<Example<>>({{row(1), row(2)}, {row(3), row(4)}});
  static_assert(std::is_same_v<decltype(batch), Example<>>);
  expect_same(batch.data, rows({1, 3}));
  expect_same(batch.target, rows({2, 4}));
  auto labelled = collate<Example<at::Tensor, int>>({{row(1), 7}, {row(3), 8}});
  static_assert(std::is_same_v<decltype(labelled), Example<at::Tensor, at::Tensor>>);
  expect_same(labelled.target, at::tensor({7, 8}, at::kLong));
  expect_same(collate<torch::data::TensorExample>({row(1), row(2)}).data, rows({1, 2}));
}

// An example without a target is an example all the same, whatever its data are.
TEST(DefaultCollate, CollatesTorchsExamplesOfNumbersWithoutTargets) {
  auto batch = collate<torch::data::Example<double, void>>({1.5, 2.5});
  constexpr bool kIsTensor = std::is_same_v<decltype(batch), torch::data::TensorExample>;
  EXPECT_TRUE(kIsTensor) << "the batch is the first sample";
}

TEST(DefaultCollate, CollatesAUsersStruct) {
  const user::Sample batch =
      collate<user::Sample>({{row(1), {{"x", row(2)}}}, {row(3), {{"x", row(4)}}}});
  expect_same(batch.image, rows({1, 3}));
  expect_same(batch.boxes.at("x"), rows({2, 4}));
}

TEST(DefaultCollate, CollatesIValues) {
  auto sample = [](int64_t value) {
    c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
    dict.insert("list", c10::List<at::Tensor>({row(value), row(value + 1)}));
    dict.insert("tuple", c10::ivalue::Tuple::create(row(value + 2), int64_t{5}));
    return c10::IValue(dict);
  };
  const c10::IValue first = sample(10);
  const c10::IValue batch = collate<c10::IValue>({first, sample(20)});
  const auto dict = batch.toGenericDict();
  expect_same(dict.at("list").toTensorVector().at(1), rows({11, 21}));
  expect_same(dict.at("tuple").toTupleRef().elements()[0].toTensor(), rows({12, 22}));
  expect_same(first.toGenericDict().at("list").toTensorVector().at(1), row(11));
}

TEST(DefaultCollate, ListsWhateverElseThereIs) {
  EXPECT_THAT(collate<std::string>({"a", "bc"}), ElementsAre("a", "bc"));
  using Tokens = std::vector<int>;
  EXPECT_THAT(collate<Tokens>({{1, 2}, {3}}), ElementsAre(Tokens{1, 2}, Tokens{3}));
  const std::vector<user::Opaque> batch = collate<user::Opaque>({{4}, {5}});
  EXPECT_EQ(batch.at(1).number, 5);
}

TEST(DefaultCollate, NamesTheSampleWhoseShapeDiffers) {
  EXPECT_THAT(error_of<at::Tensor>({row(1), row(2), at::ones({3}, at::kLong)}),
              AllOf(HasSubstr("sample 2"), HasSubstr("[3]"), HasSubstr("[2]")));
}

TEST(DefaultCollate, NamesTheSampleWhoseDtypeDiffers) {
  EXPECT_THAT(error_of<at::Tensor>({row(1), row(2).to(at::kFloat)}),
              AllOf(HasSubstr("sample 1"), HasSubstr("Float"), HasSubstr("Long")));
}

TEST(DefaultCollate, RefusesATensorThatIsNone) {
  EXPECT_THAT(error_of<at::Tensor>({row(1), at::Tensor()}), HasSubstr("sample 1"));
  EXPECT_THAT(error_of<at::Tensor>({at::Tensor(), row(1)}), HasSubstr("sample 0"));
}

TEST(DefaultCollate, RefusesSamplesOfDifferentStructures) {
  using List = std::vector<at::Tensor>;
  EXPECT_THAT(error_of<List>({{row(1)}, {row(1), row(2)}}), HasSubstr("sample 1"));
  EXPECT_THAT(error_of<List>({{row(1), row(2)}, {row(1)}}), HasSubstr("sample 1"));
  using Maybe = std::optional<at::Tensor>;
  EXPECT_THAT(error_of<Maybe>({row(1), std::nullopt}), HasSubstr("sample 1"));
}

// As many tensors, in other places.
TEST(DefaultCollate, RefusesStructuresThatDifferInTheirPlaces) {
  using Map = std::map<std::string, at::Tensor>;
  EXPECT_THAT(error_of<Map>({{{"a", row(1)}}, {{"b", row(2)}}}), HasSubstr("sample 1"));
  using Nested = std::vector<std::vector<at::Tensor>>;
  EXPECT_THAT(error_of<Nested>({{{row(1), row(2)}, {row(3)}}, {{row(1)}, {row(2), row(3)}}}),
              HasSubstr("sample 1"));
}

}  // namespace
}  // namespace accelerate
