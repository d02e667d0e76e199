// The options of FSDP once they are resolved, and the units that they make of a model.
// integration_tests/golden compares both with HF Accelerate's.
#include "accelerate/parallel/sharded/units.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "accelerate/config/model_structure.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;
using Plugin = FullyShardedDataParallelPlugin;
namespace nn = torch::nn;

// A case sees no variable but those that it sets.
Environment clean(const std::map<std::string, std::string>& variables = {}) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) environment.unset(name);
  for (const auto& [name, value] : variables) environment.set(name, value);
  return environment;
}

Plugin resolved(Plugin plugin, const std::map<std::string, std::string>& variables = {}) {
  Environment environment = clean(variables);
  return resolve(std::move(plugin), environment);
}

struct BlockImpl : nn::Module {
  BlockImpl() {
    in = register_module("in", nn::Linear(4, 4));
    out = register_module("out", nn::Linear(4, 4));
  }
  nn::Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(Block);

struct HeadImpl : nn::Module {
  explicit HeadImpl(const at::Tensor& values) { weight = register_parameter("weight", values); }
  at::Tensor weight;
};
TORCH_MODULE(Head);

struct NetImpl : nn::Module, ModelStructure {
  explicit NetImpl(bool tied = false) {
    tokens = register_module("tokens", nn::Embedding(6, 4));
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})));
    head = register_module("head", Head(tied ? tokens->weight : at::zeros({6, 4})));
    scale = register_parameter("scale", at::zeros({}));
  }
  std::vector<std::string> no_split_modules() const override { return {"Block"}; }
  std::optional<std::string> input_embeddings() const override { return "tokens"; }
  std::optional<std::string> output_embeddings() const override { return output; }

  std::string output = "head";
  nn::Embedding tokens{nullptr};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nullptr};
  Head head{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(Net);

std::vector<std::string> names_of(const std::vector<ShardUnit>& units) {
  std::vector<std::string> names;
  for (const ShardUnit& unit : units) names.push_back(unit.name);
  return names;
}

// ---- The plugin.

TEST(FsdpPlugin, SaysTheSameOfBothVersions) {
  const Plugin first = resolved({.sharding_strategy = "hybrid_shard", .cpu_offload = true});
  EXPECT_EQ(first.strategy(), ShardingStrategy::kHybridShard);
  EXPECT_TRUE(first.reshards_after_forward());
  EXPECT_TRUE(first.offloads_parameters());
  EXPECT_TRUE(first.pins_memory());
  EXPECT_EQ(first.state_type(), StateDictType::kFullStateDict);
  const Plugin second = resolved({.fsdp_version = 2,
                                  .reshard_after_forward = false,
                                  .cpu_offload = CPUOffloadPolicy{.pin_memory = false}});
  EXPECT_EQ(second.strategy(), ShardingStrategy::kShardGradOp);
  EXPECT_FALSE(second.reshards_after_forward());
  EXPECT_TRUE(second.offloads_parameters());
  EXPECT_FALSE(second.pins_memory());
  EXPECT_EQ(second.state_type(), StateDictType::kShardedStateDict);
  EXPECT_FALSE(resolved({}).offloads_parameters());
}

TEST(FsdpPlugin, HasThePrecisionOfItsVersion) {
  EXPECT_EQ(resolved({}).precision(), ShardPrecision());
  Plugin first = resolved({});
  first.set_mixed_precision("bf16", /*buffer_autocast=*/true);
  EXPECT_EQ(first.precision(), (ShardPrecision{.param_dtype = c10::kBFloat16,
                                               .reduce_dtype = c10::kBFloat16,
                                               .buffer_dtype = c10::kFloat}));
  first.set_mixed_precision("fp16");
  EXPECT_EQ(first.precision().param_dtype, c10::kBFloat16) << "a policy that is there stays";
  Plugin second = resolved({.fsdp_version = 2, .mixed_precision_policy = "fp8"});
  EXPECT_EQ(second.precision(),
            (ShardPrecision{.param_dtype = c10::kBFloat16, .output_dtype = c10::kBFloat16}));
  EXPECT_THAT(value_error_of([&] { second.set_mixed_precision(c10::kDouble); }),
              HasSubstr("Invalid mixed precision: torch.float64."));
}

TEST(FsdpPlugin, IsResolvedOnce) {
  Plugin plugin;
  EXPECT_THAT(value_error_of([&] { plugin.strategy(); }), HasSubstr("is not resolved"));
  plugin = resolved({.sharding_strategy = ShardingStrategy::kShardGradOp});
  plugin.set_state_dict_type(StateDictType::kShardedStateDict);
  const RecordedWarnings warnings;
  Environment environment = clean({{"FSDP_VERSION", "2"}});
  plugin = resolve(plugin, environment);
  EXPECT_EQ(plugin.version(), 1);
  EXPECT_EQ(plugin.state_type(), StateDictType::kShardedStateDict);
  EXPECT_THAT(warnings.texts(), IsEmpty());
}

TEST(FsdpPlugin, NamesWhatIsWrong) {
  const auto error_of = [](const Plugin& plugin,
                           const std::map<std::string, std::string>& variables = {}) {
    return value_error_of([&] { resolved(plugin, variables); });
  };
  EXPECT_THAT(error_of({.fsdp_version = 3}), HasSubstr("fsdp_version is 3"));
  EXPECT_THAT(error_of({}, {{"FSDP_VERSION", "two"}}), HasSubstr("FSDP_VERSION"));
  EXPECT_THAT(error_of({}, {{"FSDP_OFFLOAD_PARAMS", "some"}}), HasSubstr("FSDP_OFFLOAD_PARAMS"));
  EXPECT_THAT(error_of({.sharding_strategy = 7}), HasSubstr("7 is not a valid ShardingStrategy"));
  EXPECT_THAT(error_of({.auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap, .min_num_params = -1}),
              HasSubstr("min_num_params is -1"));
  EXPECT_THAT(error_of({.fsdp_version = 2,
                        .mixed_precision_policy =
                            std::map<std::string, c10::ScalarType>{{"param_dtype", c10::kHalf},
                                                                   {"reduce_dtype", c10::kHalf},
                                                                   {"output_dtype", c10::kHalf},
                                                                   {"buffer_dtype", c10::kHalf}}}),
              HasSubstr("\"buffer_dtype\", which FSDP2 does not have"));
  EXPECT_THAT(error_of({.auto_wrap_policy = ModulePolicy()}), HasSubstr("the function is empty"));
  EXPECT_THAT(error_of({.cpu_offload = OffloadPolicy()}), HasSubstr("got OffloadPolicy()"));
}

TEST(FsdpPlugin, HasALineForPeople) {
  EXPECT_THAT(to_text(resolved({.fsdp_version = 2, .cpu_offload = true})),
              AllOf(HasSubstr("fsdp_version=2, reshard_after_forward=True"),
                    HasSubstr("cpu_offload=CPUOffloadPolicy(pin_memory=True)"),
                    HasSubstr("state_dict_type=SHARDED_STATE_DICT")));
}

// ---- Units.

TEST(FsdpUnits, HaveEachParameterOnce) {
  for (const bool tied : {false, true}) {
    for (const int64_t version : {1, 2}) {
      for (const AutoWrapPolicy policy :
           {AutoWrapPolicy::kTransformerBasedWrap, AutoWrapPolicy::kSizeBasedWrap,
            AutoWrapPolicy::kNoWrap}) {
        const Net net(tied);
        const auto units = fsdp_units(
            *net,
            resolved({.fsdp_version = version, .auto_wrap_policy = policy, .min_num_params = 10}));
        std::vector<std::string> found;
        for (const ShardUnit& unit : units) {
          found.insert(found.end(), unit.parameters.begin(), unit.parameters.end());
        }
        std::set<const at::TensorImpl*> tensors;
        const auto named = net->named_parameters();
        for (const auto& item : named) tensors.insert(item.value().unsafeGetTensorImpl());
        EXPECT_THAT(found, SizeIs(tensors.size()));
        for (const std::string& name : found) {
          EXPECT_EQ(tensors.erase(named[name].unsafeGetTensorImpl()), 1u) << name;
        }
        EXPECT_EQ(units.back().modules, std::vector<std::string>{""});
        EXPECT_FALSE(units.back().reshard_after_forward);
      }
    }
  }
}

TEST(FsdpUnits, OfVersion2HaveTheEmbeddingAndTheEnd) {
  const Plugin plugin =
      resolved({.fsdp_version = 2, .auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap});
  const Net net;
  const auto units = fsdp_units(*net, plugin);
  EXPECT_THAT(names_of(units), ElementsAre("blocks.0", "blocks.1", "tokens", "norm", "model"));
  EXPECT_THAT(units[3].modules, ElementsAre("norm", "head"));
  EXPECT_THAT(units[3].parameters, ElementsAre("norm.weight", "norm.bias", "head.weight"));
  EXPECT_FALSE(units[3].reshard_after_forward);
  EXPECT_TRUE(units[2].reshard_after_forward);
  EXPECT_THAT(units[4].parameters, ElementsAre("scale"));
  const Net tied(true);
  const auto of_tied = fsdp_units(*tied, plugin);
  EXPECT_THAT(names_of(of_tied), ElementsAre("blocks.0", "blocks.1", "norm", "model"));
  EXPECT_THAT(of_tied[2].modules, ElementsAre("norm", "tokens", "head"));
  EXPECT_THAT(of_tied[2].parameters, ElementsAre("norm.weight", "norm.bias", "tokens.weight"));
  // An end that the policy picks is not a part of the tail.
  const auto picking = [&](const std::string& name) {
    return resolved({.fsdp_version = 2,
                     .auto_wrap_policy = ModulePolicy([&tied, name](const nn::Module& module) {
                       return &module == (name == "head"
                                              ? static_cast<const nn::Module*>(tied->head.get())
                                              : tied->tokens.get());
                     })});
  };
  const auto head_apart = fsdp_units(*tied, picking("head"));
  EXPECT_THAT(head_apart[1].modules, ElementsAre("norm", "tokens"));
  const auto tokens_apart = fsdp_units(*tied, picking("tokens"));
  EXPECT_THAT(tokens_apart[1].modules, ElementsAre("norm", "head"));
}

TEST(FsdpUnits, FollowAFunction) {
  const Net net;
  const auto units =
      fsdp_units(*net, resolved({.auto_wrap_policy = ModulePolicy([](const nn::Module& module) {
                                   return dynamic_cast<const nn::LinearImpl*>(&module) != nullptr;
                                 })}));
  EXPECT_THAT(names_of(units),
              ElementsAre("blocks.0.in", "blocks.0.out", "blocks.1.in", "blocks.1.out", "model"));
}

TEST(FsdpUnits, NameATiedParameterByItsFirstName) {
  const Net tied(true);
  const auto units =
      fsdp_units(*tied, resolved({.auto_wrap_policy = ModulePolicy([&](const nn::Module& module) {
                                    return &module == tied->head.get();
                                  })}));
  EXPECT_THAT(names_of(units), ElementsAre("head", "model"));
  EXPECT_THAT(units[0].parameters, ElementsAre("tokens.weight"));
}

TEST(FsdpUnits, LeaveOutWhatIsIgnored) {
  const Net net;
  const auto ignoring = [](decltype(Plugin::ignored_modules) ignored, int64_t version) {
    return resolved({.fsdp_version = version,
                     .auto_wrap_policy = "transformer_based_wrap",
                     .ignored_modules = std::move(ignored),
                     .transformer_cls_names_to_wrap = std::vector<std::string>{"Block"}});
  };
  for (const int64_t version : {1, 2}) {
    const Plugin plugin = ignoring(R"(blocks\.1|head)", version);
    EXPECT_THAT(ignored_modules(*net, plugin), ElementsAre("blocks.1", "head"));
    std::vector<std::string> divided;
    for (const ShardUnit& unit : fsdp_units(*net, plugin)) {
      EXPECT_NE(unit.name, "blocks.1");
      divided.insert(divided.end(), unit.parameters.begin(), unit.parameters.end());
    }
    EXPECT_THAT(divided,
                UnorderedElementsAreArray({"blocks.0.in.weight", "blocks.0.in.bias",
                                           "blocks.0.out.weight", "blocks.0.out.bias",
                                           "tokens.weight", "norm.weight", "norm.bias", "scale"}));
    const Plugin listed =
        ignoring(std::vector<std::shared_ptr<nn::Module>>{net->head.ptr()}, version);
    EXPECT_THAT(get_parameters_from_modules(ignored_modules(*net, listed), *net),
                ElementsAre("head.weight"));
  }
  EXPECT_THAT(ignored_modules(*net, ignoring("", 1)), IsEmpty());
  EXPECT_THAT(value_error_of([&] { fsdp_units(*net, ignoring(".*", 1)); }),
              HasSubstr("has the model itself"));
  EXPECT_THAT(value_error_of([&] { fsdp_units(*net, ignoring("(", 1)); }),
              HasSubstr("\"(\" is not a regular expression"));
  const nn::Linear elsewhere(1, 1);
  EXPECT_THAT(value_error_of([&] {
                fsdp_units(*net,
                           ignoring(std::vector<std::shared_ptr<nn::Module>>{elsewhere.ptr()}, 2));
              }),
              HasSubstr("a Linear is not a module of the model"));
}

TEST(FsdpUnits, NameAModuleThatTheModelLacks) {
  Net net;
  net->output = "lm_head";
  EXPECT_THAT(value_error_of([&] { fsdp_units(*net, resolved({.fsdp_version = 2})); }),
              HasSubstr("names a module \"lm_head\""));
}

}  // namespace
}  // namespace accelerate
