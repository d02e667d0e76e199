#include "accelerate/parallel/tensor/plan_layout.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>

#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/plan/plan.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using enum TensorStyle;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A model of one block, whose head is tied if it is told so.
class ModelImpl : public torch::nn::Module, public ModelStructure {
 public:
  explicit ModelImpl(bool tied = false) {
    const auto tokens = register_module("tokens", torch::nn::Embedding(12, 8));
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    register_module("qkv", torch::nn::Linear(8, 24));
    register_module("up", torch::nn::Linear(8, 16));
    register_module("down", torch::nn::Linear(16, 8));
    register_module("head", torch::nn::Linear(torch::nn::LinearOptions(8, 12).bias(false)));
    if (tied) register_parameter("tied", tokens->weight);
  }
  std::optional<TensorParallelPlan> tensor_parallel_plan() const override { return plan; }

  std::optional<TensorParallelPlan> plan =
      TensorParallelPlan{{.pattern = "tokens", .style = kEmbedding},
                         {.pattern = "qkv", .style = kColumn, .blocks = {1, 1, 1}},
                         {.pattern = "up", .style = kColumn},
                         {.pattern = "down", .style = kRow},
                         {.pattern = "head", .style = kColumn, .gather_output = true}};
};

std::shared_ptr<const ModelLayout> layout_of(const std::shared_ptr<torch::nn::Module>& module,
                                             const Mesh& mesh,
                                             const KwargsHandlers& handlers = {}) {
  const ModelState model(module);
  return tensor_parallel_layout({.model = model, .mesh = mesh, .handlers = handlers});
}

std::string refused(const std::shared_ptr<torch::nn::Module>& module,
                    const TensorParallelPlan& plan, int tp = 2) {
  KwargsHandlers handlers;
  handlers.tensor_parallel = plan;
  return value_error_of([&] { layout_of(module, Mesh({.tp = tp}), handlers); });
}

std::vector<Cut> cuts_of(const ModelLayout& layout, const char* name) {
  return layout.find(name)->cuts;
}

TEST(TensorParallelLayout, CutsWhatThePlanNames) {
  const auto layout = layout_of(std::make_shared<ModelImpl>(), Mesh({.dp_shard = 2, .tp = 2}));
  ASSERT_NE(layout, nullptr);
  const Cut rows = {.axis = MeshAxis::kTp, .dim = 0}, columns = {.axis = MeshAxis::kTp, .dim = 1};
  EXPECT_THAT(cuts_of(*layout, "tokens.weight"), ElementsAre(rows));
  EXPECT_THAT(cuts_of(*layout, "up.weight"), ElementsAre(rows));
  EXPECT_THAT(cuts_of(*layout, "up.bias"), ElementsAre(rows));
  EXPECT_THAT(cuts_of(*layout, "down.weight"), ElementsAre(columns));
  EXPECT_THAT(cuts_of(*layout, "down.bias"), ElementsAre());
  EXPECT_THAT(cuts_of(*layout, "norm.weight"), ElementsAre());
  const Cut fused = {.axis = MeshAxis::kTp, .dim = 0, .blocks = {8, 8, 8}};
  EXPECT_THAT(cuts_of(*layout, "qkv.weight"), ElementsAre(fused));
  EXPECT_THAT(cuts_of(*layout, "qkv.bias"), ElementsAre(fused));
  EXPECT_EQ(layout->divides(), AxisSet{MeshAxis::kTp});
}

TEST(TensorParallelLayout, IsNothingWithoutAnAxisOrWithoutRules) {
  EXPECT_EQ(layout_of(std::make_shared<ModelImpl>(), Mesh({.dp_shard = 4})), nullptr);
  KwargsHandlers handlers;
  handlers.tensor_parallel = TensorParallelPlan();
  EXPECT_EQ(layout_of(std::make_shared<ModelImpl>(), Mesh({.tp = 2}), handlers), nullptr);
}

TEST(TensorParallelLayout, NeedsAPlan) {
  const auto model = std::make_shared<ModelImpl>();
  model->plan.reset();
  EXPECT_THAT(value_error_of([&] { layout_of(model, Mesh({.tp = 2})); }),
              AllOf(HasSubstr("tp_size=2, but nothing says how ranks divide a Model"),
                    HasSubstr("TensorParallelPlan")));
}

// The plan of a class before the one of all models, and that before the model's own.
TEST(TensorParallelLayout, FollowsThePlanOfTheModelsClass) {
  const auto model = std::make_shared<ModelImpl>();
  KwargsHandlers handlers;
  handlers.tensor_parallel = TensorParallelPlan{{.pattern = "up", .style = kColumn}};
  handlers.tensor_parallel_by_class["Other"] =
      TensorParallelPlan{{.pattern = "head", .style = kColumn}};
  const auto as_all = layout_of(model, Mesh({.tp = 2}), handlers);
  EXPECT_EQ(cuts_of(*as_all, "up.weight").size(), 1);
  EXPECT_EQ(cuts_of(*as_all, "head.weight").size(), 0);
  handlers.tensor_parallel_by_class["Model"] =
      TensorParallelPlan{{.pattern = "tokens", .style = kEmbedding}};
  const auto as_its_class = layout_of(model, Mesh({.tp = 2}), handlers);
  EXPECT_EQ(cuts_of(*as_its_class, "up.weight").size(), 0);
  EXPECT_EQ(cuts_of(*as_its_class, "tokens.weight").size(), 1);
}

TEST(TensorParallelLayout, KeepsTheCutsOfOtherTechniques) {
  const auto module = std::make_shared<ModelImpl>();
  const ModelState model(module);
  const Mesh mesh({.cp = 2, .tp = 2});
  const ModelLayout whole = whole_layout(*module, mesh);
  std::vector<TensorPlacement> placements = whole.placements();
  placements[0].cuts = {{.axis = MeshAxis::kCp, .dim = 1}};
  const ModelLayout before(mesh, placements, {MeshAxis::kSp});
  const auto layout = tensor_parallel_layout(
      {.model = model, .mesh = mesh, .layout = &before, .handlers = KwargsHandlers()});
  EXPECT_EQ(layout->placements()[0].cuts.size(), 2);
  EXPECT_EQ(layout->divides(), (AxisSet{MeshAxis::kCp, MeshAxis::kSp, MeshAxis::kTp}));
}

TEST(TensorParallelLayout, GivesTiedParametersOneCut) {
  const auto model = std::make_shared<ModelImpl>(/*tied=*/true);
  const auto layout = layout_of(model, Mesh({.tp = 2}));
  EXPECT_EQ(cuts_of(*layout, "tied"), cuts_of(*layout, "tokens.weight"));
  EXPECT_EQ(cuts_of(*layout, "tied").size(), 1);
  const TensorParallelPlan both = {{.pattern = "tokens", .style = kEmbedding},
                                   {.pattern = "tied", .style = kColumn}};
  const std::vector<PlannedParameter> planned = planned_parameters(*model, both);
  EXPECT_EQ(planned.front().name, "tied");
  EXPECT_EQ(planned.front().rule.style, kEmbedding);
  EXPECT_FALSE(planned.front().rule.gather_output) << "as the head says";
  EXPECT_THAT(refused(model, {{.pattern = "tokens", .style = kEmbedding},
                              {.pattern = "tied", .style = kRow}}),
              HasSubstr("\"tied\" and \"tokens.weight\" are one tensor, but one is to be row and "
                        "the other embedding"));
}

TEST(TensorParallelLayout, TakesPatternsOfModulesAndOfParameters) {
  const auto model = std::make_shared<ModelImpl>();
  KwargsHandlers handlers;
  handlers.tensor_parallel = TensorParallelPlan{{.pattern = "up.weight", .style = kColumn},
                                                {.pattern = "*.bias"},
                                                {.pattern = "n*m", .partial_gradient = true},
                                                {.pattern = "tok*", .style = kRow}};
  const auto layout = layout_of(model, Mesh({.tp = 2}), handlers);
  EXPECT_EQ(cuts_of(*layout, "up.weight").size(), 1);
  EXPECT_EQ(cuts_of(*layout, "up.bias").size(), 0);
  EXPECT_EQ(layout->find("norm.weight")->sums, AxisSet{MeshAxis::kTp});
  EXPECT_EQ(layout->find("norm.bias")->sums, AxisSet()) << "the first rule that matches decides";
  EXPECT_THAT(cuts_of(*layout, "tokens.weight"), ElementsAre(Cut{.axis = MeshAxis::kTp, .dim = 0}));
}

TEST(TensorParallelLayout, RefusesAPatternWithoutAMatch) {
  EXPECT_THAT(refused(std::make_shared<ModelImpl>(), {{.pattern = "dwn", .style = kRow}}),
              HasSubstr("\"dwn\" names no parameter of the Model; did you mean down?"));
}

TEST(TensorParallelLayout, RefusesOptionsWithoutAMeaning) {
  const auto model = std::make_shared<ModelImpl>();
  EXPECT_THAT(refused(model, {{.pattern = "down", .style = kRow, .gather_output = true}}),
              HasSubstr("the rule \"down\" has gather_output, which is for column layers, but its "
                        "style is row; leave it out, or give the rule another style"));
  EXPECT_THAT(refused(model, {{.pattern = "up", .style = kColumn, .split_input = true}}),
              HasSubstr("has split_input, which is for row layers, but its style is column"));
  // Each rank has all of the bias's gradient.
  EXPECT_THAT(refused(model, {{.pattern = "down", .style = kRow, .partial_gradient = true}}),
              HasSubstr("has partial_gradient, which is for parameters that all ranks have"));
  EXPECT_THAT(refused(model, {{.pattern = "norm", .blocks = {1, 1}}}),
              HasSubstr("has blocks, which is for layers that ranks divide"));
  EXPECT_THAT(refused(model, {{.pattern = "norm", .groups = 2}}),
              HasSubstr("has groups, which is for layers that ranks divide"));
}

TEST(TensorParallelLayout, NamesATpSizeThatDivides) {
  const auto model = std::make_shared<ModelImpl>();
  EXPECT_THAT(refused(model, {{.pattern = "up", .style = kColumn}}, /*tp=*/3),
              AllOf(HasSubstr("\"up.weight\" has 16 features along dim 0, which the 3 ranks along "
                              "tp do not divide evenly"),
                    HasSubstr("a tp_size of 2 does, and so would 18 features")));
  // Two heads of keys, which stay whole.
  EXPECT_THAT(refused(model, {{.pattern = "qkv", .style = kColumn, .groups = 2}}, /*tp=*/4),
              AllOf(HasSubstr("\"qkv.weight\" has 2 groups of features"),
                    HasSubstr("a tp_size of 2 does")));
  EXPECT_THAT(refused(model, {{.pattern = "qkv", .style = kColumn, .blocks = {1, 1, 1}}}, 3),
              HasSubstr("has 8 features along dim 0 in a block"));
  EXPECT_THAT(refused(model, {{.pattern = "tokens", .style = kEmbedding}}, 5),
              HasSubstr("a tp_size of 4 does, and so would 15 features"));
}

// Four heads of queries with two of keys: each head of keys is on two ranks.
TEST(TensorParallelLayout, GivesNeighboursTheSameGroupsWhereThereAreFewer) {
  const auto model = std::make_shared<ModelImpl>();
  KwargsHandlers handlers;
  handlers.tensor_parallel =
      TensorParallelPlan{{.pattern = "up", .style = kColumn, .groups = 2},
                         {.pattern = "tokens", .style = kColumn, .groups = 1}};
  const auto layout = layout_of(model, Mesh({.tp = 4}), handlers);
  const Cut keys = {.axis = MeshAxis::kTp, .dim = 0, .copies = 2};
  EXPECT_THAT(cuts_of(*layout, "up.weight"), ElementsAre(keys));
  EXPECT_THAT(cuts_of(*layout, "up.bias"), ElementsAre(keys));
  EXPECT_THAT(cuts_of(*layout, "tokens.weight"),
              ElementsAre(Cut{.axis = MeshAxis::kTp, .dim = 0, .copies = 4}));
  // Queries that stand with the keys in one weight would be computed twice, and outputs that are
  // put together would have each group twice.
  EXPECT_THAT(refused(model, {{.pattern = "qkv", .style = kColumn, .groups = 2}}, /*tp=*/4),
              HasSubstr("a tp_size of 2 does"));
  EXPECT_THAT(
      refused(model, {{.pattern = "up", .style = kColumn, .gather_output = true, .groups = 2}}, 4),
      HasSubstr("a tp_size of 2 does"));
  EXPECT_THAT(refused(model, {{.pattern = "up", .style = kColumn, .groups = 4}}, /*tp=*/6),
              HasSubstr("a tp_size of 4 does"));
}

TEST(TensorParallelLayout, RefusesSeveralWeightsInOneWithoutBlocks) {
  const auto model = std::make_shared<ModelImpl>();
  EXPECT_THAT(refused(model, {{.pattern = "qkv", .style = kColumn}}),
              AllOf(HasSubstr("\"qkv.weight\" looks like several weights in one"),
                    HasSubstr("blocks, as {1, 1, 1}")));
  EXPECT_THAT(refused(model, {{.pattern = "qkv", .style = kColumn, .blocks = {1, 4}}}),
              HasSubstr("is 24 long, which blocks of 1, 4 do not fill"));
  EXPECT_EQ(refused(model, {{.pattern = "qkv", .style = kColumn, .groups = 4}}), "no error");
  EXPECT_EQ(refused(model, {{.pattern = "qkv", .style = kColumn, .blocks = {16, 4, 4}}}),
            "no error");
}

// What looks like one weight would be cut across queries, keys and values.
TEST(TensorParallelLayout, KnowsTheNamesOfSeveralWeightsInOne) {
  const auto refused_layer = [](const char* name) {
    const auto model = std::make_shared<torch::nn::Module>("net");
    model->register_module(name, torch::nn::Linear(8, 24));
    return refused(model, {{.pattern = name, .style = kColumn}});
  };
  for (const char* name :
       {"qkv_proj", "query_key_value", "gate_up_proj", "c_attn", "kv_proj", "in_proj", "gateup"}) {
    EXPECT_THAT(refused_layer(name), HasSubstr("looks like several weights in one")) << name;
  }
  for (const char* name : {"q_proj", "k_proj", "gate_proj", "up_proj", "query", "fc_in"}) {
    EXPECT_EQ(refused_layer(name), "no error") << name;
  }
}

TEST(TensorParallelLayout, RefusesGroupsThatFeaturesDoNotFill) {
  const auto model = std::make_shared<ModelImpl>();
  for (const int64_t groups : {-1, 3, 5, 32}) {
    EXPECT_THAT(refused(model, {{.pattern = "up", .style = kColumn, .groups = groups}}),
                HasSubstr("\"up.weight\" has 16 features, which are not "))
        << groups;
  }
  EXPECT_THAT(
      refused(model, {{.pattern = "qkv", .style = kColumn, .blocks = {1, 1, 1}, .groups = 3}}),
      HasSubstr("\"qkv.weight\" has 8 features, which are not 3 groups"))
      << "of one block";
}

TEST(TensorParallelLayout, SaysThatSequencesStayWholeWithoutRanks) {
  const auto model = std::make_shared<ModelImpl>();
  KwargsHandlers handlers;
  handlers.tensor_parallel = TensorParallelPlan{{.pattern = "up", .style = kColumn}};
  const RecordedWarnings warnings;
  EXPECT_EQ(layout_of(model, Mesh({.dp_shard = 2}), handlers), nullptr);
  EXPECT_THAT(warnings.texts(), IsEmpty());
  handlers.tensor_parallel->sequence_parallel = true;
  EXPECT_EQ(layout_of(model, Mesh({.dp_shard = 2}), handlers), nullptr);
  EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("sequences stay whole")));
}

// Ranks put outputs together, and take inputs and words, in the order of ranks.
TEST(TensorParallelLayout, RefusesBlocksWhereRanksCutInOne) {
  const auto model = std::make_shared<ModelImpl>();
  EXPECT_THAT(
      refused(model,
              {{.pattern = "qkv", .style = kColumn, .gather_output = true, .blocks = {1, 1, 1}}}),
      HasSubstr("\"qkv.weight\" is cut in blocks, but ranks put outputs together"));
  EXPECT_THAT(
      refused(model, {{.pattern = "down", .style = kRow, .split_input = true, .blocks = {1, 1}}}),
      HasSubstr("\"down.weight\" is cut in blocks"));
  EXPECT_THAT(refused(model, {{.pattern = "tokens", .style = kEmbedding, .blocks = {1, 1}}}),
              HasSubstr("\"tokens.weight\" is a table of words, which ranks cut in one"));
}

// A module with one child.
class WithImpl : public torch::nn::Module {
 public:
  explicit WithImpl(std::shared_ptr<torch::nn::Module> child) {
    register_module("child", std::move(child));
  }
};

TEST(TensorParallelLayout, RefusesModulesThatAreNotDivided) {
  const auto refused_child = [](const std::shared_ptr<torch::nn::Module>& child) {
    return refused(std::make_shared<WithImpl>(child), {{.pattern = "child", .style = kColumn}});
  };
  EXPECT_THAT(refused_child(torch::nn::LSTM(4, 4).ptr()),
              AllOf(HasSubstr("belongs to a LSTM, whose gates"), HasSubstr("leave it whole")));
  EXPECT_THAT(refused_child(torch::nn::Conv2d(4, 4, 3).ptr()),
              HasSubstr("belongs to a Conv2d, but Linear layers"));
  EXPECT_THAT(refused_child(torch::nn::MultiheadAttention(8, 2).ptr()),
              HasSubstr("belongs to a MultiheadAttention, which computes with whole weights"));
  using Children = std::vector<std::shared_ptr<torch::nn::Module>>;
  for (const auto& child : Children{torch::nn::GRU(4, 4).ptr(), torch::nn::RNN(4, 4).ptr(),
                                    torch::nn::LSTMCell(4, 4).ptr(), torch::nn::GRUCell(4, 4).ptr(),
                                    torch::nn::RNNCell(4, 4).ptr()}) {
    EXPECT_THAT(refused_child(child), HasSubstr("whose gates are computed by one operator"));
  }
  EXPECT_THAT(refused_child(torch::nn::Conv1d(4, 4, 3).ptr()),
              HasSubstr("belongs to a Conv1d, but Linear layers"));
  EXPECT_THAT(refused_child(torch::nn::Bilinear(4, 4, 4).ptr()),
              HasSubstr("belongs to a Bilinear, but Linear layers"));
  EXPECT_EQ(refused(std::make_shared<WithImpl>(torch::nn::LSTM(4, 4).ptr()),
                    {{.pattern = "child", .style = kReplicate}}),
            "no error");
}

TEST(TensorParallelLayout, RefusesTensorsOfOtherShapesAndKinds) {
  const auto model = std::make_shared<ModelImpl>();
  model->register_parameter("cube", torch::zeros({4, 4, 4}));
  model->register_parameter("codes", torch::zeros({4, 4}, torch::kChar), /*requires_grad=*/false);
  EXPECT_THAT(refused(model, {{.pattern = "cube", .style = kColumn}}),
              HasSubstr("\"cube\" has 3 dims"));
  EXPECT_THAT(refused(model, {{.pattern = "codes", .style = kColumn}}),
              HasSubstr("as where weights are quantised or offloaded"));
}

}  // namespace
}  // namespace accelerate
