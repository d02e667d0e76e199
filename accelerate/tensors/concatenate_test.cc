#include "accelerate/tensors/tree_operations.h"

#include <map>
#include <optional>
#include <string>

#include <ATen/Functions.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>

namespace user {

struct Node {
  at::Tensor value;
  std::vector<Node> children;
};
auto tree_members(Node& node) { return std::tie(node.value, node.children); }

}  // namespace user

namespace accelerate {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST(Concatenate, JoinsTensorsAlongADim) {
  const Tensors rows{at::ones({1, 2}), at::zeros({1, 2})};
  EXPECT_TRUE(at::equal(concatenate(rows), at::cat(rows)));
  EXPECT_TRUE(at::equal(concatenate(rows, -1), at::cat(rows, 1)));
  EXPECT_THROW(concatenate(rows, 2), c10::Error);
  EXPECT_THROW(concatenate(Tensors()), c10::ValueError);
}

TEST(Concatenate, JoinsStaticTreesPlaceByPlace) {
  using Tree = std::pair<std::map<std::string, at::Tensor>, std::optional<Tensors>>;
  auto tree = [](int64_t n) {
    return Tree{{{"a", at::full({1}, n)}}, Tensors{at::full({2}, 10 * n)}};
  };
  const Tree joined = concatenate(std::vector<Tree>{tree(1), tree(2)});
  EXPECT_TRUE(at::equal(joined.first.at("a"), at::tensor({1, 2})));
  EXPECT_TRUE(at::equal(joined.second->at(0), at::tensor({10, 10, 20, 20})));
  auto node = [](int64_t n) { return user::Node{at::full({1}, n), {{at::full({1}, n + 5), {}}}}; };
  const user::Node parent = concatenate(std::vector<user::Node>{node(1), node(2)});
  EXPECT_TRUE(at::equal(parent.children.at(0).value, at::tensor({6, 7})));
}

TEST(Concatenate, LeavesItsInputsAlone) {
  const std::vector<Tensors> parts{{at::ones({1})}, {at::ones({2})}};
  concatenate(parts);
  EXPECT_EQ(parts[0][0].size(0), 1);
}

c10::IValue dict_of(const std::vector<std::string>& keys, int64_t n) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const std::string& key : keys) {
    dict.insert(key, c10::ivalue::Tuple::create({at::full({1}, n), c10::List<at::Tensor>()}));
  }
  return dict;
}

TEST(Concatenate, JoinsDynamicValues) {
  const c10::IValue joined =
      concatenate(std::vector<c10::IValue>{dict_of({"a", "b"}, 1), dict_of({"b", "a"}, 2)});
  EXPECT_TRUE(at::equal(joined.toGenericDict().at("b").toTupleRef().elements()[0].toTensor(),
                        at::tensor({1, 2})));
  EXPECT_EQ(concatenate(std::vector<c10::IValue>{3}), c10::IValue(3));
}

TEST(Concatenate, RefusesDifferentStructuresAndOtherLeaves) {
  EXPECT_THROW(concatenate(std::vector<c10::IValue>{dict_of({"a"}, 1), dict_of({"a", "b"}, 2)}),
               c10::ValueError);
  EXPECT_THROW(concatenate(std::vector<c10::IValue>{dict_of({"a"}, 1), dict_of({"b"}, 2)}),
               c10::ValueError);
  EXPECT_THROW(concatenate(std::vector<c10::IValue>{at::ones({1}), 3}), c10::ValueError);
  EXPECT_THROW(concatenate(std::vector<c10::IValue>{"x", "y"}), c10::ValueError);
  EXPECT_THROW(concatenate(std::vector<std::string>{"x", "y"}), c10::ValueError);
  const at::Tensor one = at::ones({1});
  EXPECT_THROW(concatenate(std::vector<Tensors>{{one}, {one, one}}), c10::ValueError);
  using Maybe = std::optional<at::Tensor>;
  EXPECT_THROW(concatenate(std::vector<Maybe>{one, std::nullopt}), c10::ValueError);
  EXPECT_THROW(concatenate(Tensors{one, at::Tensor()}), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
