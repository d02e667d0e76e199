// Training that stops after any micro-step and goes on elsewhere with what its objects gave: losses
// and parameters have the bits of a run that was left alone.
// One shape each: a plan stops after every step, and the shape is part of the plan.
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/checkpoint/objects/training_state_dict.h"
#include "accelerate/comm/random.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/optim/schedulers/decay.h"
#include "accelerate/optim/shared_objects.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;
using Hook = DDPCommunicationHookType;

constexpr int kSteps = 8;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width)
      : first(register_module("first", torch::nn::Linear(4, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))),
        sometimes(register_module("sometimes", torch::nn::Linear(width, width))),
        last(register_module("last", torch::nn::Linear(width, 2))) {}
  Tensor forward(const Tensor& x, bool all) {
    const Tensor hidden = dropout(torch::tanh(norm(first(x))));
    return last(all ? hidden + 0.1 * sometimes(hidden) : hidden);
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout dropout;
  torch::nn::Linear sometimes, last;
};
TORCH_MODULE(Net);

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor> parameters)>;

struct Plan {
  std::string name;
  std::string topology = "1x2";
  DistributedDataParallelKwargs ddp = {};
  int64_t width = 6;
  int64_t accumulate = 3;
  PrecisionType precision = PrecisionType::kNo;
  GradScalerKwargs scaler = {};
  bool counts_tokens = false;
  MakeOptimizer optimizer = [](std::vector<Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(0.01));
  };
};

void PrintTo(const Plan& plan, std::ostream* out) { *out << plan.name; }

// One rank's part of a checkpoint.
struct Saved {
  std::vector<Tensor> module;  // rank 0's counts
  nlohmann::ordered_json scaler;
  StateDict optimizer, scheduler, rng, training, replica, gradients;
};

// As if it had been in a file.
StateDict filed(const StateDict& state) {
  StateDict result;
  result.values = nlohmann::ordered_json::parse(state.values.dump());
  for (const auto& [name, tensor] : state.tensors) {
    result.tensors.emplace_back(name, tensor.cpu().clone(at::MemoryFormat::Contiguous));
  }
  return result;
}

std::vector<Tensor> tensors_of(const Net& net) {
  std::vector<Tensor> tensors = net->parameters();
  for (const Tensor& buffer : net->buffers()) tensors.push_back(buffer);
  return tensors;
}

struct Outcome {
  std::vector<Saved> saved;        // by rank
  std::vector<Tensor> losses;      // by rank
  std::vector<Tensor> parameters;  // by rank
};

// Micro-steps from `from` to `to`, from what was saved if there is any.
Outcome train(const Plan& plan, int from, int to, const std::vector<Saved>* saved = nullptr) {
  Cluster cluster(plan.topology, {.seed = 4});
  Outcome outcome;
  outcome.saved.resize(static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    std::vector<KwargsHandler> handlers = {plan.ddp};
    if (plan.precision == PrecisionType::kFp16) handlers.emplace_back(plan.scaler);
    Accelerator accelerator({.mixed_precision = plan.precision,
                             .gradient_accumulation_steps = plan.accumulate,
                             .kwargs_handlers = handlers});
    set_seed(saved != nullptr ? 99 : 7, {.device_specific = saved != nullptr});
    Net net(plan.width);
    std::shared_ptr<torch::optim::Optimizer> adam = plan.optimizer(net->parameters());
    optim::StepLR schedule(*adam, {.step_size = 2, .gamma = 0.7});
    auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, schedule);
    auto& training = *Runtime::current().find_shared<internal::TrainingState>();
    auto& gradients = *Runtime::current().find_shared<GradientState>();
    if (saved != nullptr) {
      const Saved& own = (*saved)[static_cast<size_t>(rank.index())];
      {
        torch::NoGradGuard no_grad;
        const std::vector<Tensor> tensors = tensors_of(net);
        for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_((*saved)[0].module[i]);
      }
      internal::Access::to(optimizer)->load_state_dict(filed((*saved)[0].optimizer));
      load_scheduler_state_dict(*internal::Access::to(scheduler), filed((*saved)[0].scheduler));
      if (training.precision.scaler()) {
        training.precision.scaler()->load_state_dict(
            nlohmann::ordered_json::parse((*saved)[0].scaler.dump()));
      }
      internal::load_training_state_dict(training, gradients, filed(own.training));
      load_replica_state_dict(*internal::Access::to(model), filed(own.replica));
      load_gradient_state_dict(*net, filed(own.gradients));
      restore_rng_state(rng_state_of(filed(own.rng)));
    }
    std::vector<Tensor> losses;
    for (int step = from; step < to; ++step) {
      auto scope = accelerator.accumulate(model);
      const Tensor x = torch::sin(torch::arange(20.).reshape({5, 4}) * (1.5 + rank.index()) + step);
      // In some windows only the first micro-step uses all of the model.
      const bool all = !plan.ddp.find_unused_parameters || step % 3 == 0;
      const Tensor y = model(x.to(accelerator.device()), all);
      if (plan.counts_tokens) {
        const Tensor loss = y.square().sum();
        accelerator.backward_tokens(loss, 3 + (step * 5 + rank.index()) % 4);
        losses.push_back(loss.detach().cpu());
      } else {
        const Tensor loss = y.square().mean();
        accelerator.backward(loss);
        losses.push_back(loss.detach().cpu());
      }
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
    Saved& own = outcome.saved[static_cast<size_t>(rank.index())];
    for (const Tensor& tensor : tensors_of(net))
      own.module.push_back(tensor.detach().cpu().clone());
    own.optimizer = filed(internal::Access::to(optimizer)->state_dict());
    own.scheduler = filed(scheduler_state_dict(*internal::Access::to(scheduler)));
    if (training.precision.scaler()) own.scaler = training.precision.scaler()->state_dict();
    own.training = filed(internal::training_state_dict(training, gradients));
    own.replica = filed(replica_state_dict(*internal::Access::to(model)));
    if (internal::is_inside_window(gradients)) own.gradients = filed(gradient_state_dict(*net));
    own.rng = filed(rng_state_dict(capture_rng_state()));
    std::vector<Tensor> flat;
    for (const Tensor& tensor : net->parameters()) flat.push_back(tensor.detach().cpu().flatten());
    rank.report("parameters", torch::cat(flat));
    rank.report("losses", losses.empty() ? torch::zeros({0}) : torch::stack(losses));
  });
  outcome.losses = cluster.reports("losses");
  outcome.parameters = cluster.reports("parameters");
  return outcome;
}

template <typename Opt, typename Options>
MakeOptimizer maker(Options options) {
  return [options](std::vector<Tensor> parameters) {
    return std::make_unique<Opt>(std::move(parameters), options);
  };
}

DistributedDataParallelKwargs power_sgd() {
  return {.bucket_cap_mb = 0.1,
          .comm_hook = Hook::kPowerSgd,
          .comm_state_option = {.start_powerSGD_iter = 2, .min_compression_rate = 0.5}};
}

std::vector<Plan> plans() {
  const MakeOptimizer fused = maker<optim::AdamW>(torch::optim::AdamWOptions(0.01));
  return {
      {.name = "Alone", .topology = "1x1"},
      {.name = "Plain", .topology = "2x2"},
      {.name = "OnDevices", .topology = "1x2:h100", .optimizer = fused},
      {.name = "BucketViews", .ddp = {.gradient_as_bucket_view = true}},
      {.name = "UnusedParameters",
       .ddp = {.find_unused_parameters = true, .gradient_as_bucket_view = true}},
      {.name = "StaticGraph", .ddp = {.static_graph = true}},
      {.name = "OwnBuffers", .ddp = {.broadcast_buffers = false}},
      {.name = "PowerSgd",
       .topology = "1x2:h100",
       .ddp = power_sgd(),
       .width = 600,
       .accumulate = 2},
      {.name = "Fp16",
       .topology = "1x2:h100",
       .accumulate = 2,
       .precision = PrecisionType::kFp16,
       .scaler = {.init_scale = 1e12, .backoff_factor = 1e-3, .growth_interval = 2}},
      {.name = "Tokens", .counts_tokens = true},
      {.name = "ScheduleFree",
       .optimizer = maker<optim::ScheduleFreeAdamW>(optim::ScheduleFreeAdamWOptions(0.01))},
      {.name = "Momentum",
       .topology = "1x2:h100",
       .accumulate = 1,
       .optimizer = maker<optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))},
  };
}

class EveryPlan : public ::testing::TestWithParam<Plan> {};

TEST_P(EveryPlan, GoesOnBitEqualAfterAnyMicroStep) {
  const Plan& plan = GetParam();
  const Outcome whole = train(plan, 0, kSteps);
  const Outcome again = train(plan, 0, kSteps);
  ASSERT_TRUE(torch::equal(again.parameters[0], whole.parameters[0]));
  for (int at = 1; at < kSteps; ++at) {
    const Outcome before = train(plan, 0, at);
    const Outcome after = train(plan, at, kSteps, &before.saved);
    for (size_t rank = 0; rank < whole.losses.size(); ++rank) {
      EXPECT_TRUE(torch::equal(after.losses[rank], whole.losses[rank].slice(0, at)))
          << "after " << at << ", rank " << rank << "\n"
          << after.losses[rank] << "\n"
          << whole.losses[rank];
      EXPECT_TRUE(torch::equal(after.parameters[rank], whole.parameters[rank]))
          << "after " << at << ", rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryPlan, ::testing::ValuesIn(plans()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace accelerate
