// A rank that real schedulers start, for ci/slurm.sh and ci/mpich.sh.
//
//   rank --dir DIR [--steps N] [--kill_rank R --kill_step S] [--wait_at S]
//
// Says who it is and what a sum over all ranks is, trains a small model, and saves a checkpoint
// each step, from which the next run resumes. With --kill_rank that rank ends by SIGKILL before
// that step, and with --wait_at all wait before it for the scheduler's signal; neither in a run
// that resumes. The last line is the sum of the weights: the same for a job that was interrupted as
// for one that was not.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include <torch/torch.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"

namespace accelerate {
namespace {

struct Progress {
  int64_t steps = 0;
  nlohmann::json state_dict() const { return {{"steps", steps}}; }
  void load_state_dict(const nlohmann::json& state) { steps = state.at("steps"); }
};

int run_rank(int argc, char** argv) {
  std::string folder;
  int64_t steps = 4;
  int64_t kill_rank = -1;
  int64_t kill_step = 0;
  int64_t wait_at = -1;
  CLI::App app("a rank");
  app.add_option("--dir", folder)->required();
  app.add_option("--steps", steps);
  app.add_option("--kill_rank", kill_rank);
  app.add_option("--kill_step", kill_step);
  app.add_option("--wait_at", wait_at);
  CLI11_PARSE(app, argc, argv);

  Progress progress;
  Accelerator accelerator(
      {.cpu = true,
       .project_config = {
           .project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 2}});
  const int rank = accelerator.process_index();
  // Ranks that believe that they are alone would all say 0.
  const at::Tensor sum =
      accelerator.reduce(torch::full({1}, static_cast<double>(rank)), Reduction::kSum);
  std::printf("rank %d of %d, local %d, sum %g, backend %s\n", rank, accelerator.num_processes(),
              accelerator.local_process_index(), sum.item<double>(),
              accelerator.state().partial_state().backend().c_str());
  std::fflush(stdout);

  torch::manual_seed(3);
  torch::nn::Linear net(4, 2);
  auto [model, optimizer] = accelerator.prepare(
      net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01)));
  accelerator.register_for_checkpointing(progress);
  const auto latest = latest_complete(accelerator.runtime().files(), folder + "/checkpoints");
  const bool resumes = latest.ok() && latest->has_value();
  if (resumes) {
    accelerator.load_state();
    accelerator.print("resumed after step ", progress.steps);
  }
  while (progress.steps < steps) {
    if (!resumes && progress.steps == kill_step && rank == kill_rank) ::raise(SIGKILL);
    if (!resumes && progress.steps == wait_at) {
      accelerator.print("waits at step ", progress.steps);
      while (true) ::pause();
    }
    // Each rank's data is its own, so gradients must be averaged for ranks to agree.
    const at::Tensor data =
        torch::full({3, 4}, 0.5 + static_cast<double>(rank) + static_cast<double>(progress.steps));
    accelerator.backward(model(data).pow(2).mean());
    optimizer.step();
    optimizer.zero_grad();
    ++progress.steps;
    accelerator.save_state();
  }
  double weights = 0;
  for (const at::Tensor& parameter : net->parameters()) weights += parameter.sum().item<double>();
  const at::Tensor all = accelerator.gather(torch::full({1}, weights, at::kDouble));
  TORCH_CHECK((all == all[0]).all().item<bool>(), "ranks have different weights: ", all);
  if (accelerator.is_main_process()) {
    std::printf("trained %lld steps, weights %.9f\n", static_cast<long long>(progress.steps),
                weights);
  }
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) { return accelerate::run(argc, argv, accelerate::run_rank); }
