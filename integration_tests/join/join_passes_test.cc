// Inside a join scope passes come in whatever order the training ranks agree on, and evaluation is
// a rank's own affair.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/parallel/replicated/ddp.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using torch::Tensor;

constexpr int kRounds = 4;

// Rank 0 has nothing, the last rank has most.
int count_of(const Rank& rank, int ranks) { return rank.index() * kRounds / (ranks - 1); }

Tensor input_of(int rank, int number) {
  return torch::arange(8, torch::kFloat).reshape({2, 4}) / 8 + rank + 0.5 * number;
}

Tensor flat(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return torch::cat(parts).cpu();
}

struct PairImpl : torch::nn::Module {
  PairImpl()
      : first(register_module("first", torch::nn::Linear(4, 4))),
        second(register_module("second", torch::nn::Linear(4, 4))) {}
  torch::nn::Linear first, second;
};
TORCH_MODULE(Pair);

// One round of training on two models, by name.
enum class Round {
  kAlternate,      // each has its own loss
  kOtherOrder,     // the second one first
  kChained,        // the first feeds the second, and one backward pass goes through both
  kTwoForwards,    // one backward pass through two forward passes of a model
  kNoBackward,     // a forward pass that is never differentiated
  kSometimesBoth,  // the second one trains in every other round only
};

template <typename First, typename Second>
void run_round(Round round, First& first, Second& second, const Tensor& x, int number) {
  auto loss = [](const Tensor& output) { return output.square().mean(); };
  switch (round) {
    case Round::kAlternate:
      loss(first(x)).backward();
      loss(second(x)).backward();
      break;
    case Round::kOtherOrder:
      loss(second(x)).backward();
      loss(first(x)).backward();
      break;
    case Round::kChained: loss(second(torch::tanh(first(x)))).backward(); break;
    case Round::kTwoForwards: {
      const Tensor once = first(x);
      (loss(once) + loss(first(-x))).backward();
      break;
    }
    case Round::kNoBackward:
      first(x);
      loss(second(x)).backward();
      break;
    case Round::kSometimesBoth:
      loss(first(x)).backward();
      if (number % 2 == 1) loss(second(x)).backward();
      break;
  }
}

class Passes : public ::testing::TestWithParam<Round> {};

TEST_P(Passes, AreFollowedInTheOrderOfThoseThatTrain) {
  const Round round = GetParam();
  for (const std::string& spec : simulator::topologies({.also = {"1x3", "2x4", "1x3:h100"},
                                                        .min_ranks = 2,
                                                        .hardware = simulator::Hardware::kNoTpu})) {
    Cluster cluster(spec, {.seed = simulator::seed_of_run(11)});
    const int ranks = cluster.world_size();
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator;
      torch::manual_seed(3);
      Pair pair;
      torch::optim::SGD sgd(pair->parameters(), 0.01);
      auto [first, second] = accelerator.prepare(pair->first, pair->second);
      {
        JoinScope join({find_technique<DistributedDataParallel>(first),
                        find_technique<DistributedDataParallel>(second)},
                       true);
        for (int number = 0; number < count_of(rank, ranks); ++number) {
          const Tensor x = input_of(rank.index(), number).to(accelerator.device());
          run_round(round, first, second, x, number);
          sgd.step();
          sgd.zero_grad();
        }
      }
      rank.report("parameters", flat(pair->parameters()));
    });
    torch::manual_seed(3);
    Pair pair;
    torch::optim::SGD sgd(pair->parameters(), 0.01);
    for (int number = 0; number < kRounds; ++number) {
      for (int rank = 0; rank < ranks; ++rank) {
        if (number >= rank * kRounds / (ranks - 1)) continue;
        run_round(round, pair->first, pair->second, input_of(rank, number), number);
      }
      for (const Tensor& parameter : pair->parameters()) {
        if (parameter.grad().defined()) parameter.grad().div_(ranks);
      }
      sgd.step();
      sgd.zero_grad();
    }
    for (const Tensor& parameters : cluster.reports("parameters")) {
      EXPECT_TRUE(parameters.equal(cluster.reports("parameters")[0])) << spec;
    }
    EXPECT_TRUE(
        torch::allclose(cluster.reports("parameters")[0], flat(pair->parameters()), 1e-5, 1e-6))
        << spec;
  }
}

std::string name_of(const ::testing::TestParamInfo<Round>& info) {
  switch (info.param) {
    case Round::kAlternate: return "alternate";
    case Round::kOtherOrder: return "other_order";
    case Round::kChained: return "chained";
    case Round::kTwoForwards: return "two_forwards";
    case Round::kNoBackward: return "no_backward";
    case Round::kSometimesBoth: return "sometimes_both";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Join, Passes,
                         ::testing::Values(Round::kAlternate, Round::kOtherOrder, Round::kChained,
                                           Round::kTwoForwards, Round::kNoBackward,
                                           Round::kSometimesBoth),
                         name_of);

// One shape each, from here on: every one of three ranks has a part of its own.
TEST(Join, EvaluationInsideIsLocal) {
  Cluster cluster("1x3");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
    auto model = accelerator.prepare(net);
    auto evaluate = [&](int times) {
      torch::NoGradGuard no_grad;
      net->eval();
      for (int i = 0; i < times; ++i) model(input_of(rank.index(), i));
      net->train();
    };
    {
      JoinScope join({find_technique<DistributedDataParallel>(model)}, true);
      for (int number = 0; number < count_of(rank, 3); ++number) {
        model(input_of(rank.index(), number)).mean().backward();
        // Each rank as often as it likes, between passes and when others have ended.
        evaluate(rank.index() + number % 2);
      }
      evaluate(1);
    }
    rank.report("buffers", flat({net->buffers()[0], net->buffers()[1]}));
    model(input_of(rank.index(), 0)).mean().backward();
  });
  EXPECT_TRUE(cluster.reports("buffers")[0].equal(cluster.reports("buffers")[2]));
  EXPECT_TRUE(cluster.reports("buffers")[1].equal(cluster.reports("buffers")[2]));
}

// Buckets are rebuilt once, after the first backward pass, although rank 0, whose order counts, has
// no data; a rank that has none at all has the same ones afterwards.
TEST(Join, SeveralBucketsAreRebuiltTogether) {
  Cluster cluster("1x3", {.record = true});
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.kwargs_handlers = {DistributedDataParallelKwargs{
                                 .broadcast_buffers = false, .bucket_cap_mb = 1e-4}}});
    torch::nn::Sequential net(torch::nn::Linear(4, 520), torch::nn::Linear(520, 520),
                              torch::nn::Linear(520, 8), torch::nn::Linear(8, 1));
    auto model = accelerator.prepare(net);
    for (int epoch = 0; epoch < 2; ++epoch) {
      JoinScope join({find_technique<DistributedDataParallel>(model)}, true);
      for (int number = 0; number < count_of(rank, 3); ++number) {
        model(input_of(rank.index(), number)).mean().backward();
      }
    }
    // Without joining, and one rank alone would not rebuild.
    model(input_of(rank.index(), 0)).mean().backward();
  });
  // Rank 2 trains four times in each scope, which counts, and all once more.
  const std::string original = "68 16640 2080 1092000 ";
  const std::string rebuilt = "1100388 2080 8320 ";
  std::string expected = original;
  for (int pass = 1; pass < 9; ++pass) expected += rebuilt;
  const simulator::Trace& trace = cluster.trace();
  std::string bytes;
  for (const simulator::TraceOperation& operation : trace.operations) {
    if (trace.names[operation.name] == "all_reduce") bytes += std::to_string(operation.bytes) + " ";
  }
  EXPECT_EQ(bytes, expected);
}

// ---- The simulator's look-out for drifting replicas.

TEST(Join, DriftAmongThoseThatStillTrainIsFound) {
  auto run = [](int guilty) {
    Cluster cluster("1x3");
    cluster.run_on_every_rank([guilty](Rank& rank) {
      Accelerator accelerator;
      torch::nn::Linear line(4, 1);
      auto model = accelerator.prepare(line);
      for (int epoch = 0; epoch < 2; ++epoch) {
        JoinScope join({find_technique<DistributedDataParallel>(model)}, true);
        const int count = std::vector<int>{4, 2, 4}[rank.index()];
        for (int number = 0; number < count; ++number) {
          if (epoch == 1 && number == 3 && rank.index() == guilty) {
            torch::NoGradGuard no_grad;
            line->weight.add_(1);
          }
          model(input_of(rank.index(), number)).mean().backward();
        }
      }
    });
  };
  run(/*guilty=*/-1);
  run(/*guilty=*/1);  // It has ended by then, and does nothing.
  try {
    run(/*guilty=*/2);
    FAIL() << "nobody noticed";
  } catch (const ClusterError& error) {
    EXPECT_NE(std::string(error.what()).find("diverged: \"weight\""), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("without ranks 1"), std::string::npos) << error.what();
  }
}

TEST(Join, DriftAfterTheScopeIsFound) {
  Cluster cluster("1x3");
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      Accelerator accelerator;
      torch::nn::Linear line(4, 1);
      auto model = accelerator.prepare(line);
      {
        JoinScope join({find_technique<DistributedDataParallel>(model)}, true);
        for (int number = 0; number < count_of(rank, 3); ++number) {
          model(input_of(rank.index(), number)).mean().backward();
        }
      }
      model(input_of(rank.index(), 0)).mean().backward();
      if (rank.index() == 0) {
        torch::NoGradGuard no_grad;
        line->weight.add_(1);
      }
      model(input_of(rank.index(), 0)).mean().backward();
    });
    FAIL() << "nobody noticed";
  } catch (const ClusterError& error) {
    EXPECT_NE(std::string(error.what()).find("diverged: \"weight\""), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace accelerate
