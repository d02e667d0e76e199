// All that a training needs: accumulation, clipping, a schedule, curves, checkpoints, resuming.
//
//   complete
//   accelerate launch --num_processes 2 --mixed_precision bf16 complete
//   accelerate launch --simulate 2x4:h100 --mixed_precision bf16 --report report complete
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "accelerate/accelerate.h"
#include "accelerate/optim/schedulers/schedulers.h"

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
  accelerate::Accelerator accelerator({.gradient_accumulation_steps = 2,
                                       .dataloader_config = {.use_stateful_dataloader = true},
                                       .project_config = {.project_dir = "out",
                                                          .automatic_checkpoint_naming = true,
                                                          .total_limit = 2},
                                       .log_with = {"jsonl"}});
  accelerator.init_trackers("complete", {{"learning_rate", 0.02}, {"batch_size", 16}});
  accelerate::set_seed(42);
  accelerate::DataLoader train_data(points(1024), {.batch_size = 16, .shuffle = true});
  accelerate::DataLoader test_data(points(200), {.batch_size = 16});
  Net net;
  torch::optim::Adam adam(net->parameters(), 0.02);
  accelerate::optim::LinearLR lr(adam, {.start_factor = 1, .end_factor = 0.2, .total_iters = 90});
  auto [model, optimizer, scheduler, train_loader, test_loader] =
      accelerator.prepare(net, adam, lr, train_data, test_data);
  const auto found = accelerator.load_latest_state();
  int64_t epoch = train_loader.epoch(), steps = epoch * (train_loader.size() / 2);
  if (found) accelerator.print("resumes from ", *found, epoch < 3 ? "" : ": nothing left to do");
  while (++epoch <= 3) {
    model->train();
    for (auto& [x, y] : train_loader) {
      const auto micro_step = accelerator.accumulate(model);
      const at::Tensor loss = torch::cross_entropy_loss(model(x), y);
      accelerator.backward(loss);
      const at::Tensor norm = accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (accelerator.sync_gradients())
        accelerator.log({{"loss", loss}, {"gradient_norm", norm}}, ++steps);
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> parts;
    for (auto& [x, y] : test_loader)
      parts.push_back(accelerator.gather_for_metrics(model(x).argmax(1).eq(y)));
    const at::Tensor correct = torch::cat(parts);
    const int64_t percent = 100 * correct.sum().item<int64_t>() / correct.numel();
    accelerator.log({{"epoch", epoch}, {"accuracy", percent}}, steps);
    accelerator.save_state();
    if (accelerator.is_main_process())
      accelerator.print("epoch ", epoch, ": ", percent, " % of ", correct.numel(), " points");
  }
  accelerator.save_model(model, "out/model");
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
