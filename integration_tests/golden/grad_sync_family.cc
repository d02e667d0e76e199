// The training loop of a linear regression, micro-step by micro-step: when ranks synchronise, what
// backward divides by, what optimizer and scheduler do.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "accelerate/accelerator.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/optim/schedulers/schedulers.h"
#include "accelerate/testing/recorded_warnings.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/regression_data.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr int64_t kEvalRows = 5;
constexpr int64_t kEvalBatchSize = 2;
constexpr int64_t kEvalAfterBatch = 1;

// Counts the steps that are really made.
class CountingSgd : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return SGD::step(std::move(closure));
  }
  int64_t steps = 0;
};

std::unique_ptr<optim::Scheduler> made_scheduler(const json& scheduler,
                                                 torch::optim::Optimizer& optimizer) {
  if (scheduler.is_null()) return nullptr;
  expect_fields(scheduler, {"kind", "args"});
  const std::string kind = string_field(scheduler, "kind");
  const json& args = field(scheduler, "args");
  if (kind == "StepLR") {
    expect_fields(args, {"step_size", "gamma"});
    return std::make_unique<optim::StepLR>(
        optimizer, optim::StepLROptions{.step_size = int_field(args, "step_size"),
                                        .gamma = double_field(args, "gamma")});
  }
  if (kind == "ExponentialLR") {
    expect_fields(args, {"gamma"});
    return std::make_unique<optim::ExponentialLR>(
        optimizer, optim::ExponentialLROptions{.gamma = double_field(args, "gamma")});
  }
  if (kind == "LinearLR") {
    expect_fields(args, {"start_factor", "end_factor", "total_iters"});
    return std::make_unique<optim::LinearLR>(
        optimizer, optim::LinearLROptions{.start_factor = double_field(args, "start_factor"),
                                          .end_factor = double_field(args, "end_factor"),
                                          .total_iters = int_field(args, "total_iters")});
  }
  if (kind == "CosineAnnealingLR") {
    expect_fields(args, {"T_max"});
    return std::make_unique<optim::CosineAnnealingLR>(
        optimizer, optim::CosineAnnealingLROptions{.T_max = int_field(args, "T_max")});
  }
  if (kind == "OneCycleLR") {
    expect_fields(args, {"max_lr", "total_steps"});
    return std::make_unique<optim::OneCycleLR>(
        optimizer, optim::OneCycleLROptions{.max_lr = double_field(args, "max_lr"),
                                            .total_steps = int_field(args, "total_steps")});
  }
  if (kind == "inverse") {
    expect_fields(args, {});
    return std::make_unique<optim::LambdaLR>(
        optimizer, [](int64_t step) { return 1.0 / (1.0 + static_cast<double>(step)); });
  }
  throw CaseError("unknown scheduler \"" + kind + "\"");
}

AcceleratorOptions options_of(const json& in) {
  AcceleratorOptions options{
      .gradient_accumulation_steps = optional_int_field(in, "gas"),
      .split_batches = bool_field(in, "split_batches"),
      .step_scheduler_with_optimizer = bool_field(in, "step_scheduler_with_optimizer")};
  const json& plugin = field(in, "plugin");
  if (!plugin.is_null()) {
    expect_fields(plugin,
                  {"num_steps", "adjust_scheduler", "sync_with_dataloader", "sync_each_batch"});
    const GradientAccumulationPlugin defaults;
    options.gradient_accumulation_plugin = GradientAccumulationPlugin{
        .num_steps = int_field(plugin, "num_steps"),
        .adjust_scheduler = plugin.contains("adjust_scheduler")
                                ? bool_field(plugin, "adjust_scheduler")
                                : defaults.adjust_scheduler,
        .sync_with_dataloader =
            bool_field_or(plugin, "sync_with_dataloader", defaults.sync_with_dataloader),
        .sync_each_batch = bool_field_or(plugin, "sync_each_batch", defaults.sync_each_batch)};
  }
  return options;
}

torch::nn::Linear made_model() {
  torch::nn::Linear linear(2, 1);
  torch::NoGradGuard no_grad;
  linear->weight.copy_(torch::tensor({{0.5, -0.25}}));
  linear->bias.copy_(torch::tensor({0.1}));
  return linear;
}

// [w0, w1, b]; null where there are none.
json joined(const at::Tensor& weight, const at::Tensor& bias) {
  if (!weight.defined()) return nullptr;
  return to_list(torch::cat({weight.detach().flatten(), bias.detach()}));
}

DataLoader<TensorDataset<2>> made_loader(int64_t rows, int64_t batch_size, bool drop_last) {
  const RegressionData data = regression_data(rows);
  return DataLoader(make_tensor_dataset(data.x, data.y),
                    {.batch_size = batch_size, .drop_last = drop_last});
}

class Training {
 public:
  explicit Training(const json& in)
      : in_(in),
        loop_(string_field(in, "loop")),
        accelerator_(options_of(in)),
        net_(made_model()),
        second_net_(loop_ == "two_models" ? std::optional(made_model()) : std::nullopt),
        sgd_(parameters(), torch::optim::SGDOptions(double_field(in, "lr"))),
        inner_scheduler_(made_scheduler(field(in, "scheduler"), sgd_)),
        model_(accelerator_.prepare(net_)),
        optimizer_(accelerator_.prepare(sgd_)),
        loader_(accelerator_.prepare(made_loader(
            count_field(in, "n"), count_field(in, "batch_size"), bool_field(in, "drop_last")))) {
    if (loop_ == "nested") {
      eval_loader_ = accelerator_.prepare(made_loader(kEvalRows, kEvalBatchSize, false));
    }
    if (second_net_) second_model_ = accelerator_.prepare(*second_net_);
    if (inner_scheduler_) scheduler_ = accelerator_.prepare(*inner_scheduler_);
  }

  json answer() {
    const int64_t epochs = count_field(in_, "epochs");
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      if (loop_ == "change" && epoch == 1) {
        accelerator_.set_gradient_accumulation_steps(int_field(in_, "new_steps"));
      }
      run_epoch();
    }
    return {{"len", loader_.size()},
            {"steps", std::move(steps_)},
            {"final",
             {{"weight", to_list(net_->weight)},
              {"bias", to_list(net_->bias)},
              {"step", accelerator_.step()},
              {"sync", accelerator_.sync_gradients()}}}};
  }

 private:
  using Batch = std::tuple<at::Tensor, at::Tensor>;

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all = net_->parameters();
    if (second_net_) {
      for (const at::Tensor& parameter : (*second_net_)->parameters()) all.push_back(parameter);
    }
    return all;
  }

  void run_epoch() {
    if (loop_ == "raw") {
      // The same batches, of which no loader says when they end.
      std::vector<Batch> batches;
      for (auto& batch : loader_) batches.push_back(batch);
      for (size_t i = 0; i < batches.size(); ++i) micro_step(batches[i], static_cast<int64_t>(i));
      return;
    }
    int64_t index = 0;
    for (auto& batch : loader_) {
      micro_step(batch, index++);
      if (loop_ == "break" && index == int_field(in_, "break_after")) break;
    }
  }

  void micro_step(const Batch& batch, int64_t index) {
    if (loop_ == "no_accumulate") return train_on(batch, index);
    if (loop_ == "manual") {
      const bool syncs = (index + 1) % accelerator_.gradient_accumulation_steps() == 0;
      std::optional<NoSyncScope> scope;
      if (!syncs) scope.emplace(accelerator_.no_sync(model_));
      return train_on(batch, index);
    }
    if (second_net_) {
      const NoSyncScope scope = accelerator_.accumulate(model_, *second_model_);
      return train_on(batch, index);
    }
    const NoSyncScope scope = accelerator_.accumulate(model_);
    train_on(batch, index);
  }

  void train_on(const Batch& batch, int64_t index) {
    const auto& [x, y] = batch;
    json step = {{"sync", accelerator_.sync_gradients()},
                 {"end", accelerator_.gradient_state().end_of_dataloader()}};
    at::Tensor loss = (model_(x) - y).square().mean();
    if (second_net_) loss = loss + ((*second_model_)(x)-y).square().mean();
    // Its gradient is the factor that backward applies.
    loss.retain_grad();
    accelerator_.backward(loss);
    step["loss"] = loss.item<double>();
    step["scale"] = loss.grad().item<double>();
    step["grad"] = joined(net_->weight.grad(), net_->bias.grad());
    optimizer_.step();
    step["skipped"] = optimizer_.step_was_skipped();
    if (scheduler_) scheduler_->step();
    step["w"] = joined(net_->weight, net_->bias);
    optimizer_.zero_grad();
    step["grad_after"] = joined(net_->weight.grad(), net_->bias.grad());
    step["opt_steps"] = sgd_.steps;
    step["lr"] = sgd_.param_groups()[0].options().get_lr();
    step["sched"] = nullptr;
    if (inner_scheduler_) {
      step["sched"] = {inner_scheduler_->last_epoch(), inner_scheduler_->step_count()};
    }
    if (loop_ == "nested" && index == kEvalAfterBatch) step["eval"] = evaluation();
    steps_.push_back(std::move(step));
  }

  json evaluation() {
    json passes = json::array();
    for ([[maybe_unused]] auto& batch : eval_loader_.value()) {
      const GradientState& state = accelerator_.gradient_state();
      passes.push_back({state.end_of_dataloader(), state.remainder()});
    }
    return passes;
  }

  const json& in_;
  const std::string loop_;
  Accelerator accelerator_;
  torch::nn::Linear net_;
  std::optional<torch::nn::Linear> second_net_;
  CountingSgd sgd_;
  std::unique_ptr<optim::Scheduler> inner_scheduler_;
  PreparedModel<torch::nn::LinearImpl> model_;
  std::optional<PreparedModel<torch::nn::LinearImpl>> second_model_;
  AcceleratedOptimizer optimizer_;
  std::optional<AcceleratedScheduler> scheduler_;
  DataLoader<TensorDataset<2>> loader_;
  std::optional<DataLoader<TensorDataset<2>>> eval_loader_;
  json steps_ = json::array();
};

json run_case(const json& in) {
  expect_fields(in, {"num_processes", "gas", "plugin", "n", "batch_size", "drop_last",
                     "split_batches", "step_scheduler_with_optimizer", "scheduler", "epochs",
                     "loop", "break_after", "new_steps", "lr"});
  const std::string loop = string_field(in, "loop");
  bool known = false;
  for (const char* name :
       {"train", "nested", "raw", "break", "no_accumulate", "manual", "change", "two_models"}) {
    known = known || loop == name;
  }
  if (!known) throw CaseError("unknown loop \"" + loop + "\"");
  return {{"ranks", ask_ranks(ranks_field(in, "num_processes"), [&](int /*rank*/) {
             // Some schedules are over early, as recorded.
             const RecordedWarnings quiet;
             return Training(in).answer();
           })}};
}

// Training in single precision.
Tolerance tolerance(const json& /*in*/) { return {.relative = 1e-5, .absolute = 1e-6}; }

const FamilyRegistration kRegistration("grad_sync", &run_case, &tolerance);

}  // namespace
}  // namespace accelerate::golden
