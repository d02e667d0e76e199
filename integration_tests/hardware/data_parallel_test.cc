// Data-parallel training on simulated devices gives the same bits as on CPU ranks, with all
// options.
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
  explicit NetImpl(bool sparse)
      : table(register_module(
            "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 8).sparse(sparse)))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        used(register_module("used", torch::nn::Linear(8, 8))),
        sometimes(register_module("sometimes", torch::nn::Linear(8, 8))),
        output(register_module("output", torch::nn::Linear(8, 4))) {}
  Tensor forward(const Tensor& tokens, bool all) {
    Tensor x = norm(table(tokens).mean(1));
    x = torch::relu(used(x));
    if (all) x = torch::relu(sometimes(x));
    return output(x);
  }

  torch::nn::Embedding table;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear used, sometimes, output;
};
TORCH_MODULE(Net);

struct Case {
  const char* name;
  DistributedDataParallelKwargs options = {};
  bool sparse = false;
  bool skips_a_layer = false;
  int accumulate = 1;
};

void train(Rank& rank, const Case& one) {
  Accelerator accelerator(
      {.gradient_accumulation_steps = one.accumulate, .kwargs_handlers = {one.options}});
  torch::manual_seed(5);
  Net net(one.sparse);
  torch::optim::SGD sgd(net->parameters(), 0.2);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  torch::manual_seed(100 + rank.index());
  std::vector<double> losses;
  for (int step = 0; step < 4; ++step) {
    const Tensor tokens = torch::randint(0, 20, {6, 3}, torch::kLong).to(accelerator.device());
    auto scope = accelerator.accumulate(model);
    Tensor loss = model(tokens, !(one.skips_a_layer && step % 2 == 1)).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  rank.report("losses", torch::tensor(losses, torch::kDouble));
  std::vector<Tensor> flat;
  for (const Tensor& parameter : net->parameters()) flat.push_back(parameter.detach().flatten());
  rank.report("parameters", torch::cat(flat));
}

class DataParallel : public ::testing::TestWithParam<Case> {};

TEST_P(DataParallel, TrainsToTheBitsOfCpuRanks) {
  auto run = [](const std::string& spec) {
    Cluster cluster(spec, {.seed = 2});
    cluster.run_on_every_rank([](Rank& rank) { train(rank, GetParam()); });
    return cluster;
  };
  const Cluster on_cpu = run("2x2");
  const Cluster on_devices = run("2x2:h100");
  for (const char* name : {"losses", "parameters"}) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(on_cpu.reports(name)[rank].equal(on_devices.reports(name)[rank]))
          << name << " of rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, DataParallel,
    ::testing::Values(Case{.name = "plain"},
                      Case{.name = "small_buckets", .options = {.bucket_cap_mb = 1e-4}},
                      Case{.name = "unused_parameters",
                           .options = {.find_unused_parameters = true},
                           .skips_a_layer = true},
                      Case{.name = "bucket_views", .options = {.gradient_as_bucket_view = true}},
                      Case{.name = "sparse_gradients", .sparse = true},
                      Case{.name = "accumulation", .accumulate = 2}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace accelerate
