// A project to start from: a program that finds an installed Accelerate, and tests of it in three
// modes.
//
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build
//   ctest --test-dir build --output-on-failure
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "accelerate/accelerate.h"

namespace {

class NetImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return output_(torch::relu(hidden_(x))); }

 private:
  torch::nn::Linear hidden_ = register_module("hidden", torch::nn::Linear(2, 32));
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
  int64_t percent = 0;
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
    percent = 100 * right / total;
    if (accelerator.is_main_process())
      accelerator.print("epoch ", epoch, ": ", percent, " % of ", total, " points");
  }
  accelerator.save_model(model, "model");  // model/model.safetensors
  accelerator.end_training();
  return percent >= 80 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
