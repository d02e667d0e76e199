#include "accelerate/tensors/tree.h"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace user {

struct Batch {
  at::Tensor images;
  std::vector<at::Tensor> boxes;
  std::string name;
};
auto tree_members(Batch& batch) { return std::tie(batch.images, batch.boxes, batch.name); }

// Refers to itself, as a parse tree does.
struct Node {
  at::Tensor value;
  std::vector<Node> children;
};
auto tree_members(Node& node) { return std::tie(node.value, node.children); }

struct Example {
  at::Tensor data;
  std::optional<at::Tensor> target;
};

struct UnlabelledExample {
  using TargetType = void;
  at::Tensor data;
};

struct Opaque {
  at::Tensor hidden;
};

}  // namespace user

namespace accelerate {
namespace {

using ::testing::ElementsAre;

at::Tensor number(double value) { return at::full({2}, value); }

at::Tensor negated(const at::Tensor& tensor) { return -tensor; }

// The first element of each tensor, in visiting order.
template <typename T>
std::vector<double> numbers(const T& value) {
  std::vector<double> found;
  tree_for_each(value, [&](const at::Tensor& t) { found.push_back(t[0].item<double>()); });
  return found;
}

TEST(Tree, MapsATensorItself) {
  EXPECT_THAT(numbers(tree_map(number(1), negated)), ElementsAre(-1));
}

TEST(Tree, DescendsIntoStandardContainersAndKeepsTheirTypes) {
  using Value = std::tuple<std::vector<at::Tensor>, std::pair<int, at::Tensor>,
                           std::array<at::Tensor, 2>, std::map<std::string, at::Tensor>,
                           std::optional<at::Tensor>, std::vector<bool>, std::string>;
  const Value value{{number(1), number(2)},
                    {7, number(3)},
                    {number(4), number(5)},
                    {{"b", number(7)}, {"a", number(6)}},
                    number(8),
                    {true, false},
                    "leaf"};
  const Value mapped = tree_map(value, negated);
  EXPECT_THAT(numbers(mapped), ElementsAre(-1, -2, -3, -4, -5, -6, -7, -8));
  EXPECT_EQ(std::get<1>(mapped).first, 7);
  EXPECT_THAT(std::get<5>(mapped), ElementsAre(true, false));
  EXPECT_EQ(std::get<6>(mapped), "leaf");
  EXPECT_THAT(numbers(value), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8)) << "the argument changed";
}

TEST(Tree, DescendsIntoTypesThatNameTheirMembers) {
  const user::Batch mapped = tree_map(user::Batch{number(1), {number(2)}, "name"}, negated);
  EXPECT_THAT(numbers(mapped), ElementsAre(-1, -2));
  EXPECT_EQ(mapped.name, "name");
  EXPECT_THAT(numbers(user::Node{number(1), {{number(2), {{number(3), {}}}}, {number(4), {}}}}),
              ElementsAre(1, 2, 3, 4));
}

TEST(Tree, DescendsIntoExamples) {
  EXPECT_THAT(numbers(tree_map(std::vector<user::Example>{{number(1), number(2)}, {number(3), {}}},
                               negated)),
              ElementsAre(-1, -2, -3));
  EXPECT_THAT(numbers(tree_map(user::UnlabelledExample{number(1)}, negated)), ElementsAre(-1));
}

TEST(Tree, PassesLeavesThrough) {
  EXPECT_EQ(tree_map(42, negated), 42);
  EXPECT_THAT(numbers(tree_map(user::Opaque{number(1)}, negated)), ElementsAre());
}

TEST(Tree, RebuildsAnIValueInsteadOfChangingWhatOthersShare) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("list", c10::List<at::Tensor>({number(1), number(2)}));
  dict.insert("tuple", c10::ivalue::Tuple::create(number(3), int64_t{5}));
  dict.insert("nested", c10::List<c10::List<at::Tensor>>({c10::List<at::Tensor>({number(4)})}));
  dict.insert("sizes", c10::List<int64_t>({6, 7}));
  const c10::IValue value(dict);
  const c10::IValue mapped = tree_map(value, negated);
  EXPECT_THAT(numbers(mapped), ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT(numbers(value), ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(mapped.toGenericDict().at("list").isTensorList());
  EXPECT_EQ(mapped.toGenericDict().at("tuple").toTupleRef().elements()[1].toInt(), 5);
  EXPECT_THAT(mapped.toGenericDict().at("sizes").toIntVector(), ElementsAre(6, 7));
}

// ---- What ranks exchange.

c10::impl::GenericDict dict_of(const std::vector<std::pair<c10::IValue, c10::IValue>>& entries,
                               c10::TypePtr keys = c10::StringType::get()) {
  c10::impl::GenericDict dict(std::move(keys), c10::AnyType::get());
  for (const auto& [key, value] : entries) dict.insert(key, value);
  return dict;
}

std::string described(const auto& value) {
  internal::TreeShape shape;
  internal::describe_tree(value, shape);
  return shape.text;
}

TEST(DictOrder, VisitsByKeyAndKeepsTheEntriesWhereTheyAre) {
  const c10::IValue value(
      dict_of({{"loss", number(1)},
               {"accuracy", number(2)},
               {"counts", dict_of({{int64_t{10}, number(3)}, {int64_t{9}, number(4)}},
                                  c10::IntType::get())}}));
  std::vector<double> found;
  auto collect = [&found](const at::Tensor& t) { found.push_back(t[0].item<double>()); };
  internal::visit_leaves(value, collect, internal::DictOrder::kKeys);
  EXPECT_THAT(found, ElementsAre(2, 4, 3, 1));
  EXPECT_THAT(numbers(value), ElementsAre(1, 2, 3, 4));
  c10::IValue mapped = value;
  double next = 0;
  auto number_it = [&next](at::Tensor& tensor) { tensor = number(++next); };
  internal::visit_leaves(mapped, number_it, internal::DictOrder::kKeys);
  EXPECT_THAT(numbers(mapped), ElementsAre(4, 1, 3, 2)) << "in order of insertion";
  EXPECT_THAT(numbers(value), ElementsAre(1, 2, 3, 4)) << "the argument changed";
}

TEST(TreeShape, HasTheKeysHoweverTheyWereInserted) {
  const c10::IValue one(dict_of({{"b", number(1)}, {"a", dict_of({{"x", number(2)}})}}));
  const c10::IValue other(dict_of({{"a", dict_of({{"x", number(2)}})}, {"b", number(1)}}));
  EXPECT_EQ(described(one), R"({"a": {"x"}, "b"})");
  EXPECT_EQ(described(one), described(other));
  using Maps = std::vector<std::map<int, at::Tensor>>;
  EXPECT_EQ(described(Maps{{{2, number(1)}, {1, number(1)}}, {}}), "[{1, 2}, {}]");
  EXPECT_EQ(described(std::map<std::pair<int, std::string>, std::vector<at::Tensor>>{
                {{1, "a"}, {number(1), number(2)}}}),
            R"({(1, "a"): [Tensor, Tensor]})");
  EXPECT_EQ(described(std::pair<at::Tensor, int>(number(1), 2)), "(Tensor, value)");
  // Ranks may have different numbers of what does not travel.
  EXPECT_EQ(described(c10::IValue(dict_of({{"names", c10::List<std::string>({"a", "b"})}}))),
            R"({"names": value})");
}

// ---- visit_leaves

// The leaves that a visit sees, in words.
template <typename T>
std::vector<std::string> leaves(T& value) {
  std::vector<std::string> seen;
  internal::Overloaded visitor{
      [&](const at::Tensor& tensor) {
        seen.push_back(tensor.defined() ? "tensor " + std::to_string(tensor.numel()) : "undefined");
      },
      [&](internal::LeafTag, const auto& leaf) {
        using Leaf = std::remove_cvref_t<decltype(leaf)>;
        if constexpr (internal::kIsList<Leaf>) {
          seen.push_back("list " + std::to_string(leaf.size()));
        } else if constexpr (std::is_same_v<Leaf, std::string>) {
          seen.push_back(leaf);
        } else if constexpr (std::is_arithmetic_v<Leaf>) {
          seen.push_back(std::to_string(leaf));
        } else {
          seen.push_back("other");
        }
      }};
  internal::visit_leaves(value, visitor);
  return seen;
}

TEST(VisitLeaves, SeesTensorsListsAndOtherLeavesInOrder) {
  using Value = std::tuple<int, at::Tensor, std::vector<std::string>, std::string,
                           std::map<std::string, std::vector<int>>, std::optional<at::Tensor>,
                           std::vector<std::vector<int>>, std::array<std::string, 2>, user::Opaque>;
  const Value value{
      7,          number(1),  {"a", "b"}, "text", {{"y", {1, 2, 3}}, {"x", {}}}, std::nullopt,
      {{1}, {2}}, {"p", "q"}, {}};
  EXPECT_THAT(leaves(value), ElementsAre("7", "tensor 2", "list 2", "text", "list 0", "list 3",
                                         "list 2", "p", "q", "other"));
}

TEST(VisitLeaves, SeesTheLeavesOfStructsExamplesAndElements) {
  const user::Batch batch{number(1), {number(2), at::Tensor()}, "name"};
  EXPECT_THAT(leaves(batch), ElementsAre("tensor 2", "tensor 2", "undefined", "name"));
  using Labelled = std::vector<std::pair<at::Tensor, int>>;
  const Labelled labelled{{number(1), 5}, {number(2), 6}};
  EXPECT_THAT(leaves(labelled), ElementsAre("tensor 2", "5", "tensor 2", "6")) << "not a list";
  const c10::IValue value(c10::ivalue::Tuple::create(number(1), int64_t{5}));
  EXPECT_THAT(leaves(value), ElementsAre("tensor 2")) << "what else is in an IValue is hidden";
}

TEST(VisitLeaves, ChangesLeavesInPlaceUnlessTheyAreConst) {
  user::Batch batch{number(1), {number(2)}, "name"};
  internal::Overloaded visitor{[](at::Tensor& tensor) { tensor = -tensor; },
                               [](internal::LeafTag, auto& leaf) { leaf += "!"; }};
  internal::visit_leaves(batch, visitor);
  EXPECT_THAT(numbers(batch), ElementsAre(-1, -2));
  EXPECT_EQ(batch.name, "name!");
  std::vector<bool> was_const;
  internal::Overloaded reader{
      [&](auto& tensor) {
        was_const.push_back(std::is_const_v<std::remove_reference_t<decltype(tensor)>>);
      },
      [&](internal::LeafTag, auto& leaf) {
        was_const.push_back(std::is_const_v<std::remove_reference_t<decltype(leaf)>>);
      }};
  const user::Batch& constant = batch;
  internal::visit_leaves(constant, reader);
  EXPECT_THAT(was_const, ElementsAre(true, true, true));
}

TEST(VisitLeaves, PassesOverLeavesThatNobodyTakes) {
  int tensors = 0;
  auto count = [&tensors](const at::Tensor&) { ++tensors; };
  const std::tuple<int, at::Tensor, std::vector<std::string>> value{1, number(1), {"a"}};
  internal::visit_leaves(value, count);
  EXPECT_EQ(tensors, 1);
}

TEST(Lists, AreVectorsOfWhatHoldsNoTensors) {
  static_assert(internal::kIsList<std::vector<int>> && internal::kIsList<std::vector<bool>>);
  static_assert(internal::kIsList<std::vector<std::vector<std::string>>>);
  static_assert(!internal::kIsList<std::vector<at::Tensor>>);
  static_assert(!internal::kIsList<std::vector<std::optional<at::Tensor>>>);
  static_assert(!internal::kIsList<std::vector<user::Batch>> && !internal::kIsList<std::string>);
  static_assert(internal::kMayHoldTensors<std::map<int, std::pair<int, at::Tensor>>>);
  static_assert(!internal::kMayHoldTensors<user::Opaque>);
  static_assert(internal::kMayHoldTensors<user::UnlabelledExample>);
}

}  // namespace
}  // namespace accelerate
