// Linear layers in fp8 on simulated devices: the same numbers as on a CPU, and scales that ranks
// agree on.
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/match.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/sharded/calls.h"
#include "accelerate/plan/plan.h"
#include "accelerate/precision/fp8_model.h"
#include "accelerate/precision/job_precision.h"
#include "accelerate/precision/techniques.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

struct Fp8NetImpl : torch::nn::Module {
  Fp8NetImpl() {
    torch::manual_seed(3);
    a = register_module("a", torch::nn::Linear(16, 32));
    b = register_module("b", torch::nn::Linear(32, 16));
  }
  Tensor forward(const Tensor& x) { return b(torch::relu(a(x))); }
  torch::nn::Linear a{nullptr}, b{nullptr};
};
TORCH_MODULE(Fp8Net);

Fp8Plan plan_of(const TERecipeKwargs& kwargs) { return {resolve(kwargs, Environment())}; }

Tensor batch(int rank, int step) {
  return torch::linspace(-1, 1, 8 * 16).sin().view({8, 16}) * (rank + 1) * (step + 1);
}

// Three steps of one replica; its outputs and gradients, on the CPU.
std::vector<Tensor> three_steps(const Fp8Plan& plan, c10::Device device) {
  Fp8Net net;
  net->to(device);
  const auto fp8 = Fp8Model::convert(*net, plan);
  std::vector<Tensor> results;
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    Tensor output;
    {
      const Fp8Model::Scope scope = fp8->forward_scope();
      output = net(batch(0, step).to(device));
    }
    output.square().mean().backward();
    results.push_back(output.detach().cpu());
    for (const Tensor& parameter : net->parameters()) results.push_back(parameter.grad().cpu());
  }
  return results;
}

// One topology is enough: the test compares two devices, not ranks.
TEST(Fp8, GivesOnASimulatedDeviceWhatItGivesOnACpu) {
  for (const Fp8Plan& plan : {plan_of({}), plan_of({.use_mxfp8_block_scaling = true}),
                              Fp8Plan{resolve(MSAMPRecipeKwargs{}, Environment())}}) {
    Cluster cluster("1x1:h100", {.seed = 1});
    cluster.run_on_every_rank([&](Rank& rank) {
      const std::vector<Tensor> there = three_steps(plan, rank.runtime().device());
      const std::vector<Tensor> here = three_steps(plan, at::kCPU);
      ASSERT_EQ(there.size(), here.size());
      for (size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(there[i].equal(here[i])) << i;
    });
  }
}

TOPOLOGY_SUITE(Fp8Scales, .also = {"2x4:h100"}, .hardware = simulator::Hardware::kGpu);

TEST_P(Fp8Scales, AreThoseOfTheLargestValueOfAllRanks) {
  Cluster cluster = make_cluster({.seed = 1});
  std::map<int, Tensor> agreed, own;
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    Fp8Net net;
    auto model = accelerator.prepare(net);
    const auto fp8 = Fp8Model::convert(*net, plan_of({}), accelerator.state().group());
    const auto forward = [&](bool agrees) {
      const Fp8Model::Scope scope = fp8->forward_scope(agrees);
      model(batch(rank.index(), 0).to(accelerator.device())).sum().backward();
    };
    forward(true);
    forward(true);
    agreed[rank.index()] = fp8->state_dict().at("scales");
    forward(false);
    own[rank.index()] = fp8->state_dict().at("scales");
  });
  const int last = static_cast<int>(agreed.size()) - 1;
  for (int rank = 0; rank <= last; ++rank) {
    EXPECT_TRUE(agreed.at(rank).equal(agreed.at(0)));
    EXPECT_EQ(agreed.at(rank)[0][0].item<float>(), 448 / batch(last, 0).abs().max().item<float>());
    EXPECT_EQ(own.at(rank)[0][0].item<float>(), 448 / batch(rank, 0).abs().max().item<float>());
  }
}

// Where layers are cut, the ranks with their other parts agree as well, though each of them is the
// only one of its share of the data.
TEST_P(Fp8Scales, AreThoseOfAllPartsOfALayer) {
  Cluster cluster = make_cluster({.seed = 1});
  std::map<int, Tensor> agreed;
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    const auto net = std::make_shared<Fp8NetImpl>();
    net->to(accelerator.device());
    const KwargsHandlers handlers{.fp8 = {.te = TERecipeKwargs{}}};
    JobPrecision precision;
    precision.choose(PrecisionType::kBf16, /*in_fp8=*/true, handlers, DistributedType::kNo,
                     /*group=*/nullptr, Environment());
    const Mesh mesh({.tp = cluster.world_size()});
    const ModelPlan plan{.roles = {.scales = accelerator.state().group()},
                         .mesh = mesh,
                         .layout = std::make_shared<const ModelLayout>(whole_layout(*net, mesh)),
                         .handlers = handlers,
                         .precision = precision};
    const ModelState model(net);
    const Techniques made;
    const auto technique = make_fp8_technique({.model = model, .plan = plan, .made = made});
    const auto& fp8 = dynamic_cast<Fp8Technique&>(*technique).model();
    for (int pass = 0; pass < 2; ++pass) {
      const Fp8Model::Scope scope = fp8->forward_scope();
      net->forward(batch(rank.index(), 0).to(accelerator.device())).sum().backward();
    }
    agreed[rank.index()] = fp8->state_dict().at("scales");
  });
  const int last = static_cast<int>(agreed.size()) - 1;
  for (int rank = 0; rank <= last; ++rank) {
    EXPECT_TRUE(agreed.at(rank).equal(agreed.at(0)));
    EXPECT_EQ(agreed.at(rank)[0][0].item<float>(), 448 / batch(last, 0).abs().max().item<float>());
  }
}

// ---- Behind the Accelerator.

struct Job {
  std::vector<KwargsHandler> handlers = {};
  PrecisionType precision = PrecisionType::kFp8;
};

// The losses of a few steps, rank by rank.
std::vector<double> losses_of(const Job& job) {
  Cluster cluster = simulator::TopologyTest::make_cluster({.seed = 1});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.mixed_precision = job.precision, .kwargs_handlers = job.handlers});
    torch::manual_seed(7);
    torch::nn::Sequential net(torch::nn::Linear(16, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 16));
    torch::optim::Adam adam(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net.ptr(), adam);
    std::vector<double> losses;
    for (int step = 0; step < 12; ++step) {
      // Two kinds of batches, so that what is to be learnt is the same on many ranks as on two.
      const Tensor x = batch(0, rank.index() % 2).to(accelerator.device());
      const Tensor output = model(x);
      EXPECT_EQ(output.scalar_type(), torch::kFloat);
      const Tensor loss = torch::mse_loss(output, 0.5 * x);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 10.0);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.item<double>());
    }
    rank.report("losses", torch::tensor(losses, torch::kDouble));
    rank.report("weights", net->parameters()[0].detach().cpu());
  });
  const auto weights = cluster.reports("weights");
  for (const Tensor& weight : weights) EXPECT_TRUE(weight.equal(weights[0]));
  const Tensor losses = cluster.reports("losses")[0];
  return {losses.const_data_ptr<double>(), losses.const_data_ptr<double>() + losses.numel()};
}

TOPOLOGY_SUITE(Fp8Training, .also = {"1x2"}, .max_ranks = 4, .hardware = simulator::Hardware::kGpu);

TEST_P(Fp8Training, FollowsBf16) {
  const auto expected = losses_of({.precision = PrecisionType::kBf16});
  for (const KwargsHandler& handler : std::vector<KwargsHandler>{
           AORecipeKwargs{}, TERecipeKwargs{}, TERecipeKwargs{.use_mxfp8_block_scaling = true},
           MSAMPRecipeKwargs{.opt_level = "O1"}, MSAMPRecipeKwargs{.opt_level = "O2"}}) {
    const auto losses = losses_of({.handlers = {handler}});
    EXPECT_LT(losses.back(), losses.front() / 2) << handler.index();
    EXPECT_NEAR(losses.back(), expected.back(), 0.1 * expected.front()) << handler.index();
  }
}

TOPOLOGY_SUITE(Fp8Passes, .min_ranks = 2, .hardware = simulator::Hardware::kGpu);

// Passes that only accumulate, and those without gradients, may be this rank's alone, also before
// the first that averages.
TEST_P(Fp8Passes, AgreeOnScalesOnlyWhereTheyAverage) {
  Cluster cluster = make_cluster({.seed = 1});
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(
        {.mixed_precision = PrecisionType::kFp8, .kwargs_handlers = {TERecipeKwargs{}}});
    Fp8Net net;
    auto model = accelerator.prepare(net);
    const auto loss = [&] {
      return model(batch(rank.index(), 0).to(accelerator.device())).square().mean();
    };
    if (rank.index() == 1) {
      const auto accumulates = accelerator.no_sync(model);
      accelerator.backward(loss());
    }
    net->zero_grad();
    for (int step = 0; step < 3; ++step) {
      if (rank.index() == 0) {
        const torch::NoGradGuard no_grad;
        loss();
      }
      accelerator.backward(loss());
    }
    rank.report("gradient", net->a->weight.grad().cpu());
  });
  const auto gradients = cluster.reports("gradient");
  EXPECT_TRUE(gradients.at(0).isfinite().all().item<bool>());
  for (const Tensor& gradient : gradients) EXPECT_TRUE(gradient.equal(gradients.at(0)));
}

// Layers that a checkpoint computes again are computed in fp8 too.
TEST_P(Fp8Training, ChecksOutTheSameWithActivationCheckpointing) {
  struct BlocksImpl : torch::nn::Module {
    explicit BlocksImpl(bool saves_memory) : saves_memory(saves_memory) {
      torch::manual_seed(5);
      a = register_module("a", torch::nn::Linear(16, 32));
      b = register_module("b", torch::nn::Linear(32, 32));
      c = register_module("c", torch::nn::Linear(32, 16));
    }
    Tensor forward(const Tensor& x) {
      const auto block = [this](const Tensor& y) { return torch::relu(b(torch::tanh(y))); };
      const Tensor y = a(x);
      return c(saves_memory ? checkpoint(block, y) : block(y));
    }
    bool saves_memory;
    torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  };
  for (const KwargsHandler& handler :
       std::vector<KwargsHandler>{AORecipeKwargs{}, TERecipeKwargs{}}) {
    std::map<bool, std::vector<Tensor>> gradients;
    for (const bool saves_memory : {false, true}) {
      Cluster cluster = make_cluster();
      cluster.run_on_every_rank([&](Rank& rank) {
        Accelerator accelerator(
            {.mixed_precision = PrecisionType::kFp8, .kwargs_handlers = {handler}});
        auto net = std::make_shared<BlocksImpl>(saves_memory);
        auto model = accelerator.prepare(net);
        EXPECT_FALSE(model.fp8_report()->converted.empty());
        for (int step = 0; step < 2; ++step) {
          net->zero_grad();
          accelerator.backward(model(batch(0, step).to(accelerator.device())).square().mean());
        }
        rank.report("gradient", net->b->weight.grad());
      });
      gradients[saves_memory] = cluster.reports("gradient");
    }
    for (size_t rank = 0; rank < gradients.at(true).size(); ++rank) {
      EXPECT_TRUE(gradients.at(false)[rank].equal(gradients.at(true)[rank])) << handler.index();
    }
  }
}

TEST_P(Fp8Training, SaysWhichLayersItComputesAndRefusesContradictions) {
  make_cluster().run_on_every_rank([](Rank&) {
    const auto scope = patch_environment({{"ACCELERATE_FP8_BACKEND", "te"}});
    Accelerator accelerator({.mixed_precision = PrecisionType::kFp8});
    EXPECT_EQ(accelerator.fp8_backend(), FP8BackendType::kTe);
    EXPECT_EQ(accelerator.scaler(), nullptr);
    torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::Linear(32, 3));
    auto model = accelerator.prepare(net.ptr());
    ASSERT_NE(model.fp8_report(), nullptr);
    EXPECT_EQ(model.fp8_report()->converted, std::vector<std::string>{"0"});
    EXPECT_EQ(model.fp8_report()->skipped.at(0).name, "1");
    EXPECT_THROW(Accelerator({.kwargs_handlers = {MSAMPRecipeKwargs{}}}), c10::ValueError);
  });
  make_cluster().run_on_every_rank([](Rank&) {
    EXPECT_THROW(Accelerator({.mixed_precision = PrecisionType::kBf16,
                              .kwargs_handlers = {TERecipeKwargs{}}}),
                 c10::ValueError);
    Accelerator accelerator;
    EXPECT_EQ(accelerator.fp8_backend(), FP8BackendType::kNo);
    torch::nn::Linear net(16, 16);
    EXPECT_EQ(accelerator.prepare(net).fp8_report(), nullptr);
  });
}

// ---- Models that ranks divide.

constexpr int64_t kLayer = 512 * 512;  // elements of a weight
constexpr int64_t kActivations = 128 << 10;

struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    torch::manual_seed(5);
    for (int i = 0; i < 6; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(512, 512).bias(false)));
    }
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return uses_weight ? x * layers->ptr<torch::nn::LinearImpl>(1)->weight.sum() : x;
  }
  torch::nn::ModuleList layers;
  bool uses_weight = false;
};
TORCH_MODULE(Tower);

struct TowerOutcome {
  std::vector<double> losses;
  std::vector<Tensor> weights;
  double gathered = 0;  // bytes of weights, in all gathers
  int64_t held = 0;     // by the device, from a forward pass to its backward pass
};

// All ranks have the same batches, so that they compute what one rank does.
TowerOutcome train_tower(const std::string& shape, AcceleratorOptions options, int shards = 1) {
  // A group of each layer.
  options.kwargs_handlers.emplace_back(ShardedDataParallelKwargs{.group_bytes = 1});
  TowerOutcome outcome;
  Cluster cluster(shape, {.record = true});
  cluster.run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions own = options;
    if (shards > 1) own.parallelism_config = ParallelismConfig({.dp_shard_size = shards});
    Accelerator accelerator(own);
    Tower net;
    auto [model, optimizer] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*defaults=*/0.5));
    std::vector<double> losses;
    for (int step = 0; step < 4; ++step) {
      const Tensor x = torch::linspace(-1, 1, 2 * 512).sin().view({2, 512});
      const Tensor input = x.to(accelerator.device());
      const int64_t before = rank.device()->memory().in_use();
      const Tensor loss = torch::mse_loss(model(input).to(torch::kFloat), 0.5 * input);
      if (rank.index() == 0) outcome.held = rank.device()->memory().in_use() - before;
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.item<double>());
    }
    const auto whole = full_parameters(model, {.writeback = false});
    if (rank.index() != 0) return;
    outcome.losses = losses;
    for (const Tensor& each : net->parameters()) {
      EXPECT_EQ(each.scalar_type(), torch::kFloat);
      outcome.weights.push_back(each.detach().cpu().clone());
    }
  });
  for (const simulator::TraceOperation& each : cluster.trace().operations) {
    // Without what ranks tell each other in prepare.
    if (each.bytes >= kLayer && absl::StrContains(cluster.trace().names[each.name], "all_gather")) {
      outcome.gathered += static_cast<double>(each.bytes);
    }
  }
  return outcome;
}

AcceleratorOptions in_fp8(const KwargsHandler& handler) {
  return {.mixed_precision = PrecisionType::kFp8, .kwargs_handlers = {handler}};
}

AORecipeKwargs all_layers(bool gathers_in_fp8) {
  return {.module_filter_func = [](const torch::nn::Module&, const std::string&) { return true; },
          .enable_fsdp_float8_all_gather = gathers_in_fp8};
}

void expect_near(const TowerOutcome& a, const TowerOutcome& b, double tolerance) {
  for (size_t i = 0; i < b.losses.size(); ++i) {
    EXPECT_NEAR(a.losses.at(i), b.losses[i], tolerance * b.losses[i]) << i;
  }
  for (size_t i = 0; i < b.weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a.weights.at(i), b.weights[i], tolerance, tolerance)) << i;
  }
}

// The scale is that of the whole weight, so the first pass, before gradients were rounded to bf16,
// has the bits of one rank's.
TEST(Fp8Shards, AreGatheredInEightBits) {
  const TowerOutcome alone = train_tower("1x1:h100", in_fp8(all_layers(true)));
  const TowerOutcome bytes = train_tower("1x4:h100", in_fp8(all_layers(true)), 4);
  const TowerOutcome bf16 = train_tower("1x4:h100", in_fp8(all_layers(false)), 4);
  EXPECT_EQ(bytes.losses[0], alone.losses[0]);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  expect_near(bytes, alone, 2e-2);
  expect_near(bf16, alone, 2e-2);
  std::cout << "bytes gathered: " << bytes.gathered << " in fp8, " << bf16.gathered
            << " in bf16; held after a forward pass: " << bytes.held << " and " << bf16.held
            << "\n";
  // The scope at the end gathers float32.
  const double scope = 6.0 * kLayer * 4;
  EXPECT_EQ(2 * (bytes.gathered - scope), bf16.gathered - scope);
  // Two groups, and no copy of a weight besides.
  EXPECT_LE(bytes.held, 2 * kLayer + kActivations);
  EXPECT_LE(bf16.held, 2 * 2 * kLayer + kActivations);
  // Uneven rows, and another order of sums.
  expect_near(train_tower("1x3:h100", in_fp8(all_layers(true)), 3), bytes, 1e-2);
}

// Before a first pass, and after a step, whose scales are others.
TEST(Fp8Shards, AreTheSameWhereAProgramUnshardsThem) {
  const auto losses_of = [](bool unshards) {
    std::vector<double> losses;
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      AcceleratorOptions options = in_fp8(all_layers(true));
      options.parallelism_config = ParallelismConfig({.dp_shard_size = 2});
      Accelerator accelerator(options);
      torch::manual_seed(3);
      Tower net;
      std::vector<FSDPModule> units;
      for (const auto& layer : *net->layers) units.push_back(fully_shard(layer));
      auto [model, optimizer] =
          accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*defaults=*/50.));
      const Tensor input = torch::linspace(-1, 1, 2 * 512).view({2, 512}).to(accelerator.device());
      for (int step = 0; step < 3; ++step) {
        if (unshards) units[2].unshard();
        const Tensor loss = torch::mse_loss(model(input).to(torch::kFloat), 0.5 * input);
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        if (rank.index() == 0) losses.push_back(loss.item<double>());
      }
    });
    return losses;
  };
  EXPECT_EQ(losses_of(true), losses_of(false));
}

TEST(Fp8Shards, TrainByEveryRecipeAndStrategy) {
  for (const KwargsHandler& handler : std::vector<KwargsHandler>{
           AORecipeKwargs{}, TERecipeKwargs{}, TERecipeKwargs{.use_mxfp8_block_scaling = true}}) {
    SCOPED_TRACE(handler.index());
    expect_near(train_tower("1x2:h100", in_fp8(handler), 2),
                train_tower("1x1:h100", in_fp8(handler)), 2e-2);
  }
  const auto with = [](FullyShardedDataParallelPlugin plugin) {
    plugin.fsdp_version = plugin.fsdp_version.value_or(2);
    AcceleratorOptions options = in_fp8(all_layers(true));
    options.fsdp_plugin = std::move(plugin);
    return train_tower("2x2:h100", std::move(options));
  };
  const TowerOutcome full = with({});
  expect_near(with({.reshard_after_forward = 2}), full, 0);
  expect_near(with({.reshard_after_forward = false}), full, 0);
  expect_near(with({.cpu_offload = true}), full, 1e-5);
  expect_near(with({.fsdp_version = 1, .sharding_strategy = ShardingStrategy::kHybridShard}), full,
              2e-2);
}

TEST(Fp8Shards, SayWhatTheyCannotDo) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    const auto error_of = [](AcceleratorOptions options) -> std::string {
      try {
        options.parallelism_config = ParallelismConfig({.dp_shard_size = 2});
        Accelerator accelerator(options);
        Tower net;
        net->uses_weight = true;
        auto model = accelerator.prepare(net);
        model(torch::ones({2, 512}, accelerator.device()));
      } catch (const c10::Error& error) {
        return error.what_without_backtrace();
      }
      return "no error";
    };
    EXPECT_THAT(error_of(in_fp8(all_layers(true))),
                testing::AllOf(testing::HasSubstr("parameter \"layers.1.weight\" on rank"),
                               testing::HasSubstr("gathered in 8 bits")));
  });
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    AcceleratorOptions options = in_fp8(MSAMPRecipeKwargs{});
    options.parallelism_config = ParallelismConfig({.dp_shard_size = 2});
    Accelerator accelerator(options);
    EXPECT_THROW(accelerator.prepare(Tower()), c10::ValueError);
  });
}

}  // namespace
}  // namespace accelerate
