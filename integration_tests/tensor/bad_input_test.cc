// What programs are told about plans, models and inputs that ranks along tp cannot divide: one
// sentence each, with the nearest thing that works.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/tensor/formula_model.h"
#include "integration_tests/tensor/small_layers.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using enum TensorStyle;
using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using torch::Tensor;

// What all ranks are told alike when a model is prepared.
template <typename Module>
std::string refused(const std::function<std::shared_ptr<Module>()>& make,
                    const TensorParallelPlan& plan, int64_t tp = 2) {
  Cluster cluster(absl::StrCat("1x", tp, ":h100"));
  std::vector<std::string> errors(static_cast<size_t>(tp));
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(with_tp(tp, plan));
    errors[static_cast<size_t>(rank.index())] =
        value_error_of([&] { accelerator.prepare(make()); });
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  return errors[0];
}

// A module with one child, which may be of any class.
class AroundImpl : public torch::nn::Module {
 public:
  explicit AroundImpl(std::shared_ptr<torch::nn::Module> child) {
    register_module("child", std::move(child));
  }
  Tensor forward(const Tensor& input) { return input; }
};

// With a plan that makes the child a column layer.
std::string refused_child(const std::function<std::shared_ptr<torch::nn::Module>()>& child,
                          int64_t tp = 2) {
  return refused<AroundImpl>([&] { return std::make_shared<AroundImpl>(child()); },
                             {{.pattern = "child", .style = kColumn}}, tp);
}

std::string refused_layers(const TensorParallelPlan& plan) {
  return refused<SmallLayersImpl>(
      [] {
        return std::make_shared<SmallLayersImpl>(
            [](SmallLayersImpl& m, const Tensor& x) { return m.head(x); });
      },
      plan);
}

// ---- Plans.

TEST(BadPlan, WithAPatternThatNamesNothing) {
  EXPECT_THAT(refused_layers({{.pattern = "qurey", .style = kColumn}}),
              HasSubstr("\"qurey\" names no parameter of the SmallLayers; did you mean query?"));
}

TEST(BadPlan, WithoutTheBlocksOfAFusedWeight) {
  class FusedImpl : public torch::nn::Module {
   public:
    FusedImpl() { register_module("gate_up", torch::nn::Linear(8, 32)); }
    Tensor forward(const Tensor& input) { return input; }
  };
  EXPECT_THAT(
      refused<FusedImpl>([] { return std::make_shared<FusedImpl>(); },
                         {{.pattern = "gate_up", .style = kColumn}}),
      AllOf(
          HasSubstr("\"gate_up.weight\" looks like several weights in one"),
          HasSubstr("give its rule blocks, as {1, 1, 1} for queries, keys and values, or groups")));
}

TEST(BadPlan, ForFeaturesThatRanksDoNotDivide) {
  EXPECT_EQ(refused_child([] { return torch::nn::Linear(8, 128).ptr(); }), "no error");
  EXPECT_THAT(refused_child([] { return torch::nn::Linear(8, 128).ptr(); }, /*tp=*/3),
              AllOf(HasSubstr("\"child.weight\" has 128 features along dim 0, which the 3 ranks "
                              "along tp do not divide evenly"),
                    HasSubstr("a tp_size of 2 does, and so would 129 features")));
}

TEST(BadPlan, ForFewerKeyHeadsThanRanks) {
  const lm::Config config =
      lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .layers = 1, .kv_heads = 2});
  EXPECT_THAT(refused<lm::LmImpl>([&] { return lm::Lm(config).ptr(); },
                                  *lm::Lm(config)->tensor_parallel_plan(), /*tp=*/4),
              AllOf(HasSubstr("\"blocks.0.attention.qkv.weight\" has 2 groups of features"),
                    HasSubstr("which the 4 ranks along tp do not divide evenly; a tp_size of 2 "
                              "does, and so would 4 groups, or keys and values in layers of "
                              "their own")));
}

TEST(BadPlan, WithSequenceShardsAndNothingThatIsCut) {
  TensorParallelPlan plan = {{.pattern = "norm", .sequence = true}};
  plan.sequence_parallel = true;
  EXPECT_THAT(refused_layers(plan), AllOf(HasSubstr("the plan has sequence shards"),
                                          HasSubstr("give it a column or row layer")));
}

TEST(BadPlan, WithSequenceShardsWithoutTp) {
  for (const char* of_class : {"", "SmallLayers"}) {
    Cluster("1x1:h100").run_on_every_rank([of_class](Rank&) {
      const RecordedWarnings warnings;
      TensorParallelPlan plan = SmallLayersImpl::plan(/*sequence_shards=*/true);
      plan.model_class = of_class;
      Accelerator accelerator(with_tp(1, plan));
      accelerator.prepare(std::make_shared<SmallLayersImpl>(
          [](SmallLayersImpl& m, const Tensor& x) { return m.head(x); }));
      EXPECT_THAT(warnings.texts(),
                  Contains(AllOf(HasSubstr("the plan has sequence shards, but tp_size is 1"),
                                 HasSubstr("set tp_size to 2 or more"))))
          << "of class \"" << of_class << "\"";
    });
  }
}

// ---- Models.

TEST(BadModel, WithModulesThatArePartsOfNothing) {
  EXPECT_THAT(refused_child([] { return torch::nn::LSTM(4, 4).ptr(); }),
              AllOf(HasSubstr("\"child.weight_ih_l0\""), HasSubstr("belongs to a LSTM"),
                    HasSubstr("leave it whole")));
  EXPECT_THAT(refused_child([] { return torch::nn::MultiheadAttention(8, 2).ptr(); }),
              AllOf(HasSubstr("belongs to a MultiheadAttention"),
                    HasSubstr("make queries, keys, values and the projection Linear layers")));
  EXPECT_THAT(refused_child([] { return torch::nn::Conv1d(4, 4, 3).ptr(); }),
              AllOf(HasSubstr("belongs to a Conv1d"),
                    HasSubstr("Linear layers and embeddings are what a plan divides")));
}

TEST(BadModel, WithQuantisedWeights) {
  class CodesImpl : public torch::nn::Module {
   public:
    CodesImpl() { register_parameter("codes", torch::zeros({16, 8}, torch::kChar), false); }
    Tensor forward(const Tensor& input) { return input; }
  };
  EXPECT_THAT(refused<CodesImpl>([] { return std::make_shared<CodesImpl>(); },
                                 {{.pattern = "codes", .style = kColumn}}),
              AllOf(HasSubstr("\"codes\" has values that something else keeps, as where weights "
                              "are quantised"),
                    HasSubstr("divide the model as it was before, or leave the parameter whole")));
}

TEST(BadModel, ThatWasQuantised) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(with_tp(2, SmallLayersImpl::plan()));
    const auto module = std::make_shared<SmallLayersImpl>(
        [](SmallLayersImpl& m, const Tensor& x) { return m.head(x); });
    auto model = load_and_quantize_model(module, {.load_in_8bit = true, .torch_dtype = "fp32"});
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(model); }),
                AllOf(HasSubstr("\"query.weight\" has values that something else keeps, as where "
                                "weights are quantised"),
                      HasSubstr("divide the model as it was before, or leave the parameter "
                                "whole")));
  });
}

TEST(BadModel, ThatADeviceMapHasPlaced) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(with_tp(2, SmallLayersImpl::plan()));
    const auto module = std::make_shared<SmallLayersImpl>(
        [](SmallLayersImpl& m, const Tensor& x) { return m.head(x); });
    DeviceMap map;
    map.set("",
            *DevicePlacement::parse(absl::StrCat(static_cast<int>(accelerator.device().index()))));
    const auto dispatched = dispatch_model(module, map);
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(module); }),
                AllOf(HasSubstr(absl::StrCat("placed by a device map, and rank ", rank.index())),
                      HasSubstr("leave the device map out")));
  });
}

TEST(BadModel, ThatHasParametersOfADividedOne) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    const auto module = std::make_shared<SmallLayersImpl>(
        [](SmallLayersImpl& m, const Tensor& x) { return m.head(x); });
    Accelerator accelerator(with_tp(2, SmallLayersImpl::plan()));
    auto model = accelerator.prepare(module);
    EXPECT_EQ(module->query->weight.size(0), 8);
    const auto other = std::make_shared<SmallLayersImpl>(
        [](SmallLayersImpl& m, const Tensor& x) { return m.head(x); });
    other->replace_module("query", module->query.ptr());
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(other); }),
                AllOf(HasSubstr("\"query.weight\" is a part already, 8 of 16 rows"),
                      HasSubstr("prepare a model once, and all that share parameters as one")));
    EXPECT_EQ(module->query->weight.size(0), 8);
  });
}

TEST(BadModel, WhoseOptimizerHasStepped) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(with_tp(2, SmallLayersImpl::plan()));
    const auto module = std::make_shared<SmallLayersImpl>(
        [](SmallLayersImpl& m, const Tensor& x) { return m.project(m.query(x)); });
    const std::shared_ptr<torch::optim::Optimizer> adam =
        std::make_shared<torch::optim::AdamW>(module->parameters(), 0.1);
    module->forward(small_inputs()).sum().backward();
    adam->step();
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(module, adam); }),
                AllOf(HasSubstr("the optimizer has state for parameter \"query.weight\""),
                      HasSubstr("prepare it before its first step")));
  });
}

// ---- Forward passes.

// LibTorch refuses the first view, and takes the second for another number of tokens.
TEST(BadPass, WithAFixedCountOfHeads) {
  const auto of_features =
      AllOf(HasSubstr("dim -1 of features, of which each rank along tp has 8 of 16, made with "
                      "\"query.weight\""),
            HasSubstr("write -1 for it"));
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
                return m.project(m.query(x).view({6, 4, 4, 4}).flatten(2, 3));
              }),
              AllOf(HasSubstr("rank 1: aten::view does not fit"), of_features));
  EXPECT_THAT(
      refusal_of([](SmallLayersImpl& m, const Tensor& x) {
        return m.project(m.query(x).view({6, -1, 4, 4}).flatten(2, 3));
      }),
      AllOf(HasSubstr("rank 1: aten::view gives other lengths than the whole's to"), of_features));
}

TEST(BadPass, WithANormOverCutFeatures) {
  const auto of_features =
      AllOf(HasSubstr("dim -1 of features, of which each rank along tp has 8 of 16, made with "
                      "\"query.weight\""),
            HasSubstr("gather their output"));
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
                return m.project(torch::layer_norm(m.query(x), {8}));
              }),
              AllOf(HasSubstr("rank 1: aten::layer_norm normalises"), of_features));
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
                return m.project(accelerate::rms_norm(m.query(x), {8}));
              }),
              AllOf(HasSubstr("rank 1: accelerate::rms_norm normalises"), of_features));
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
                const Tensor features = m.query(x);
                return m.project(features * features.square().mean(-1, true).rsqrt());
              }),
              AllOf(HasSubstr("rank 1: aten::mean goes along all of"), of_features));
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
                return m.project(m.query(x).softmax(-1));
              }),
              AllOf(HasSubstr("rank 1: aten::softmax goes along all of"), of_features));
  EXPECT_EQ(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
              return m.project(m.query(x).softmax(-2));
            }),
            "no error");
}

TEST(BadPass, WithACutParameterInAnotherOperator) {
  EXPECT_THAT(
      refusal_of([](SmallLayersImpl& m, const Tensor& x) {
        return torch::einsum("bsi,oi->bso", {x, m.query->weight});
      }),
      AllOf(HasSubstr("rank 1: aten::einsum uses \"query.weight\", of which each rank along "
                      "tp has 8 of 16 rows"),
            HasSubstr("leave the parameter whole, or use one of these")));
  EXPECT_THAT(
      refusal_of([](SmallLayersImpl& m, const Tensor& x) { return x + m.project->weight.sum(); }),
      HasSubstr("rank 1: aten::sum uses \"project.weight\", of which each rank along tp "
                "has 8 of 16 columns"));
}

TEST(BadPass, WithInputsThatDoNotFitTheLayer) {
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
                return m.project(torch::cat({x, x}, -1));
              }),
              HasSubstr("rank 1: row layer \"project.weight\" gets 16 features, but this rank has "
                        "its weight for 8 of 16; put it behind a column layer, or let its rule "
                        "split its input"));
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) { return m.key(m.query(x)); }),
              AllOf(HasSubstr("rank 1: column layer \"key.weight\" gets dim -1 of features"),
                    HasSubstr("make it a row layer, or gather the output of the layer before")));
}

TEST(BadPass, WithALossOfCutLogitsByHand) {
  TensorParallelPlan plan = SmallLayersImpl::plan();
  plan.parallel_loss = true;
  EXPECT_THAT(refusal_of(
                  [](SmallLayersImpl& m, const Tensor& x) {
                    return -torch::log_softmax(m.head(x), -1).select(-1, 0).mean();
                  },
                  plan),
              AllOf(HasSubstr("aten::log_softmax goes along all of dim -1 of features, of which "
                              "each rank along tp has 6 of 12, made with \"head.weight\""),
                    HasSubstr("a loss parallel_cross_entropy")));
}

TEST(BadPass, WithSequencesThatRanksDoNotDivide) {
  const lm::Config config = lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .layers = 1});
  TensorParallelPlan plan = *lm::Lm(config)->tensor_parallel_plan();
  plan.sequence_parallel = true;
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(with_tp(2, plan));
    auto model = accelerator.prepare(lm::Lm(config));
    const Tensor tokens = formula_batch(/*step=*/0, /*rows=*/2, /*length=*/127).first;
    EXPECT_THAT(value_error_of([&] { model(tokens.to(accelerator.device())); }),
                AllOf(HasSubstr(absl::StrCat("rank ", rank.index(), ": sequences of 127 tokens")),
                      HasSubstr("pad them to 128")));
  });
}

// What a rank adds to its own tokens gets a part of the gradient alone.
TEST(BadPass, WithPositionsWhoseGradientsNothingSums) {
  TensorParallelPlan plan = SmallLayersImpl::plan(/*sequence_shards=*/true);
  plan.rules.back().sequence = false;
  const auto add_positions = [](SmallLayersImpl& m, const Tensor& x) {
    return shard_sequence(x).narrow(-1, 0, 4) + m.scale;
  };
  EXPECT_THAT(refusal_of(add_positions, plan),
              AllOf(HasSubstr("rank 1: aten::add uses \"scale\", which all ranks have, with dim -2 "
                              "of sequences, of which each rank along tp has 2 of 4"),
                    HasSubstr("a rule with partial_gradient, or sequence, lets ranks sum")));
  EXPECT_EQ(refusal_of(add_positions, SmallLayersImpl::plan(/*sequence_shards=*/true)), "no error");
  // And the other way round: sums of what all ranks have alike.
  EXPECT_THAT(
      refusal_of([](SmallLayersImpl& m,
                    const Tensor& x) { return shard_sequence(x.narrow(-1, 0, 4) + m.scale); },
                 SmallLayersImpl::plan(/*sequence_shards=*/true)),
      AllOf(HasSubstr("rank 1: aten::add uses \"scale\" with a tensor that all ranks"),
            HasSubstr("call shard_sequence before")));
}

}  // namespace
}  // namespace accelerate
