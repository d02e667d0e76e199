// Layers that ranks along tp divide, and operators between them, on clusters of the shape that the
// mesh needs: outputs and gradients are those of whole layers. bad_input_test.cc and marks_test.cc
// have what is refused.
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/runtime/runtime.h"
#include "integration_tests/tensor/small_layers.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using enum TensorStyle;
using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;
using torch::indexing::Slice;

// With a fused weight and a table of words besides.
TensorParallelPlan plan_of_layers(bool sequence_shards = false) {
  TensorParallelPlan plan = SmallLayersImpl::plan(sequence_shards);
  plan.rules.push_back({.pattern = "gate_up", .style = kColumn, .blocks = {1, 1}});
  plan.rules.push_back({.pattern = "tokens", .style = kEmbedding});
  return plan;
}

// The output, the gradient of the input and those of parameters, which are whole or parts.
struct Outcome {
  Tensor output, of_input;
  std::map<std::string, Tensor> gradients;  // by parameter
};

Outcome pass(SmallLayersImpl& module, const std::function<Tensor(const Tensor&)>& model,
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
void expect_as_whole(const SmallLayersImpl::Forward& forward, const Tensor& input = small_inputs(),
                     const TensorParallelPlan& plan = plan_of_layers(),
                     const std::vector<int64_t>& ranks = {2, 4}) {
  SmallLayersImpl whole(forward);
  const Outcome expected = pass(
      whole, [&](const Tensor& x) { return whole.forward(x); },
      [](const Tensor& loss) { loss.backward(); }, input.clone());
  for (const int64_t tp : ranks) {
    Cluster(absl::StrCat("1x", tp, ":h100")).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(with_tp(tp, plan));
      const auto module = std::make_shared<SmallLayersImpl>(forward);
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
        int64_t blocks = 1;
        for (const TensorRule& rule : plan.rules) {
          if (name.starts_with(rule.pattern) && !rule.blocks.empty()) blocks = 2;
        }
        EXPECT_TRUE(torch::allclose(
            gradient, part_of(whole->second, gradient, rank.index(), blocks), 1e-5, 1e-6))
            << name << " on rank " << rank.index() << " of " << tp;
      }
    });
  }
}

TEST(DividedLayers, ComputeWhatWholeOnesDo) {
  expect_as_whole([](SmallLayersImpl& m, const Tensor& x) {
    return m.project(torch::silu(m.key(x)) * m.query(x)) + m.project(m.query(x).relu());
  });
}

// In two dims torch::nn::Linear adds its bias within the product, in three apart.
TEST(DividedLayers, AddTheBiasOfARowOnce) {
  for (const int dims : {2, 3}) {
    expect_as_whole([dims](SmallLayersImpl& m, const Tensor& x) {
      return m.project(m.query(dims == 2 ? x.flatten(0, 1) : x));
    });
    expect_as_whole([dims](SmallLayersImpl& m, const Tensor& x) {
      return m.head(dims == 2 ? x.flatten(0, 1) : x);
    });
  }
}

TEST(DividedLayers, CutFusedWeightsInBlocks) {
  expect_as_whole([](SmallLayersImpl& m, const Tensor& x) {
    const std::vector<Tensor> halves = m.gate_up(x).chunk(2, -1);
    return m.project(halves[0].sigmoid() * halves[1]);
  });
}

// The row's weight has a block for each of two layers' features.
TEST(DividedLayers, AddUpFeaturesOfSeveralLayersInBlocks) {
  TensorParallelPlan plan = plan_of_layers();
  plan.rules[3].blocks = {1, 1};
  expect_as_whole(
      [](SmallLayersImpl& m, const Tensor& x) {
        const auto pairs = [](const Tensor& features) {
          return features.unflatten(-1, {-1, 2}).sum(-1);
        };
        return m.project(torch::cat({pairs(m.query(x)), pairs(m.key(x))}, -1));
      },
      small_inputs(), plan);
}

// A head in the words of a function, and one that is tied to the table.
TEST(DividedLayers, GatherWhatTheyAreToldTo) {
  expect_as_whole([](SmallLayersImpl& m, const Tensor& x) {
    return torch::linear(x, m.tokens->weight) + x.matmul(m.head->weight.t());
  });
}

TEST(DividedLayers, LookUpWordsOfAllRanks) {
  const Tensor words = torch::tensor({{0, 11, 5, 6}, {3, 3, 9, 1}});
  const auto forward = [](SmallLayersImpl& m, const Tensor& x) {
    return torch::linear(m.tokens(x), m.tokens->weight);
  };
  expect_as_whole(forward, words);
  // A word that no rank has is an error as it is in one process.
  for (const int64_t beyond : {12, -1}) {
    EXPECT_THROW(Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
      Accelerator accelerator(with_tp(2, plan_of_layers()));
      auto model = accelerator.prepare(std::make_shared<SmallLayersImpl>(forward));
      model(torch::full({1, 2}, beyond, torch::kLong).to(accelerator.device()));
    }),
                 std::exception)
        << beyond;
  }
}

// The rank that has the word finds it at another place, and the others have words there.
TEST(DividedLayers, GiveAPaddingWordNoGradient) {
  const Tensor words = torch::tensor({{0, 7, 5, 1}, {3, 7, 9, 8}});
  for (const int64_t padding : {1, 7, 11}) {
    expect_as_whole(
        [padding](SmallLayersImpl& m, const Tensor& x) {
          return torch::embedding(m.tokens->weight, x, padding);
        },
        words);
  }
}

// The gradient of what a later layer gets goes through the change. (An earlier layer whose weight
// is trained would need the input as it was.)
TEST(DividedLayers, TakeAnInputThatHasChangedInPlace) {
  expect_as_whole([](SmallLayersImpl& m, const Tensor& x) {
    m.query->weight.set_requires_grad(false);
    const Tensor input = m.norm(x);
    const Tensor before = m.query(input);
    input.mul_(2);
    return m.project(before.sin() * m.key(input));
  });
}

// The norm of each head has one weight, whose gradient ranks sum.
TEST(DividedLayers, SumTheGradientsOfWhatHeadsShare) {
  TensorParallelPlan plan = plan_of_layers();
  plan.rules.insert(plan.rules.begin(), {.pattern = "scale", .partial_gradient = true});
  const auto composed = [](SmallLayersImpl& m, const Tensor& x) {
    const Tensor heads = m.query(x).unflatten(-1, {-1, 4});
    return m.project(torch::rms_norm(heads, {4}, m.scale, 1e-5).flatten(-2, -1));
  };
  expect_as_whole(composed, small_inputs(), plan);
  const auto own = [](SmallLayersImpl& m, const Tensor& x) {
    const Tensor heads = m.query(x).unflatten(-1, {-1, 4});
    return m.project(accelerate::rms_norm(heads, {4}, m.scale, 1e-5).flatten(-2, -1));
  };
  expect_as_whole(own, small_inputs(), plan);
}

// The input of a row layer is whole where its rule says so.
TEST(DividedLayers, SplitInputsThatAreWhole) {
  TensorParallelPlan plan = plan_of_layers();
  plan.rules.insert(plan.rules.begin(), {.pattern = "project", .style = kRow, .split_input = true});
  expect_as_whole(
      [](SmallLayersImpl& m, const Tensor& x) { return m.project(torch::cat({x, x.cos()}, -1)); },
      small_inputs(), plan);
}

// ---- Operators between layers.

TEST(MarksOfFeatures, GoAlongWithOperators) {
  expect_as_whole([](SmallLayersImpl& m, const Tensor& x) {
    const Tensor features = m.query(x);
    return m.project(torch::stack({features, features.sin()}, -1).sum(-1));
  });
  expect_as_whole([](SmallLayersImpl& m, const Tensor& x) {
    const Tensor places = torch::tensor({3, 1, 0, 2}, x.options().dtype(torch::kLong));
    const Tensor shuffled = m.query(x).index({Slice(), places});
    return m.project(torch::where(shuffled.gt(0), shuffled, m.key(x)));
  });
}

// One head on each of two ranks: LibTorch multiplies it without a dim for heads.
TEST(MarksOfFeatures, GoThroughProductsOfOneHead) {
  const auto attention = [](SmallLayersImpl& m, const Tensor& x) {
    const auto heads_of = [](const Tensor& features) {
      return features.unflatten(-1, {-1, 8}).transpose(1, 2);
    };
    const Tensor scores = heads_of(m.query(x)).matmul(heads_of(m.key(x)).transpose(-2, -1));
    const Tensor attended = scores.softmax(-1).matmul(heads_of(m.value(x)));
    return m.project(attended.transpose(1, 2).flatten(2, 3));
  };
  expect_as_whole(attention, small_inputs(), plan_of_layers(), /*ranks=*/{2});
  const auto in_letters = [](SmallLayersImpl& m, const Tensor& x) {
    const auto heads_of = [](const Tensor& features) { return features.unflatten(-1, {-1, 8}); };
    const Tensor scores =
        torch::einsum("bqhd,bkhd->bhqk", {heads_of(m.query(x)), heads_of(m.key(x))});
    const Tensor attended =
        torch::einsum("bhqk,bkhd->bqhd", {scores.softmax(-1), heads_of(m.value(x))});
    return m.project(attended.flatten(2, 3));
  };
  expect_as_whole(in_letters, small_inputs(), plan_of_layers(), /*ranks=*/{2});
}

// As many matrices as sequences have heads.
TEST(MarksOfFeatures, GoThroughBatchesOfHeads) {
  expect_as_whole([](SmallLayersImpl& m, const Tensor& x) {
    const auto heads_of = [](const Tensor& features) {
      return features.unflatten(-1, {-1, 4}).transpose(1, 2).flatten(0, 1);
    };
    const Tensor scores = heads_of(m.query(x)).bmm(heads_of(m.key(x)).transpose(1, 2));
    const Tensor attended = scores.softmax(-1).bmm(heads_of(m.value(x)));
    return m.project(attended.unflatten(0, {x.size(0), -1}).transpose(1, 2).flatten(2, 3));
  });
}

// A block whose input is that of column layers inside of it, before and behind it.
TEST(RecomputedBlocks, ShareTheirInputWithLayersAround) {
  const auto forward = [](SmallLayersImpl& m, const Tensor& x) {
    const auto block = [&m](const Tensor& given) { return given + m.project(m.query(given)); };
    const bool is_divided = Runtime::find_current() != nullptr;
    const auto computed = [&](const Tensor& given) {
      return is_divided ? checkpoint(block, given) : block(given);
    };
    const Tensor part = shard_sequence(x);
    const Tensor behind = computed(part), gate = m.key(part);
    return behind * computed(part) + m.project(gate * m.value(part));
  };
  for (const bool sequence_shards : {false, true}) {
    TensorParallelPlan plan = plan_of_layers(sequence_shards);
    expect_as_whole(forward, small_inputs(), plan);
    plan.keep_gathered_inputs = true;
    expect_as_whole(forward, small_inputs(), plan);
  }
}

// ---- Sequence shards.

// Half a norm: some features by a weight that all ranks have.
Tensor scaled(SmallLayersImpl& m, const Tensor& x) {
  return torch::cat({x.narrow(-1, 0, 4) * m.scale, x.narrow(-1, 4, 4)}, -1);
}

TEST(SequenceShards, ComputeWhatWholeSequencesDo) {
  expect_as_whole(
      [](SmallLayersImpl& m, const Tensor& x) {
        Tensor part = shard_sequence(x);
        part = part + m.project(m.query(scaled(m, part)) * m.key(part));
        return m.head(scaled(m, part));
      },
      small_inputs(), plan_of_layers(/*sequence_shards=*/true));
}

// The caller of a model gets whole sequences.
TEST(SequenceShards, AreWholeOutsideOfTheModel) {
  const TensorParallelPlan plan = plan_of_layers(/*sequence_shards=*/true);
  expect_as_whole(
      [](SmallLayersImpl& m, const Tensor& x) {
        const Tensor part = shard_sequence(x);
        return m.norm(part) + m.project(m.query(part));
      },
      small_inputs(), plan);
  // As rows of tokens, and out of these.
  expect_as_whole(
      [](SmallLayersImpl& m, const Tensor& x) { return m.norm(shard_sequence(x).flatten(0, 1)); },
      small_inputs(), plan);
  expect_as_whole(
      [](SmallLayersImpl& m, const Tensor& x) {
        const Tensor rows = m.norm(shard_sequence(x).flatten(0, 1));
        return m.project(m.query(rows.unflatten(0, {x.size(0), -1})));
      },
      small_inputs(), plan);
}

TEST(SequenceShards, AreWholeWithoutAPlanForThem) {
  expect_as_whole([](SmallLayersImpl& m, const Tensor& x) { return m.head(shard_sequence(x)); });
  EXPECT_EQ(shard_sequence(small_inputs()).sizes(), small_inputs().sizes());
}

}  // namespace
}  // namespace accelerate
