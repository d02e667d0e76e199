// Linear layers in fp8 on simulated devices: the same numbers as on a CPU, and scales that ranks
// agree on.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/fp8_kwargs.h"
#include "accelerate/precision/fp8_model.h"
#include "simulator/cluster/cluster.h"

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

class Fp8Scales : public testing::TestWithParam<const char*> {};

TEST_P(Fp8Scales, AreThoseOfTheLargestValueOfAllRanks) {
  Cluster cluster(GetParam(), {.seed = 1});
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

INSTANTIATE_TEST_SUITE_P(Shapes, Fp8Scales, testing::Values("1x1:h100", "1x2:h100", "2x4:h100"));

}  // namespace
}  // namespace accelerate
