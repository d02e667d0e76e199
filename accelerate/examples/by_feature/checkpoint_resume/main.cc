// Checkpoints: a job that was killed goes on from its last complete checkpoint. A number as
// argument ends it after so many steps, as if it were killed.
//
//   checkpoint_resume
//   accelerate launch --num_processes 2 checkpoint_resume
//   accelerate launch --simulate 2x4 checkpoint_resume
#include <cstdlib>

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

struct Progress {
  int64_t steps = 0;
  nlohmann::ordered_json state_dict() const { return {{"steps", steps}}; }
  void load_state_dict(const nlohmann::ordered_json& state) { steps = state.at("steps"); }
};

int train(int argc, char** argv) {
  accelerate::Accelerator accelerator(
      {.dataloader_config = {.use_stateful_dataloader = true},
       .project_config = {.project_dir = "out", .automatic_checkpoint_naming = true}});
  accelerate::set_seed(42);
  accelerate::DataLoader train_data(points(1024), {.batch_size = 16, .shuffle = true});
  accelerate::DataLoader test_data(points(200), {.batch_size = 16});
  Net net;
  torch::optim::Adam adam(net->parameters(), 0.02);
  auto [model, optimizer, train_loader, test_loader] =
      accelerator.prepare(net, adam, train_data, test_data);
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  if (accelerator.load_latest_state() && accelerator.is_main_process())
    accelerator.print("resumes after ", progress.steps, " steps");
  if (train_loader.epoch() >= 3) accelerator.print("nothing left to do");
  for (int64_t epoch = train_loader.epoch() + 1; epoch <= 3; ++epoch) {
    model->train();
    for (auto& [x, y] : train_loader) {
      const at::Tensor loss = torch::cross_entropy_loss(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      if (++progress.steps % 4 == 0) accelerator.save_state();
      if (argc > 1 && progress.steps == std::atoi(argv[1])) return 0;
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
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
