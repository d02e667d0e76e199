#include "accelerate/tensors/tensor_information.h"

#include <map>
#include <string>

#include <ATen/Functions.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(DataStructure, HasShapesAndDtypesAndBecomesTensorsAgain) {
  using Tree = std::map<std::string, std::pair<at::Tensor, int>>;
  const Tree data{{"a", {at::ones({2, 3}, at::kBFloat16), 7}}, {"b", {at::Tensor(), 8}}};
  const Tree structure = get_data_structure(data);
  EXPECT_TRUE(is_tensor_information(structure.at("a").first));
  EXPECT_FALSE(is_tensor_information(data.at("a").first));
  EXPECT_EQ(tensor_information(structure.at("a").first),
            (TensorInformation{.shape = {2, 3}, .dtype = at::kBFloat16}));
  const Tree made = initialize_tensors(structure);
  EXPECT_EQ(made.at("a").first.device(), c10::Device(c10::kCPU));
  EXPECT_EQ(tensor_information(made.at("a").first), tensor_information(data.at("a").first));
  EXPECT_EQ(made.at("a").second, 7);
  EXPECT_FALSE(made.at("b").first.defined());
}

TEST(DataStructure, OfDynamicValues) {
  const c10::IValue data = c10::List<at::Tensor>({at::ones({2}), at::ones({}, at::kLong)});
  const c10::IValue made = initialize_tensors(get_data_structure(data));
  EXPECT_EQ(made.toTensorVector().at(1).scalar_type(), at::kLong);
}

TEST(TensorInformation, NeedsATensor) {
  EXPECT_THROW(tensor_information(at::Tensor()), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
