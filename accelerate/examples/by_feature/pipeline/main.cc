// Pipelines: ranks have stages of a model, and parts of a batch go through them by turns.
//
//   pipeline
//   accelerate launch --simulate 1x2 --use_parallelism_config --parallelism_config_pp_size 2
//       --parallelism_config_pp_micro_batches 4 pipeline
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "accelerate/accelerate.h"

namespace {

class NetImpl : public torch::nn::Module, public accelerate::ModelParts {
 public:
  at::Tensor forward(const at::Tensor& x) { return output_(torch::relu(hidden_(x))); }
  // A stage has some of these parts, and computes them alone.
  std::vector<accelerate::ModelPart> parts() const override { return {{"hidden"}, {"output"}}; }
  at::Tensor forward_parts(size_t begin, size_t end, at::Tensor x) override {
    if (begin == 0) x = torch::relu(hidden_(x));
    return end == 2 ? output_(x) : x;
  }

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
  const auto loss = [](const at::Tensor& output, const at::Tensor& y) {
    return torch::cross_entropy_loss(output, y);
  };
  // A sum, whose mean is over the samples of all ranks.
  const auto right = [](const at::Tensor& output, const at::Tensor& y) {
    return accelerate::TokenLoss{output.argmax(1).eq(y).sum(), y.numel()};
  };
  for (int epoch = 1; epoch <= 3; ++epoch) {
    model->train();
    for (auto& [x, y] : train_loader) {
      accelerator.train_batch(model, std::pair(x, y), loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    model->eval();
    double share = 0, batches = 0;
    for (auto& [x, y] : test_loader) {
      share += accelerator.evaluate_batch(model, std::pair(x, y), right).item<double>();
      ++batches;
    }
    if (accelerator.is_main_process())
      accelerator.print("epoch ", epoch, ": ", static_cast<int>(100 * share / batches),
                        " % of 200 points");
  }
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
