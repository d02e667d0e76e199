// Activation checkpointing: the layers inside a checkpoint keep nothing for the backward pass,
// which computes them again. On devices, whose memory is counted:
//
//   accelerate launch --simulate 2x4:h100 activation_checkpointing
//
//   activation_checkpointing
//   accelerate launch --num_processes 2 activation_checkpointing
//   accelerate launch --simulate 2x4 activation_checkpointing
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "accelerate/accelerate.h"

namespace {

class NetImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) {
    const auto wide = [this](const at::Tensor& x) { return shrink_(torch::relu(hidden_(x))); };
    return output_(recomputes ? accelerate::checkpoint(wide, x) : wide(x));
  }
  bool recomputes = false;

 private:
  torch::nn::Linear hidden_ = register_module("hidden", torch::nn::Linear(2, 512));
  torch::nn::Linear shrink_ = register_module("shrink", torch::nn::Linear(512, 32));
  torch::nn::Linear output_ = register_module("output", torch::nn::Linear(32, 2));
};
TORCH_MODULE(Net);

auto points(int64_t count) {
  const at::Tensor x = torch::randn({count, 2});
  return accelerate::make_tensor_dataset(x, x.norm(2, /*dim=*/1).gt(1.2).to(torch::kLong));
}

int train(int /*argc*/, char** /*argv*/) {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(42);
  accelerate::DataLoader train_data(points(1024), {.batch_size = 16, .shuffle = true});
  accelerate::DataLoader test_data(points(200), {.batch_size = 16});
  Net net;
  torch::optim::Adam adam(net->parameters(), 0.02);
  auto [model, optimizer, train_loader, test_loader] =
      accelerator.prepare(net, adam, train_data, test_data);
  for (int epoch = 1; epoch <= 3; ++epoch) {
    model->train();
    for (auto& [x, y] : train_loader) {
      const at::Tensor loss = torch::cross_entropy_loss(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    int64_t right = 0, total = 0;
    for (auto& [x, y] : test_loader) {
      const at::Tensor correct = accelerator.gather_for_metrics(model(x).argmax(1).eq(y));
      right += correct.sum().item<int64_t>();
      total += correct.numel();
    }
    if (accelerator.is_main_process())
      accelerator.print("epoch ", epoch, ": ", 100 * right / total, " % of ", total, " points");
  }
  for (const bool recomputes : {false, true}) {
    net->recomputes = recomputes;
    const at::Tensor loss = model(torch::randn({4096, 2}, accelerator.device())).sum();
    const auto use = accelerator.runtime().device_memory();
    if (use) accelerator.print(recomputes ? "recomputed: " : "kept: ", use->in_use, " bytes");
    accelerator.backward(loss);
  }
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
