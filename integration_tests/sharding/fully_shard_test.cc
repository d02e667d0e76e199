// Units that a program chooses by itself, and what it sets for them, on simulated clusters.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/parallel/sharded/calls.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < 5; ++i) blocks->push_back(nn::Linear(6, 6));
    register_module("blocks", blocks);
    head = register_module("head", nn::Linear(6, 5));
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *blocks) x = torch::tanh(block->as<nn::LinearImpl>()->forward(x));
    return head(x);
  }
  nn::ModuleList blocks;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

// A model with its units, the last one its own, and what they train.
struct Job {
  explicit Job(int replicas, int ranks)
      : accelerator({.parallelism_config = ParallelismConfig(
                         {.dp_replicate_size = replicas, .dp_shard_size = ranks})}) {
    torch::manual_seed(3);
    net = Net();
    for (const auto& block : *net->blocks) units.push_back(fully_shard(block));
    units.push_back(fully_shard(net));
  }
  void prepare() {
    auto [prepared, optimized] =
        accelerator.prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 0.02));
    model.emplace(prepared);
    optimizer.emplace(optimized);
  }
  const std::shared_ptr<ShardedParameters>& parameters() const {
    return find_technique<ShardedModel>(*model)->parameters();
  }
  void backward(int number) {
    const Tensor x =
        torch::sin(torch::arange(12.).view({2, 6}) * (number + 1) + accelerator.process_index());
    accelerator.backward((*model)(x.to(accelerator.device())).square().mean());
  }
  void step() {
    optimizer->step();
    optimizer->zero_grad();
  }
  std::vector<Tensor> weights() const {
    const auto whole = full_parameters(*model, {.writeback = false});
    std::vector<Tensor> weights;
    for (const Tensor& each : net->parameters()) weights.push_back(each.detach().cpu().clone());
    return weights;
  }

  Accelerator accelerator;
  Net net{nullptr};
  std::vector<FSDPModule> units;
  std::optional<PreparedModel<NetImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

// Rank 0's weights after what `body` does with a prepared job.
std::vector<Tensor> weights_after(const std::string& shape, int replicas, int ranks,
                                  const std::function<void(Job&)>& body) {
  std::vector<Tensor> weights;
  Cluster(shape).run_on_every_rank([&](Rank& rank) {
    Job job(replicas, ranks);
    job.prepare();
    body(job);
    const std::vector<Tensor> own = job.weights();
    if (rank.index() == 0) weights = own;
  });
  return weights;
}

void expect_near(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-5, 1e-6)) << i;
}

// Two micro-steps whose gradients add up, twice.
void accumulate(Job& job) {
  for (int i = 0; i < 4; ++i) {
    {
      const auto scope = i % 2 == 0 ? job.accelerator.no_sync(*job.model) : NoSyncScope();
      job.backward(i);
    }
    if (i % 2 == 1) job.step();
  }
}

TEST(FullyShard, MakesTheUnitsOfAModelThatPrepareDivides) {
  Cluster("1x2").run_on_every_rank([](Rank&) {
    Job job(1, 2);
    job.prepare();
    const auto& parameters = *job.parameters();
    EXPECT_EQ(parameters.groups_of("", /*inner=*/true).size(), 6);
    for (const char* unit : {"blocks.0", "blocks.4", ""}) {
      EXPECT_EQ(parameters.groups_of(unit, /*inner=*/false).size(), 1) << unit;
    }
    EXPECT_THAT(value_error_of([&] { fully_shard(job.net); }),
                AllOf(HasSubstr("is divided among ranks already"), HasSubstr("before prepare")));
    EXPECT_THAT(value_error_of(
                    [] { fully_shard(nn::Linear(2, 2), {.ignored_params = {torch::ones({2})}}); }),
                HasSubstr("not a parameter of the Linear"));
  });
  // On one rank units have nothing to set.
  Cluster("1x1").run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    nn::Linear net(2, 2);
    const FSDPModule unit = fully_shard(net);
    auto model = accelerator.prepare(net);
    unit.set_requires_gradient_sync(false);
    unit.unshard();
    unit.reshard();
    model(torch::ones({1, 2})).sum().backward();
    EXPECT_TRUE(net->weight.grad().defined());
  });
}

TEST(FullyShard, LeavesIgnoredParametersWhole) {
  Cluster("1x2").run_on_every_rank([](Rank&) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig({.dp_shard_size = 2})});
    Net net;
    fully_shard(net->head, {.ignored_params = {net->head->bias}});
    auto model = accelerator.prepare(net);
    EXPECT_FALSE(is_absent(net->head->bias));
    EXPECT_TRUE(is_absent(net->head->weight));
    EXPECT_EQ(find_technique<ShardedModel>(model)->parameters()->shards().size(), 11);
  });
}

TEST(FullyShard, UnitsMayAddUpWholeGradients) {
  const auto expected = weights_after("1x2", 1, 2, &accumulate);
  const auto by_unit = [](Job& job, const std::function<void(bool)>& set) {
    for (int i = 0; i < 4; ++i) {
      set(i % 2 == 1);
      job.backward(i);
      if (i % 2 == 1) job.step();
    }
  };
  expect_near(weights_after("1x2", 1, 2,
                            [&](Job& job) {
                              by_unit(job, [&](bool reduces) {
                                job.units.back().set_requires_gradient_sync(reduces);
                              });
                            }),
              expected);
  // Some units only: the others reduce the gradients of each micro-step.
  expect_near(weights_after("1x2", 1, 2,
                            [&](Job& job) {
                              by_unit(job, [&](bool reduces) {
                                job.units[1].set_requires_gradient_sync(reduces);
                                const Tensor& gradient =
                                    job.net->blocks->ptr<nn::LinearImpl>(1)->weight.grad();
                                EXPECT_EQ(gradient.defined(), reduces);
                                if (reduces) EXPECT_FALSE(is_absent(gradient));
                              });
                            }),
              expected);
}

TEST(FullyShard, SumsMayWaitForTheOtherReplicas) {
  const auto expected = weights_after("2x2", 2, 2, &accumulate);
  const auto waiting = [](Job& job) {
    for (int i = 0; i < 4; ++i) {
      job.units.back().set_requires_all_reduce(i % 2 == 1);
      job.backward(i);
      if (i % 2 == 0) {
        for (const auto& each : job.parameters()->shards()) {
          EXPECT_FALSE(each.shard.grad().defined()) << each.name;
        }
        EXPECT_TRUE(job.parameters()->gradients().partial_sum(0).defined());
        continue;
      }
      EXPECT_FALSE(job.parameters()->gradients().partial_sum(0).defined());
      job.step();
    }
  };
  expect_near(weights_after("2x2", 2, 2, waiting), expected);
  expect_near(weights_after("2x2:h100", 2, 2, waiting), expected);
  // A checkpoint keeps them.
  auto disk = std::make_shared<SimDisk>();
  std::vector<Tensor> resumed;
  for (const bool is_rest : {false, true}) {
    Cluster("2x2", {.disk = disk}).run_on_every_rank([&](Rank& rank) {
      Job job(2, 2);
      job.prepare();
      if (is_rest) job.accelerator.load_state("/sim/run/saved");
      for (int i = is_rest ? 3 : 0; i < (is_rest ? 4 : 3); ++i) {
        job.units.back().set_requires_all_reduce(i % 2 == 1);
        job.backward(i);
        if (i % 2 == 1) job.step();
      }
      if (!is_rest) return void(job.accelerator.save_state("/sim/run/saved"));
      const std::vector<Tensor> own = job.weights();
      if (rank.index() == 0) resumed = own;
    });
  }
  expect_near(resumed, expected);
}

TEST(FullyShard, GradientsAreDividedByAFactor) {
  Cluster("1x2").run_on_every_rank([](Rank&) {
    Job job(1, 2);
    job.units[0].set_gradient_divide_factor(1);
    EXPECT_THAT(value_error_of([&] { job.units[0].set_gradient_divide_factor(0); }),
                HasSubstr("is not above 0"));
    job.prepare();
    job.backward(0);
    std::vector<Tensor> sums;
    for (const auto& each : job.parameters()->shards()) sums.push_back(each.shard.grad().clone());
    job.optimizer->zero_grad();
    job.units[0].set_gradient_divide_factor(2);
    job.backward(0);
    for (size_t i = 0; i < sums.size(); ++i) {
      const auto& each = job.parameters()->shards()[i];
      const double factor = each.name.starts_with("blocks.0.") ? 2 : 1;
      EXPECT_TRUE(torch::allclose(sums[i], each.shard.grad() * factor)) << each.name;
    }
  });
}

TEST(FullyShard, ParametersStayAsUnitsSay) {
  Cluster("1x2").run_on_every_rank([](Rank&) {
    Job job(1, 2);
    job.prepare();
    const auto& residency = *job.parameters()->residency();
    const auto gathers = [&](int number) {
      const int64_t before = residency.times_brought();
      job.backward(number);
      return residency.times_brought() - before;
    };
    gathers(0);
    // Two blocks are in memory when the backward pass begins, and it needs no weight of the first.
    EXPECT_EQ(gathers(1), 8);
    job.units.back().set_reshard_after_forward(false);
    EXPECT_EQ(gathers(2), 6);
    job.units.back().set_reshard_after_backward(false);
    EXPECT_EQ(gathers(3), 6);
    EXPECT_EQ(gathers(4), 0);
    job.step();
    EXPECT_EQ(gathers(5), 6);
    job.units.back().set_reshard_after_backward(true);
    gathers(6);
    EXPECT_EQ(residency.bytes_in_memory(), 0);
  });
}

TEST(FullyShard, AUnitCanBeGatheredOutsideOfPasses) {
  Cluster("1x2").run_on_every_rank([](Rank&) {
    Job job(1, 2);
    const Tensor first = job.net->head->weight.detach().clone();
    job.prepare();
    const Tensor& weight = job.net->head->weight;
    const auto read = [&] { return weight.detach().clone(); };
    EXPECT_THROW(read(), c10::Error);
    job.units.back().unshard();
    EXPECT_TRUE(torch::equal(read(), first));
    job.units.back().reshard();
    EXPECT_THROW(read(), c10::Error);
    // A pass uses it and frees it, and after a step it has the new values.
    job.units.back().unshard();
    job.backward(0);
    EXPECT_TRUE(is_absent(weight));
    job.units.back().unshard();
    job.step();
    job.units.back().unshard();
    EXPECT_FALSE(torch::equal(read(), first));
    const Tensor now = read();
    EXPECT_TRUE(torch::equal(job.weights().at(10), now));
  });
}

TEST(FullyShard, UnitsAreGatheredAheadAsListed) {
  const auto expected = weights_after("1x2", 1, 2, &accumulate);
  const auto listed = weights_after("1x2", 1, 2, [](Job& job) {
    for (int i = 0; i < 2; ++i) {
      std::vector<FSDPModule> next = {job.units[i + 1]};
      if (i == 0) next.push_back(job.units[2]);
      job.units[i].set_modules_to_forward_prefetch(next);
      job.units[2 - i].set_modules_to_backward_prefetch({job.units[1 - i]});
    }
    accumulate(job);
  });
  ASSERT_EQ(listed.size(), expected.size());
  for (size_t i = 0; i < listed.size(); ++i) EXPECT_TRUE(torch::equal(listed[i], expected[i])) << i;
}

}  // namespace
}  // namespace accelerate
