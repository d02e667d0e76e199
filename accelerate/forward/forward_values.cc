#include "accelerate/forward/forward_values.h"

#include <cstddef>
#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace accelerate {

void internal::append_ivalue_key(const c10::IValue& value, ValuesKey& key) {
  TreeShape shape;
  describe_ivalue(value, shape);
  key.text += shape.text;
  visit_ivalue_leaves(value, [&key](const c10::IValue& leaf) {
    if (leaf.isTensor()) return;
    if (leaf.isNone()) {
      key.text += '-';
    } else if (leaf.isBool()) {
      append_value_key(leaf.toBool(), key);
    } else if (leaf.isInt()) {
      append_value_key(leaf.toInt(), key);
    } else if (leaf.isDouble()) {
      append_value_key(leaf.toDouble(), key);
    } else if (leaf.isString()) {
      append_value_key(leaf.toStringRef(), key);
    } else {
      key.is_known = false;
    }
  });
}

void internal::forget_tensors(ForwardValues& values) {
  values.for_each_tensor(
      [](at::Tensor& tensor) { tensor = at::empty({0}, at::TensorOptions(c10::kCPU)); });
}

std::vector<at::Tensor> ForwardValues::tensors() const {
  std::vector<at::Tensor> tensors;
  for_each_tensor([&tensors](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

void ForwardValues::set_tensors(std::vector<at::Tensor> tensors) {
  size_t count = 0;
  std::as_const(*this).for_each_tensor([&count](const at::Tensor& /*tensor*/) { ++count; });
  TORCH_CHECK(count == tensors.size(), "a forward call has ", count, " tensors here, and ",
              tensors.size(), " were given in their place");
  auto next = tensors.begin();
  for_each_tensor([&next](at::Tensor& tensor) { tensor = std::move(*next++); });
}

std::optional<c10::Device> ForwardValues::find_device() const {
  std::optional<c10::Device> device;
  for_each_tensor([&device](const at::Tensor& tensor) {
    if (!device && tensor.defined()) device = tensor.device();
  });
  return device;
}

}  // namespace accelerate
