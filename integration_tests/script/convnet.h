/// A convolutional net twice: as a module of C++, and as source text for torch.jit with the same
/// weights; and a training that both of them get.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>

#include "accelerate/accelerate.h"

namespace accelerate::script_tests {

/// Images [rows, 1, 8, 8] to scores [rows, 3].
struct ConvnetImpl : torch::nn::Module {
  ConvnetImpl();
  at::Tensor forward(const at::Tensor& images);
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Convnet);

/// The same with copies of the weights, under the same names.
torch::jit::Module script_of(const Convnet& net);

/// A net that torch.jit.trace of Python has written (record_trace.py), and its twin with the same
/// weights.
std::pair<torch::jit::Module, Convnet> traced_net();

/// The images [rows, 1, 8, 8] and labels [rows] of all ranks, the same for every call.
std::pair<at::Tensor, at::Tensor> samples(int64_t rows);

inline at::Tensor tensor_of(const at::Tensor& output) { return output; }
inline at::Tensor tensor_of(const c10::IValue& output) { return output.toTensor(); }

/// Two epochs of batches of 4 rows a rank, with gradients over two of them; `at_end` is called with
/// the prepared objects there. The parameters change in place. Collective.
template <typename Model>
void train(
    Accelerator& accelerator, Model& net, std::vector<at::Tensor> parameters,
    const std::function<void()>& at_end = [] {}) {
  torch::optim::SGD sgd(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto [images, labels] = samples(int64_t{16} * accelerator.num_processes());
  DataLoader data(make_tensor_dataset(images, labels), {.batch_size = 4});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, data);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [x, y] : loader) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(torch::cross_entropy_loss(tensor_of(model(x)), y));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  at_end();
}

}  // namespace accelerate::script_tests
