#include "accelerate/forward/forward_values.h"

#include <cstddef>
#include <utility>

#include <c10/util/Exception.h>

namespace accelerate {

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
