// Checkpoints after every epoch, or after a number of steps, and one line that goes on from the
// latest. HF Accelerate's counterpart: examples/by_feature/checkpointing.py.
//
//   checkpointing --data digits.safetensors --checkpointing_steps epoch
//   checkpointing --data digits.safetensors --checkpointing_steps 10 --max_steps 25
//   accelerate launch --num_processes 2 checkpointing --data digits.safetensors
//
// --max_steps ends the program early, as a job's time limit does. The next start goes on within the
// epoch, on any number of ranks. DATA has `images` and `labels`, one of each for a sample.
#include <string>
#include <utility>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "accelerate/accelerate.h"

namespace {

std::string flag(int argc, char** argv, const std::string& name, std::string value) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == name) value = argv[i + 1];
  return value;
}

class NetImpl : public torch::nn::Module {
 public:
  NetImpl(int64_t pixels, int64_t classes)
      : hidden_(register_module("hidden", torch::nn::Linear(pixels, 64))),
        output_(register_module("output", torch::nn::Linear(64, classes))) {}
  at::Tensor forward(const at::Tensor& images) {
    return output_(torch::relu(hidden_(images.flatten(1))));
  }

 private:
  torch::nn::Linear hidden_, output_;
};
TORCH_MODULE(Net);

struct Samples {
  at::Tensor images;  // float [rows, ...]
  at::Tensor labels;  // int64 [rows]
};

Samples read_samples(const std::string& path) {
  Samples samples;
  const accelerate::StateDict file = accelerate::load(path);
  for (const auto& [name, tensor] : file.tensors) {
    if (name == "images") samples.images = tensor.to(torch::kFloat);
    if (name == "labels") samples.labels = tensor.to(torch::kLong);
  }
  TORCH_CHECK_VALUE(samples.images.defined() && samples.labels.defined(), path,
                    " has no tensors \"images\" and \"labels\"");
  samples.images = samples.images / samples.images.max();
  return samples;
}

// What the library cannot know is saved with the state: any object with these two functions.
struct Progress {
  int64_t steps = 0;
  nlohmann::ordered_json state_dict() const { return {{"steps", steps}}; }
  void load_state_dict(const nlohmann::ordered_json& state) { steps = state.at("steps"); }
};

int train(int argc, char** argv) {
  const std::string path = flag(argc, argv, "--data", "digits.safetensors");
  const std::string interval = flag(argc, argv, "--checkpointing_steps", "epoch");
  const int64_t epochs = std::stoll(flag(argc, argv, "--epochs", "3"));
  const int64_t max_steps = std::stoll(flag(argc, argv, "--max_steps", "0"));
  const int64_t every = interval == "epoch" ? 0 : std::stoll(interval);
  Progress progress;
  accelerate::Accelerator accelerator(
      {.dataloader_config = {.use_stateful_dataloader = true},
       .project_config = {
           .project_dir = "out", .automatic_checkpoint_naming = true, .total_limit = 2}});
  accelerate::set_seed(42);
  const auto [images, labels] = read_samples(path);
  const int64_t rows = labels.size(0), test_rows = rows / 5, train_rows = rows - test_rows;
  accelerate::DataLoader train_data(
      accelerate::make_tensor_dataset(images.narrow(0, 0, train_rows),
                                      labels.narrow(0, 0, train_rows)),
      {.batch_size = 16, .shuffle = true});
  accelerate::DataLoader test_data(
      accelerate::make_tensor_dataset(images.narrow(0, train_rows, test_rows),
                                      labels.narrow(0, train_rows, test_rows)),
      {.batch_size = 16});
  Net net(images[0].numel(), labels.max().item<int64_t>() + 1);
  torch::optim::Adam adam(net->parameters(), 0.005);
  auto [model, optimizer, train_loader, test_loader] =
      accelerator.prepare(net, adam, train_data, test_data);
  accelerator.register_for_checkpointing(progress);

  const auto found = accelerator.load_latest_state();  // the one line
  if (found && accelerator.is_main_process())
    accelerator.print("resumes from ", *found, " after ", progress.steps, " steps");
  while (train_loader.epoch() < epochs) {
    for (auto& [x, y] : train_loader) {
      accelerator.backward(torch::cross_entropy_loss(model(x), y));
      optimizer.step();
      optimizer.zero_grad();
      ++progress.steps;
      if (every > 0 && progress.steps % every == 0) accelerator.save_state();
      if (progress.steps == max_steps) return 0;
    }
    if (every == 0) accelerator.save_state();
  }
  const torch::NoGradGuard no_grad;
  accelerate::metrics::Accuracy accuracy;
  for (auto& [x, y] : test_loader) {
    const auto [predicted, expected] =
        accelerator.gather_for_metrics(std::pair(model(x).argmax(1), y));
    accuracy.add(predicted, expected);
  }
  if (accelerator.is_main_process())
    accelerator.print("after ", progress.steps, " steps: accuracy ", accuracy.compute());
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
