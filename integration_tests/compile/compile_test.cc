// Models that an Accelerator compiles as its dynamo_plugin says, against the same training without
// it: equal bit by bit, on one rank and on many, replicated and divided; and what is refused.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/compile/compile_regions.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/testing/recorded_warnings.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  BlockImpl() {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    linear = register_module("linear", nn::Linear(6, 6));
    drop = register_module("drop", nn::Dropout(0.1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + drop(torch::gelu(linear(norm(x)))); }
  nn::LayerNorm norm{nullptr};
  nn::Linear linear{nullptr};
  nn::Dropout drop{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(4, 6));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    last = register_module("last", nn::Linear(6, 1));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor x = first(input);
    for (size_t i = 0; i < blocks->size(); ++i) x = block(blocks->ptr<BlockImpl>(i), x);
    return last(x);
  }
  nn::Linear first{nullptr}, last{nullptr};
  nn::ModuleList blocks{nullptr};
};
TORCH_MODULE(Net);

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

constexpr int kPasses = 12;

// The parameters of 12 passes, and a check of what was compiled.
torch::Tensor trained(Rank& rank, AcceleratorOptions options,
                      const std::function<void(const CompileReport&)>& check = nullptr) {
  Accelerator accelerator(std::move(options));
  torch::manual_seed(3);
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  torch::manual_seed(10 + rank.index());
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto scope = accelerator.accumulate(model);
    const torch::Tensor x = torch::randn({5, 4}).to(accelerator.device());
    accelerator.backward(model(x).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  if (check) check(*compile_report(model));
  const auto whole = full_parameters(model, {.writeback = false});
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& each : net->parameters()) flat.push_back(each.detach().flatten());
  return torch::cat(flat).cpu();
}

std::vector<torch::Tensor> trained_on(
    const AcceleratorOptions& options,
    const std::function<void(const CompileReport&)>& check = nullptr) {
  Cluster cluster = simulator::TopologyTest::make_cluster({.seed = 2});
  cluster.run_on_every_rank(
      [&](Rank& rank) { rank.report("parameters", trained(rank, options, check)); });
  return cluster.reports("parameters");
}

AcceleratorOptions compiled(AcceleratorOptions options, bool is_regional) {
  options.dynamo_plugin = TorchDynamoPlugin{.backend = DynamoBackend::kAotEager,
                                            .fullgraph = true,
                                            .use_regional_compilation = is_regional};
  return options;
}

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << "rank " << i;
}

// The first two passes are recorded.
void expect_blocks(const CompileReport& report) {
  EXPECT_EQ(report.regions, 3);
  EXPECT_EQ(report.compiled_calls, 3 * (kPasses - 2));
}

TOPOLOGY_SUITE(Compile, .also = {"2x4"}, .hardware = simulator::Hardware::kNone);
TOPOLOGY_SUITE(CompileShards, .also = {"1x4"}, .min_ranks = 2,
               .hardware = simulator::Hardware::kNone);

TEST_P(Compile, BlocksTrainAsWithoutThePlugin) {
  const auto check = [](const CompileReport& report) {
    expect_blocks(report);
    EXPECT_EQ(report.programs, 1) << "equal blocks share one";
  };
  expect_equal(trained_on(compiled({}, true), check), trained_on({}));
}

TEST_P(Compile, TheWholeModelTrainsAsWithoutThePlugin) {
  const auto check = [](const CompileReport& report) {
    EXPECT_EQ(report.regions, 1);
    EXPECT_EQ(report.compiled_calls, kPasses - 2);
  };
  expect_equal(trained_on(compiled({}, false), check), trained_on({}));
}

TEST_P(Compile, GradientsAccumulateAsWithoutThePlugin) {
  const AcceleratorOptions plain = {.gradient_accumulation_steps = 3};
  expect_equal(trained_on(compiled(plain, true), &expect_blocks), trained_on(plain));
}

TEST_P(Compile, InMixedPrecisionTooAsWithoutThePlugin) {
  const AcceleratorOptions plain = {.mixed_precision = PrecisionType::kBf16};
  expect_equal(trained_on(compiled(plain, true), &expect_blocks), trained_on(plain));
}

TEST_P(CompileShards, BlocksThatRanksDivideTrainAsWithoutThePlugin) {
  const AcceleratorOptions plain = {
      .fsdp_plugin = FullyShardedDataParallelPlugin{
          .fsdp_version = 2,
          .auto_wrap_policy = "transformer_based_wrap",
          .transformer_cls_names_to_wrap = std::vector<std::string>{"Block"}}};
  expect_equal(trained_on(compiled(plain, true), &expect_blocks), trained_on(plain));
}

TEST_P(Compile, WeightsThatAreLoadedAreThoseOfTheNextCall) {
  make_cluster({.seed = 2, .disk = std::make_shared<simulator::SimDisk>()})
      .run_on_every_rank([](Rank& rank) {
        Accelerator accelerator(compiled({}, true));
        torch::manual_seed(3);
        Net net;
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        torch::manual_seed(10 + rank.index());
        const auto train = [&, &model = model, &optimizer = optimizer] {
          std::vector<torch::Tensor> losses;
          for (int pass = 0; pass < 3; ++pass) {
            const torch::Tensor loss = model(torch::randn({5, 4})).square().mean();
            accelerator.backward(loss);
            optimizer.step();
            optimizer.zero_grad();
            losses.push_back(loss.detach());
          }
          return torch::stack(losses);
        };
        train();
        accelerator.save_state("/sim/state");
        const torch::Tensor before = train();
        EXPECT_FALSE(torch::equal(train(), before));
        accelerator.load_state("/sim/state");
        EXPECT_TRUE(torch::equal(train(), before)) << "random numbers are loaded as well";
        EXPECT_EQ(compile_report(model)->compiled_calls, 3 * 10);
      });
}

TEST(CompileZero, BlocksThatRanksDivideTrainAsWithoutThePlugin) {
  const nlohmann::ordered_json config = {
      {"train_micro_batch_size_per_gpu", 5},
      {"zero_optimization", {{"stage", 3}, {"stage3_param_persistence_threshold", 0}}}};
  const AcceleratorOptions plain = {.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config}};
  const auto run = [](const AcceleratorOptions& options,
                      const std::function<void(const CompileReport&)>& check) {
    Cluster cluster("1x2:h100", {.seed = 2});
    cluster.run_on_every_rank(
        [&](Rank& rank) { rank.report("parameters", trained(rank, options, check)); });
    return cluster.reports("parameters");
  };
  expect_equal(run(compiled(plain, true), &expect_blocks), run(plain, nullptr));
}

TEST_P(CompileShards, TheWholeOfAModelThatRanksDivideIsRefused) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(
        compiled({.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}}, false));
    EXPECT_THAT(error_of([&] { accelerator.prepare(Net()); }),
                HasSubstr("set use_regional_compilation"));
  });
}

TEST_P(CompileShards, RecomputedBlocksAreRefused) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(compiled(
        {.fsdp_plugin =
             FullyShardedDataParallelPlugin{.fsdp_version = 2, .activation_checkpointing = true}},
        true));
    EXPECT_THAT(error_of([&] { accelerator.prepare(Net()); }), HasSubstr("memory_budget"));
  });
}

TEST_P(Compile, IsKeptInTheStateAndFollowsTheEnvironment) {
  make_cluster().run_on_every_rank([](Rank&) {
    const auto scope = patch_environment({{"ACCELERATE_DYNAMO_BACKEND", "EAGER"},
                                          {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "True"}});
    Accelerator accelerator;
    const TorchDynamoPlugin& plugin = AcceleratorState::get().dynamo_plugin();
    EXPECT_EQ(backend_of(plugin), DynamoBackend::kEager);
    EXPECT_EQ(plugin.use_regional_compilation, true);
    Net net;
    auto model = accelerator.prepare(net);
    model(torch::ones({2, 4}));
    EXPECT_EQ(compile_report(model)->regions, 3);
    EXPECT_EQ(compile_report(model)->eager_calls, 3);
    EXPECT_EQ(accelerator.unwrap_model(model), net.ptr());
    // A later Accelerator agrees, or says so.
    EXPECT_NO_THROW(Accelerator());
    EXPECT_THAT(error_of([] { Accelerator({.dynamo_backend = DynamoBackend::kAotEager}); }),
                AllOf(HasSubstr("dynamo_plugin"), HasSubstr("contradicts an earlier")));
  });
}

TEST_P(Compile, RefusesWhatItCannotFollow) {
  make_cluster().run_on_every_rank([](Rank&) {
    EXPECT_THAT(error_of([] { Accelerator({.dynamo_backend = "tensorrt"}); }),
                HasSubstr("the nearest that works is inductor"));
    EXPECT_THAT(error_of([] {
                  Accelerator({.dynamo_backend = DynamoBackend::kEager,
                               .dynamo_plugin = TorchDynamoPlugin()});
                }),
                HasSubstr("are the same setting"));
    EXPECT_THAT(
        error_of([] {
          Accelerator({.dynamo_plugin = TorchDynamoPlugin{.backend = "eager", .mode = "fast"}});
        }),
        HasSubstr("mode is \"fast\""));
  });
}

// Once in a program.
TEST(CompilePlugin, SaysWhatHasNoEffect) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank&) {
    const RecordedWarnings warnings;
    Accelerator accelerator({.dynamo_plugin = TorchDynamoPlugin{.backend = DynamoBackend::kAotEager,
                                                                .mode = "max-autotune",
                                                                .dynamic = true,
                                                                .use_regional_compilation = true}});
    for (int i = 0; i < 2; ++i) accelerator.prepare(Net());
    const auto count = [&warnings](const std::string& text) {
      return std::ranges::count_if(warnings.texts(), [&text](const std::string& each) {
        return each.find(text) != std::string::npos;
      });
    };
    EXPECT_EQ(count("dynamic=true has no effect"), 1);
    EXPECT_EQ(count("they have no effect on AOT_EAGER"), 1);
  });
}

TEST_P(Compile, RefusesModelsThatAreComputedInAnotherWay) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(compiled(
        {.mixed_precision = PrecisionType::kFp8, .kwargs_handlers = {TERecipeKwargs{}}}, true));
    EXPECT_THAT(error_of([&] { accelerator.prepare(Net()); }), HasSubstr("layers in fp8"));
  });
}

struct WideImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return last(second(first(x))); }
  nn::Linear first = register_module("first", nn::Linear(16, 16));
  nn::Linear second = register_module("second", nn::Linear(16, 16));
  nn::Linear last = register_module("last", nn::Linear(16, 4));
};
TORCH_MODULE(Wide);

TEST(CompiledWeights, ThatAreQuantisedAreRefused) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank&) {
    Wide net;
    auto quantised = load_and_quantize_model(net, {.load_in_8bit = true, .torch_dtype = "fp32"});
    std::vector<torch::Tensor> trained;
    for (const torch::Tensor& each : quantised.parameters()) {
      if (each.requires_grad()) trained.push_back(each);
    }
    auto sgd = std::make_shared<torch::optim::SGD>(trained, torch::optim::SGDOptions(0.1));
    Accelerator accelerator(compiled({}, true));
    EXPECT_THAT(error_of([&] { accelerator.prepare(quantised, sgd); }),
                HasSubstr("quantised weights are made at each use"));
  });
}

TEST(CompiledWeights, ThatAreOffloadedAreRefused) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank&) {
    Wide net;
    Accelerator accelerator(compiled({}, true));
    const auto offloaded = cpu_offload(net, {.execution_device = accelerator.device()});
    EXPECT_THAT(error_of([&] { accelerator.prepare(net); }),
                HasSubstr("weights that are offloaded come at each use"));
  });
}

TEST(CompiledLayers, ThatRanksDivideAreRefused) {
  const TensorParallelPlan plan = {{.pattern = "first", .style = TensorStyle::kColumn},
                                   {.pattern = "second", .style = TensorStyle::kRow}};
  for (const ParallelismOptions& sizes :
       {ParallelismOptions{.cp_size = 2}, ParallelismOptions{.sp_size = 2},
        ParallelismOptions{.tp_size = 2}}) {
    Cluster cluster("1x2:h100");
    cluster.run_on_every_rank([&](Rank&) {
      AcceleratorOptions options{.parallelism_config = ParallelismConfig(sizes)};
      if (sizes.tp_size) options.kwargs_handlers.emplace_back(plan);
      Accelerator accelerator(compiled(std::move(options), true));
      EXPECT_THAT(error_of([&] { accelerator.prepare(Wide()); }),
                  HasSubstr("layers, stages, sequences or experts that ranks divide are not "
                            "recorded; set the sizes of pp, tp, cp, sp and ep to 1"));
    });
  }
}

TEST(CompiledLayers, ThatAreStagesOrDividedExpertsAreRefused) {
  const auto refusal = [](const ParallelismOptions& sizes,
                          const std::function<void(Accelerator&)>& prepare) {
    Cluster cluster("1x2:h100");
    cluster.run_on_every_rank([&](Rank&) {
      Accelerator accelerator(compiled({.parallelism_config = ParallelismConfig(sizes)}, true));
      EXPECT_THAT(error_of([&] { prepare(accelerator); }),
                  HasSubstr("layers, stages, sequences or experts that ranks divide are not "
                            "recorded"));
    });
  };
  refusal({.pp_size = 2}, [](Accelerator& accelerator) {
    accelerator.prepare(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)).ptr());
  });
  refusal({.dp_shard_size = 2, .ep_size = 2}, [](Accelerator& accelerator) {
    const MixtureOptions options{.hidden = 8, .intermediate = 8, .router = {.experts = 4}};
    accelerator.prepare(MixtureOfExperts(options).ptr());
  });
}

TEST(CompileModes, ThatCaptureGraphsAreSaidToBeTheDefault) {
  const c10::WarningUtils::WarnAlways each_time;
  Cluster("1x1").run_on_every_rank([](Rank&) {
    const RecordedWarnings warnings;
    Accelerator accelerator({.dynamo_plugin = TorchDynamoPlugin{.backend = DynamoBackend::kInductor,
                                                                .mode = "reduce-overhead"}});
    accelerator.prepare(Net());
    EXPECT_THAT(warnings.texts(), Contains(HasSubstr("mode=reduce-overhead captures CUDA graphs, "
                                                     "which this version does not; its packages "
                                                     "are those of mode=default")));
  });
}

TEST_P(Compile, SaysThatNothingIsCompiledWithoutBlocks) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(compiled({}, true));
    const RecordedWarnings warnings;
    auto model = accelerator.prepare(nn::Linear(4, 4));
    for (int i = 0; i < 2; ++i) model(torch::ones({2, 4}));
    ASSERT_EQ(warnings.texts().size(), 1);
    EXPECT_THAT(warnings.texts()[0], HasSubstr("calls no accelerate::block"));
  });
}

TEST_P(Compile, AModelThatIsEvaluatedAndTrainedHasOneSetOfRegions) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator(compiled({}, true));
    Net net;
    auto model = accelerator.prepare_model(net, {.evaluation_mode = true});
    net->eval();
    for (int i = 0; i < 3; ++i) {
      const torch::NoGradGuard no_grad;
      model(torch::ones({2, 4}));
    }
    EXPECT_EQ(compile_report(model)->compiled_calls, 3);
    auto again = accelerator.prepare_model(net);
    net->train();
    for (int i = 0; i < 3; ++i) accelerator.backward(again(torch::ones({2, 4})).sum());
    const CompileReport report = *compile_report(again);
    EXPECT_EQ(report.regions, 6);
    EXPECT_EQ(report.compiled_calls, 6);
  });
}

}  // namespace
}  // namespace accelerate
