#include "accelerate/examples/by_feature/quantization/adapted_lm.h"

#include <cmath>

#include <ATen/ops/linear.h>
#include <torch/utils.h>

#include "absl/strings/str_cat.h"

namespace quantization {

std::vector<torch::Tensor> AdaptedLmImpl::add_adapters(int64_t rank, c10::Device device) {
  for (torch::Tensor& each : parameters()) each.set_requires_grad(false);
  const auto floats = torch::TensorOptions(device).dtype(torch::kFloat);
  const int64_t hidden = config().hidden;
  std::vector<torch::Tensor> trained;
  for (int64_t i = 0; i < config().layers; ++i) {
    // Plain parameters: Linear layers would be quantised if they were there before.
    const Adapter adapter = {.down = register_parameter(absl::StrCat("adapter", i, "_down"),
                                                        torch::randn({rank, hidden}, floats) /
                                                            std::sqrt(static_cast<double>(hidden))),
                             .up = register_parameter(absl::StrCat("adapter", i, "_up"),
                                                      torch::zeros({hidden, rank}, floats))};
    adapters_.push_back(adapter);
    trained.insert(trained.end(), {adapter.down, adapter.up});
  }
  return trained;
}

torch::Tensor AdaptedLmImpl::after_block(int64_t block, torch::Tensor x) {
  if (adapters_.empty()) return x;
  const Adapter& adapter = adapters_[static_cast<size_t>(block)];
  const torch::Tensor low = at::linear(x, adapter.down.to(x.scalar_type()));
  return x + at::linear(low, adapter.up.to(x.scalar_type()));
}

}  // namespace quantization
