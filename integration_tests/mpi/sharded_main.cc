// Trains a convnet and a perceptron whose parameters are divided among all ranks, with accumulation
// and clipping, and prints losses, norms and a digest of the weights bit for bit: sharded BACKEND.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/base/checksum.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/parallel/sharded.h"

namespace {

using accelerate::Accelerator;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int64_t kSide = 16, kClasses = 3;

nn::Sequential convnet() {
  // Numbers of rows that two and four do not divide.
  return nn::Sequential(nn::Unflatten(nn::UnflattenOptions(1, {1, kSide, kSide})),
                        nn::Conv2d(nn::Conv2dOptions(1, 7, 3).bias(false)), nn::BatchNorm2d(7),
                        nn::ReLU(), nn::Flatten(),
                        nn::Linear(7 * (kSide - 2) * (kSide - 2), kClasses));
}

// Each of its layers is a group.
nn::Sequential perceptron() {
  return nn::Sequential(nn::Linear(kSide * kSide, 1030), nn::Tanh(), nn::Linear(1030, 513),
                        nn::Tanh(), nn::Linear(513, kClasses));
}

void print(const Accelerator& accelerator, const std::string& line) {
  if (!accelerator.is_main_process()) return;
  accelerator.runtime().write_console(accelerate::ConsoleStream::kOut, line);
}

std::string line_of(const char* name, double value) {
  char line[64];
  std::snprintf(line, sizeof(line), "%s %a\n", name, value);
  return line;
}

template <typename Optimizer, typename Options>
void train(Accelerator& accelerator, nn::Sequential net, const Options& options) {
  auto [model, optimizer] =
      accelerator.prepare(net, std::make_shared<Optimizer>(net->parameters(), options));
  for (int64_t step = 0; step < 8; ++step) {
    const auto scope = accelerator.accumulate(model);
    const int64_t batch = step * accelerator.num_processes() + accelerator.process_index();
    const Tensor x = torch::sin(torch::arange(4 * kSide * kSide) + 0.3 * batch);
    const Tensor y = (torch::arange(4) + batch) % kClasses;
    const Tensor loss = torch::cross_entropy_loss(model(x.view({4, kSide * kSide})), y);
    accelerator.backward(loss);
    if (accelerator.sync_gradients()) {
      print(accelerator,
            line_of("norm", accelerator.clip_grad_norm_(model, 0.05).template item<double>()));
    }
    optimizer.step();
    optimizer.zero_grad();
    const Tensor mean = accelerator.reduce(loss.detach(), accelerate::Reduction::kMean);
    print(accelerator, line_of("loss", mean.template item<double>()));
  }
  const auto whole = accelerate::full_parameters(model, {.writeback = false});
  std::string bytes;
  for (const Tensor& each : net->parameters()) {
    const Tensor values = each.detach().contiguous();
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  print(accelerator, "weights 0x" + accelerate::sha256(bytes) + "\n");
}

int train_both(int, char** argv) {
  const int ranks = accelerate::Runtime::current().topology().world_size;
  Accelerator accelerator(
      {.gradient_accumulation_steps = 2,
       .parallelism_config = accelerate::ParallelismConfig({.dp_shard_size = ranks}),
       .kwargs_handlers = {accelerate::InitProcessGroupKwargs{.backend = argv[1]}}});
  // Rank 0's values count.
  torch::manual_seed(3 + static_cast<uint64_t>(accelerator.process_index()));
  train<torch::optim::SGD>(accelerator, convnet(), torch::optim::SGDOptions(0.05).momentum(0.9));
  train<torch::optim::Adam>(accelerator, perceptron(), torch::optim::AdamOptions(1e-3));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s BACKEND\n", argv[0]);
    return 2;
  }
  return accelerate::run(argc, argv, train_both);
}
