#include "integration_tests/golden/save_state_layout_training.h"

#include <unordered_set>
#include <utility>

#include <torch/torch.h>

#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/optim/schedulers/schedulers.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/streams.h"

namespace accelerate::golden {
namespace {

constexpr int64_t kRows = 4;
constexpr int64_t kSamples = 8;
constexpr int64_t kBatchSize = 2;

struct LinearNet : DrawingNet {
  explicit LinearNet(at::ScalarType dtype) {
    const torch::nn::Linear like(3, 2);
    weight = register_parameter("weight", like->weight.detach().to(dtype));
    bias = register_parameter("bias", like->bias.detach().to(dtype));
  }
  at::Tensor forward() override {
    return torch::linear(torch::rand({kRows, 3}, weight.options().requires_grad(false)), weight,
                         bias);
  }
  at::Tensor weight, bias;
};

struct NormNet : DrawingNet {
  NormNet() {
    linear = register_module("0", torch::nn::Linear(3, 4));
    norm = register_module("1", torch::nn::BatchNorm1d(4));
  }
  at::Tensor forward() override { return norm(linear(torch::rand({kRows, 3}))); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Head);

struct TiedNet : DrawingNet {
  TiedNet() {
    emb = register_module("emb", torch::nn::Embedding(4, 3));
    head = register_module("head", Head(emb->weight));
  }
  at::Tensor forward() override { return head(emb(torch::randint(4, {kRows}, at::kLong))); }
  torch::nn::Embedding emb{nullptr};
  Head head{nullptr};
};

std::shared_ptr<DrawingNet> made_net(const std::string& name) {
  if (name == "linear") return std::make_shared<LinearNet>(at::kFloat);
  if (name == "bf16") return std::make_shared<LinearNet>(at::kBFloat16);
  if (name == "bn") return std::make_shared<NormNet>();
  if (name == "tied") return std::make_shared<TiedNet>();
  throw CaseError("unknown model \"" + name + "\"");
}

// A tied one once, as PyTorch's parameters().
std::vector<at::Tensor> parameters_of(const DrawingNet& net) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : net.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  }
  return parameters;
}

std::shared_ptr<torch::optim::Optimizer> made_optimizer(const std::string& name,
                                                        const DrawingNet& net) {
  const std::vector<at::Tensor> parameters = parameters_of(net);
  if (name == "adam") return std::make_shared<torch::optim::Adam>(parameters, 0.01);
  if (name == "adamw") {
    return std::make_shared<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.01));
  }
  if (name == "sgd") return std::make_shared<torch::optim::SGD>(parameters, 0.1);
  if (name == "momentum") {
    return std::make_shared<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  throw CaseError("unknown optimizer \"" + name + "\"");
}

std::unique_ptr<optim::Scheduler> made_scheduler(const std::string& name,
                                                 torch::optim::Optimizer& optimizer) {
  if (name == "step") {
    return std::make_unique<optim::StepLR>(optimizer,
                                           optim::StepLROptions{.step_size = 2, .gamma = 0.1});
  }
  if (name == "cosine") {
    return std::make_unique<optim::CosineAnnealingLR>(optimizer,
                                                      optim::CosineAnnealingLROptions{.T_max = 10});
  }
  if (name == "onecycle") {
    return std::make_unique<optim::OneCycleLR>(
        optimizer, optim::OneCycleLROptions{.max_lr = 0.1, .total_steps = 20});
  }
  // The recorded rates are the base rate at epochs 0, 1 and 2.
  if (name == "lambda") {
    return std::make_unique<optim::LambdaLR>(optimizer, [](int64_t /*epoch*/) { return 1.0; });
  }
  throw CaseError("unknown scheduler \"" + name + "\"");
}

template <typename Object>
Object& owner(const std::vector<std::shared_ptr<Object>>& owners, size_t index) {
  if (owners.empty()) throw CaseError("nothing to work on");
  return *owners[index % owners.size()];
}

}  // namespace

LayoutTraining::LayoutTraining(AcceleratorOptions options, const LayoutObjects& objects,
                               int64_t first_custom)
    : accelerator_(std::move(options)) {
  for (const std::string& name : objects.models) nets_.push_back(made_net(name));
  for (size_t i = 0; i < objects.optimizers.size(); ++i) {
    inner_optimizers_.push_back(made_optimizer(objects.optimizers[i], owner(nets_, i)));
  }
  for (size_t i = 0; i < objects.schedulers.size(); ++i) {
    inner_schedulers_.push_back(made_scheduler(objects.schedulers[i], owner(inner_optimizers_, i)));
  }
  for (const auto& net : nets_) models_.push_back(accelerator_.prepare(net));
  for (const auto& optimizer : inner_optimizers_) {
    optimizers_.push_back(accelerator_.prepare(optimizer));
  }
  for (const std::string& name : objects.dataloaders) add_loader(name);
  for (const auto& scheduler : inner_schedulers_) {
    schedulers_.push_back(accelerator_.prepare_scheduler(*scheduler));
  }
  for (int64_t i = 0; i < objects.custom; ++i) custom_.push_back({first_custom + i});
  for (CustomValue& custom : custom_) accelerator_.register_for_checkpointing(custom);
}

void LayoutTraining::add_loader(const std::string& name) {
  auto add = [this](auto loader) {
    auto prepared = accelerator_.prepare(std::move(loader));
    loaders_.push_back(std::make_shared<decltype(prepared)>(std::move(prepared)));
  };
  const DataLoaderOptions options{.batch_size = kBatchSize, .shuffle = name == "shuffle"};
  if (name == "map" || name == "shuffle") {
    add(DataLoader(make_tensor_dataset(torch::arange(kSamples)), options));
  } else if (name == "iterable") {
    add(DataLoader(Range(kSamples), options));
  } else {
    throw CaseError("unknown data loader \"" + name + "\"");
  }
}

bool LayoutTraining::micro_step() {
  const NoSyncScope scope = accelerator_.accumulate();
  at::Tensor loss = torch::zeros({});
  for (PreparedModel<DrawingNet>& model : models_) loss = loss + model().mean();
  if (loss.requires_grad()) accelerator_.backward(loss);
  for (AcceleratedOptimizer& optimizer : optimizers_) optimizer.step();
  for (AcceleratedScheduler& scheduler : schedulers_) scheduler.step();
  for (AcceleratedOptimizer& optimizer : optimizers_) optimizer.zero_grad();
  return accelerator_.sync_gradients();
}

std::vector<int64_t> LayoutTraining::custom_values() const {
  std::vector<int64_t> values;
  for (const CustomValue& custom : custom_) values.push_back(custom.v);
  return values;
}

}  // namespace accelerate::golden
