// Every field of DistributedDataParallelKwargs, through the Accelerator.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/log/log_entry.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Hardware;
using simulator::Rank;
using simulator::TopologyTest;
using torch::Tensor;
using Hook = DDPCommunicationHookType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The second output can be left out of the loss; the last layer may be left out of the pass.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : shared(register_module("shared", torch::nn::Linear(6, 6))),
        first(register_module("first", torch::nn::Linear(6, 4))),
        second(register_module("second", torch::nn::Linear(6, 2))),
        sometimes(register_module("sometimes", torch::nn::Linear(4, 4))) {
    torch::NoGradGuard no_grad;
    for (Tensor& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(1. * parameter.numel())).view_as(parameter) / 2);
    }
  }
  std::tuple<Tensor, Tensor> forward(const Tensor& x, bool all = true) {
    // A weight that is used twice.
    const Tensor hidden = torch::tanh(shared(torch::tanh(shared(x))));
    const Tensor y = first(hidden);
    return {all ? y + 0.1 * sometimes(y) : y, second(hidden)};
  }
  torch::nn::Linear shared, first, second, sometimes;
};
TORCH_MODULE(Net);

Tensor input_of(const Accelerator& accelerator, int step) {
  return torch::sin(torch::arange(24.).reshape({4, 6}) * (1 + accelerator.process_index()) + step)
      .to(accelerator.device());
}

Tensor flat(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return torch::cat(parts).cpu();
}

struct Training {
  DistributedDataParallelKwargs ddp = {};
  bool uses_all = true;
  bool loss_of_both = true;
  int accumulate = 1;
  int steps = 4;
  // Forward passes before the first step that are not differentiated.
  int idle_passes = 0;
};

void train(Rank& rank, const Training& setup) {
  Accelerator accelerator(
      {.gradient_accumulation_steps = setup.accumulate, .kwargs_handlers = {setup.ddp}});
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int pass = 0; pass < setup.idle_passes; ++pass) model(input_of(accelerator, pass));
  for (int step = 0; step < setup.steps; ++step) {
    auto scope = accelerator.accumulate(model);
    auto [y, z] = model(input_of(accelerator, step), setup.uses_all);
    accelerator.backward(y.square().mean() +
                         (setup.loss_of_both ? z.sum() : torch::zeros({}, y.options())));
    optimizer.step();
    optimizer.zero_grad();
  }
  rank.report("parameters", flat(net->parameters()));
}

std::vector<Tensor> trained(const Training& setup) {
  Cluster cluster = TopologyTest::make_cluster({.seed = 3});
  cluster.run_on_every_rank([&](Rank& rank) { train(rank, setup); });
  return cluster.reports("parameters");
}

std::string failure_of(Cluster cluster, const std::function<void(Rank&)>& body) {
  try {
    cluster.run_on_every_rank(body);
  } catch (const ClusterError& error) {
    std::string all;
    for (const auto& failure : error.failures()) all += failure.message + "\n";
    return all;
  }
  return "no error";
}

bool all_equal(const std::vector<Tensor>& of_ranks) {
  return std::ranges::all_of(of_ranks,
                             [&](const Tensor& each) { return torch::equal(each, of_ranks[0]); });
}

void expect_follows(const Training& setup, const Tensor& expected, double tolerance) {
  const std::vector<Tensor> got = trained(setup);
  EXPECT_TRUE(all_equal(got));
  EXPECT_TRUE(torch::allclose(got[0], expected, tolerance, tolerance));
  EXPECT_TRUE(torch::equal(trained(setup)[0], got[0])) << "repeated";
}

constexpr PowerSgdOptions kFull{
    .matrix_approximation_rank = 64, .start_powerSGD_iter = 2, .min_compression_rate = 1e-3};

struct Case {
  const char* name;
  DistributedDataParallelKwargs ddp;
};

std::vector<Case> hooks() {
  return {
      {"fp16", {.comm_hook = Hook::kFp16}},
      {"bf16", {.comm_hook = Hook::kBf16}},
      {"fp16, small buckets", {.bucket_cap_mb = 1e-4, .comm_hook = Hook::kFp16}},
      {"bf16, views", {.gradient_as_bucket_view = true, .comm_hook = Hook::kBf16}},
      {"bf16, unused", {.find_unused_parameters = true, .comm_hook = Hook::kBf16}},
      {"PowerSGD", {.comm_hook = Hook::kPowerSgd, .comm_state_option = kFull}},
      {"batched PowerSGD", {.comm_hook = Hook::kBatchedPowerSgd, .comm_state_option = kFull}},
      {"PowerSGD, small buckets",
       {.bucket_cap_mb = 1e-4, .comm_hook = Hook::kPowerSgd, .comm_state_option = kFull}},
      {"PowerSGD in fp16",
       {.comm_hook = Hook::kPowerSgd, .comm_wrapper = Hook::kFp16, .comm_state_option = kFull}}};
}

TOPOLOGY_SUITE(Hooks, .also = {"1x3:h100"}, .min_ranks = 2, .hardware = Hardware::kNoTpu);

TEST_P(Hooks, FollowThePlainAllReduce) {
  const Tensor expected = trained({.steps = 6})[0];
  for (const Case& each : hooks()) {
    SCOPED_TRACE(each.name);
    expect_follows({.ddp = each.ddp, .steps = 6}, expected, 1e-2);
  }
}

// Each rank has a step more than the one before it.
std::vector<Tensor> trained_unevenly(const DistributedDataParallelKwargs& options) {
  Cluster cluster = TopologyTest::make_cluster({.seed = 5});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.kwargs_handlers = {options}});
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    {
      auto scope = accelerator.join_uneven_inputs({.even_batches = false}, model);
      for (int step = 0; step < 3 + rank.index(); ++step) {
        auto [y, z] = model(input_of(accelerator, step));
        accelerator.backward(y.square().mean() + z.sum());
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    rank.report("parameters", flat(net->parameters()));
  });
  return cluster.reports("parameters");
}

TEST_P(Hooks, FollowRanksThatStillTrain) {
  const Tensor expected = trained_unevenly({})[0];
  for (const Case& each : hooks()) {
    const std::vector<Tensor> got = trained_unevenly(each.ddp);
    EXPECT_TRUE(all_equal(got)) << each.name;
    EXPECT_TRUE(torch::allclose(got[0], expected, 1e-2, 1e-2)) << each.name;
  }
}

TOPOLOGY_SUITE(StaticGraph, .also = {"1x3:h100"}, .min_ranks = 2, .hardware = Hardware::kNoTpu);

TEST_P(StaticGraph, FollowsTheDynamicOne) {
  const Tensor expected = trained({})[0];
  for (const bool views : {false, true}) {
    expect_follows({.ddp = {.gradient_as_bucket_view = views, .static_graph = true}}, expected,
                   1e-6);
  }
  expect_follows({.ddp = {.bucket_cap_mb = 1e-4, .static_graph = true}}, expected, 1e-6);
  expect_follows({.ddp = {.find_unused_parameters = true, .static_graph = true}}, expected, 1e-6);
  expect_follows({.ddp = {.static_graph = true, .comm_hook = Hook::kFp16}}, expected, 1e-2);
}

TEST_P(StaticGraph, FindsUnusedParametersByItself) {
  for (const bool loss_of_both : {false, true}) {
    const Training unused{
        .ddp = {.find_unused_parameters = true}, .uses_all = false, .loss_of_both = loss_of_both};
    Training setup = unused;
    setup.ddp = {.static_graph = true};
    expect_follows(setup, trained(unused)[0], 1e-6);
  }
}

TEST_P(StaticGraph, BeginsWithThePassThatSynchronises) {
  {
    SCOPED_TRACE("accumulating");
    expect_follows({.ddp = {.static_graph = true}, .accumulate = 2}, trained({.accumulate = 2})[0],
                   1e-6);
  }
  SCOPED_TRACE("idle passes");
  expect_follows({.ddp = {.static_graph = true}, .idle_passes = 2}, trained({})[0], 1e-6);
}

TEST_P(StaticGraph, IsRefusedWhereRanksJoin) {
  const std::string failure = failure_of(make_cluster(), [](Rank&) {
    Accelerator accelerator(
        {.kwargs_handlers = {DistributedDataParallelKwargs{.static_graph = true}}});
    auto model = accelerator.prepare(Net());
    auto scope = accelerator.join_uneven_inputs({.even_batches = false}, model);
  });
  EXPECT_THAT(failure, HasSubstr("static_graph"));
}

TOPOLOGY_SUITE(GradientsInBuckets, .also = {"1x2:h100"}, .min_ranks = 2,
               .hardware = Hardware::kNoTpu);

// Where gradients lie in their buckets, and where they are copied out.
TEST_P(GradientsInBuckets, TrainToTheSameBits) {
  for (const int accumulate : {1, 3}) {
    const std::vector<Tensor> got = trained({.accumulate = accumulate, .steps = 24});
    const std::vector<Tensor> expected =
        trained({.ddp = {.static_graph = true}, .accumulate = accumulate, .steps = 24});
    for (size_t rank = 0; rank < got.size(); ++rank) {
      EXPECT_TRUE(torch::equal(got[rank], expected[rank])) << accumulate << ", rank " << rank;
    }
  }
}

TEST_P(GradientsInBuckets, StayThereThroughAWholeStep) {
  make_cluster().run_on_every_rank([&](Rank&) {
    Accelerator accelerator(
        {.mixed_precision = PrecisionType::kBf16, .gradient_accumulation_steps = 2});
    Net net;
    torch::optim::AdamW adam(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, adam);
    for (int step = 0; step < 8; ++step) {
      auto scope = accelerator.accumulate(model);
      auto [y, z] = model(input_of(accelerator, step));
      accelerator.backward(y.square().mean() + z.sum());
      accelerator.clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      const Tensor& gradient = net->second->bias.grad();
      if (accelerator.sync_gradients()) {
        EXPECT_GT(gradient.storage().nbytes(), gradient.nbytes()) << step << ": was copied out";
      }
      optimizer.zero_grad();
    }
  });
}

TOPOLOGY_SUITE(FindUnusedParameters, .also = {"1x3:h100"}, .min_ranks = 2,
               .hardware = Hardware::kNoTpu);

TEST_P(FindUnusedParameters, FollowsAnOutputThatIsNotInTheLoss) {
  const Tensor expected = trained({.ddp = {.static_graph = true}, .loss_of_both = false})[0];
  expect_follows({.ddp = {.find_unused_parameters = true}, .loss_of_both = false}, expected, 1e-6);
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(
        {.kwargs_handlers = {DistributedDataParallelKwargs{.find_unused_parameters = true}}});
    Net net;
    auto model = accelerator.prepare(net);
    for (int step = 0; step < 3; ++step) {
      std::get<0>(model(input_of(accelerator, step), false)).sum().backward();
    }
    // No rank used it: its gradient is left alone.
    EXPECT_FALSE(net->second->weight.grad().defined());
    EXPECT_FALSE(net->sometimes->weight.grad().defined());
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

TEST_P(FindUnusedParameters, GivesOutputsThatCanBeChangedInPlace) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(
        {.kwargs_handlers = {DistributedDataParallelKwargs{.find_unused_parameters = true}}});
    Net net;
    auto model = accelerator.prepare(net);
    const Tensor x = (torch::ones({2, 6}) + rank.index()).to(accelerator.device());
    const Tensor expected = torch::autograd::grad({std::get<1>(net->forward(x)).mul(3).sum()},
                                                  {net->second->weight})[0];
    auto [y, z] = model(x);
    z.mul_(3).unsqueeze_(0);
    z.sum().backward();
    rank.report("expected", expected);
    rank.report("gradient", net->second->weight.grad());
  });
  const Tensor expected = torch::stack(cluster.reports("expected")).mean(0);
  for (const Tensor& gradient : cluster.reports("gradient")) {
    EXPECT_TRUE(torch::allclose(gradient, expected, 1e-5, 1e-6));
  }
}

TEST_P(FindUnusedParameters, AveragesWhatSomeRanksUsed) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(
        {.kwargs_handlers = {DistributedDataParallelKwargs{.find_unused_parameters = true}}});
    Net net;
    auto model = accelerator.prepare(net);
    const Tensor x = torch::ones({1, 6}).to(accelerator.device());
    const Tensor y = std::get<0>(model(x, rank.index() == 0));
    y.sum().backward();
    rank.report("gradient", net->sometimes->bias.grad());
  });
  for (const Tensor& gradient : cluster.reports("gradient")) {
    EXPECT_TRUE(torch::allclose(gradient, torch::full({4}, 0.1 / world_size())));
  }
}

TEST_P(FindUnusedParameters, IsAdvisedWithTheNamesOfThoseMissing) {
  const std::string failure =
      failure_of(make_cluster(), [](Rank& rank) { train(rank, {.uses_all = false}); });
  EXPECT_THAT(failure, AllOf(HasSubstr("find_unused_parameters"), HasSubstr("sometimes.weight"),
                             HasSubstr("sometimes.bias")));
}

TOPOLOGY_SUITE(BroadcastBuffers, .min_ranks = 2, .hardware = Hardware::kNoTpu);

TEST_P(BroadcastBuffers, IsWhatTheOptionSays) {
  for (const bool broadcasts : {true, false}) {
    Cluster cluster = make_cluster();
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(
          {.kwargs_handlers = {DistributedDataParallelKwargs{.broadcast_buffers = broadcasts}}});
      torch::nn::BatchNorm1d norm(2);
      auto model = accelerator.prepare(norm);
      const Tensor x = torch::ones({4, 2}).to(accelerator.device());
      for (int step = 0; step < 2; ++step) model(x * (rank.index() + step)).sum().backward();
      model(x * 0);
      rank.report("mean", norm->running_mean);
    });
    const std::vector<Tensor> means = cluster.reports("mean");
    for (size_t rank = 1; rank < means.size(); ++rank) {
      EXPECT_EQ(torch::equal(means[0], means[rank]), broadcasts) << "rank " << rank;
    }
  }
}

// A buffer that autograd saves, and one that each training pass changes.
struct ScaledImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor y = norm(in(x)*scale);
    torch::NoGradGuard no_grad;
    count += 1;
    return y;
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(3, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  Tensor scale = register_buffer("scale", torch::tensor({1.0F, 2.0F, 3.0F, 4.0F}));
  Tensor count = register_buffer("count", torch::zeros({1}));
};
TORCH_MODULE(Scaled);

TOPOLOGY_SUITE(SeveralPasses, .min_ranks = 2, .hardware = Hardware::kNoTpu);

// The gradients of a step with two forward passes and one backward pass, as in a loss of pairs, are
// those that each rank's model would have by itself, averaged.
TEST_P(SeveralPasses, OfAModelWithBuffersTrainAsOneProcessWould) {
  for (const bool trains : {true, false}) {
    Cluster cluster = make_cluster();
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator;
      torch::manual_seed(4);
      Scaled net;
      net->train(trains);
      auto model = accelerator.prepare(net);
      Scaled alone;
      alone->to(accelerator.device());
      alone->train(trains);
      {
        torch::NoGradGuard no_grad;
        for (const auto& item : net->named_parameters()) {
          alone->named_parameters()[item.key()].copy_(item.value());
        }
      }
      const auto loss_of = [&](auto& each, int step) {
        const Tensor x = torch::sin(torch::arange(12.).reshape({4, 3}) * (1 + rank.index()) + step)
                             .to(accelerator.device());
        return each(x).pow(2).mean() - each(x * 0.3 + 0.1).pow(3).mean();
      };
      const auto gradients = [](ScaledImpl& of) {
        std::vector<Tensor> all;
        for (const Tensor& parameter : of.parameters())
          all.push_back(parameter.grad().reshape({-1}));
        return torch::cat(all).clone();
      };
      for (int step = 0; step < 2; ++step) {
        net->zero_grad();
        alone->zero_grad();
        accelerator.backward(loss_of(model, step));
        loss_of(alone, step).backward();
        rank.report(absl::StrCat("gradients ", step), gradients(*net));
        rank.report(absl::StrCat("alone ", step), gradients(*alone));
      }
      EXPECT_TRUE(net->count.is_same(net->buffers()[1])) << "the layer's own tensor";
      model(torch::ones({2, 3}).to(accelerator.device()));
      rank.report("mean", net->norm->running_mean);
      rank.report("count", net->count);
    });
    for (int step = 0; step < 2; ++step) {
      const Tensor expected = torch::stack(cluster.reports(absl::StrCat("alone ", step))).mean(0);
      for (const Tensor& gradient : cluster.reports(absl::StrCat("gradients ", step))) {
        EXPECT_TRUE(torch::allclose(gradient, expected, 1e-4, 1e-5)) << trains << " " << step;
      }
    }
    // Once the backward pass has come, they follow rank 0 again.
    for (const Tensor& mean : cluster.reports("mean")) {
      EXPECT_TRUE(torch::allclose(mean, cluster.reports("mean")[0], 1e-4, 1e-5));
    }
    for (const Tensor& count : cluster.reports("count")) EXPECT_EQ(count.item<float>(), 5);
  }
}

// Backward passes between other forward passes, one for each forward pass or two for one: gradients
// add up to those that each rank's model would have by itself, averaged.
TEST_P(SeveralPasses, WithSeveralBackwardPassesTrainAsOneProcessWould) {
  const std::vector<DistributedDataParallelKwargs> all = {
      {}, {.find_unused_parameters = true}, {.static_graph = true}};
  for (const DistributedDataParallelKwargs& options : all) {
    Cluster cluster = make_cluster();
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.kwargs_handlers = {options}});
      torch::manual_seed(4);
      Scaled net, alone;
      net->eval();
      auto model = accelerator.prepare(net);
      alone->to(accelerator.device());
      alone->eval();
      {
        torch::NoGradGuard no_grad;
        for (const auto& item : net->named_parameters()) {
          alone->named_parameters()[item.key()].copy_(item.value());
        }
      }
      const auto run = [&](auto& each, const auto& backward) {
        const auto output_of = [&](int number) {
          return each(torch::sin(torch::arange(12.).reshape({4, 3}) * (1 + rank.index()) + number)
                          .to(accelerator.device()));
        };
        const Tensor first = output_of(0), second = output_of(1);
        backward(first.pow(2).mean());
        const Tensor third = output_of(2);
        backward(second.pow(3).mean());
        backward(third.pow(2).mean());
        backward(third.cos().mean());
      };
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        alone->zero_grad();
        run(model, [&](const Tensor& loss) { accelerator.backward(loss, {.retain_graph = true}); });
        run(alone, [](const Tensor& loss) { loss.backward({}, /*retain_graph=*/true); });
        rank.report(absl::StrCat("gradients ", step), net->in->weight.grad().clone());
        rank.report(absl::StrCat("alone ", step), alone->in->weight.grad().clone());
      }
    });
    for (int step = 0; step < 3; ++step) {
      const Tensor expected = torch::stack(cluster.reports(absl::StrCat("alone ", step))).mean(0);
      for (const Tensor& gradient : cluster.reports(absl::StrCat("gradients ", step))) {
        EXPECT_TRUE(torch::allclose(gradient, expected, 1e-4, 1e-5))
            << step << " " << options.find_unused_parameters << options.static_graph;
      }
    }
  }
}

// The critic sees real and generated samples, and a penalty on its gradient; its own step and the
// generator's take turns.
TEST_P(SeveralPasses, OfTwoModelsAgainstEachOtherTrain) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    torch::manual_seed(4);
    torch::nn::Sequential generator(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
    Scaled critic;
    critic->eval();
    auto [make, judge] = accelerator.prepare(generator.ptr(), critic);
    torch::manual_seed(static_cast<uint64_t>(rank.index()));
    const auto random = [&](int64_t columns) {
      return torch::randn({4, columns}).to(accelerator.device());
    };
    for (int step = 0; step < 2; ++step) {
      const Tensor real = random(3);
      const Tensor fake = make(random(2));
      const Tensor between = (real * 0.5 + fake.detach() * 0.5).requires_grad_();
      const Tensor slope = torch::autograd::grad({judge(between).sum()}, {between}, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true)[0];
      accelerator.backward(judge(fake.detach()).mean() - judge(real).mean() +
                           slope.square().mean());
      rank.report(absl::StrCat("critic ", step), critic->in->weight.grad());
      critic->zero_grad();
      accelerator.backward(-judge(fake).mean());
      rank.report(absl::StrCat("generator ", step), generator->parameters()[0].grad());
      generator->zero_grad();
      critic->zero_grad();
    }
  });
  for (const char* name : {"critic 0", "critic 1", "generator 0", "generator 1"}) {
    const std::vector<Tensor> gradients = cluster.reports(name);
    for (const Tensor& gradient : gradients) {
      EXPECT_GT(gradient.abs().max().item<double>(), 0);
      EXPECT_TRUE(torch::allclose(gradient, gradients[0], 1e-5, 1e-6)) << name;
    }
  }
}

TOPOLOGY_SUITE(Options, .min_ranks = 2, .hardware = Hardware::kNoTpu);

TEST_P(Options, ThatContradictAreRefused) {
  auto refusal = [](const DistributedDataParallelKwargs& options, bool sparse = false) {
    return failure_of(make_cluster(), [&](Rank&) {
      Accelerator accelerator({.kwargs_handlers = {options}});
      torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(sparse));
      accelerator.prepare(table);
    });
  };
  EXPECT_EQ(refusal({.check_reduction = true}), "no error");
  EXPECT_THAT(refusal({.dim = 1}), HasSubstr("dim=1"));
  EXPECT_THAT(refusal({.bucket_cap_mb = 0}), HasSubstr("bucket_cap_mb"));
  EXPECT_THAT(refusal({.comm_hook = Hook::kFp16}, /*sparse=*/true),
              AllOf(HasSubstr("weight"), HasSubstr("sparse")));
  EXPECT_THAT(refusal({.comm_wrapper = Hook::kBatchedPowerSgd}), HasSubstr("comm_wrapper"));
  EXPECT_THAT(
      refusal({.comm_hook = Hook::kPowerSgd, .comm_state_option = {.start_powerSGD_iter = 1}}),
      HasSubstr("start_powerSGD_iter"));
}

// One shape: the messages name the ranks of four that differ.
TEST(Replicas, AreComparedByNameBeforeTheyAreOne) {
  auto failure = [](const std::function<torch::nn::Sequential(int)>& made) {
    return failure_of(Cluster("1x4"), [&](Rank& rank) {
      Accelerator accelerator;
      accelerator.prepare(made(rank.index()));
    });
  };
  using torch::nn::Linear;
  EXPECT_THAT(failure([](int rank) {
                return torch::nn::Sequential(Linear(2, 3), Linear(3, rank >= 2 ? 5 : 4));
              }),
              AllOf(HasSubstr("parameter \"1.weight\": Float [4, 3] on rank 0"),
                    HasSubstr("Float [5, 3] on rank 2"), HasSubstr("Float [5, 3] on rank 3")));
  EXPECT_THAT(failure([](int rank) {
                torch::nn::Sequential net(Linear(2, 3));
                if (rank == 1) net->to(torch::kDouble);
                return net;
              }),
              AllOf(HasSubstr("Float [3, 2] on rank 0"), HasSubstr("Double [3, 2] on rank 1")));
  EXPECT_THAT(
      failure([](int rank) {
        torch::nn::Sequential net(Linear(2, 3));
        if (rank == 3) net->push_back(Linear(3, 3));
        return net;
      }),
      AllOf(HasSubstr("nothing on rank 0"), HasSubstr("\"1.weight\""), HasSubstr("rank 3")));
  EXPECT_THAT(failure([](int rank) {
                Linear layer(2, 3);
                layer->weight.set_requires_grad(rank != 1);
                return torch::nn::Sequential(layer);
              }),
              HasSubstr("frozen parameter \"0.weight\""));
}

TOPOLOGY_SUITE(TriggerSync, .min_ranks = 2, .hardware = Hardware::kNoTpu);

TEST_P(TriggerSync, SynchronisesWhatWasNotPreparedFor) {
  for (const bool finds_unused : {false, true}) {
    Cluster cluster = make_cluster();
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.kwargs_handlers = {DistributedDataParallelKwargs{
                                   .find_unused_parameters = finds_unused}}});
      Net net;
      auto model = accelerator.prepare(net);
      auto loss = [&](int step) {
        auto [y, z] = model(input_of(accelerator, step), !finds_unused);
        return y.square().mean() + z.sum();
      };
      {
        auto scope = accelerator.no_sync(model);
        const Tensor earlier = loss(0);
        const Tensor last = loss(1);
        earlier.backward();
        rank.report("before", net->first->weight.grad().clone());
        accelerator.trigger_sync_in_backward(model);
        last.backward();
        rank.report("after", net->first->weight.grad().clone());
        // The scope goes on.
        net->zero_grad();
        loss(2).backward();
        rank.report("still", net->first->weight.grad().clone());
      }
      net->zero_grad();
      loss(3).backward();
      rank.report("later", net->first->weight.grad().clone());
    });
    EXPECT_FALSE(all_equal(cluster.reports("before")));
    EXPECT_TRUE(all_equal(cluster.reports("after")));
    EXPECT_FALSE(all_equal(cluster.reports("still")));
    EXPECT_TRUE(all_equal(cluster.reports("later")));
  }
}

TEST_P(TriggerSync, NeedsAFirstPassWithStaticGraph) {
  const std::string failure = failure_of(make_cluster(), [](Rank&) {
    Accelerator accelerator(
        {.kwargs_handlers = {DistributedDataParallelKwargs{.static_graph = true}}});
    auto model = accelerator.prepare(Net());
    accelerator.trigger_sync_in_backward(model);
  });
  EXPECT_THAT(failure, AllOf(HasSubstr("trigger_sync_in_backward"), HasSubstr("static_graph")));
}

// Keeps what is logged.
class Lines : public absl::LogSink {
 public:
  void Send(const absl::LogEntry& entry) override { lines.emplace_back(entry.text_message()); }
  std::vector<std::string> lines;
};

TOPOLOGY_SUITE(PowerSgd, .min_ranks = 2, .hardware = Hardware::kNoTpu);

TEST_P(PowerSgd, LogsWhatItSavedOnRankZero) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(
        {.kwargs_handlers = {DistributedDataParallelKwargs{
             .comm_hook = Hook::kPowerSgd,
             .comm_state_option = {.start_powerSGD_iter = 2,
                                   .compression_stats_logging_frequency = 3}}}});
    auto lines = std::make_shared<Lines>();
    add_log_sink(lines);
    get_logger("accelerate.parallel", "info");
    torch::nn::Linear net(torch::nn::LinearOptions(20, 20).bias(false));
    auto model = accelerator.prepare(net);
    const Tensor x = torch::ones({1, 20}).to(accelerator.device());
    for (int step = 0; step < 6; ++step) model(x).sum().backward();
    if (rank.index() != 0) {
      EXPECT_TRUE(lines->lines.empty());
      return;
    }
    EXPECT_THAT(
        lines->lines,
        ElementsAre(AllOf(HasSubstr("after 3 passes"), HasSubstr("1200"), HasSubstr("840")),
                    AllOf(HasSubstr("after 6 passes"), HasSubstr("1200"), HasSubstr("120"))));
  });
}

}  // namespace
}  // namespace accelerate
