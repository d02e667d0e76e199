// Crashes a training job at every file operation of its checkpoints, one after the other, and
// starts it again each time: it must go on from a checkpoint that it had saved, and end as it would
// have without the crash.
#include <cstdio>
#include <memory>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace {

namespace simulator = accelerate::simulator;

// Four steps with a checkpoint after each second one. Returns the sum of the weights.
double train() {
  accelerate::Accelerator accelerator(
      {.dataloader_config = {.use_stateful_dataloader = true},
       .project_config = {
           .project_dir = "/sim/job", .automatic_checkpoint_naming = true, .total_limit = 1}});
  accelerate::get_logger("accelerate").set_level(accelerate::LogLevel::kError);
  accelerate::set_seed(42);
  torch::nn::Linear net(4, 2);
  torch::optim::Adam adam(net->parameters(), 0.1);
  accelerate::DataLoader data(accelerate::make_tensor_dataset(torch::randn({32, 4})),
                              {.batch_size = 4, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, data);
  accelerator.load_latest_state();
  int steps = 0;
  while (loader.epoch() < 1) {
    for (auto& [x] : loader) {
      accelerator.backward(model(x).square().mean());
      optimizer.step();
      optimizer.zero_grad();
      if (++steps % 2 == 0) accelerator.save_state();
    }
  }
  return net->weight.sum().item<double>();
}

// Runs the job on a disk. Returns what its ranks end with; nothing if it crashes.
std::vector<double> run(const std::shared_ptr<simulator::SimDisk>& disk,
                        std::vector<simulator::FileFault> faults = {}) {
  simulator::Cluster cluster("1x2", {.disk = disk, .file_faults = std::move(faults)});
  try {
    cluster.run_on_every_rank([](simulator::Rank& rank) { rank.report("sum", train()); });
  } catch (const simulator::ClusterError&) {
    return {};
  }
  std::vector<double> sums;
  for (const at::Tensor& sum : cluster.reports("sum")) sums.push_back(sum.item<double>());
  return sums;
}

}  // namespace

int main() {
  const auto whole = std::make_shared<simulator::SimDisk>();
  const std::vector<double> expected = run(whole);
  int crashes = 0, lost = 0;
  for (int64_t operation = 0; operation < whole->operations(0); ++operation) {
    const auto disk = std::make_shared<simulator::SimDisk>();
    const auto died = run(disk, {{.operation = operation,
                                  .kind = simulator::FileFaultKind::kMachineDies,
                                  .unsynced = simulator::Unsynced::kDrawn}});
    if (died.empty()) ++crashes;
    if (run(disk) != expected) ++lost;
  }
  std::printf("%d crashes, %d of them lost something\n", crashes, lost);
  return crashes > 0 && lost == 0 ? 0 : 1;
}
