// The fields of FullyShardedDataParallelPlugin, in prepared models on simulated clusters.
#include <cstdint>
#include <exception>
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
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/operators/block.h"
#include "accelerate/parallel/sharded.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;
using Plugin = FullyShardedDataParallelPlugin;
namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  BlockImpl() { linear = register_module("linear", nn::Linear(16, 16)); }
  Tensor forward(const Tensor& x) {
    ++calls;
    return x + torch::tanh(linear(x));
  }
  nn::Linear linear{nullptr};
  int calls = 0;
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    head = register_module("head", nn::Linear(16, 3));
  }
  Tensor forward(Tensor x) {
    for (const auto& module : *blocks) {
      const auto each = std::static_pointer_cast<BlockImpl>(module);
      x = calls_block ? block(each, x) : each->forward(x);
    }
    return head(x);
  }
  bool calls_block = true;
  nn::ModuleList blocks;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

// The losses of three steps on all ranks' mean, and how often a block ran.
struct Outcome {
  std::vector<float> losses;
  int calls = 0;
};

Outcome train(const std::string& shape, const std::optional<Plugin>& plugin,
              bool calls_block = true) {
  Outcome outcome;
  Cluster cluster(shape);
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.fsdp_plugin = plugin});
    torch::manual_seed(3);
    Net net;
    net->calls_block = calls_block;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::vector<float> losses;
    for (int step = 0; step < 3; ++step) {
      const Tensor x = torch::sin(torch::arange(64.).reshape({4, 16}) + rank.index());
      const Tensor loss = model(x.to(accelerator.device())).square().mean();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(accelerator.reduce(loss.detach(), Reduction::kMean).item<float>());
    }
    if (rank.index() == 0) {
      outcome.losses = losses;
      outcome.calls = net->blocks->ptr<BlockImpl>(0)->calls;
    }
  });
  return outcome;
}

// What the first rank that fails says.
std::string error_of(const std::string& shape, const AcceleratorOptions& options) {
  std::string text;
  Cluster(shape).run_on_every_rank([&](Rank& rank) {
    const std::string own = value_error_of([&] { Accelerator accelerator(options); });
    if (rank.index() == 0) text = own;
  });
  return text;
}

// ---- The Accelerator.

TEST(FsdpPlugin, MakesTheJobOneOfFsdp) {
  Cluster("2x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(
        {.mixed_precision = PrecisionType::kBf16, .fsdp_plugin = Plugin{.fsdp_version = 2}});
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kFsdp);
    EXPECT_TRUE(accelerator.is_fsdp2());
    EXPECT_TRUE(accelerator.is_composable_parallelism_enabled());
    EXPECT_EQ(Runtime::current().environment().get("ACCELERATE_USE_FSDP"), "true");
    ASSERT_NE(accelerator.fsdp_plugin(), nullptr);
    EXPECT_EQ(accelerator.fsdp_plugin()->precision().param_dtype, at::kBFloat16);
    ASSERT_NE(accelerator.torch_device_mesh(), nullptr);
    EXPECT_EQ(accelerator.torch_device_mesh()->mesh().to_string(), "dp_shard 4");
    // One that changes the plugin, one that agrees, and one that does not.
    accelerator.fsdp_plugin()->set_state_dict_type("FULL_STATE_DICT");
    const Accelerator same({.fsdp_plugin = Plugin{.fsdp_version = 2}});
    EXPECT_EQ(same.fsdp_plugin()->state_type(), StateDictType::kFullStateDict);
    const Accelerator silent;
    EXPECT_EQ(silent.fsdp_plugin(), accelerator.fsdp_plugin());
    EXPECT_THAT(value_error_of([] { Accelerator other({.fsdp_plugin = Plugin{}}); }),
                AllOf(HasSubstr("fsdp_plugin (fsdp_version=1"), HasSubstr("contradicts")));
  });
}

TEST(FsdpPlugin, ComesFromTheEnvironment) {
  ClusterOptions options;
  options.environment.set("ACCELERATE_USE_FSDP", "true");
  options.environment.set("FSDP_SHARDING_STRATEGY", "HYBRID_SHARD");
  options.environment.set("FSDP_OFFLOAD_PARAMS", "true");
  Cluster("2x2", options).run_on_every_rank([](Rank&) {
    const Accelerator accelerator;
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kFsdp);
    EXPECT_FALSE(accelerator.is_fsdp2());
    EXPECT_TRUE(accelerator.fsdp_plugin()->offloads_parameters());
    EXPECT_EQ(accelerator.torch_device_mesh()->mesh().to_string(), "dp_replicate 2 x dp_shard 2");
  });
  options.environment.set("FSDP_VERSION", "2.5");
  Cluster("1x2", options).run_on_every_rank([](Rank&) {
    EXPECT_THAT(value_error_of([] { Accelerator accelerator; }), HasSubstr("FSDP_VERSION"));
  });
}

TEST(FsdpPlugin, FitsItsMesh) {
  const ParallelismConfig replicas({.dp_replicate_size = 2}, Environment()),
      shards({.dp_shard_size = 2}, Environment());
  EXPECT_THAT(error_of("1x2", {.parallelism_config = replicas, .fsdp_plugin = Plugin{}}),
              AllOf(HasSubstr("FULL_SHARD"), HasSubstr("nothing would be divided")));
  EXPECT_THAT(error_of("1x2", {.parallelism_config = shards,
                               .fsdp_plugin = Plugin{.sharding_strategy = "NO_SHARD"}}),
              AllOf(HasSubstr("NO_SHARD"), HasSubstr("set it to 1")));
  EXPECT_EQ(error_of("1x2", {.parallelism_config = shards, .fsdp_plugin = Plugin{}}), "no error");
  EXPECT_THAT(error_of("1x2:tpu-v4", {.fsdp_plugin = Plugin{}}), HasSubstr("TPUs do not divide"));
  Cluster("1x1").run_on_every_rank([](Rank&) {
    const Accelerator alone({.fsdp_plugin = Plugin{}});
    EXPECT_EQ(alone.distributed_type(), DistributedType::kNo);
    EXPECT_EQ(alone.torch_device_mesh(), nullptr);
  });
}

// ---- Fields.

TEST(FsdpPlugin, NoShardTrainsReplicas) {
  const auto replicas = train("1x4", std::nullopt);
  EXPECT_EQ(train("1x4", Plugin{.sharding_strategy = "NO_SHARD"}).losses, replicas.losses);
}

TEST(FsdpPlugin, ActivationCheckpointingRecomputesBlocks) {
  const Outcome plain = train("1x2", Plugin{.fsdp_version = 2});
  EXPECT_EQ(plain.calls, 3);
  const Outcome all = train("1x2", Plugin{.fsdp_version = 2, .activation_checkpointing = true});
  EXPECT_EQ(all.calls, 6);
  EXPECT_EQ(all.losses, plain.losses);
  // A model that is not divided does the same.
  const Outcome alone =
      train("1x1", Plugin{.auto_wrap_policy = "transformer_based_wrap",
                          .activation_checkpointing = true,
                          .transformer_cls_names_to_wrap = std::vector<std::string>{"Block"}});
  EXPECT_EQ(alone.calls, 6);
}

TEST(FsdpPlugin, ActivationCheckpointingNeedsBlocks) {
  const auto error_of_training = [](const Plugin& plugin, bool calls_block) -> std::string {
    try {
      train("1x1", plugin, calls_block);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of_training({.activation_checkpointing = true}, /*calls_block=*/false),
              HasSubstr("acts where the model calls accelerate::block(module, inputs...), but this "
                        "forward pass has no such call;"));
  EXPECT_THAT(
      error_of_training({.auto_wrap_policy = "transformer_based_wrap",
                         .activation_checkpointing = true,
                         .transformer_cls_names_to_wrap = std::vector<std::string>{"Linear"}},
                        /*calls_block=*/true),
      HasSubstr("no such call of a module that auto_wrap_policy picks"));
}

// ---- What fields do to a prepared model of which ranks have shards.

// The units with parameters, by the path of their modules.
std::vector<std::string> units_of(const PreparedModel<NetImpl>& model) {
  const auto& parameters = *find_stage<ShardedModel>(model)->parameters();
  std::vector<std::string> units;
  for (const char* path :
       {"", "blocks", "blocks.0", "blocks.0.linear", "blocks.1", "blocks.1.linear", "head"}) {
    for (size_t i = 0; i < parameters.groups_of(path, /*inner=*/false).size(); ++i) {
      units.emplace_back(path);
    }
  }
  return units;
}

struct FieldCase {
  std::string name;
  Plugin plugin;
  std::vector<std::string> units;
  int64_t divided = 6;  // parameters
};

TEST(FsdpPlugin, EachFieldHasItsEffectOnAPreparedModel) {
  const std::vector<std::string> blocks = {"", "blocks.0", "blocks.1"};
  const Plugin by_class{.auto_wrap_policy = "transformer_based_wrap",
                        .transformer_cls_names_to_wrap = std::vector<std::string>{"Block"}};
  const auto with = [&](const std::function<void(Plugin&)>& change) {
    Plugin plugin = by_class;
    change(plugin);
    return plugin;
  };
  constexpr int64_t kLinear = 16 * 16 + 16;
  const std::vector<FieldCase> cases = {
      {"no policy", {}, {""}},
      {"transformer_cls_names_to_wrap", by_class, blocks},
      {"version 2", with([](Plugin& p) { p.fsdp_version = 2; }), blocks},
      {"min_num_params, version 1",
       {.auto_wrap_policy = "size_based_wrap", .min_num_params = kLinear},
       {"", "blocks.0.linear", "blocks.1.linear"}},
      {"min_num_params, version 2",
       {.fsdp_version = 2, .auto_wrap_policy = "size_based_wrap", .min_num_params = kLinear},
       {"", "blocks"}},
      {"a function",
       {.auto_wrap_policy = ModulePolicy([](const nn::Module& module) {
          const auto* linear = dynamic_cast<const nn::LinearImpl*>(&module);
          return linear != nullptr && linear->options.out_features() == 3;
        })},
       {"", "head"}},
      {"ignored_modules",
       with([](Plugin& p) { p.ignored_modules = "head"; }),
       {"blocks.0", "blocks.1"},
       4},
      {"forward_prefetch", with([](Plugin& p) { p.forward_prefetch = true; }), blocks},
      {"backward_prefetch", with([](Plugin& p) { p.backward_prefetch = "BACKWARD_POST"; }), blocks},
      {"limit_all_gathers", with([](Plugin& p) { p.limit_all_gathers = false; }), blocks},
      {"use_orig_params", with([](Plugin& p) { p.use_orig_params = true; }), blocks},
      {"sync_module_states", with([](Plugin& p) { p.sync_module_states = true; }), blocks},
      {"cpu_offload", with([](Plugin& p) { p.cpu_offload = true; }), blocks},
      {"sharding_strategy", with([](Plugin& p) { p.sharding_strategy = "SHARD_GRAD_OP"; }), blocks},
  };
  for (const FieldCase& each : cases) {
    SCOPED_TRACE(each.name);
    const bool ignores_head = each.divided == 4;
    // Ignored parameters differ between ranks from the first step on.
    if (!ignores_head) {
      EXPECT_EQ(train("1x2:h100", each.plugin).losses, train("1x2:h100", by_class).losses);
    }
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.fsdp_plugin = each.plugin});
      torch::manual_seed(rank.index());
      Net net;
      const Tensor first = net->head->bias.detach().clone();
      auto model = accelerator.prepare(net);
      EXPECT_EQ(units_of(model), each.units);
      const auto& parameters = find_stage<ShardedModel>(model)->parameters();
      EXPECT_EQ(parameters->shards().size(), each.divided);
      for (const auto& shard : parameters->shards()) {
        EXPECT_EQ(shard.shard.is_cpu(), each.name == "cpu_offload") << shard.name;
      }
      EXPECT_EQ(net->head->bias.device(), accelerator.device());
      // Rank 0's values, but for those that are ignored.
      const auto whole = full_parameters(model, {.writeback = false});
      const Tensor biases = accelerator.gather(net->head->bias.detach().clone());
      EXPECT_EQ(torch::equal(biases.narrow(0, 0, 3), biases.narrow(0, 3, 3)), !ignores_head);
      if (rank.index() == 0) EXPECT_TRUE(torch::equal(biases.narrow(0, 0, 3).cpu(), first));
    });
  }
}

TEST(FsdpPlugin, WithoutOrigParamsAUnitIsTrainedAlike) {
  const auto error_with = [](const Plugin& plugin, bool freezes, bool has_groups) {
    std::string text;
    Cluster("1x2").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.fsdp_plugin = plugin});
      Net net;
      if (freezes) net->head->bias.set_requires_grad(false);
      torch::optim::SGD sgd({net->blocks->parameters()}, 0.1);
      if (has_groups) sgd.add_param_group(std::vector<Tensor>{net->head->weight});
      const std::string own = value_error_of([&] { accelerator.prepare(net, sgd); });
      if (rank.index() == 0) text = own;
      // A refused model is as it was.
      if (own != "no error") EXPECT_EQ(net->head->bias.sum().numel(), 1);
    });
    return text;
  };
  const Plugin units{.auto_wrap_policy = "transformer_based_wrap",
                     .transformer_cls_names_to_wrap = std::vector<std::string>{"Block"}};
  EXPECT_THAT(error_with(units, /*freezes=*/true, /*has_groups=*/false),
              AllOf(HasSubstr("of unit \"model\" \"head.weight\" requires gradients and "
                              "\"head.bias\" does not"),
                    HasSubstr("use_orig_params = true")));
  EXPECT_THAT(error_with({}, /*freezes=*/false, /*has_groups=*/true),
              AllOf(HasSubstr("of unit \"model\" \"blocks.0.linear.weight\" is in group 0 and "
                              "\"head.weight\" in group 1"),
                    HasSubstr("use_orig_params = true")));
  // Groups that units follow, and plugins without the rule.
  EXPECT_EQ(error_with(units, /*freezes=*/false, /*has_groups=*/true), "no error");
  EXPECT_EQ(error_with({.use_orig_params = true}, /*freezes=*/true, /*has_groups=*/true),
            "no error");
  EXPECT_EQ(error_with({.fsdp_version = 2}, /*freezes=*/true, /*has_groups=*/true), "no error");
}

// ---- Construction.

// Tensors that are on "meta" by name, so that no construction is recorded.
struct AffineImpl : nn::Module {
  explicit AffineImpl(bool has_values) {
    const auto options = torch::TensorOptions(has_values ? torch::kCPU : torch::kMeta);
    weight = register_parameter("weight", torch::empty({6, 6}, options));
    shift = register_buffer("shift", torch::empty({6}, options));
    if (has_values) fill();
  }
  void fill() {
    const torch::NoGradGuard no_grad;
    weight.copy_(torch::arange(36.).view({6, 6}) / 36);
    shift.fill_(0.25);
  }
  Tensor forward(const Tensor& x) { return torch::tanh(x.matmul(weight) + shift); }
  Tensor weight, shift;
};
TORCH_MODULE(Affine);

struct Constructed {
  std::vector<float> outputs;  // by rank, the mean of a forward pass
  std::vector<int> calls;      // of param_init_fn
  std::vector<std::string> errors;
};

// `has_values`: whether a rank's model does.
Constructed construct(Plugin plugin, bool has_init, const std::vector<bool>& has_values) {
  const int ranks = static_cast<int>(has_values.size());
  Constructed result{std::vector<float>(ranks), std::vector<int>(ranks),
                     std::vector<std::string>(ranks)};
  Cluster("1x" + std::to_string(ranks) + ":h100").run_on_every_rank([&](Rank& rank) {
    Plugin own = plugin;
    int& calls = result.calls[rank.index()];
    if (has_init) {
      own.param_init_fn = [&calls](nn::Module& module) {
        ++calls;
        module.as<AffineImpl>()->fill();
      };
    }
    Accelerator accelerator({.fsdp_plugin = own});
    Affine net(has_values[rank.index()]);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    result.errors[rank.index()] = value_error_of([&] {
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      result.outputs[rank.index()] =
          model(torch::ones({2, 6}, accelerator.device())).mean().template item<float>();
    });
  });
  return result;
}

TEST(FsdpPlugin, ParamInitFnGivesModulesTheirValues) {
  const Constructed plain = construct({.fsdp_version = 2}, /*has_init=*/false, {true, true});
  const Constructed made = construct({.fsdp_version = 2}, /*has_init=*/true, {false, false});
  EXPECT_THAT(made.errors, ElementsAre("no error", "no error"));
  EXPECT_THAT(made.calls, ElementsAre(1, 1));
  EXPECT_EQ(made.outputs, plain.outputs);
}

TEST(FsdpPlugin, EfficientLoadingNeedsValuesOnRank0Alone) {
  const Constructed plain = construct({.fsdp_version = 2}, /*has_init=*/false, {true, true, true});
  for (const Plugin& plugin :
       {Plugin{.fsdp_version = 2, .cpu_ram_efficient_loading = true},
        Plugin{.sync_module_states = true, .cpu_ram_efficient_loading = true},
        Plugin{.sync_module_states = true}}) {
    const Constructed loaded = construct(plugin, /*has_init=*/false, {true, false, false});
    EXPECT_EQ(loaded.outputs, plain.outputs);
    const Constructed made = construct(plugin, /*has_init=*/true, {false, false, false});
    EXPECT_THAT(made.calls, ElementsAre(1, 0, 0));
    EXPECT_EQ(made.outputs, plain.outputs);
  }
}

TEST(FsdpPlugin, NamesTheRankWithoutValues) {
  const Constructed refused =
      construct({.fsdp_version = 2}, /*has_init=*/false, {true, false, true});
  for (const std::string& error : refused.errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1: parameter \"weight\" has no values"),
                             HasSubstr("give a param_init_fn")));
  }
  const Constructed rank_0 = construct({.fsdp_version = 2, .cpu_ram_efficient_loading = true},
                                       /*has_init=*/false, {false, true});
  for (const std::string& error : rank_0.errors) {
    EXPECT_THAT(error, HasSubstr("rank 0: parameter \"weight\" has no values"));
  }
}

// ---- Checkpoints.

// Whether a save has whole tensors.
bool saves_whole_tensors(const Plugin& plugin, std::optional<StateDictType> later = std::nullopt) {
  bool whole = false;
  Cluster("1x2").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.fsdp_plugin = plugin});
    Net net;
    auto [model, optimizer] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*defaults=*/0.1));
    if (later) accelerator.fsdp_plugin()->set_state_dict_type(*later);
    accelerator.save_state("/sim/run/saved");
    if (rank.index() > 0) return;
    FileSystem& files = accelerator.runtime().files();
    whole = exists(files, "/sim/run/saved/model.safetensors").value();
    EXPECT_NE(whole, exists(files, "/sim/run/saved/pytorch_model_fsdp_0/metadata.json").value());
  });
  return whole;
}

TEST(FsdpPlugin, StateDictTypeIsTheFormOfASave) {
  EXPECT_TRUE(saves_whole_tensors({.fsdp_version = 1}));
  EXPECT_FALSE(saves_whole_tensors({.fsdp_version = 2}));
  EXPECT_TRUE(saves_whole_tensors({.fsdp_version = 2}, StateDictType::kFullStateDict));
}

}  // namespace
}  // namespace accelerate
