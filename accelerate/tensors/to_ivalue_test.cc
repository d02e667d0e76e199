#include "accelerate/tensors/to_ivalue.h"

#include <map>
#include <optional>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

c10::IValue list_of(std::vector<c10::IValue> entries) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (c10::IValue& entry : entries) list.push_back(std::move(entry));
  return list;
}

TEST(ToIValue, KeepsTheStructure) {
  using Value = std::tuple<std::vector<int>, std::optional<double>, bool, std::string>;
  EXPECT_EQ(to_ivalue(Value({1, 2}, std::nullopt, true, "text")),
            c10::ivalue::Tuple::create({list_of({1, 2}), c10::IValue(), true, "text"}));
  const std::map<int, float> map{{3, 0.5F}};
  EXPECT_EQ(to_ivalue(map).toGenericDict().at(3), c10::IValue(0.5));
}

TEST(GetShape, PutsSizesInThePlaceOfTensors) {
  const std::pair<at::Tensor, int> value{at::ones({2, 0}), 3};
  EXPECT_EQ(get_shape(value), c10::ivalue::Tuple::create({c10::List<int64_t>({2, 0}), 3}));
  EXPECT_EQ(get_shape(at::ones({})), c10::IValue(c10::List<int64_t>()));
}

TEST(Listify, PutsNumbersInThePlaceOfTensors) {
  EXPECT_EQ(listify(at::arange(4).reshape({2, 2})),
            list_of({c10::List<int64_t>({0, 1}), c10::List<int64_t>({2, 3})}));
  EXPECT_EQ(listify(at::full({}, 2.5)), c10::IValue(2.5));
  EXPECT_EQ(listify(at::full({1}, 0.5, at::kBFloat16)), c10::IValue(c10::List<double>({0.5})));
  EXPECT_EQ(listify(at::ones({1}, at::kBool)), c10::IValue(c10::List<bool>({true})));
  EXPECT_EQ(listify(at::full({1}, 200, at::kByte)), c10::IValue(c10::List<int64_t>({200})));
  // Strided and empty ones, and those that require gradients.
  EXPECT_EQ(listify(at::arange(4).reshape({2, 2}).t()),
            list_of({c10::List<int64_t>({0, 2}), c10::List<int64_t>({1, 3})}));
  EXPECT_EQ(listify(at::ones({0, 2})), list_of({}));
  const at::Tensor ones = at::ones({1}, at::kDouble);
  EXPECT_EQ(listify(at::complex(ones, ones).conj()),
            c10::IValue(c10::List<c10::complex<double>>({c10::complex<double>(1, -1)})));
  EXPECT_EQ(listify(at::ones({}).requires_grad_()), c10::IValue(1.0));
  EXPECT_EQ(listify(list_of({"text", c10::IValue()})), list_of({"text", c10::IValue()}));
}

}  // namespace
}  // namespace accelerate
