// Faults that other libraries had in layers that ranks along tp divide, each with what is right
// instead.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/tensor/formula_model.h"
#include "integration_tests/tensor/small_layers.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

std::string cluster_of(int64_t ranks) { return absl::StrCat("1x", ranks, ":h100"); }

// A plan without the rule for a pattern.
TensorParallelPlan without(TensorParallelPlan plan, const std::string& pattern) {
  std::erase_if(plan.rules, [&](const TensorRule& rule) { return rule.pattern == pattern; });
  return plan;
}

// ---- Gradients of what ranks have alike.

using Gradients = std::map<std::string, Tensor>;

// The gradients of parameters with one dim, as those of norms and the biases of rows.
template <typename Model>
Gradients gradients_of_vectors(const Model& model) {
  Gradients gradients;
  for (const auto& item : model->named_parameters()) {
    const bool is_cut = item.key().ends_with("qkv.bias") || item.key().ends_with("up.bias");
    if (item.value().dim() == 1 && !is_cut) {
      gradients.emplace(item.key(), item.value().grad().cpu());
    }
  }
  return gradients;
}

void expect_norms_as_whole(const lm::Config& config) {
  const auto [inputs, labels] = formula_batch(/*step=*/0, /*rows=*/4, config.sequence_length);
  lm::Lm whole(config);
  fill_by_formula(*whole);
  torch::cross_entropy_loss(whole->forward(inputs).flatten(0, 1), labels.flatten()).backward();
  const Gradients expected = gradients_of_vectors(whole);
  EXPECT_GE(expected.size(), 5u);
  Cluster cluster(cluster_of(2));
  cluster.run_on_every_rank([&, &inputs = inputs, &labels = labels](Rank& rank) {
    lm::Lm module(config);
    fill_by_formula(*module);
    TensorParallelPlan plan = *module->tensor_parallel_plan();
    plan.sequence_parallel = true;
    Accelerator accelerator(with_tp(2, plan));
    auto model = accelerator.prepare(module.ptr());
    const Tensor logits = model(inputs.to(accelerator.device()));
    accelerator.backward(
        torch::cross_entropy_loss(logits.flatten(0, 1), labels.to(accelerator.device()).flatten()));
    for (const auto& [name, gradient] : gradients_of_vectors(model)) rank.report(name, gradient);
  });
  for (const auto& [name, gradient] : expected) {
    const std::vector<Tensor> ranks = cluster.reports(name);
    EXPECT_TRUE(torch::allclose(ranks[0], gradient, 1e-5, 1e-6)) << name;
    EXPECT_TRUE(torch::equal(ranks[0], ranks[1])) << name;
  }
}

// T1
TEST(NormsOfSequenceShards, HaveTheGradientsOfOneProcess) {
  for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
    expect_norms_as_whole(lm::model_config("tiny", {.blocks = blocks, .layers = 2}));
  }
}

// T2
TEST(NormsOfSequenceShards, AreRefusedWhereThePlanDoesNotNameThem) {
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m,
                            const Tensor& x) { return m.head(m.norm(shard_sequence(x))); },
                         without(SmallLayersImpl::plan(/*sequence_shards=*/true), "norm")),
              AllOf(HasSubstr("aten::layer_norm uses \"norm.weight\", which all ranks have, with "
                              "dim -2 of sequences"),
                    HasSubstr("a rule with partial_gradient, or sequence")));
}

// T2: a norm of each head, as of queries and keys.
TEST(NormsOfHeads, AreRefusedWhereThePlanDoesNotNameThem) {
  EXPECT_THAT(refusal_of(
                  [](SmallLayersImpl& m, const Tensor& x) {
                    const Tensor heads = m.query(x).unflatten(-1, {-1, 4});
                    const Tensor normal = torch::layer_norm(heads, {4}, m.scale);
                    return m.project(normal.flatten(-2, -1));
                  },
                  without(SmallLayersImpl::plan(), "scale")),
              AllOf(HasSubstr("aten::layer_norm uses \"scale\", which all ranks have, with dim -2 "
                              "of features"),
                    HasSubstr("a rule with partial_gradient")));
  EXPECT_THAT(refusal_of(
                  [](SmallLayersImpl& m, const Tensor& x) {
                    const Tensor heads = m.query(x).unflatten(-1, {-1, 4});
                    const Tensor normal = accelerate::rms_norm(heads, {4}, m.scale);
                    return m.project(normal.flatten(-2, -1));
                  },
                  without(SmallLayersImpl::plan(), "scale")),
              AllOf(HasSubstr("accelerate::rms_norm uses \"scale\", which all ranks have, with dim "
                              "-2 of features"),
                    HasSubstr("a rule with partial_gradient")));
}

// T18: one rank has a large number in each element, beside which bfloat16 loses ones.
TEST(NormsOfSequenceShards, AddHalfPrecisionUpInFloat32) {
  Cluster cluster(cluster_of(4));
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(with_tp(4, SmallLayersImpl::plan(/*sequence_shards=*/true)));
    const auto module = std::make_shared<SmallLayersImpl>(
        [](SmallLayersImpl& m, const Tensor& x) { return shard_sequence(x) * m.scale; });
    module->to(torch::kBFloat16);
    auto model = accelerator.prepare(module);
    const Tensor tokens = (torch::ones({4, 4}) + 255 * torch::eye(4)).view({1, 4, 4});
    accelerator.backward(model(tokens.to(accelerator.device(), torch::kBFloat16)).sum());
    rank.report("gradient", module->scale.grad().to(torch::kFloat));
  });
  for (const Tensor& gradient : cluster.reports("gradient")) {
    EXPECT_TRUE(torch::equal(gradient, torch::full({4}, 260.0))) << "259 in bfloat16";
  }
}

// ---- Sums of layers.

// T6
TEST(RowLayers, AddTheirBiasOnce) {
  struct Case {
    bool sequence_shards, has_rows;
  };
  // torch::nn::Linear multiplies rows and adds the bias at once, but adds it to sequences apart.
  for (const int64_t tp : {1, 2, 4}) {
    for (const auto& [sequence_shards, has_rows] :
         {Case{false, false}, Case{true, false}, Case{false, true}}) {
      Cluster(cluster_of(tp)).run_on_every_rank([&](Rank&) {
        Accelerator accelerator(with_tp(tp, SmallLayersImpl::plan(sequence_shards)));
        const auto module =
            std::make_shared<SmallLayersImpl>([&](SmallLayersImpl& m, const Tensor& x) {
              if (has_rows) return m.project(m.query(x.flatten(0, 1))).view_as(x);
              const Tensor output = m.project(m.query(shard_sequence(x)));
              EXPECT_EQ(output.size(1), sequence_shards ? 4 / tp : 4);
              return output;
            });
        {
          const torch::NoGradGuard no_grad;
          module->project->weight.zero_();
          module->project->bias.fill_(1);
        }
        auto model = accelerator.prepare(module);
        const Tensor output = model(small_inputs().to(accelerator.device())).cpu();
        EXPECT_TRUE(torch::equal(output, torch::ones({6, 4, 8})))
            << tp << sequence_shards << has_rows;
      });
    }
  }
}

// The bytes that both ranks send for so many passes.
double bytes_of(int passes) {
  ClusterOptions options;
  options.record = true;
  Cluster cluster(cluster_of(2), options);
  cluster.run_on_every_rank([&](Rank&) {
    Accelerator accelerator(with_tp(2, SmallLayersImpl::plan()));
    auto model = accelerator.prepare(
        std::make_shared<SmallLayersImpl>([](SmallLayersImpl& m, const Tensor& x) {
          return m.project(m.query(x) * m.key(x) + m.value(x));
        }));
    for (int pass = 0; pass < passes; ++pass) {
      const Tensor input = small_inputs().to(accelerator.device()).requires_grad_();
      accelerator.backward(model(input).sum());
    }
  });
  double bytes = 0;
  for (const simulator::Traffic& pair : cluster.trace().communication) bytes += pair.bytes;
  return bytes;
}

// T7: the row's output and the gradient of the input, and not that of each column layer.
TEST(ColumnLayersOfOneInput, SumItsGradientsOnce) {
  EXPECT_EQ((bytes_of(/*passes=*/2) - bytes_of(/*passes=*/1)) / 2, 2 * 6 * 4 * 8 * 4);
}

// ---- The loss of cut logits.

TensorParallelPlan with_parallel_loss() {
  TensorParallelPlan plan = SmallLayersImpl::plan();
  plan.parallel_loss = true;
  return plan;
}

Tensor logits_of(SmallLayersImpl& m, const Tensor& x) { return m.head(x); }

// Every class in turn.
Tensor small_targets() { return torch::arange(24).remainder(12); }

// T10
TEST(ParallelLossOfAModel, IsThatOfOneProcessWithAllOptions) {
  const Tensor weight = torch::arange(12, torch::kFloat).add(1).div(8);
  for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    SmallLayersImpl whole(&logits_of);
    const Tensor expected =
        at::cross_entropy_loss(whole.forward(small_inputs()).flatten(0, 1), small_targets(), weight,
                               reduction, /*ignore_index=*/5, /*label_smoothing=*/0.1);
    expected.sum().backward();
    Cluster(cluster_of(2)).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(with_tp(2, with_parallel_loss()));
      const auto module = std::make_shared<SmallLayersImpl>(&logits_of);
      auto model = accelerator.prepare(module);
      const Tensor logits = model(small_inputs().to(accelerator.device()));
      EXPECT_EQ(logits.size(-1), 6) << "no rank has all of the 12 classes";
      const Tensor loss = parallel_cross_entropy(model, logits.flatten(0, 1),
                                                 small_targets().to(accelerator.device()),
                                                 {.weight = weight.to(accelerator.device()),
                                                  .reduction = reduction,
                                                  .ignore_index = 5,
                                                  .label_smoothing = 0.1});
      EXPECT_TRUE(torch::allclose(loss.cpu(), expected, 1e-5, 1e-6)) << reduction;
      accelerator.backward(loss.sum());
      const Tensor gradient = whole.head->weight.grad().narrow(0, 6 * rank.index(), 6);
      EXPECT_TRUE(torch::allclose(module->head->weight.grad().cpu(), gradient, 1e-5, 1e-6));
    });
  }
}

// T11: logits that no rule leaves cut are whole, and their loss is not log(2) off.
TEST(ParallelLossOfAModel, IsTheUsualOneOfWholeLogits) {
  SmallLayersImpl whole(&logits_of);
  const Tensor expected =
      torch::cross_entropy_loss(whole.forward(small_inputs()).flatten(0, 1), small_targets());
  Cluster(cluster_of(2)).run_on_every_rank([&](Rank&) {
    Accelerator accelerator(with_tp(2, without(with_parallel_loss(), "head")));
    auto model = accelerator.prepare(std::make_shared<SmallLayersImpl>(&logits_of));
    const Tensor logits = model(small_inputs().to(accelerator.device()));
    const Tensor loss = parallel_cross_entropy(model, logits.flatten(0, 1),
                                               small_targets().to(accelerator.device()));
    EXPECT_TRUE(torch::allclose(loss.cpu(), expected, 1e-5, 1e-6));
  });
}

// T11: as where the program has put them together.
TEST(ParallelLossOfAModel, RefusesWholeLogitsOfACutHead) {
  Cluster(cluster_of(2)).run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(with_tp(2, with_parallel_loss()));
    auto model = accelerator.prepare(std::make_shared<SmallLayersImpl>(&logits_of));
    const Tensor part = model(small_inputs().to(accelerator.device())).flatten(0, 1);
    EXPECT_THAT(value_error_of([&] {
                  parallel_cross_entropy(model, torch::cat({part, part}, 1),
                                         small_targets().to(accelerator.device()));
                }),
                HasSubstr(absl::StrCat("the logits are whole, with all 12 classes, of which rank ",
                                       rank.index(), " of 2 has 6")));
  });
}

}  // namespace
}  // namespace accelerate
