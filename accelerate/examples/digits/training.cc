#include "accelerate/examples/digits/training.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
// <torch/torch.h> and "accelerate/accelerate.h" would do as well; what is used of them compiles in
// half the time.
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "accelerate/accelerator.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/examples/common/training.h"
#include "accelerate/state/progress_bar.h"
#include "accelerate/state/seed.h"

namespace digits {
namespace {

// ---- The UCI digits as tensors.

struct Split {
  at::Tensor images;  // float [n, 1, 8, 8], 0..1
  at::Tensor labels;  // int64 [n], 0..9
};

struct Dataset {
  Split train;
  Split test;
};

// Reads the file, images uint8 [n, 1, 8, 8] from 0 to 16 and labels uint8 [n], and deals the rows
// out by `seed`: four fifths to train, the rest to test.
// Errors: those of accelerate::load; c10::Error naming the file if it has other tensors.
Dataset load(accelerate::Runtime& runtime, const std::string& path, uint64_t seed) {
  const accelerate::StateDict file = accelerate::load(path, {}, runtime);
  TORCH_CHECK(file.tensors.size() == 2 && file.tensors[0].first == "images" &&
                  file.tensors[1].first == "labels",
              path, ": expected the tensors images and labels");
  const at::Tensor images = file.tensors[0].second.to(at::kFloat).div(16);
  const at::Tensor labels = file.tensors[1].second.to(at::kLong);
  const auto rows = [&](const at::Tensor& which) -> Split {
    return {images.index_select(0, which), labels.index_select(0, which)};
  };
  // A generator of its own: the split must not depend on what else was drawn before.
  const at::Tensor order = at::randperm(labels.size(0), at::detail::createCPUGenerator(seed));
  const int64_t test_rows = labels.size(0) / 5;
  return {.train = rows(order.narrow(0, test_rows, labels.size(0) - test_rows)),
          .test = rows(order.narrow(0, 0, test_rows))};
}

// ---- The training.

using accelerate::Accelerator;
using accelerate::DataLoader;
using accelerate::make_tensor_dataset;

class NetImpl : public torch::nn::Module {
 public:
  explicit NetImpl(double dropout)
      : conv1_(register_module("conv1", torch::nn::Conv2d(conv(1, 8)))),
        conv2_(register_module("conv2", torch::nn::Conv2d(conv(8, 16)))),
        hidden_(register_module("hidden", torch::nn::Linear(16 * 4 * 4, 64))),
        output_(register_module("output", torch::nn::Linear(64, 10))),
        dropout_(register_module("dropout", torch::nn::Dropout(dropout))) {}

  torch::Tensor forward(torch::Tensor x) {  // [n, 1, 8, 8] -> log-probabilities [n, 10]
    x = torch::relu(conv1_(x));
    x = torch::max_pool2d(torch::relu(conv2_(x)), 2);
    x = dropout_(torch::relu(hidden_(x.flatten(1))));
    return torch::log_softmax(output_(x), /*dim=*/1);
  }

 private:
  static torch::nn::Conv2dOptions conv(int64_t in, int64_t out) {
    return torch::nn::Conv2dOptions(in, out, /*kernel_size=*/3).padding(1);
  }

  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Linear hidden_, output_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(Net);

accelerate::TrackerDict hyperparameters(const Options& options) {
  return {{"epochs", options.epochs},
          {"batch_size", options.batch_size},
          {"learning_rate", options.learning_rate},
          {"seed", static_cast<int64_t>(options.seed)},
          {"dropout", options.dropout}};
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

template <typename Model, typename Loader>
double accuracy(Accelerator& accelerator, Model& model, Loader& loader) {
  torch::NoGradGuard no_grad;
  model->eval();
  int64_t right = 0;
  int64_t total = 0;
  for (auto& [images, labels] : loader) {
    auto correct = accelerator.gather_for_metrics(model(images).argmax(1).eq(labels));
    right += correct.sum().template item<int64_t>();
    total += correct.numel();
  }
  model->train();
  return static_cast<double>(right) / static_cast<double>(total);
}

std::string table_row(int64_t epoch, double loss, double test_accuracy) {
  char row[64];
  std::snprintf(row, sizeof(row), "%5ld  %8.4f  %13.3f", static_cast<long>(epoch), loss,
                test_accuracy);
  return row;
}

}  // namespace

Result train(const Options& options) {
  // The order of the samples follows from the seed alone, not from the number of ranks.
  Accelerator accelerator({.dataloader_config = {.use_seedable_sampler = true,
                                                 .data_seed = options.seed,
                                                 .use_stateful_dataloader = true},
                           .project_config = examples::project_of(options),
                           .log_with = {options.log_with.begin(), options.log_with.end()}});
  accelerator.init_trackers("digits", hyperparameters(options));
  Dataset data = load(accelerator.runtime(), options.data, options.seed);
  torch::manual_seed(options.seed);

  Net net(options.dropout);
  torch::optim::Adam adam(net->parameters(), options.learning_rate);
  const int num_shares = accelerator.state().data_share().count;
  const int64_t share = std::max<int64_t>(1, options.batch_size / num_shares);
  DataLoader train_data(make_tensor_dataset(data.train.images, data.train.labels),
                        {.batch_size = share, .shuffle = true, .drop_last = true});
  DataLoader test_data(make_tensor_dataset(data.test.images, data.test.labels),
                       {.batch_size = 128});
  auto [model, optimizer, loader, test_loader] =
      accelerator.prepare(net, adam, train_data, test_data);

  // Each share of the data has its own dropout masks.
  if (options.dropout > 0) accelerate::set_seed(options.seed, {.device_specific = true});

  examples::StepCount steps;
  accelerator.register_for_checkpointing(steps);
  if (options.resume) accelerator.load_latest_state();

  Result result;
  auto done = [&] {
    return loader.epoch() >= options.epochs ||
           (options.max_steps > 0 && steps.value >= options.max_steps);
  };
  result.is_done_before = done();
  accelerate::ProgressBar bar(accelerator.runtime(),
                              {.total = options.epochs * loader.size(), .description = "training"});
  bar.print("epoch      loss  test accuracy");
  absl::Duration training_time;
  while (!done()) {
    const int64_t epoch = loader.epoch() + 1;
    std::vector<double> losses;
    const absl::Time start = accelerator.runtime().now();
    for (auto& [images, labels] : loader) {
      auto scope = accelerator.accumulate(model);
      torch::Tensor loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(
          accelerator.reduce(loss.detach(), accelerate::Reduction::kMean).template item<double>());
      result.step_losses.push_back(losses.back());
      bar.advance();
      ++steps.value;
      accelerator.log({{"train_loss", losses.back()}}, steps.value);
      if (!options.output_dir.empty() && steps.value % options.checkpointing_steps == 0) {
        accelerator.save_state({}, {.asynchronous = true});
      }
      if (done()) break;
    }
    accelerator.runtime().synchronize_device();
    training_time += accelerator.runtime().now() - start;
    result.epoch_losses.push_back(mean(losses));
    accelerator.log({{"epoch", epoch}, {"epoch_loss", result.epoch_losses.back()}}, steps.value);
    if (epoch % 5 != 0 && epoch != 1 && !done()) continue;
    result.test_accuracy = accuracy(accelerator, model, test_loader);
    accelerator.log({{"test_accuracy", result.test_accuracy}}, steps.value);
    bar.print(table_row(epoch, result.epoch_losses.back(), result.test_accuracy));
  }
  accelerator.end_training();
  accelerator.wait_for_save();
  if (!options.output_dir.empty()) accelerator.save_model(model, options.output_dir + "/model");
  result.step_seconds = absl::ToDoubleSeconds(training_time) /
                        static_cast<double>(std::max<size_t>(1, result.step_losses.size()));
  result.peak_memory_bytes = examples::peak_memory(accelerator);
  return result;
}

}  // namespace digits
