#include "accelerate/util/tree.h"

#include <string>

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

TEST(Tree, FindsTheBatchSizeInTheFirstTensorThatHasOne) {
  using Value = std::vector<at::Tensor>;
  EXPECT_EQ(find_batch_size(Value{at::full({}, 1), at::full({3, 2}, 1), at::full({4}, 1)}), 3);
  EXPECT_EQ(find_batch_size(Value{at::Tensor(), at::full({}, 1)}), std::nullopt);
  EXPECT_EQ(find_batch_size(std::string("no tensor")), std::nullopt);
  EXPECT_EQ(find_batch_size(c10::IValue(c10::List<at::Tensor>({at::full({5}, 1)}))), 5);
}

}  // namespace
}  // namespace accelerate
