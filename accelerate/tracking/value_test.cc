#include "accelerate/tracking/value.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::Eq;

TEST(TrackerValueTest, BracesMakeNestedDictionaries) {
  const TrackerDict values{
      {"loss", 0.25}, {"epoch", 3}, {"done", true}, {"lr", {{"head", 0.1}, {"body", 0.01}}}};
  EXPECT_EQ(*find(values, "loss")->get_if<double>(), 0.25);
  EXPECT_EQ(*find(values, "epoch")->get_if<int64_t>(), 3);
  EXPECT_EQ(*find(values, "done")->get_if<bool>(), true);
  const auto* rates = find(values, "lr")->get_if<TrackerDict>();
  ASSERT_NE(rates, nullptr);
  EXPECT_EQ(*find(*rates, "body")->get_if<double>(), 0.01);
}

TEST(TrackerValueTest, ADictionaryOfTextsIsNoListOfThem) {
  const TrackerDict values{{"optimizer", {{"name", "adam"}}}, {"data", {{"a", "b"}, {"c", "d"}}}};
  EXPECT_EQ(value_text(values[0].second), "{'name': 'adam'}");
  EXPECT_EQ(value_text(values[1].second), "{'a': 'b', 'c': 'd'}");
}

TEST(TrackerValueTest, TheLastOfANameCounts) {
  EXPECT_EQ(find({{"a", 1}, {"a", 2}}, "a")->number(), 2);
  EXPECT_EQ(find({{"a", 1}}, "b"), nullptr);
}

TEST(TrackerValueTest, NumbersAreNumbersWhateverTheirSize) {
  EXPECT_EQ(TrackerValue(uint8_t{7}).number(), 7);
  EXPECT_EQ(TrackerValue(1.5F).number(), 1.5);
  EXPECT_EQ(TrackerValue(true).number(), 1);
  EXPECT_EQ(TrackerValue(uint64_t{1} << 63).number(), 9223372036854775808.0);
  EXPECT_THAT(TrackerValue("7").number(), Eq(std::nullopt));
  EXPECT_THAT(TrackerValue().number(), Eq(std::nullopt));
}

TEST(TrackerValueTest, TextsAreThoseOfPython) {
  EXPECT_EQ(value_text({}), "None");
  EXPECT_EQ(value_text(false), "False");
  EXPECT_EQ(value_text(1e-5), "1e-05");
  EXPECT_EQ(value_text(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(value_text("a"), "a");
  EXPECT_EQ(value_text(TrackerList{1, "it's", TrackerValue()}), "[1, \"it's\", None]");
  EXPECT_EQ(value_text(TensorValue{{2}, "float32", {1, 2.5}}), "tensor([1., 2.5])");
  EXPECT_EQ(value_text(TensorValue{{2, 1}, "int64", {1, 2}}), "tensor([[1], [2]])");
  EXPECT_EQ(value_text(TensorValue{{}, "bool", {1}}), "tensor(True)");
  EXPECT_EQ(value_text(TensorValue{{0}, "float32", {}}), "tensor([])");
  const TensorValue large{{2000}, "float32", std::vector<double>(2000)};
  EXPECT_EQ(value_text(large), "tensor([...], size=(2000), dtype=torch.float32)");
}

TEST(TrackerValueTest, WhatMayBeMissingIsNone) {
  const char* nothing = nullptr;
  EXPECT_TRUE(TrackerValue(nothing).is_none());
  EXPECT_TRUE(TrackerValue(std::optional<int>()).is_none());
  EXPECT_EQ(TrackerValue(std::optional<int>(3)), TrackerValue(3));
}

TEST(TrackerValueTest, VectorsAreLists) {
  EXPECT_EQ(value_text(std::vector<double>{0.5, 1}), "[0.5, 1.0]");
  EXPECT_EQ(value_text(std::vector<std::string>{"a"}), "['a']");
  EXPECT_EQ(value_text(std::vector<bool>{true}), "[True]");
}

TEST(TrackerValueTest, TypesAreNamedAsInPython) {
  EXPECT_EQ(type_name({}), "NoneType");
  EXPECT_EQ(type_name(true), "bool");
  EXPECT_EQ(type_name(1), "int");
  EXPECT_EQ(type_name(1.0), "float");
  EXPECT_EQ(type_name("a"), "str");
  EXPECT_EQ(type_name(TensorValue{}), "torch.Tensor");
  EXPECT_EQ(type_name(TrackerList{}), "list");
  EXPECT_EQ(type_name(TrackerDict{}), "dict");
}

}  // namespace
}  // namespace accelerate
