// Steps that loops take now and then: gradients that are looked at and not used, parameters with
// two names, models that take turns, handles that are gone.
#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::HasSubstr;
using torch::Tensor;

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Its gradient is its input.
struct DotImpl : torch::nn::Module {
  DotImpl() { weight = register_parameter("weight", torch::zeros({1})); }
  Tensor forward(const Tensor& x) { return x * weight; }
  Tensor weight;
};
TORCH_MODULE(Dot);

// A layer with two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : layer(torch::nn::LinearOptions(2, 1).bias(false)) {
    register_module("first", layer);
    register_module("second", layer);
    torch::NoGradGuard no_grad;
    layer->weight.fill_(0.5);
  }
  Tensor forward(const Tensor& x) { return layer(x); }
  torch::nn::Linear layer;
};
TORCH_MODULE(Tied);

AcceleratorOptions fp16() {
  return {.mixed_precision = PrecisionType::kFp16,
          .kwargs_handlers = {GradScalerKwargs{.init_scale = 1024, .growth_interval = 1}}};
}

double value(const Tensor& tensor) { return tensor.detach().cpu().flatten()[0].item<double>(); }

// ---- Looked at, and not used.

TOPOLOGY_SUITE(LookedAt, .hardware = simulator::Hardware::kGpu);

TEST_P(LookedAt, ABatchThatIsLeftOutAfterClippingLeavesNothingBehind) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(fp16());
    Dot net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 0; i < 2; ++i) {
      accelerator.backward(model(torch::ones({1}).to(accelerator.device())).sum());
      EXPECT_NEAR(value(accelerator.clip_grad_norm_(model, 1e9)), 1.0, 1e-4) << i;
      if (i == 0) {
        optimizer.zero_grad();
        continue;
      }
      optimizer.step();
    }
    EXPECT_NEAR(value(net->weight), -1.0, 1e-3);
  });
}

TEST_P(LookedAt, ABackwardPassAfterwardsAddsToWhatWasSeen) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(fp16());
    Dot net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor x = torch::ones({1}).to(accelerator.device());
    accelerator.backward(model(x).sum());
    accelerator.clip_grad_norm_(model, 1e9);
    accelerator.backward(model(x).sum());
    optimizer.step();
    EXPECT_NEAR(value(net->weight), -2.0, 1e-3);
  });
}

TEST_P(LookedAt, ModelsAreClippedEachAfterItsBackwardPass) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(fp16());
    Dot d, g;
    torch::optim::SGD sgd_d(d->parameters(), 1.0), sgd_g(g->parameters(), 1.0);
    auto [model_d, model_g, optimizer_d, optimizer_g] = accelerator.prepare(d, g, sgd_d, sgd_g);
    const Tensor x = torch::ones({1}).to(accelerator.device());
    accelerator.backward(model_d(x).sum());
    EXPECT_NEAR(value(accelerator.clip_grad_norm_(model_d, 1e9)), 1.0, 1e-4);
    accelerator.backward(model_g(x).sum());
    EXPECT_NEAR(value(accelerator.clip_grad_norm_(model_g, 1e9)), 1.0, 1e-4);
    optimizer_d.step();
    optimizer_g.step();
    EXPECT_NEAR(value(d->weight), -1.0, 1e-3);
    EXPECT_NEAR(value(g->weight), -1.0, 1e-3);
  });
}

// Two that take turns are one iteration; the scale grows once in each.
TEST_P(LookedAt, OptimizersThatTakeTurnsAdaptTheScaleOnce) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(fp16());
    Dot d, g;
    torch::optim::SGD sgd_d(d->parameters(), 1.0), sgd_g(g->parameters(), 1.0);
    auto [model_d, model_g, optimizer_d, optimizer_g] = accelerator.prepare(d, g, sgd_d, sgd_g);
    const Tensor x = torch::full({1}, 1e-3).to(accelerator.device());
    auto train = [&](auto& model, auto& optimizer) {
      accelerator.backward(model(x).sum());
      optimizer.step();
      optimizer.zero_grad();
    };
    for (int i = 1; i <= 3; ++i) {
      train(model_d, optimizer_d);
      train(model_g, optimizer_g);
      EXPECT_EQ(accelerator.scaler()->get_scale(), 1024 << i);
    }
    EXPECT_NEAR(value(d->weight), -3e-3, 1e-5);
    EXPECT_NEAR(value(g->weight), -3e-3, 1e-5);
    // One that never has its turn does not stop it.
    for (int i = 0; i < 5; ++i) train(model_d, optimizer_d);
    EXPECT_GT(accelerator.scaler()->get_scale(), 1024 << 3);
    EXPECT_NEAR(value(d->weight), -8e-3, 2e-5);
  });
}

TEST_P(LookedAt, AnOptimizerThatIsGoneLeavesItsPlaceToTheNext) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(fp16());
    for (int attempt = 0; attempt < 2; ++attempt) {
      Dot net;
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model(torch::ones({1}).to(accelerator.device())).sum());
      EXPECT_NEAR(value(accelerator.clip_grad_norm_(model, 1e9)), 1.0, 1e-4) << attempt;
      accelerator.free_memory(model, optimizer);
    }
  });
}

// One shape: TPUs.
TEST(LookedAtOnTpus, AverageWhatCameAfterClipping) {
  Cluster("tpu-v5e:2").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    Dot d, g;
    torch::optim::SGD sgd_d(d->parameters(), 1.0), sgd_g(g->parameters(), 1.0);
    auto [model_d, model_g, optimizer_d, optimizer_g] = accelerator.prepare(d, g, sgd_d, sgd_g);
    const Tensor x = torch::full({1}, 1.0 + rank.index()).to(accelerator.device());
    for (int i = 0; i < 2; ++i) {
      accelerator.backward(model_d(x).sum());
      accelerator.clip_grad_norm_(model_d, 1e9);
      // The first time nothing comes of it.
      if (i == 1) optimizer_d.step();
      optimizer_d.zero_grad();
    }
    accelerator.backward(model_g(x).sum());
    optimizer_g.step();
    EXPECT_NEAR(value(d->weight), -1.5, 1e-5);
    EXPECT_NEAR(value(g->weight), -1.5, 1e-5);
    EXPECT_THAT(error_of([&] { optimizer_g.step([] { return torch::ones({}); }); }),
                HasSubstr("neither scaled nor averaged"));
  });
}

// ---- Which parameters.

TOPOLOGY_SUITE(ParametersOnDevices, .hardware = simulator::Hardware::kGpu);

TEST_P(ParametersOnDevices, WithTwoNamesCountOnce) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(fp16());
    Tied net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::ones({1, 2}).to(accelerator.device())).sum());
    EXPECT_NEAR(value(accelerator.clip_grad_norm_(model, 0.5)), std::sqrt(2.0), 1e-4);
    EXPECT_NEAR(value(net->layer->weight.grad().norm()), 0.5, 1e-4);
  });
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.gradient_accumulation_plugin = GradientAccumulationPlugin{
                                 .num_steps = 4, .normalize_partial_window = true}});
    Tied net;
    auto data = torch::ones({2 * world_size(), 2});
    auto [model, loader] =
        accelerator.prepare(net, DataLoader(make_tensor_dataset(data, data), {.batch_size = 1}));
    for (auto& [x, y] : loader) {
      auto scope = accelerator.accumulate(model);
      accelerator.backward(model(x).sum());
    }
    EXPECT_NEAR(value(net->layer->weight.grad()), 1.0, 1e-6);
  });
}

// One rank: the parameter that belongs to no model is not averaged.
TEST(Parameters, OfTheOptimizersBelongToTheWindowOfOtherModelsDoNot) {
  Cluster("1x1").run_on_every_rank([](Rank&) {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    Dot net, other;
    Tensor temperature = torch::zeros({1}, torch::requires_grad());
    std::vector<Tensor> parameters = net->parameters();
    parameters.push_back(temperature);
    torch::optim::SGD sgd(parameters, 1.0), second(other->parameters(), 1.0);
    auto [model, kept, optimizer, optimizer2] = accelerator.prepare(net, other, sgd, second);
    other->weight.mutable_grad() = torch::full({1}, 3.0);
    for (int i = 0; i < 2; ++i) {
      auto scope = accelerator.accumulate(model);
      const Tensor x = torch::ones({4});
      accelerator.backward_tokens((model(x) + x * temperature).sum(), 4);
    }
    EXPECT_NEAR(value(net->weight.grad()), 1.0, 1e-6);
    EXPECT_NEAR(value(temperature.grad()), 1.0, 1e-6);
    EXPECT_EQ(value(other->weight.grad()), 3.0);
  });
}

// Sums over many tokens would leave fp16's range if they were not divided on their way.
TEST_P(ParametersOnDevices, SumsOverManyTokensStayInRange) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(
        {.mixed_precision = PrecisionType::kFp16, .gradient_accumulation_steps = 4});
    torch::nn::Linear net(1, 1);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 0; i < 4; ++i) {
      auto scope = accelerator.accumulate(model);
      const Tensor x = torch::full({4096, 1}, 0.25).to(accelerator.device());
      accelerator.backward_tokens(model(x).sum() * 0.5, 4096);
    }
    optimizer.step();
    EXPECT_FALSE(optimizer.step_was_skipped());
  });
}

// ---- Preparing in unusual orders.

TOPOLOGY_SUITE(Order, .hardware = simulator::Hardware::kNoTpu);

TEST_P(Order, AModelForEvaluationCanBeTrainedLater) {
  Cluster cluster = make_cluster({.seed = 1});
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    Dot net;
    EXPECT_EQ(find_technique<DistributedDataParallel>(
                  accelerator.prepare_model(net, {.evaluation_mode = true})),
              nullptr);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor x = torch::full({1}, 1.0 + rank.index()).to(accelerator.device());
    accelerator.backward(model(x).sum());
    optimizer.step();
    EXPECT_EQ(value(net->weight), -0.5 * (1 + accelerator.num_processes()));
  });
}

TOPOLOGY_SUITE(OrderOnDevices, .hardware = simulator::Hardware::kGpu);

TEST_P(OrderOnDevices, ASchedulerHearsOfOptimizersThatComeLater) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(fp16());
    Dot net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    torch::optim::StepLR decay(sgd, 1, 0.5);
    auto scheduler = accelerator.prepare(decay);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::full({1}, INFINITY).to(accelerator.device())).sum());
    optimizer.step();
    scheduler.step();
    EXPECT_TRUE(optimizer.step_was_skipped());
    EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 1.0);
  });
}

TEST_P(OrderOnDevices, StateThatWasLoadedBeforeFollowsToTheDevice) {
  for (const bool ours : {false, true}) {
    make_cluster().run_on_every_rank([&](Rank&) {
      Accelerator accelerator;
      torch::nn::Linear net(2, 1);
      std::shared_ptr<torch::optim::Optimizer> adam;
      if (ours) {
        adam = std::make_shared<optim::Adam>(net->parameters(), torch::optim::AdamOptions(0.1));
      } else {
        adam =
            std::make_shared<torch::optim::Adam>(net->parameters(), torch::optim::AdamOptions(0.1));
      }
      net(torch::ones({1, 2})).sum().backward();
      adam->step();
      net->zero_grad();
      auto [model, optimizer] = accelerator.prepare(net, adam);
      accelerator.backward(model(torch::ones({1, 2}).to(accelerator.device())).sum());
      EXPECT_NO_THROW(optimizer.step());
    });
  }
}

TOPOLOGY_SUITE(OrderOnRanks, .min_ranks = 2, .hardware = simulator::Hardware::kNoTpu);

TEST_P(OrderOnRanks, LomoTakesAReplicatedModelAsAWholeAndGivesItBack) {
  struct BodyAndHeadImpl : torch::nn::Module {
    BodyAndHeadImpl() {
      body = register_module("body", torch::nn::Linear(2, 2));
      head = register_module("head", torch::nn::Linear(2, 1));
    }
    Tensor forward(const Tensor& x) { return head(body(x)); }
    torch::nn::Linear body{nullptr}, head{nullptr};
  };
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    auto net = std::make_shared<BodyAndHeadImpl>();
    optim::Lomo lomo(net->body->parameters(), 0.1);
    EXPECT_THAT(error_of([&] { accelerator.prepare(net, lomo); }), HasSubstr("or none of them"));
  });
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::manual_seed(1);
    auto net = std::make_shared<BodyAndHeadImpl>();
    auto model = accelerator.prepare(net);
    const Tensor x = torch::full({1, 2}, 1 + 0.1 * rank.index()).to(accelerator.device());
    {
      optim::Lomo lomo(net->parameters(), 0.01);
      auto optimizer = accelerator.prepare(lomo);
      accelerator.backward(model(x).square().sum());
    }
    torch::optim::SGD sgd(net->parameters(), 0.01);
    auto optimizer = accelerator.prepare(sgd);
    for (int i = 0; i < 3; ++i) {
      accelerator.backward(model(x).square().sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    rank.report("head", net->head->weight.detach());
  });
  const std::vector<Tensor> heads = cluster.reports("head");
  for (const Tensor& head : heads) EXPECT_TRUE(head.equal(heads[0]));
}

// As one process trains on the rows of all ranks.
TEST(TrainedParameters, MayBeFrozenAndUnfrozenBetweenSteps) {
  const auto train = [](int64_t ranks) {
    Cluster cluster(absl::StrCat("1x", ranks));
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator;
      torch::manual_seed(3);
      const Tensor x = torch::randn({4, 3}).narrow(0, rank.index() * 4 / ranks, 4 / ranks);
      torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Tanh(),
                                torch::nn::Linear(4, 2));
      const auto set_trained = [&net](size_t layer, bool is_trained) {
        for (const Tensor& parameter : net->ptr(layer)->parameters()) {
          parameter.set_requires_grad(is_trained);
        }
      };
      const std::shared_ptr<torch::optim::Optimizer> sgd =
          std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
      set_trained(0, false);
      auto [model, optimizer] = accelerator.prepare(net.ptr(), sgd);
      const auto steps = [&, &model = model, &optimizer = optimizer] {
        for (int step = 0; step < 2; ++step) {
          accelerator.backward(model(x).square().mean());
          optimizer.step();
          optimizer.zero_grad();
        }
      };
      steps();
      set_trained(0, true);
      steps();
      set_trained(2, false);
      steps();
      set_trained(2, true);
      steps();
      std::vector<Tensor> flat;
      for (const Tensor& parameter : net->parameters()) flat.push_back(parameter.flatten());
      rank.report("parameters", torch::cat(flat).detach());
    });
    return cluster.reports("parameters");
  };
  const Tensor expected = train(1)[0];
  for (const Tensor& parameters : train(2)) {
    EXPECT_TRUE(torch::allclose(parameters, expected, 1e-5, 1e-6));
  }
}

// ---- Mistakes.

// One shape each: mistakes of a rank that is alone, of ranks that join, of TPUs and of a GPU.
TEST(Mistakes, AreNamed) {
  Cluster("1x1").run_on_every_rank([](Rank&) {
    EXPECT_THAT(error_of([] {
                  Accelerator accelerator(
                      {.kwargs_handlers = {DistributedDataParallelKwargs{.bucket_cap_mb = -1}}});
                }),
                HasSubstr("bucket_cap_mb"));
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    accelerator.set_gradient_accumulation_steps(4);
    EXPECT_NO_THROW(Accelerator({.gradient_accumulation_steps = 2}));
    EXPECT_EQ(accelerator.gradient_accumulation_steps(), 4);
    Dot net;
    auto model = accelerator.prepare(net);
    accelerator.free_memory(model);
    EXPECT_THAT(error_of([&] { auto scope = accelerator.accumulate(model); }), HasSubstr("freed"));
    EXPECT_THAT(error_of([&] { auto scope = accelerator.no_sync(model); }), HasSubstr("freed"));
    EXPECT_THAT(error_of([&] { accelerator.clip_grad_norm_(model, 1.0); }), HasSubstr("freed"));
  });
  Cluster("1x2").run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    Dot net;
    auto model = accelerator.prepare(net);
    auto scope = accelerator.join_uneven_inputs({.even_batches = false}, model);
    EXPECT_THAT(error_of([&] { accelerator.backward_tokens(model(torch::ones({1})).sum(), 1); }),
                HasSubstr("inside join_uneven_inputs"));
    // Both ranks leave the pass that they announced unfinished in the same way.
    accelerator.backward(model(torch::ones({1})).sum());
  });
  Cluster("tpu-v5e:2").run_on_every_rank([](Rank&) {
    EXPECT_THAT(error_of([] { Accelerator({.mixed_precision = PrecisionType::kFp16}); }),
                HasSubstr("TPUs compute in bf16"));
  });
  Cluster("1x1:h100").run_on_every_rank([](Rank&) {
    Accelerator first(
        {.mixed_precision = PrecisionType::kFp8, .kwargs_handlers = {TERecipeKwargs{.margin = 0}}});
    EXPECT_THAT(error_of([] {
                  Accelerator second({.mixed_precision = PrecisionType::kFp8,
                                      .kwargs_handlers = {TERecipeKwargs{.margin = 4}}});
                }),
                HasSubstr("contradicts an earlier Accelerator"));
  });
}

}  // namespace
}  // namespace accelerate
