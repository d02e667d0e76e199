// Single layers that ranks along tp divide, on clusters of the shape that the mesh needs: what they
// compute is what a whole layer does, and what cannot be computed of parts is an error.
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using enum TensorStyle;
using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kWidth = 8;

// Layers by name, and what a forward pass makes of them.
class LayersImpl : public torch::nn::Module {
 public:
  using Forward = std::function<Tensor(LayersImpl&, const Tensor&)>;

  explicit LayersImpl(Forward forward) : forward_(std::move(forward)) {
    torch::manual_seed(7);
    up = register_module("up", torch::nn::Linear(kWidth, 16));
    gate = register_module("gate", torch::nn::Linear(kWidth, 16));
    gate_up = register_module("gate_up", torch::nn::Linear(kWidth, 32));
    down = register_module("down", torch::nn::Linear(16, kWidth));
    head = register_module("head", torch::nn::Linear(kWidth, 12));
    tokens =
        register_module("tokens", torch::nn::Embedding(torch::nn::EmbeddingOptions(12, kWidth)));
    scale = register_parameter("scale", torch::rand({4}));
  }

  Tensor forward(const Tensor& input) { return forward_(*this, input); }

  torch::nn::Linear up{nullptr}, gate{nullptr}, gate_up{nullptr}, down{nullptr}, head{nullptr};
  torch::nn::Embedding tokens{nullptr};
  Tensor scale;

 private:
  const Forward forward_;
};

TensorParallelPlan plan_of_layers() {
  return {{.pattern = "up", .style = kColumn},
          {.pattern = "gate", .style = kColumn},
          {.pattern = "gate_up", .style = kColumn, .blocks = {1, 1}},
          {.pattern = "down", .style = kRow},
          {.pattern = "head", .style = kColumn, .gather_output = true},
          {.pattern = "tokens", .style = kEmbedding},
          {.pattern = "scale", .partial_gradient = true}};
}

Tensor numbers(int64_t rows = 6) {
  return torch::arange(rows * 4 * kWidth, torch::kFloat).sin().view({rows, 4, kWidth});
}

// The output, the gradient of the input and those of parameters, which are whole or parts.
struct Outcome {
  Tensor output, of_input;
  std::map<std::string, Tensor> gradients;  // by parameter
};

Outcome pass(LayersImpl& module, const std::function<Tensor(const Tensor&)>& model,
             const std::function<void(const Tensor&)>& backward, Tensor input) {
  const bool is_floating = input.is_floating_point();
  if (is_floating) input.requires_grad_();
  Outcome outcome;
  outcome.output = model(input);
  const Tensor weights = torch::arange(outcome.output.numel(), outcome.output.options());
  backward((outcome.output * weights.cos().view(outcome.output.sizes())).sum());
  if (is_floating) outcome.of_input = input.grad();
  for (const auto& item : module.named_parameters()) {
    if (item.value().grad().defined()) {
      outcome.gradients.emplace(item.key(), item.value().grad().cpu());
    }
  }
  return outcome;
}

AcceleratorOptions options_of(int64_t tp, TensorParallelPlan plan) {
  return {.parallelism_config = ParallelismConfig({.tp_size = tp}),
          .kwargs_handlers = {std::move(plan)}};
}

// This rank's part of a whole gradient: of the dim along which it is smaller, of each of `blocks`.
Tensor part_of(const Tensor& whole, const Tensor& part, int64_t rank, int64_t blocks) {
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    if (whole.size(dim) == part.size(dim)) continue;
    std::vector<Tensor> parts;
    for (const Tensor& block : whole.chunk(blocks, dim)) {
      const int64_t own = part.size(dim) / blocks;
      parts.push_back(block.narrow(dim, rank * own, own));
    }
    return torch::cat(parts, dim);
  }
  return whole;
}

// Compares outputs and gradients on ranks along tp with those of one process.
void expect_as_whole(const LayersImpl::Forward& forward, const Tensor& input = numbers(),
                     const TensorParallelPlan& plan = plan_of_layers()) {
  LayersImpl whole(forward);
  const Outcome expected = pass(
      whole, [&](const Tensor& x) { return whole.forward(x); },
      [](const Tensor& loss) { loss.backward(); }, input.clone());
  for (const int64_t tp : {2, 4}) {
    Cluster(absl::StrCat("1x", tp, ":h100")).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options_of(tp, plan));
      const auto module = std::make_shared<LayersImpl>(forward);
      auto model = accelerator.prepare(module);
      const Outcome outcome = pass(
          *module, [&](const Tensor& x) { return model(x); },
          [&](const Tensor& loss) { accelerator.backward(loss); },
          input.detach().clone().to(accelerator.device()));
      EXPECT_TRUE(torch::allclose(outcome.output.cpu(), expected.output, 1e-5, 1e-6)) << tp;
      if (expected.of_input.defined()) {
        EXPECT_TRUE(torch::allclose(outcome.of_input.cpu(), expected.of_input, 1e-5, 1e-6)) << tp;
      }
      EXPECT_GE(outcome.gradients.size(), expected.gradients.size());
      for (const auto& [name, gradient] : outcome.gradients) {
        const auto whole = expected.gradients.find(name);
        if (whole == expected.gradients.end()) {
          EXPECT_EQ(gradient.abs().sum().item<double>(), 0) << name;
          continue;
        }
        const int64_t blocks = name.starts_with("gate_up") ? 2 : 1;
        EXPECT_TRUE(torch::allclose(
            gradient, part_of(whole->second, gradient, rank.index(), blocks), 1e-5, 1e-6))
            << name << " on rank " << rank.index() << " of " << tp;
      }
    });
  }
}

TEST(DividedLayers, ComputeWhatWholeOnesDo) {
  expect_as_whole([](LayersImpl& m, const Tensor& x) {
    return m.down(torch::silu(m.gate(x)) * m.up(x)) + m.down(m.up(x).relu());
  });
}

// In two dims torch::nn::Linear adds its bias within the product, in three apart.
TEST(DividedLayers, AddTheBiasOfARowOnce) {
  for (const int dims : {2, 3}) {
    expect_as_whole([dims](LayersImpl& m, const Tensor& x) {
      return m.down(m.up(dims == 2 ? x.flatten(0, 1) : x));
    });
    expect_as_whole(
        [dims](LayersImpl& m, const Tensor& x) { return m.head(dims == 2 ? x.flatten(0, 1) : x); });
  }
}

TEST(DividedLayers, CutFusedWeightsInBlocks) {
  expect_as_whole([](LayersImpl& m, const Tensor& x) {
    const std::vector<Tensor> halves = m.gate_up(x).chunk(2, -1);
    return m.down(halves[0].sigmoid() * halves[1]);
  });
}

// A head in the words of a function, and one that is tied to the table.
TEST(DividedLayers, GatherWhatTheyAreToldTo) {
  expect_as_whole([](LayersImpl& m, const Tensor& x) {
    return torch::linear(x, m.tokens->weight) + x.matmul(m.head->weight.t());
  });
}

TEST(DividedLayers, LookUpWordsOfAllRanks) {
  const Tensor words = torch::tensor({{0, 11, 5, 6}, {3, 3, 9, 1}});
  const auto forward = [](LayersImpl& m, const Tensor& x) {
    return torch::linear(m.tokens(x), m.tokens->weight);
  };
  expect_as_whole(forward, words);
  // A word that no rank has is an error as it is in one process.
  for (const int64_t beyond : {12, -1}) {
    EXPECT_THROW(Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
      Accelerator accelerator(options_of(2, plan_of_layers()));
      auto model = accelerator.prepare(std::make_shared<LayersImpl>(forward));
      model(torch::full({1, 2}, beyond, torch::kLong).to(accelerator.device()));
    }),
                 std::exception)
        << beyond;
  }
}

// The norm of each head has one weight, whose gradient ranks sum.
TEST(DividedLayers, SumTheGradientsOfWhatHeadsShare) {
  expect_as_whole([](LayersImpl& m, const Tensor& x) {
    const Tensor heads = m.up(x).unflatten(-1, {-1, 4});
    return m.down(torch::rms_norm(heads, {4}, m.scale, 1e-5).flatten(-2, -1));
  });
}

// ---- What parts do not allow.

std::string error_in(const LayersImpl::Forward& forward, TensorParallelPlan plan = plan_of_layers(),
                     const char* cluster = "1x2:h100") {
  std::string error;
  Cluster(cluster).run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(options_of(2, plan));
    const auto module = std::make_shared<LayersImpl>(forward);
    const std::string own = value_error_of([&] {
      auto model = accelerator.prepare(module);
      model(numbers().to(accelerator.device()));
    });
    if (rank.index() == 1) error = own;
  });
  return error;
}

TEST(DividedLayers, RefuseOperatorsThatTheyDoNotKnow) {
  EXPECT_THAT(
      error_in([](LayersImpl& m, const Tensor& x) { return x.mm(m.up->weight.t()); }),
      HasSubstr(
          "rank 1: aten::mm uses \"up.weight\", of which each rank along tp has 8 of 16 rows"));
  EXPECT_THAT(error_in([](LayersImpl& m, const Tensor& x) { return x + m.down->weight.sum(); }),
              HasSubstr("aten::sum uses \"down.weight\", of which each rank along tp has 8 of 16 "
                        "columns"));
}

TEST(DividedLayers, RefuseNormsAndSumsOverFeatures) {
  const auto says = AllOf(HasSubstr("dim -1 of features, of which each rank along tp has 8 of 16"),
                          HasSubstr("made with \"up.weight\""));
  EXPECT_THAT(error_in([](LayersImpl& m, const Tensor& x) {
                return torch::layer_norm(m.up(x), {m.up(x).size(-1)});
              }),
              AllOf(HasSubstr("rank 1: aten::layer_norm normalises"), says));
  EXPECT_THAT(error_in([](LayersImpl& m, const Tensor& x) {
                const Tensor features = m.up(x);
                return features * features.square().mean(-1, true).rsqrt();
              }),
              AllOf(HasSubstr("aten::mean goes along all of"), says));
  EXPECT_THAT(error_in([](LayersImpl& m, const Tensor& x) { return m.up(x).softmax(-1); }),
              AllOf(HasSubstr("aten::softmax goes along all of"), says));
  EXPECT_EQ(error_in([](LayersImpl& m, const Tensor& x) { return m.down(m.up(x).softmax(-2)); }),
            "no error");
}

TEST(DividedLayers, RefuseALossOfFeaturesByHand) {
  EXPECT_THAT(error_in([](LayersImpl& m, const Tensor& x) {
                const Tensor logits = m.up(x).flatten(0, 1);
                return torch::cross_entropy_loss(
                    logits, torch::zeros({logits.size(0)}, logits.options().dtype(torch::kLong)));
              }),
              AllOf(HasSubstr("aten::cross_entropy_loss needs all of"),
                    HasSubstr("a loss parallel_cross_entropy")));
}

TEST(DividedLayers, RefuseViewsWithLengthsOfTheWhole) {
  const auto says =
      AllOf(HasSubstr("each rank along tp has 8 of 16"), HasSubstr("write -1 for it"));
  // LibTorch refuses the first, and takes the second for another number of tokens.
  EXPECT_THAT(error_in([](LayersImpl& m, const Tensor& x) {
                return m.up(x).view({x.size(0), x.size(1), 4, 4});
              }),
              AllOf(HasSubstr("aten::view does not fit"), HasSubstr("4, 4"), says));
  EXPECT_THAT(
      error_in([](LayersImpl& m, const Tensor& x) { return m.up(x).view({x.size(0), -1, 4, 4}); }),
      AllOf(HasSubstr("aten::view gives other lengths than the whole's to"), says));
}

TEST(DividedLayers, RefuseInputsThatDoNotFit) {
  EXPECT_THAT(
      error_in([](LayersImpl& m, const Tensor& x) { return m.down(torch::cat({x, x}, -1)); }),
      HasSubstr("row layer \"down.weight\" gets 16 features, but this rank has its weight "
                "for 8 of 16; put it behind a column layer, or let its rule split"));
  EXPECT_THAT(error_in([](LayersImpl& m, const Tensor& x) { return m.gate(m.up(x)); }),
              HasSubstr("column layer \"gate.weight\" gets dim -1 of features"));
  TensorParallelPlan splits = plan_of_layers();
  splits.rules[3].split_input = true;
  EXPECT_EQ(error_in([](LayersImpl& m, const Tensor& x) { return m.down(torch::cat({x, x}, -1)); },
                     splits),
            "no error");
}

TEST(DividedLayers, RefuseSharedParametersWhoseGradientsNothingSums) {
  TensorParallelPlan plan = plan_of_layers();
  plan.rules.pop_back();
  EXPECT_THAT(error_in(
                  [](LayersImpl& m, const Tensor& x) {
                    return m.down((m.up(x).unflatten(-1, {-1, 4}) * m.scale).flatten(-2, -1));
                  },
                  plan),
              AllOf(HasSubstr("aten::mul uses \"scale\", which all ranks have"),
                    HasSubstr("a rule with partial_gradient")));
}

TEST(DividedLayers, RefuseOptimizersThatHaveStepped) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(options_of(2, plan_of_layers()));
    const auto module = std::make_shared<LayersImpl>(
        [](LayersImpl& m, const Tensor& x) { return m.down(m.up(x)); });
    const std::shared_ptr<torch::optim::Optimizer> adam =
        std::make_shared<torch::optim::AdamW>(module->parameters(), 0.1);
    module->forward(numbers()).sum().backward();
    adam->step();
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(module, adam); }),
                HasSubstr("the optimizer has state for parameter"));
  });
}

// ---- Sequence shards.

TensorParallelPlan plan_with_shards(bool names_scale) {
  TensorParallelPlan plan = plan_of_layers();
  plan.sequence_parallel = true;
  plan.rules.back() = {.pattern = "scale", .sequence = names_scale};
  return plan;
}

// Half a norm: some features by a weight that all ranks have.
Tensor scaled(LayersImpl& m, const Tensor& x) {
  return torch::cat({x.narrow(-1, 0, 4) * m.scale, x.narrow(-1, 4, 4)}, -1);
}

TEST(SequenceShards, ComputeWhatWholeSequencesDo) {
  expect_as_whole(
      [](LayersImpl& m, const Tensor& x) {
        Tensor part = shard_sequence(x);
        part = part + m.down(m.up(scaled(m, part)) * m.gate(part));
        return m.head(scaled(m, part));
      },
      numbers(), plan_with_shards(/*names_scale=*/true));
}

TEST(SequenceShards, RefuseParametersWhoseGradientsNothingSums) {
  const auto forward = [](LayersImpl& m, const Tensor& x) {
    return m.head(scaled(m, shard_sequence(x)));
  };
  EXPECT_THAT(error_in(forward, plan_with_shards(/*names_scale=*/false)),
              AllOf(HasSubstr("aten::mul uses \"scale\", which all ranks have, with dim -2 of "
                              "sequences, of which each rank along tp has 2 of 4"),
                    HasSubstr("or sequence, lets ranks sum the parts")));
  // And the sums of what is whole.
  EXPECT_THAT(error_in([](LayersImpl& m, const Tensor& x) { return m.head(scaled(m, x)); },
                       plan_with_shards(/*names_scale=*/true)),
              AllOf(HasSubstr("aten::mul uses \"scale\" with a tensor that all ranks"),
                    HasSubstr("call shard_sequence before")));
}

TEST(SequenceShards, RefuseLengthsThatRanksDoNotDivide) {
  EXPECT_THAT(error_in([](LayersImpl& m,
                          const Tensor& x) { return m.head(shard_sequence(x.narrow(1, 0, 3))); },
                       plan_with_shards(/*names_scale=*/true)),
              AllOf(HasSubstr("rank 1: sequences of 3 tokens, which the 2 ranks along tp"),
                    HasSubstr("pad them to 4")));
}

TEST(SequenceShards, AreWholeWithoutAPlanForThem) {
  expect_as_whole([](LayersImpl& m, const Tensor& x) { return m.head(shard_sequence(x)); });
  EXPECT_EQ(shard_sequence(numbers()).sizes(), numbers().sizes());
}

// ---- Random numbers.

// What heads lose differs among ranks, and what all have alike does not.
TEST(DividedLayers, DropFeaturesOfTheirOwn) {
  Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(options_of(2, plan_of_layers()));
    const auto module = std::make_shared<LayersImpl>([&](LayersImpl& m, const Tensor& x) {
      const Tensor features = torch::ones_like(m.up(x));
      rank.report("of features", torch::dropout(features * m.up(x), 0.5, true).eq(0).cpu());
      const Tensor whole = torch::dropout(torch::ones_like(x), 0.5, true);
      rank.report("of all", whole.eq(0).cpu());
      return whole;
    });
    auto model = accelerator.prepare(module);
    torch::manual_seed(11);
    model(numbers().to(accelerator.device()));
  });
  const std::vector<Tensor> own = cluster.reports("of features"), all = cluster.reports("of all");
  EXPECT_FALSE(torch::equal(own[0], own[1]));
  EXPECT_TRUE(torch::equal(all[0], all[1]));
  EXPECT_GT(all[0].sum().item<int64_t>(), 0);
}

}  // namespace
}  // namespace accelerate
