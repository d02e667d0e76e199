// A training program with a regression, which --plant names, or with none: planted_test tells each
// by what accelerate perf says of it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <CLI/CLI.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/optim/fused_optimizers.h"

namespace {

constexpr int64_t kInputs = 16;
constexpr int64_t kWidth = 1024;
constexpr int64_t kBatch = 8192;
constexpr int64_t kSteps = 5;

struct Options {
  std::string plant;
  std::string checkpoint;

  bool has(const char* name) const { return plant == name; }
};

class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(bool in_fp32) : in_fp32_(in_fp32) {}

  at::Tensor forward(const at::Tensor& x) {
    if (!in_fp32_) return torch::relu(linear_(x));
    const accelerate::AutocastScope off(
        accelerate::AutocastSettings{.device = x.device().type(), .enabled = false});
    return torch::relu(linear_(x.to(torch::kFloat)));
  }

 private:
  const bool in_fp32_;
  torch::nn::Linear linear_ = register_module("linear", torch::nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Layer);

class NetImpl : public torch::nn::Module {
 public:
  explicit NetImpl(const Options& options) : keeps_(options.has("activation")) {
    for (int i = 0; i < 4; ++i) {
      layers_.push_back(register_module("layer" + std::to_string(i),
                                        Layer(/*in_fp32=*/i == 2 && options.has("fp32"))));
    }
  }

  at::Tensor forward(at::Tensor x) {
    x = input_(x);
    for (Layer& layer : layers_) {
      x = layer(x);
      if (keeps_ && &layer == &layers_[1]) keep(x);
    }
    return x;
  }

 private:
  // That of the step before, too.
  void keep(const at::Tensor& x) {
    before_ = kept_;
    kept_ = x.detach();
  }

  const bool keeps_;
  torch::nn::Linear input_ = register_module("input", torch::nn::Linear(kInputs, kWidth));
  std::vector<Layer> layers_;
  at::Tensor kept_, before_;
};
TORCH_MODULE(Net);

std::unique_ptr<torch::optim::Optimizer> optimizer_of(std::vector<at::Tensor> parameters,
                                                      const Options& options) {
  if (options.has("unfused")) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters));
  }
  return std::make_unique<accelerate::optim::AdamW>(std::move(parameters));
}

int train(int argc, char** argv) {
  Options options;
  CLI::App app("A training program with a regression or none");
  app.add_option("--plant", options.plant);
  app.add_option("--checkpoint", options.checkpoint);
  CLI11_PARSE(app, argc, argv);

  accelerate::Accelerator accelerator(
      {.kwargs_handlers = {accelerate::DistributedDataParallelKwargs{
           .bucket_cap_mb = options.has("buckets") ? 4.0 : 8.0}}});
  accelerate::set_seed(42);
  accelerate::DataLoader data(
      accelerate::make_tensor_dataset(torch::zeros({16 * kBatch, kInputs}),
                                      torch::zeros({16 * kBatch}, torch::kLong)),
      {.batch_size = kBatch});
  Net net(options);
  const std::unique_ptr<torch::optim::Optimizer> adam = optimizer_of(net->parameters(), options);
  auto [model, optimizer, loader] = accelerator.prepare(net, *adam, data);
  const c10::intrusive_ptr<c10d::ProcessGroup> group = accelerator.state().group();
  std::vector<at::Tensor> statistics = {torch::ones({1 << 24}, accelerator.device())};
  int64_t steps = 0;
  for (auto& [x, y] : loader) {
    if (++steps > kSteps) break;
    // What the program knows of its data goes from rank to rank beside its computations.
    // A process alone has no group.
    const c10::intrusive_ptr<c10d::Work> work =
        group != nullptr ? group->allreduce(statistics) : nullptr;
    if (work != nullptr && options.has("overlap")) work->wait();
    const at::Tensor input = options.has("loader") ? x.cpu().to(x.device()) : x;
    if (options.has("allocation")) torch::empty({1024}, x.device());
    const at::Tensor loss = torch::cross_entropy_loss(model(input), y);
    accelerator.backward(loss);
    if (work != nullptr) work->wait();
    if (options.has("all_reduce")) accelerator.reduce(loss.detach());
    if (options.has("synchronisation")) loss.item<float>();
    optimizer.step();
    optimizer.zero_grad();
  }
  if (!options.checkpoint.empty()) {
    accelerator.save_state(options.checkpoint);
    if (options.has("checkpoint")) accelerator.save_state(options.checkpoint);
  }
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
