// LocalSGD: ranks drift apart between averages and are one afterwards.
#include <cmath>
#include <optional>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::HasSubstr;
using torch::Tensor;

Tensor flat(const torch::nn::Module& module) {
  std::vector<Tensor> parts;
  for (const Tensor& parameter : module.parameters()) parts.push_back(parameter.detach().flatten());
  return torch::cat(parts).cpu();
}

Tensor input_of(int rank, int step) {
  return torch::sin(torch::arange(12.).reshape({4, 3}) + 5 * rank + step);
}

torch::nn::Linear made_net() {
  torch::nn::Linear net(3, 2);
  torch::NoGradGuard no_grad;
  net->weight.copy_(torch::arange(6.).reshape({2, 3}) / 10);
  net->bias.zero_();
  return net;
}

void train_step(torch::nn::Linear& net, torch::optim::Optimizer& sgd, const Tensor& x) {
  (net(x) - 1).square().mean().backward();
  sgd.step();
  sgd.zero_grad();
}

// The same without anything of ours: as many nets as there are ranks.
std::vector<Tensor> by_hand(int ranks, int steps, int every) {
  std::vector<torch::nn::Linear> nets;
  std::vector<torch::optim::SGD> optimizers;
  for (int rank = 0; rank < ranks; ++rank) {
    nets.push_back(made_net());
    optimizers.emplace_back(nets.back()->parameters(), 0.1);
  }
  std::vector<Tensor> after;
  auto average = [&] {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < nets[0]->parameters().size(); ++i) {
      Tensor mean = torch::zeros_like(nets[0]->parameters()[i]);
      for (auto& net : nets) mean += net->parameters()[i] / ranks;
      for (auto& net : nets) net->parameters()[i].copy_(mean);
    }
  };
  for (int step = 1; step <= steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      train_step(nets[rank], optimizers[rank], input_of(rank, step));
    }
    if (step % every == 0) average();
    for (auto& net : nets) after.push_back(flat(*net));
  }
  average();
  for (auto& net : nets) after.push_back(flat(*net));
  return after;
}

TOPOLOGY_SUITE(LocalSgdOn, .also = {"1x3:h100"}, .min_ranks = 2,
               .hardware = simulator::Hardware::kNoTpu);

TEST_P(LocalSgdOn, AveragesEveryFewStepsAndAtTheEnd) {
  constexpr int kSteps = 5, kEvery = 2;
  Cluster cluster = make_cluster();
  const int ranks = cluster.world_size();
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    auto net = made_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::vector<Tensor> after;
    {
      LocalSGD local_sgd(accelerator, model, kEvery);
      for (int step = 1; step <= kSteps; ++step) {
        auto scope = accelerator.accumulate(model);
        const Tensor x = input_of(rank.index(), step).to(accelerator.device());
        accelerator.backward((model(x) - 1).square().mean());
        optimizer.step();
        optimizer.zero_grad();
        local_sgd.step();
        after.push_back(flat(*net));
      }
    }
    after.push_back(flat(*net));
    rank.report("parameters", torch::stack(after));
    // Afterwards gradients are averaged again.
    model(input_of(rank.index(), 0).to(accelerator.device())).sum().backward();
    rank.report("gradient", net->weight.grad());
  });
  const std::vector<Tensor> expected = by_hand(ranks, kSteps, kEvery);
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensor got = cluster.reports("parameters")[rank];
    for (int step = 0; step <= kSteps; ++step) {
      EXPECT_TRUE(torch::allclose(got[step], expected[step * ranks + rank], 1e-5, 1e-6))
          << "rank " << rank << ", step " << step + 1;
    }
    EXPECT_TRUE(torch::equal(got[kSteps], cluster.reports("parameters")[0][kSteps]));
    EXPECT_TRUE(torch::equal(cluster.reports("gradient")[rank], cluster.reports("gradient")[0]));
  }
}

// Rank 0's data is its own: no other rank has its gradient.
void expect_own_gradients(const Cluster& cluster) {
  const std::vector<Tensor> gradients = cluster.reports("gradient");
  for (size_t rank = 1; rank < gradients.size(); ++rank) {
    EXPECT_FALSE(torch::allclose(gradients[rank], gradients[0])) << "rank " << rank;
  }
}

TEST_P(LocalSgdOn, NeverReducesGradientsWhateverAccumulates) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.gradient_accumulation_plugin = GradientAccumulationPlugin{
                                 .num_steps = 2, .sync_each_batch = true}});
    auto net = made_net();
    auto model = accelerator.prepare(net);
    LocalSGD local_sgd(accelerator, model, 100);
    for (int step = 0; step < 3; ++step) {
      auto scope = accelerator.accumulate(model);
      const Tensor x = input_of(rank.index(), step).to(accelerator.device());
      accelerator.backward(model(x).square().sum());
    }
    rank.report("gradient", net->weight.grad());
  });
  expect_own_gradients(cluster);
}

TEST_P(LocalSgdOn, MayBeginInsideAnAccumulateScope) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    auto net = made_net();
    auto model = accelerator.prepare(net);
    std::optional<NoSyncScope> accumulating = accelerator.accumulate(model);
    ASSERT_FALSE(accelerator.sync_gradients());
    LocalSGD local_sgd(accelerator, model, 100);
    accumulating.reset();
    const Tensor x = input_of(rank.index(), 0).to(accelerator.device());
    accelerator.backward(model(x).square().sum());
    rank.report("gradient", net->weight.grad());
  });
  expect_own_gradients(cluster);
}

// In fp16 rank 1 leaves a step out, which halves its scale and holds its scheduler back; momentum
// differs in any case.
TEST_P(LocalSgdOn, LeavesRanksThatGoOnAlike) {
  for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kFp16}) {
    Cluster cluster = make_cluster();
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.mixed_precision = precision});
      auto net = made_net();
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::StepLR halving(sgd, 1, 0.5);
      auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, halving);
      auto train = [&](int step, bool overflows) {
        const Tensor x = input_of(rank.index(), step).to(accelerator.device());
        const Tensor loss = (model(x) - 1).square().mean();
        accelerator.backward(overflows ? loss * INFINITY : loss);
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
      };
      {
        LocalSGD local_sgd(accelerator, model, 2);
        for (int step = 0; step < 3; ++step) {
          const bool fp16 = accelerator.scaler() != nullptr;
          train(step, /*overflows=*/fp16 && rank.index() == 1 && step == 1);
          local_sgd.step();
        }
      }
      for (int step = 3; step < 6; ++step) train(step, /*overflows=*/false);
      rank.report("parameters", flat(*net));
      rank.report("rate", torch::scalar_tensor(sgd.param_groups()[0].options().get_lr()));
    });
    for (const char* what : {"parameters", "rate"}) {
      const std::vector<Tensor> of_ranks = cluster.reports(what);
      for (const Tensor& each : of_ranks) {
        EXPECT_TRUE(torch::equal(each, of_ranks[0]))
            << what << " in precision " << to_string(precision);
      }
    }
  }
}

TEST_P(LocalSgdOn, OnlyCountsWhereItIsOff) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    auto net = made_net();
    auto model = accelerator.prepare(net);
    LocalSGD local_sgd(accelerator, model, 1, /*enabled=*/false);
    model(input_of(rank.index(), 0).to(accelerator.device())).sum().backward();
    rank.report("gradient", net->weight.grad());
    // Only one rank steps: nothing is collective.
    if (rank.index() == 0) local_sgd.step();
  });
  const std::vector<Tensor> gradients = cluster.reports("gradient");
  for (const Tensor& gradient : gradients) EXPECT_TRUE(torch::equal(gradient, gradients[0]));
}

// One shape: a rank that is alone.
TEST(LocalSgd, WorksOnOneRank) {
  Cluster cluster("1x1");
  cluster.run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    auto net = made_net();
    auto model = accelerator.prepare(net);
    LocalSGD local_sgd(accelerator, model, 1);
    local_sgd.step();
    EXPECT_TRUE(torch::equal(net->weight, made_net()->weight));
  });
}

TEST_P(LocalSgdOn, RefusesWhatItCannotDo) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    auto model = accelerator.prepare(made_net());
    EXPECT_THROW(LocalSGD(accelerator, model, 0), c10::ValueError);
    EXPECT_THROW(LocalSGD(accelerator, model, -1, /*enabled=*/false), c10::ValueError);
    model.reset();
    EXPECT_THROW(LocalSGD(accelerator, model, 1), c10::Error);
  });
}

// One shape: TPUs.
TEST(LocalSgd, RefusesTpus) {
  Cluster("tpu-v4:2x1").run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    auto model = accelerator.prepare(made_net());
    try {
      LocalSGD local_sgd(accelerator, model, 1);
      FAIL() << "accepted on TPUs";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("XLA"));
    }
  });
}

TEST_P(LocalSgdOn, EndsWithTheErrorThatLeavesIt) {
  Cluster cluster = make_cluster();
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      Accelerator accelerator;
      auto model = accelerator.prepare(made_net());
      LocalSGD local_sgd(accelerator, model, 10);
      if (rank.index() == 1) throw std::runtime_error("the data is gone");
    });
    FAIL() << "nobody noticed";
  } catch (const ClusterError& error) {
    EXPECT_EQ(error.failures().front().rank, 1);
    EXPECT_THAT(error.what(), HasSubstr("the data is gone"));
  }
}

}  // namespace
}  // namespace accelerate
