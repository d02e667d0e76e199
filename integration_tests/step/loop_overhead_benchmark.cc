// What the training loop costs on top of the same loop in plain LibTorch: accumulate, forward,
// backward, step, schedule, zero, for a tiny network. Both loops train in turn, step by step, on
// the same data, and must end with the same weights; medians are compared. One row of the table for
// each number of micro-steps per optimizer step.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "accelerate/accelerate.h"

namespace accelerate {
namespace {

constexpr int kSteps = 40'000;
constexpr int64_t kBatch = 32;

using Clock = std::chrono::steady_clock;

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    torch::manual_seed(1);
    hidden = register_module("hidden", torch::nn::Linear(16, 32));
    output = register_module("output", torch::nn::Linear(32, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return output(torch::relu(hidden(x))); }
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};
TORCH_MODULE(Mlp);

template <typename Fn>
double microseconds(Fn&& fn) {
  const auto start = Clock::now();
  fn();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

void measure(int64_t accumulation) {
  Accelerator accelerator;
  accelerator.set_gradient_accumulation_steps(accumulation);
  Mlp plain_net, net;
  torch::optim::SGD plain_sgd(plain_net->parameters(), 1e-3), sgd(net->parameters(), 1e-3);
  torch::optim::StepLR plain_decay(plain_sgd, 1'000'000, 0.5), decay(sgd, 1'000'000, 0.5);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, decay);
  const torch::Tensor x = torch::randn({kBatch, 16});
  const torch::Tensor y = x.sum(1, /*keepdim=*/true);

  auto plain_step = [&](int64_t number) {
    torch::Tensor loss = torch::mse_loss(plain_net(x), y);
    if (accumulation > 1) loss = loss / accumulation;
    loss.backward();
    if (number % accumulation != 0) return;
    plain_sgd.step();
    plain_decay.step();
    plain_sgd.zero_grad();
  };
  auto step = [&, &model = model, &optimizer = optimizer, &scheduler = scheduler] {
    auto scope = accelerator.accumulate(model);
    accelerator.backward(torch::mse_loss(model(x), y));
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  };

  std::vector<double> plain, ours, differences;
  for (int64_t number = 1; number <= kSteps; ++number) {
    double plain_time = 0, time = 0;
    auto run_plain = [&] { plain_time = microseconds([&] { plain_step(number); }); };
    auto run_ours = [&] { time = microseconds(step); };
    // Neither is always the one that finds the caches warm.
    if ((number / accumulation) % 2 == 0) {
      run_plain();
      run_ours();
    } else {
      run_ours();
      run_plain();
    }
    plain.push_back(plain_time);
    ours.push_back(time);
    differences.push_back(time - plain_time);
  }
  if (!plain_net->output->weight.equal(net->output->weight)) {
    std::fputs("the loops trained differently\n", stderr);
    std::exit(1);
  }
  std::printf("| %ld | %.2f | %.2f | %+.2f | %s |\n", static_cast<long>(accumulation),
              median(plain), median(ours), median(differences), accumulation == 1 ? "+148" : "");
}

int main(int argc, char** argv) {
  return run(argc, argv, [](int, char**) {
    std::printf(
        "| micro-steps per step | LibTorch, us | accelerate, us | more, us | the peer, us |\n");
    std::printf("| --- | --- | --- | --- | --- |\n");
    for (const int64_t accumulation : {1, 4}) measure(accumulation);
    return 0;
  });
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) { return accelerate::main(argc, argv); }
