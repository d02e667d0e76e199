#include "integration_tests/script/convnet.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/jit/serialization/import.h>
#include <torch/torch.h>

namespace accelerate::script_tests {
namespace {

torch::jit::Module layer_of(const std::string& name, const torch::nn::Module& layer,
                            const torch::jit::Module& script) {
  torch::jit::Module copy(name, script._ivalue()->compilation_unit());
  for (const auto& item : layer.named_parameters()) {
    copy.register_parameter(item.key(), item.value().detach().clone().requires_grad_(),
                            /*is_buffer=*/false);
  }
  return copy;
}

}  // namespace

ConvnetImpl::ConvnetImpl() {
  conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)));
  out = register_module("out", torch::nn::Linear(4 * 3 * 3, 3));
}

at::Tensor ConvnetImpl::forward(const at::Tensor& images) {
  return out(torch::max_pool2d(torch::relu(conv(images)), {2, 2}).flatten(1));
}

torch::jit::Module script_of(const Convnet& net) {
  torch::jit::Module script("convnet");
  script.register_module("conv", layer_of("conv", *net->conv, script));
  script.register_module("out", layer_of("out", *net->out, script));
  script.define(R"(
    def forward(self, images):
        x = torch.relu(torch.conv2d(images, self.conv.weight, self.conv.bias))
        x = torch.flatten(torch.max_pool2d(x, [2, 2]), 1)
        return torch.linear(x, self.out.weight, self.out.bias)
  )");
  return script;
}

std::pair<torch::jit::Module, Convnet> traced_net() {
  const torch::jit::Module script = torch::jit::load("integration_tests/script/data/traced.pt");
  const Convnet net;
  const torch::NoGradGuard no_grad;
  const std::vector<at::Tensor> weights = parameters_of(script);
  const std::vector<at::Tensor> copies = net->parameters();
  for (size_t i = 0; i < copies.size(); ++i) copies[i].copy_(weights.at(i));
  return {script, net};
}

std::pair<at::Tensor, at::Tensor> samples(int64_t rows) {
  const at::Tensor places = torch::arange(rows * 64, torch::kFloat).reshape({rows, 1, 8, 8});
  return {(places * 0.37).sin(), torch::arange(rows).remainder(3)};
}

}  // namespace accelerate::script_tests
