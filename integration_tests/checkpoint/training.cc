#include "integration_tests/checkpoint/training.h"

#include <memory>

#include <torch/torch.h>

#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/optim/schedulers/decay.h"

namespace accelerate::checkpoint_tests {
namespace {

constexpr int64_t kSamples = 52;
constexpr int64_t kBatch = 4;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    in = register_module("in", torch::nn::Linear(6, 12));
    norm = register_module("norm", torch::nn::BatchNorm1d(12));
    out = register_module("out", torch::nn::Linear(12, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor hidden = torch::relu(norm(in(x)));
    return out(torch::dropout(hidden, 0.3, is_training()));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

// State that the library cannot know: how many steps the user counts.
struct Progress {
  int64_t steps = 0;
  StateDict state_dict() const { return {.values = {{"steps", steps}}}; }
  void load_state_dict(const StateDict& state) { steps = state.values.at("steps"); }
};

// Loads the latest complete checkpoint if there is one.
void resume(Accelerator& accelerator, const TrainingOptions& options) {
  if (options.folder.empty()) {
    accelerator.load_latest_state();
    return;
  }
  try {
    accelerator.load_state(options.folder);
  } catch (const CheckpointError&) {  // there is a folder, but no checkpoint yet
  } catch (const c10::ValueError&) {  // there is not even a folder
  }
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Net& net, bool uses_adam) {
  if (uses_adam) return std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);
  return std::make_shared<torch::optim::SGD>(net->parameters(),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

}  // namespace

int64_t micro_steps(const TrainingOptions& options, int num_processes) {
  const int64_t round = kBatch * num_processes;
  return options.epochs * ((kSamples + round - 1) / round);
}

TrainingResult train(const TrainingOptions& options) {
  std::optional<ParallelismConfig> parallelism;
  if (options.parallelism) parallelism.emplace(*options.parallelism);
  Accelerator accelerator(
      {.mixed_precision = options.precision,
       .gradient_accumulation_steps = options.accumulation,
       .dataloader_config = {.use_stateful_dataloader = true},
       .project_config = {.project_dir = options.project_dir,
                          .automatic_checkpoint_naming = options.folder.empty(),
                          .total_limit = options.total_limit},
       .parallelism_config = parallelism,
       .kwargs_handlers = {GradScalerKwargs{.init_scale = 256, .growth_interval = 3}}});
  set_seed(17, {.device_specific = true});
  at::Generator data = at::make_generator<at::CPUGeneratorImpl>(5);
  const torch::Tensor x = torch::randn({kSamples, 6}, data);
  const torch::Tensor y = x.sum(1, /*keepdim=*/true).sin();
  Net net;
  auto sgd = make_optimizer(net, options.uses_adam);
  optim::CosineAnnealingLR cosine(*sgd, {.T_max = 40});
  auto [model, optimizer, scheduler, loader] = accelerator.prepare(
      net, sgd, cosine,
      DataLoader(make_tensor_dataset(x, y), {.batch_size = kBatch, .shuffle = true}));
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  TrainingResult result;
  accelerator.register_save_state_pre_hook(
      [&](const Modules&, std::vector<NamedTensors>&, const std::string& folder) {
        if (options.on_save) options.on_save(accelerator.runtime().files(), folder);
      });
  if (options.resumes) resume(accelerator, options);
  result.resumed_at = progress.steps;
  net->train();
  bool stops = false;
  int64_t begun = 0, saves_made = 0;
  while (!stops && loader.epoch() < options.epochs) {
    for (auto& [inputs, targets] : loader) {
      {
        const auto scope = accelerator.accumulate(model);
        const torch::Tensor loss = torch::mse_loss(model(inputs), targets);
        accelerator.backward(loss);
        accelerator.clip_grad_norm_(model, 1.0);
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
        result.losses[++progress.steps] = loss.item<double>();
        if (options.on_step) options.on_step(progress.steps, loss.item<double>());
      }
      stops = options.stop_after == progress.steps;
      const bool saves = options.save_every > 0 && progress.steps % options.save_every == 0;
      if (saves || stops) {
        const bool durable = saves_made++ < options.durable_saves;
        accelerator.save_state(options.folder,
                               {.asynchronous = options.asynchronous, .durable = durable});
        // One that goes on behind is complete when the next one begins.
        const int64_t complete = options.asynchronous ? begun : progress.steps;
        begun = progress.steps;
        if (options.on_saved && durable) options.on_saved(complete);
      }
      if (stops) break;
    }
  }
  accelerator.wait_for_save();
  const auto whole = full_parameters(model, {.writeback = false});
  double sum = 0;
  for (const torch::Tensor& tensor : net->parameters()) {
    sum += tensor.detach().to(torch::kDouble).abs().sum().item<double>();
  }
  result.losses[0] = sum;
  return result;
}

}  // namespace accelerate::checkpoint_tests
