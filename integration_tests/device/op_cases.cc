#include "integration_tests/device/op_cases.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

namespace accelerate::device_test {

Inputs::Inputs(c10::Device device)
    : device_(device), cpu_generator_(at::detail::createCPUGenerator(/*seed=*/20'240'229)) {}

Tensor Inputs::randn(at::IntArrayRef size, at::ScalarType dtype) {
  const at::ScalarType drawn =
      at::isComplexType(dtype) || dtype == at::kDouble ? dtype : at::kFloat;
  return at::randn(size, cpu_generator_, drawn).to(dtype).to(device_);
}

Tensor Inputs::uniform(at::IntArrayRef size, double low, double high, at::ScalarType dtype) {
  return at::rand(size, cpu_generator_, at::kDouble)
      .mul_(high - low)
      .add_(low)
      .to(dtype)
      .to(device_);
}

Tensor Inputs::integers(at::IntArrayRef size, int64_t low, int64_t high, at::ScalarType dtype) {
  return at::randint(low, high, size, cpu_generator_, at::kLong).to(dtype).to(device_);
}

Tensor Inputs::booleans(at::IntArrayRef size) { return integers(size, 0, 2, at::kBool); }

Tensor Inputs::values(std::initializer_list<double> values, at::ScalarType dtype) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(dtype).to(device_);
}

Tensor Inputs::indices(std::initializer_list<int64_t> values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong).to(device_);
}

Tensor Inputs::number(double value) { return values({value}, at::kDouble); }

at::Generator Inputs::generator(uint64_t seed) const {
  if (device_.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::Generator generator = at::globalContext().defaultGenerator(device_).clone();
  generator.set_current_seed(seed);
  return generator;
}

void append(Tensors& list, Tensors more) {
  for (Tensor& tensor : more) list.push_back(std::move(tensor));
}

Tensors with_gradients(Inputs& in, Tensors inputs,
                       const std::function<Tensors(const Tensors&)>& function) {
  Tensors wanted;
  for (Tensor& input : inputs) {
    if (!input.is_floating_point() && !input.is_complex()) continue;
    input = input.detach().requires_grad_();
    wanted.push_back(input);
  }
  Tensors results = function(inputs);
  Tensors roots;
  Tensors weights;
  for (const Tensor& result : results) {
    if (!result.defined() || !result.requires_grad()) continue;
    roots.push_back(result);
    weights.push_back(in.randn(result.sizes(), result.scalar_type()));
  }
  if (roots.empty()) return results;
  Tensors gradients = torch::autograd::grad(roots, wanted, weights, /*retain_graph=*/std::nullopt,
                                            /*create_graph=*/false, /*allow_unused=*/true);
  append(results, std::move(gradients));
  return results;
}

const std::vector<OpCase>& all_op_cases() {
  static const OpCases& cases = *[] {
    auto* made = new OpCases();
    add_pointwise_cases(*made);
    add_reduction_cases(*made);
    add_linalg_cases(*made);
    add_complex_cases(*made);
    add_layer_cases(*made);
    add_loss_cases(*made);
    add_sequence_cases(*made);
    add_indexing_cases(*made);
    add_shape_cases(*made);
    add_factory_cases(*made);
    add_update_cases(*made);
    add_sparse_cases(*made);
    add_autograd_cases(*made);
    add_rare_cases(*made);
    return made;
  }();
  return cases.list();
}

}  // namespace accelerate::device_test
