// The cost of the training loop on a GPU, on top of the same loop in plain LibTorch: blocks of
// steps of each, in turn, with a wait for the device at the end of a block. And the memory and the
// time of a larger model's step.
//
// Prints a line a figure, "NAME VALUE UNIT". With the argument "layers", those of the larger model
// alone. ci/gpu_loop.py prints those of HF Accelerate on the same card.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "absl/time/time.h"
#include "accelerate/accelerate.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

constexpr int kBlocks = 40;
constexpr int kSteps = 200;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Microseconds a step, of the device or, in a simulation, of the simulated one.
double time_of(int steps, const std::function<void()>& step) {
  Runtime& runtime = Runtime::current();
  runtime.synchronize_device();
  const absl::Time start = runtime.now();
  for (int i = 0; i < steps; ++i) step();
  runtime.synchronize_device();
  return absl::ToDoubleMicroseconds(runtime.now() - start) / steps;
}

torch::nn::Sequential layers(int64_t in, int64_t hidden, int64_t out, int depth) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(in, hidden), torch::nn::ReLU());
  for (int i = 0; i < depth; ++i) {
    net->push_back(torch::nn::Linear(hidden, hidden));
    net->push_back(torch::nn::ReLU());
  }
  net->push_back(torch::nn::Linear(hidden, out));
  return net;
}

void measure_loop() {
  Accelerator accelerator;
  const c10::Device device = accelerator.device();
  torch::nn::Sequential plain_net = layers(16, 32, 1, 0), net = layers(16, 32, 1, 0);
  plain_net->to(device);
  torch::optim::SGD plain_sgd(plain_net->parameters(), 1e-3), sgd(net->parameters(), 1e-3);
  auto [prepared_model, prepared_optimizer] = accelerator.prepare(net, sgd);
  auto& model = prepared_model;
  auto& optimizer = prepared_optimizer;
  const at::Tensor x = at::randn({32, 16}).to(device);
  const at::Tensor y = x.sum(1, /*keepdim=*/true);
  auto plain_step = [&] {
    torch::nn::functional::mse_loss(plain_net->forward(x), y).backward();
    plain_sgd.step();
    plain_sgd.zero_grad();
  };
  auto step = [&] {
    auto scope = accelerator.accumulate(model);
    accelerator.backward(torch::nn::functional::mse_loss(model(x), y));
    optimizer.step();
    optimizer.zero_grad();
  };
  for (const auto& each : {std::function<void()>(plain_step), std::function<void()>(step)}) {
    time_of(kSteps, each);
  }
  std::vector<double> plain, ours, differences;
  for (int block = 0; block < kBlocks; ++block) {
    plain.push_back(time_of(kSteps, plain_step));
    ours.push_back(time_of(kSteps, step));
    differences.push_back(ours.back() - plain.back());
  }
  std::printf("loop_plain %.2f us\nloop_accelerate %.2f us\nloop_difference %+.2f us\n",
              median(plain), median(ours), median(differences));
}

// 4,096 wide, 8 layers, 134 million parameters with AdamW, in the precision that
// ACCELERATE_MIXED_PRECISION names.
void measure_model() {
  Accelerator accelerator;
  const char* const name = accelerator.mixed_precision() == PrecisionType::kNo ? "fp32" : "mixed";
  const c10::Device device = accelerator.device();
  const auto before = accelerator.runtime().device_memory();
  torch::nn::Sequential net = layers(4096, 4096, 4096, 6);
  torch::optim::AdamW adam(net->parameters(), 1e-4);
  auto [prepared_model, prepared_optimizer] = accelerator.prepare(net, adam);
  auto& model = prepared_model;
  auto& optimizer = prepared_optimizer;
  const at::Tensor x = at::randn({4096, 4096}, device);
  auto step = [&] {
    accelerator.backward(model(x).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  };
  time_of(3, step);
  std::vector<double> times;
  for (int block = 0; block < 5; ++block) times.push_back(time_of(5, step));
  std::printf("step_%s %.1f us\n", name, median(times));
  if (const auto after = accelerator.runtime().device_memory()) {
    std::printf("held_%s %.1f MiB\npeak_%s %.1f MiB\n", name,
                static_cast<double>(after->in_use - before->in_use) / (1 << 20), name,
                static_cast<double>(after->peak - before->in_use) / (1 << 20));
  }
}

int measure(int argc, char** argv) {
  return run(argc, argv, [](int argc, char** argv) {
    if (argc < 2 || std::string(argv[1]) != "layers") measure_loop();
    measure_model();
    return 0;
  });
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) { return accelerate::measure(argc, argv); }
