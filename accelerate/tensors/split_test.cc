#include "accelerate/tensors/split.h"

#include <map>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace split_user {

struct Batch {
  at::Tensor images;
  std::vector<std::string> names;
};
auto tree_members(Batch& batch) { return std::tie(batch.images, batch.names); }

struct Squares {
  int64_t get(size_t index) const { return static_cast<int64_t>(index * index); }
  size_t size() const { return 5; }
};

}  // namespace split_user

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Numbers = std::vector<int64_t>;

TEST(SplitBetweenProcesses, GivesTheFirstRanksTheExtras) {
  const Numbers all{10, 11, 12, 13, 14, 15, 16};
  EXPECT_THAT(split_between_processes(0, 3, all), ElementsAre(10, 11, 12));
  EXPECT_THAT(split_between_processes(1, 3, all), ElementsAre(13, 14));
  EXPECT_THAT(split_between_processes(2, 3, all), ElementsAre(15, 16));
  EXPECT_THAT(split_between_processes(3, 9, Numbers{1, 2}), IsEmpty());
  EXPECT_EQ(split_between_processes(0, 1, all), all);
}

TEST(SplitBetweenProcesses, PadsWithTheLastEntryOfAll) {
  const Numbers all{10, 11, 12, 13, 14, 15, 16};
  EXPECT_THAT(split_between_processes(1, 3, all, true), ElementsAre(13, 14, 16));
  EXPECT_THAT(split_between_processes(2, 3, all, true), ElementsAre(15, 16, 16));
  EXPECT_THAT(split_between_processes(3, 4, Numbers{1}, true), ElementsAre(1));
  EXPECT_THAT(split_between_processes(0, 2, Numbers{1, 2}, true), ElementsAre(1));
  const std::vector<std::string> names{"a", "b", "c"};
  EXPECT_THAT(split_between_processes(1, 2, names, true), ElementsAre("c", "c"));
  EXPECT_THROW(split_between_processes(0, 2, Numbers(), true), c10::ValueError);
  EXPECT_THAT(split_between_processes(0, 2, Numbers()), IsEmpty());
}

TEST(SplitBetweenProcesses, SplitsRowsOfTensors) {
  const at::Tensor all = at::arange(10).reshape({5, 2});
  EXPECT_TRUE(at::equal(split_between_processes(1, 2, all), all.narrow(0, 3, 2)));
  EXPECT_TRUE(at::equal(split_between_processes(1, 2, all, true),
                        at::cat({all.narrow(0, 3, 2), all.narrow(0, 4, 1)})));
  EXPECT_THROW(split_between_processes(0, 2, at::ones({})), c10::ValueError);
  EXPECT_THROW(split_between_processes(0, 2, at::Tensor()), c10::ValueError);
}

TEST(SplitBetweenProcesses, SplitsMapsAndStructsMemberByMember) {
  const std::map<std::string, std::map<std::string, Numbers>> nested{
      {"a", {{"x", {1, 2, 3}}, {"y", {4, 5, 6}}}}};
  const auto share = split_between_processes(1, 2, nested);
  EXPECT_THAT(share.at("a").at("y"), ElementsAre(6));
  EXPECT_THAT(nested.at("a").at("y"), ElementsAre(4, 5, 6));
  const split_user::Batch batch =
      split_between_processes(1, 2, split_user::Batch{at::arange(3), {"a", "b", "c"}}, true);
  EXPECT_TRUE(at::equal(batch.images, at::tensor({2, 2})));
  EXPECT_THAT(batch.names, ElementsAre("c", "c"));
  const std::map<int, Numbers> unequal{{0, {1, 2, 3}}, {1, {1, 2}}};
  EXPECT_THROW(split_between_processes(0, 2, unequal), c10::ValueError);
  EXPECT_THROW(split_between_processes(0, 2, std::map<int, Numbers>()), c10::ValueError);
}

TEST(SplitBetweenProcesses, SplitsDynamicValues) {
  const c10::IValue tuple = c10::ivalue::Tuple::create({1, 2, 3});
  EXPECT_EQ(split_between_processes(1, 2, tuple, true), c10::ivalue::Tuple::create({3, 3}));
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("numbers", c10::List<int64_t>({1, 2, 3}));
  dict.insert("rows", at::arange(3));
  dict.insert("text", "\u00e4bc");
  const c10::impl::GenericDict share =
      split_between_processes(0, 2, c10::IValue(dict)).toGenericDict();
  EXPECT_EQ(share.at("numbers"), c10::IValue(c10::List<int64_t>({1, 2})));
  EXPECT_EQ(share.at("text"), c10::IValue("\u00e4bc"));
  EXPECT_EQ(dict.at("numbers").toIntList().size(), 3);
  EXPECT_THROW(split_between_processes(0, 2, c10::IValue(5)), c10::ValueError);
  EXPECT_THROW(split_between_processes(0, 2, c10::IValue()), c10::ValueError);
  EXPECT_EQ(split_between_processes(1, 2, std::string("text")), "text");
}

TEST(SplitBetweenProcesses, ViewsADataset) {
  auto share = split_between_processes(1, 2, split_user::Squares(), true);
  ASSERT_EQ(share.size(), 3);
  EXPECT_EQ(share.get(0), 9);
  EXPECT_EQ(share.get(1), 16);
  EXPECT_EQ(share.get(2), 16);
  EXPECT_EQ(share.source_index(2), 4);
  EXPECT_THROW(share.get(3), c10::IndexError);
  EXPECT_EQ(split_between_processes(0, 1, split_user::Squares()).size(), 5);
}

TEST(SplitBetweenProcesses, RefusesRanksThatAreNone) {
  EXPECT_THROW(split_between_processes(2, 2, Numbers{1}), c10::ValueError);
  EXPECT_THROW(split_between_processes(-1, 2, Numbers{1}), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
