#include "accelerate/examples/gpt/training.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <torch/types.h>

#include "accelerate/accelerator.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/examples/gpt/model.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/state/progress_bar.h"
#include "accelerate/state/seed.h"
#include "accelerate/values/texts.h"

namespace gpt {
namespace {

using accelerate::Accelerator;

// A sequence begins at every sixteenth byte.
constexpr int64_t kStride = 16;

// The text's sequences, uint8 [n, context + 1], which overlap: a view of its bytes. Each token's
// target is the one after it.
at::Tensor sequences(accelerate::Runtime& runtime, const Options& options) {
  absl::StatusOr<std::string> text = read_file(runtime.files(), options.data);
  TORCH_CHECK(text.ok(), text.status().message());
  const int64_t length = options.shape.context + 1;
  TORCH_CHECK_VALUE(static_cast<int64_t>(text->size()) >= length, options.data, " has ",
                    text->size(), " bytes, fewer than the ", length, " of a sequence");
  const auto largest = *std::max_element(text->begin(), text->end(), [](char a, char b) {
    return static_cast<uint8_t>(a) < static_cast<uint8_t>(b);
  });
  TORCH_CHECK_VALUE(static_cast<uint8_t>(largest) < options.shape.vocabulary, options.data,
                    " has the byte ", int{static_cast<uint8_t>(largest)},
                    ", for which a vocabulary of ", options.shape.vocabulary, " is too small");
  const at::Tensor bytes =
      at::from_blob(text->data(), {static_cast<int64_t>(text->size())}, at::kByte).clone();
  return bytes.unfold(0, length, kStride);
}

accelerate::AcceleratorOptions settings(const Options& options) {
  accelerate::AcceleratorOptions settings{
      .dataloader_config = {.use_seedable_sampler = true, .data_seed = options.seed},
      .project_config = {.logging_dir = options.logging_dir},
      // Gradients take as much memory as parameters; one copy of them is enough.
      .kwargs_handlers = {accelerate::DistributedDataParallelKwargs{.gradient_as_bucket_view =
                                                                        true}},
      .log_with = {options.log_with.begin(), options.log_with.end()}};
  if (!options.precision.empty()) {
    settings.mixed_precision =
        accelerate::from_string<accelerate::PrecisionType>(options.precision);
  }
  return settings;
}

accelerate::TrackerDict hyperparameters(const Options& options) {
  return {{"layers", options.shape.layers},
          {"heads", options.shape.heads},
          {"width", options.shape.width},
          {"context", options.shape.context},
          {"vocabulary", options.shape.vocabulary},
          {"batch_size", options.batch_size},
          {"optimizer", options.optimizer},
          {"learning_rate", options.learning_rate},
          {"seed", static_cast<int64_t>(options.seed)}};
}

// On the device from the beginning: a large model would not fit into the host's memory.
Gpt built_model(const Options& options, c10::Device device) {
  const accelerate::DefaultDeviceScope scope(device);
  return Gpt(options.shape, options.activation_checkpointing);
}

std::shared_ptr<torch::optim::Optimizer> built_optimizer(const Options& options,
                                                         std::vector<at::Tensor> parameters) {
  if (options.optimizer == "sgd") {
    return std::make_shared<accelerate::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(options.learning_rate));
  }
  TORCH_CHECK_VALUE(options.optimizer == "adamw", "there is no optimizer \"", options.optimizer,
                    "\" here: take adamw or sgd");
  return std::make_shared<accelerate::optim::AdamW>(
      std::move(parameters), torch::optim::AdamWOptions(options.learning_rate));
}

// Collective where devices count their memory.
int64_t peak_memory(Accelerator& accelerator) {
  const auto use = accelerator.runtime().device_memory();
  if (!use) return 0;
  const torch::Tensor peak = torch::tensor({use->peak}, torch::kLong).to(accelerator.device());
  return accelerator.gather(peak).max().item<int64_t>();
}

// Counts tokens of all ranks by the Runtime's clock.
class Speed {
 public:
  Speed(accelerate::Runtime& runtime, int64_t tokens_per_step)
      : runtime_(runtime), tokens_per_step_(tokens_per_step) {
    restart();
  }
  void restart() {
    runtime_.synchronize_device();
    start_ = runtime_.now();
    steps_ = 0;
  }
  void count_step() { ++steps_; }

  /// Waits for the device.
  double step_seconds() const {
    runtime_.synchronize_device();
    const double seconds = absl::ToDoubleSeconds(runtime_.now() - start_);
    return seconds / static_cast<double>(std::max<int64_t>(1, steps_));
  }
  /// 0 where time is not modelled.
  double tokens_per_second(double step_seconds) const {
    return step_seconds > 0 ? static_cast<double>(tokens_per_step_) / step_seconds : 0;
  }

 private:
  accelerate::Runtime& runtime_;
  const int64_t tokens_per_step_;
  absl::Time start_;
  int64_t steps_ = 0;
};

std::string table_row(int64_t step, double loss, double tokens_per_second) {
  char row[64];
  std::snprintf(row, sizeof(row), "%5ld  %8.4f  %10.0f", static_cast<long>(step), loss,
                tokens_per_second);
  return row;
}

}  // namespace

Result train(const Options& options) {
  Accelerator accelerator(settings(options));
  accelerator.init_trackers("gpt", hyperparameters(options));
  accelerate::set_seed(options.seed);
  Gpt net = built_model(options, accelerator.device());
  accelerate::DataLoader data(
      accelerate::make_tensor_dataset(sequences(accelerator.runtime(), options)),
      {.batch_size = options.batch_size, .shuffle = true, .drop_last = true});
  auto [model, optimizer, loader] =
      accelerator.prepare(net, built_optimizer(options, net->parameters()), data);
  const int num_shares = accelerator.state().data_share().count;
  TORCH_CHECK_VALUE(loader.size() > 0, options.data, " has too few sequences for ", num_shares,
                    " ranks with ", options.batch_size, " each");

  const int64_t context = options.shape.context;
  const int64_t tokens_per_step = options.batch_size * context * num_shares;
  accelerate::ProgressBar bar(accelerator.runtime(),
                              {.total = options.steps, .description = "training"});
  if (options.log_every > 0) bar.print(" step      loss    tokens/s");
  Result result;
  Speed whole(accelerator.runtime(), tokens_per_step), recent = whole;
  int64_t step = 0;
  while (step < options.steps) {
    for (auto& [sequence] : loader) {
      auto scope = accelerator.accumulate(model);
      const torch::Tensor tokens = sequence.to(at::kLong);
      const torch::Tensor logits = model(tokens.narrow(1, 0, context));
      const torch::Tensor loss =
          at::cross_entropy_loss(logits.flatten(0, 1), tokens.narrow(1, 1, context).flatten());
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      ++step;
      whole.count_step();
      recent.count_step();
      bar.advance();
      const bool last = step == options.steps;
      // To read a loss is to wait for the device.
      if (options.log_every > 0 && (last || step % options.log_every == 0)) {
        const torch::Tensor mean = accelerator.reduce(loss.detach(), accelerate::Reduction::kMean);
        const double value = mean.item<double>();
        const double rate = recent.tokens_per_second(recent.step_seconds());
        result.losses.push_back(value);
        bar.print(table_row(step, value, rate));
        accelerator.log({{"loss", value}, {"tokens_per_second", rate}}, step);
        recent.restart();
      }
      if (last) break;
    }
  }
  result.step_seconds = whole.step_seconds();
  result.tokens_per_second = whole.tokens_per_second(result.step_seconds);
  accelerator.end_training();
  result.peak_memory_bytes = peak_memory(accelerator);
  return result;
}

}  // namespace gpt
