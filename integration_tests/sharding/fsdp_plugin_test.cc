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

#include "absl/time/time.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/operators/block.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::MemoryCategory;
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
    dtype = x.scalar_type();
    return x + torch::tanh(linear(x));
  }
  nn::Linear linear{nullptr};
  int calls = 0;
  at::ScalarType dtype = at::kFloat;  // of the last input
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  explicit NetImpl(int num_blocks = 2) {
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(Block());
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
    // A change of the plugin, then Accelerators with equal, absent and contradicting options.
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
              AllOf(HasSubstr("NO_SHARD"), HasSubstr("leave the parallelism_config out")));
  EXPECT_EQ(error_of("1x2", {.parallelism_config = shards, .fsdp_plugin = Plugin{}}), "no error");
  EXPECT_THAT(error_of("1x2:tpu-v4", {.fsdp_plugin = Plugin{}}), HasSubstr("TPUs do not divide"));
  Cluster("1x1").run_on_every_rank([](Rank&) {
    const Accelerator alone({.fsdp_plugin = Plugin{}});
    EXPECT_EQ(alone.distributed_type(), DistributedType::kNo);
    EXPECT_EQ(alone.torch_device_mesh(), nullptr);
  });
}

// What a refusal names in place of a layout works.
TEST(FsdpPlugin, NoShardIsToldALayoutThatWorks) {
  const auto error = [](const std::string& cluster, const ParallelismOptions& sizes,
                        const char* strategy) {
    return error_of(cluster, {.parallelism_config = ParallelismConfig(sizes, Environment()),
                              .fsdp_plugin = Plugin{.sharding_strategy = strategy}});
  };
  EXPECT_THAT(error("1x4", {.dp_shard_size = 2, .tp_size = 2}, "NO_SHARD"),
              HasSubstr("dp_shard_size is 2, so models are divided; the nearest layout that works: "
                        "dp_replicate 2 x tp 2; or choose FULL_SHARD"));
  EXPECT_EQ(error("1x4", {.dp_replicate_size = 2, .tp_size = 2}, "NO_SHARD"), "no error");
  EXPECT_EQ(error("1x4", {.dp_shard_size = 2, .tp_size = 2}, "FULL_SHARD"), "no error");
  EXPECT_THAT(error("1x2", {.cp_size = 2, .ep_size = 2}, "NO_SHARD"),
              HasSubstr("dp_shard_size is 1 and its ep_size 2, so models are divided; the nearest "
                        "layout that works: cp 2; or choose FULL_SHARD"));
  EXPECT_EQ(error("1x2", {.cp_size = 2}, "NO_SHARD"), "no error");
  EXPECT_EQ(error("1x2", {.cp_size = 2, .ep_size = 2}, "FULL_SHARD"), "no error");
  EXPECT_THAT(error("1x4", {.dp_shard_size = 4, .ep_size = 2}, "NO_SHARD"),
              HasSubstr("dp_shard_size is 4 and its ep_size 2, so models are divided; leave the "
                        "parallelism_config out, or choose FULL_SHARD"));
  EXPECT_THAT(error("1x4", {.dp_shard_size = 2, .cp_size = 2, .ep_size = 2}, "NO_SHARD"),
              HasSubstr("so models are divided; choose FULL_SHARD"));
  EXPECT_EQ(error("1x4", {.dp_shard_size = 2, .cp_size = 2, .ep_size = 2}, "FULL_SHARD"),
            "no error");
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

// What training costs on a device of which the inputs of blocks take most of the memory.
struct Costs {
  Tensor weights;
  int64_t peak = 0;
  absl::Duration elapsed;
};

Costs costs_of(const std::string& shape, const Plugin& plugin) {
  Costs costs;
  Cluster cluster(shape);
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.fsdp_plugin = plugin});
    torch::manual_seed(3);
    Net net(/*num_blocks=*/6);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor x =
        torch::sin(torch::arange(16. * 8192).reshape({8192, 16}) + rank.index()).to(torch::kFloat);
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(x.to(accelerator.device())).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto whole = full_parameters(model, {.writeback = false});
    std::vector<Tensor> values;
    for (const Tensor& each : net->parameters()) values.push_back(each.detach().cpu().flatten());
    if (rank.index() > 0) return;
    costs.weights = torch::cat(values);
    if (rank.device() != nullptr) costs.peak = rank.device()->memory().peak();
  });
  costs.elapsed = cluster.elapsed();
  return costs;
}

TEST(FsdpPlugin, ActivationCheckpointingOffloadKeepsInputsOnTheHost) {
  constexpr int64_t kInput = int64_t{16} * 8192 * 4, kBlocks = 6;
  Plugin plugin{.fsdp_version = 2, .activation_checkpointing = true};
  for (const char* shape : {"1x1:h100", "1x2:h100", "1x2"}) {
    SCOPED_TRACE(shape);
    plugin.activation_checkpointing_offload = false;
    const Costs kept = costs_of(shape, plugin);
    plugin.activation_checkpointing_offload = true;
    const Costs offloaded = costs_of(shape, plugin);
    EXPECT_TRUE(torch::equal(offloaded.weights, kept.weights));
    if (kept.peak == 0) continue;  // no devices
    // Recomputation needs one of them at a time, and the first is the caller's.
    EXPECT_LE(offloaded.peak, kept.peak - (kBlocks - 3) * kInput);
    // The copies take time.
    EXPECT_GT(offloaded.elapsed, kept.elapsed);
  }
  plugin.activation_checkpointing = false;
  EXPECT_THAT(error_of("1x1", {.fsdp_plugin = plugin}),
              HasSubstr("`activation_checkpointing_offload=True` requires "
                        "`activation_checkpointing=True`."));
  EXPECT_THAT(error_of("1x1", {.fsdp_plugin = Plugin{.activation_checkpointing = true,
                                                     .activation_checkpointing_offload = true}}),
              HasSubstr("`activation_checkpointing_offload=True` requires `fsdp_version=2`."));
}

TEST(FsdpPlugin, ActivationCheckpointingOffloadComesFromTheEnvironment) {
  ClusterOptions options;
  options.environment.set("ACCELERATE_USE_FSDP", "true");
  options.environment.set("FSDP_VERSION", "2");
  options.environment.set("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "true");
  const auto error = [&] {
    std::string text;
    Cluster("1x1", options).run_on_every_rank([&](Rank&) {
      text = value_error_of([] {
        const Accelerator accelerator;
        EXPECT_TRUE(*accelerator.fsdp_plugin()->activation_checkpointing_offload);
      });
    });
    return text;
  };
  EXPECT_THAT(error(), HasSubstr("requires `activation_checkpointing=True`"));
  options.environment.set("FSDP_ACTIVATION_CHECKPOINTING", "true");
  EXPECT_EQ(error(), "no error");
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
  const auto& parameters = *find_technique<ShardedModel>(model)->parameters();
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

TEST(FsdpPlugin, FieldsSayWhatIsDividedAndWhereItIs) {
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
      {"cpu_offload", with([](Plugin& p) { p.cpu_offload = true; }), blocks},
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
      const auto& parameters = find_technique<ShardedModel>(model)->parameters();
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

// ---- What fields do to a training step.

struct Step {
  double seconds = 0;    // of a step, after the first one
  int64_t gathered = 0;  // bytes in memory between a forward pass and its backward pass
  std::vector<float> losses;
  at::ScalarType input = at::kFloat;     // of a block
  at::ScalarType gradient = at::kFloat;  // of a shard
};

Step step_of(Plugin plugin) {
  if (!plugin.auto_wrap_policy) {
    plugin.auto_wrap_policy = "transformer_based_wrap";
    plugin.transformer_cls_names_to_wrap = std::vector<std::string>{"Block"};
  }
  Step step;
  // Version 1 computes with automatic mixed precision, where the job has one.
  const auto precision = plugin.mixed_precision_policy ? PrecisionType::kBf16 : PrecisionType::kNo;
  Cluster("2x1:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.mixed_precision = precision, .fsdp_plugin = plugin});
    torch::manual_seed(3);
    Net net(/*num_blocks=*/6);
    net->calls_block = false;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    absl::Time begin;
    for (int i = 0; i < 3; ++i) {
      if (i == 1) begin = accelerator.runtime().now();
      const Tensor x =
          torch::sin(torch::arange(64.).reshape({4, 16}) + rank.index()).to(torch::kFloat);
      const Tensor loss = model(x.to(accelerator.device())).square().mean();
      const auto held = rank.device()->memory().by_category();
      accelerator.backward(loss);
      if (rank.index() == 0) {
        step.gathered = held[static_cast<size_t>(MemoryCategory::kGatheredParameters)];
        step.gradient = sgd.param_groups()[0].params()[0].grad().scalar_type();
        step.losses.push_back(loss.item<float>());
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.wait_for_everyone();
    if (rank.index() > 0) return;
    step.seconds = absl::ToDoubleSeconds(accelerator.runtime().now() - begin) / 2;
    step.input = net->blocks->ptr<BlockImpl>(0)->dtype;
  });
  return step;
}

TEST(FsdpPlugin, FieldsSayWhenParametersAreGathered) {
  const Step plain = step_of({});
  // Before or after the gradients of the unit before, which changes no bits. What it hides of
  // gathers is in sharding_strategy_test.cc.
  const Step before = step_of({.backward_prefetch = "BACKWARD_PRE"}),
             after = step_of({.backward_prefetch = "BACKWARD_POST"});
  EXPECT_LE(after.seconds, plain.seconds);
  EXPECT_LE(before.seconds, after.seconds);
  EXPECT_EQ(before.losses, plain.losses);
  EXPECT_EQ(after.losses, plain.losses);
  // All of them stay from the forward pass to the backward pass, and are gathered once.
  const Step grad_op = step_of({.sharding_strategy = "SHARD_GRAD_OP"});
  EXPECT_GT(grad_op.gathered, plain.gathered);
  EXPECT_LT(grad_op.seconds, plain.seconds);
  EXPECT_EQ(grad_op.losses, plain.losses);
  const Step second = step_of({.fsdp_version = 2}),
             stays = step_of({.fsdp_version = 2, .reshard_after_forward = false});
  EXPECT_GT(stays.gathered, second.gathered);
  EXPECT_LT(stays.seconds, second.seconds);
  // Shards on the host are copied for each gather.
  EXPECT_GT(step_of({.cpu_offload = true}).seconds, plain.seconds);
}

// sharding_options.md says so of these.
TEST(FsdpPlugin, FieldsWithoutEffectChangeNothing) {
  const Step plain = step_of({});
  for (const Plugin& plugin : {Plugin{.limit_all_gathers = false}, Plugin{.forward_prefetch = true},
                               Plugin{.forward_prefetch = false}, Plugin{.use_orig_params = true},
                               Plugin{.sync_module_states = true}}) {
    const Step step = step_of(plugin);
    EXPECT_EQ(step.seconds, plain.seconds) << to_text(plugin);
    EXPECT_EQ(step.gathered, plain.gathered) << to_text(plugin);
    EXPECT_EQ(step.losses, plain.losses) << to_text(plugin);
  }
}

TEST(FsdpPlugin, MixedPrecisionPolicyCastsInputsAndKeepsGradients) {
  const auto first = [](const MixedPrecision& policy) {
    return step_of({.mixed_precision_policy = policy});
  };
  const MixedPrecision usual{.param_dtype = at::kBFloat16};
  const Step plain = first(usual);
  EXPECT_EQ(plain.input, at::kBFloat16);
  EXPECT_EQ(plain.gradient, at::kFloat);
  EXPECT_LT(plain.gathered, step_of({}).gathered);
  // Either flag casts the inputs of the model.
  MixedPrecision policy = usual;
  policy.cast_root_forward_inputs = false;
  EXPECT_EQ(first(policy).input, at::kFloat);
  policy.cast_forward_inputs = true;
  EXPECT_EQ(first(policy).input, at::kBFloat16);
  policy.cast_root_forward_inputs = true;
  EXPECT_EQ(first(policy).input, at::kBFloat16);
  // Gradients stay in what they were reduced in.
  policy = usual;
  policy.keep_low_precision_grads = true;
  EXPECT_EQ(first(policy).gradient, at::kBFloat16);
  policy.reduce_dtype = at::kHalf;
  EXPECT_EQ(first(policy).gradient, at::kHalf);
  policy.reduce_dtype = at::kFloat;
  EXPECT_EQ(first(policy).gradient, at::kFloat);
  for (const bool casts : {false, true}) {
    const Step second =
        step_of({.fsdp_version = 2,
                 .mixed_precision_policy = MixedPrecisionPolicy{.cast_forward_inputs = casts}});
    EXPECT_EQ(second.input, at::kFloat) << "there is nothing to cast to";
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

// By rank, whether it has whole tensors, and whether they are on its device.
std::vector<std::string> places_of_whole_tensors(const Plugin& plugin) {
  std::vector<std::string> places(2);
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.fsdp_plugin = plugin});
    torch::manual_seed(rank.index());
    Net net;
    const Tensor first = net->head->weight.detach().clone();
    auto model = accelerator.prepare(net);
    std::string& place = places[rank.index()];
    for (const auto& [name, tensor] : accelerator.get_state_dict(model)) {
      place = tensor.is_cpu() ? "host" : "device";
      if (name == "head.weight" && rank.index() == 0) EXPECT_TRUE(tensor.cpu().equal(first));
    }
  });
  return places;
}

TEST(FsdpPlugin, StateDictConfigSaysWhereAStateDictIs) {
  const auto whole = [](std::optional<StateDictConfig> config) {
    return places_of_whole_tensors(
        {.state_dict_type = "FULL_STATE_DICT", .state_dict_config = config});
  };
  EXPECT_THAT(whole(std::nullopt), ElementsAre("host", ""));
  EXPECT_THAT(whole(FullStateDictConfig{.offload_to_cpu = true}), ElementsAre("host", "host"));
  EXPECT_THAT(whole(FullStateDictConfig{.rank0_only = true}), ElementsAre("device", ""));
  EXPECT_THAT(whole(FullStateDictConfig{}), ElementsAre("device", "device"));
  EXPECT_THAT(places_of_whole_tensors({.fsdp_version = 2}), ElementsAre("host", ""));
}

TEST(FsdpPlugin, StateDictTypeIsTheFormOfASave) {
  EXPECT_TRUE(saves_whole_tensors({.fsdp_version = 1}));
  EXPECT_FALSE(saves_whole_tensors({.fsdp_version = 2}));
  EXPECT_TRUE(saves_whole_tensors({.fsdp_version = 2}, StateDictType::kFullStateDict));
}

}  // namespace
}  // namespace accelerate
