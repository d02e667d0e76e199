// On TPUs gradients are averaged where the optimizer steps, or before where they are clipped.
// One shape each: two TPU chips are compared with two ranks on CPUs.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double bias)
      : first(register_module("first", torch::nn::Linear(4, 6))),
        second(register_module("second", torch::nn::Linear(6, 2))),
        sometimes(register_module("sometimes", torch::nn::Linear(2, 2))),
        never(register_module("never", torch::nn::Linear(2, 2))) {
    torch::NoGradGuard no_grad;
    for (Tensor& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(1. * parameter.numel())).view_as(parameter));
      parameter.add_(bias);
    }
  }
  Tensor forward(const Tensor& x, bool all) {
    const Tensor y = second(torch::tanh(first(x)));
    return all ? y + sometimes(y) : y;
  }
  torch::nn::Linear first, second, sometimes, never;
};
TORCH_MODULE(Net);

struct Training {
  bool clips = false;
  int accumulate = 1;
  bool two_optimizers = false;
};

void train(Rank& rank, const Training& setup) {
  Accelerator accelerator(
      {.gradient_accumulation_steps = setup.accumulate,
       .kwargs_handlers = {DistributedDataParallelKwargs{.find_unused_parameters = true}}});
  Net net(0.1 * rank.index());  // prepare makes it rank 0's
  std::vector<Tensor> rest;     // each parameter belongs to an optimizer
  for (const Tensor& parameter : net->parameters()) {
    if (!parameter.is_same(net->first->weight) && !parameter.is_same(net->first->bias)) {
      rest.push_back(parameter);
    }
  }
  torch::optim::SGD sgd(setup.two_optimizers ? rest : net->parameters(),
                        torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD other(net->first->parameters(), 0.05);
  auto [model, optimizer, second] = accelerator.prepare(net, sgd, other);
  std::vector<double> norms;
  for (int step = 0; step < 4; ++step) {
    const Tensor x = torch::sin(torch::arange(12.).view({3, 4}) * (1 + rank.index()) + step)
                         .to(accelerator.device());
    auto scope = accelerator.accumulate(model);
    // One rank leaves a layer out, and no rank uses another.
    accelerator.backward(model(x, rank.index() == 0).square().mean());
    if (setup.clips) norms.push_back(accelerator.clip_grad_norm_(model, 0.1).item<double>());
    optimizer.step();
    if (setup.two_optimizers) second.step();
    optimizer.zero_grad();
    second.zero_grad();
  }
  std::vector<Tensor> parts;
  for (const Tensor& parameter : net->parameters()) parts.push_back(parameter.detach().flatten());
  rank.report("parameters", torch::cat(parts));
  rank.report("norms", torch::tensor(norms, torch::kDouble));
}

void expect_as_on_cpus(const Training& setup) {
  auto run = [&](const std::string& spec) {
    Cluster cluster(spec, {.seed = 2});
    cluster.run_on_every_rank([&](Rank& rank) { train(rank, setup); });
    return cluster;
  };
  const Cluster cpus = run("1x2");
  for (const std::string spec : {"tpu-v5e:2", "tpu-v4:2x1"}) {
    const Cluster tpus = run(spec);
    ASSERT_EQ(tpus.world_size(), 2);
    for (int rank = 0; rank < 2; ++rank) {
      for (const char* name : {"parameters", "norms"}) {
        EXPECT_TRUE(torch::allclose(tpus.reports(name)[rank], cpus.reports(name)[rank], 1e-5, 1e-6))
            << name << " of rank " << rank << " on " << spec;
      }
    }
    EXPECT_TRUE(torch::equal(tpus.reports("parameters")[0], tpus.reports("parameters")[1]));
  }
}

TEST(XlaGradients, AreAveragedByTheStep) { expect_as_on_cpus({}); }
TEST(XlaGradients, AreAveragedBeforeTheyAreClipped) { expect_as_on_cpus({.clips = true}); }
TEST(XlaGradients, AreAveragedWhenTheyHaveAccumulated) {
  expect_as_on_cpus({.accumulate = 2});
  expect_as_on_cpus({.clips = true, .accumulate = 2});
}
TEST(XlaGradients, AreAveragedByEachOptimizersStep) {
  expect_as_on_cpus({.two_optimizers = true});
  expect_as_on_cpus({.clips = true, .two_optimizers = true});
}

TEST(XlaGradients, StayOnTheirRankUntilThen) {
  Cluster cluster("tpu-v5e:2");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    ASSERT_EQ(accelerator.distributed_type(), DistributedType::kXla);
    Net net(0.1 * rank.index());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    EXPECT_EQ(find_technique<DistributedDataParallel>(model), nullptr);
    rank.report("prepared", net->first->weight);
    const Tensor x = torch::full({1, 4}, 1. + rank.index()).to(accelerator.device());
    accelerator.backward(model(x, true).sum());
    EXPECT_FALSE(accelerator.gradient_state().is_xla_gradients_synced());
    rank.report("before", net->first->weight.grad().clone());
    accelerator.clip_grad_norm_(model, 1e9);
    EXPECT_TRUE(accelerator.gradient_state().is_xla_gradients_synced());
    rank.report("after", net->first->weight.grad().clone());
    optimizer.step();
    EXPECT_FALSE(accelerator.gradient_state().is_xla_gradients_synced());
    rank.report("stepped", net->first->weight.grad().clone());
  });
  auto both = [&](const char* name) { return cluster.reports(name); };
  EXPECT_TRUE(torch::equal(both("prepared")[0], both("prepared")[1]));
  EXPECT_FALSE(torch::allclose(both("before")[0], both("before")[1]));
  EXPECT_TRUE(torch::equal(both("after")[0], both("after")[1]));
  EXPECT_TRUE(torch::allclose(both("after")[0], (both("before")[0] + both("before")[1]) / 2));
  EXPECT_TRUE(torch::equal(both("stepped")[0], both("after")[0]));
}

TEST(XlaGradients, AreLeftToAProgramThatSaysItAveragedThem) {
  Cluster cluster("tpu-v5e:2");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    Net net(0.0);
    torch::optim::SGD sgd(net->first->parameters(), 0.1);
    torch::optim::SGD other(net->second->parameters(), 0.1);
    auto [model, optimizer, second] = accelerator.prepare(net, sgd, other);
    const Tensor x = torch::full({1, 4}, 1. + rank.index()).to(accelerator.device());
    const auto step = [&](bool says_so) {
      accelerator.backward(model(x, true).sum());
      accelerator.gradient_state().set_is_xla_gradients_synced(says_so);
      optimizer.step();
      EXPECT_FALSE(accelerator.gradient_state().is_xla_gradients_synced());
      accelerator.gradient_state().set_is_xla_gradients_synced(says_so);
      second.step();
    };
    // This program has not averaged anything, which shows who does.
    step(/*says_so=*/true);
    rank.report("first", net->first->weight.grad().clone());
    rank.report("second", net->second->weight.grad().clone());
    accelerator.gradient_state().set_is_xla_gradients_synced(true);
    optimizer.zero_grad();
    second.zero_grad();
    accelerator.backward(model(x, true).sum());
    EXPECT_FALSE(accelerator.gradient_state().is_xla_gradients_synced()) << "gradients are new";
    accelerator.gradient_state().set_is_xla_gradients_synced(true);
    accelerator.clip_grad_norm_(model, 1e9);
    rank.report("clipped", net->first->weight.grad().clone());
    optimizer.step();
    second.step();
    optimizer.zero_grad();
    second.zero_grad();
    step(/*says_so=*/false);
    rank.report("averaged", net->first->weight.grad().clone());
  });
  auto differ = [&](const char* name) {
    return !torch::allclose(cluster.reports(name)[0], cluster.reports(name)[1]);
  };
  EXPECT_TRUE(differ("first"));
  EXPECT_TRUE(differ("second"));
  EXPECT_TRUE(differ("clipped"));
  EXPECT_FALSE(differ("averaged"));
}

}  // namespace
}  // namespace accelerate
