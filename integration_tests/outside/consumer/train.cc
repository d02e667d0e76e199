// Fits a line, one step per epoch over all samples, in whatever way it is started:
//
//   train
//   accelerate launch --num_processes 2 train
//   accelerate launch --simulate 1x2 train
//   train --cluster 1x2       a simulated cluster of the program's own, as a test would make one
//   train --ranks 2           processes of its own, as a notebook would start them
//   train --log DIR           and its losses go to files in DIR/line
#include <cstdio>
#include <string>

#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "accelerate/accelerate.h"
#include "accelerate/process/launchers.h"
#include "simulator/cluster/cluster.h"

namespace {

constexpr int64_t kSamples = 8;
constexpr int64_t kEpochs = 5;

// The loss over all samples after the last step, the same on every rank.
double fit(const std::string& logging_dir = "") {
  accelerate::AcceleratorOptions options;
  if (!logging_dir.empty()) {
    options.project_dir = logging_dir;
    options.log_with = {"jsonl", "tensorboard"};
  }
  accelerate::Accelerator accelerator(options);
  accelerator.init_trackers("line");
  torch::nn::Linear line(1, 1);
  {
    at::NoGradGuard no_grad;
    line->weight.fill_(0.5);
    line->bias.zero_();
  }
  torch::optim::SGD sgd(line->parameters(), /*lr=*/0.25);
  const at::Tensor x = at::arange(kSamples, at::kFloat).view({-1, 1}) / kSamples;
  accelerate::DataLoader data(accelerate::make_tensor_dataset(x, 3 * x + 1),
                              {.batch_size = kSamples / accelerator.num_processes()});
  auto [model, optimizer, loader] = accelerator.prepare(line, sgd, data);
  at::Tensor loss;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& [inputs, targets] : loader) {
      loss = torch::nn::functional::mse_loss(model(inputs), targets);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      accelerator.log({{"loss", loss}}, epoch);
    }
  }
  return accelerator.reduce(loss.detach(), accelerate::Reduction::kMean).item<double>();
}

int train(int argc, char** argv) {
  const double loss = fit(argc == 3 ? argv[2] : "");
  accelerate::Runtime& runtime = accelerate::Runtime::current();
  const accelerate::Topology& topology = runtime.topology();
  if (topology.rank != 0) return 0;
  char text[80];
  std::snprintf(text, sizeof(text), "ranks %d loss %.5f\n", topology.world_size, loss);
  runtime.write_console(accelerate::ConsoleStream::kOut, text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--cluster") {
    accelerate::simulator::Cluster cluster(argv[2], {.seed = 1});
    cluster.run_on_every_rank(
        [](accelerate::simulator::Rank& rank) { rank.report("loss", fit()); });
    const double loss = cluster.reports("loss").front().item<double>();
    std::printf("ranks %d loss %.5f\n", cluster.world_size(), loss);
    return 0;
  }
  if (argc == 3 && std::string(argv[1]) == "--ranks") {
    accelerate::launch([] { train(1, nullptr); },
                       {.num_processes = std::stoi(argv[2]), .use_cpu = true});
    return 0;
  }
  return accelerate::run(argc, argv, train);
}
