// The cost of the training loop on top of the same loop in plain LibTorch: accumulate, forward,
// backward, step, schedule, zero, for a tiny network. Both loops train in turn, step by step, on
// the same data, and must end with the same weights; medians are compared.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "absl/strings/str_format.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "integration_tests/step/benchmark_table.h"

namespace accelerate::step_benchmark {
namespace {

constexpr int kSteps = 40'000;
constexpr int64_t kBatch = 32;

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

// With a plan by which ranks along tp would divide the network, of which there is one.
AcceleratorOptions with_plan() {
  return {
      .kwargs_handlers = {TensorParallelPlan{{.pattern = "hidden", .style = TensorStyle::kColumn},
                                             {.pattern = "output", .style = TensorStyle::kRow}}}};
}

void measure(const std::string& name, int64_t accumulation, const AcceleratorOptions& options) {
  Accelerator accelerator(options);
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
    // Micro-steps that only accumulate do nothing of what is measured.
    if (number % accumulation != 0) continue;
    plain.push_back(plain_time);
    ours.push_back(time);
    differences.push_back(time - plain_time);
  }
  if (!plain_net->output->weight.equal(net->output->weight)) {
    std::fputs("the loops trained differently\n", stderr);
    std::exit(1);
  }
  print({.measured = absl::StrFormat("the loop, %s", name),
         .alone = median(plain),
         .here = median(ours),
         .result = absl::StrFormat("%+.2f us", median(differences)),
         .wanted = "at most +3 us",
         .peer = name == "every step" ? "+148 us" : ""});
}

}  // namespace

void measure_loop() {
  measure("every step", /*accumulation=*/1, {});
  measure("every step, a plan and tp 1", /*accumulation=*/1, with_plan());
  measure("last of 4 micro-steps", /*accumulation=*/4, {});
}

}  // namespace accelerate::step_benchmark
