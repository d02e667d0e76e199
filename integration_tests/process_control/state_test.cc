// PartialState by itself: one per Runtime, restricted functions, triggers, reset, end of the group.
#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "accelerate/accelerate.h"
#include "accelerate/state/job_operations.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

template <typename Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TOPOLOGY_SUITE(PartialStates);

TEST_P(PartialStates, IsSharedByWhoeverAsks) {
  Cluster cluster = make_cluster();
  const int local_ranks = cluster.spec().ranks_per_node;
  cluster.run_on_every_rank([&](Rank& rank) {
    EXPECT_EQ(PartialState::find(), nullptr);
    PartialState& state = PartialState::get();
    EXPECT_TRUE(state.initialized());
    EXPECT_EQ(PartialState::find(), &state);
    Accelerator accelerator;
    EXPECT_EQ(&accelerator.state().partial_state(), &state);
    EXPECT_EQ(state.process_index(), rank.index());
    EXPECT_EQ(state.local_process_index(), rank.index() % local_ranks);
    EXPECT_EQ(state.is_last_process(), rank.index() == world_size() - 1);
    EXPECT_EQ(state.is_local_main_process(), rank.index() % local_ranks == 0);
    EXPECT_FALSE(state.debug());
    if (world_size() == 1) return;
    EXPECT_EQ(state.backend(), "sim");
    EXPECT_EQ(state.distributed_type() == DistributedType::kMultiCpu, !has_devices());
  });
}

// One shape each: a device, and a rank that is alone.
TEST(PartialStates, KnowsItsDeviceAndHasNoGroupAlone) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    PartialState& state = PartialState::get();
    EXPECT_EQ(state.device(), rank.runtime().device());
    EXPECT_EQ(state.default_device(), rank.runtime().device());
    state.set_device();
    EXPECT_EQ(at::ones({1}, c10::Device(state.device().type())).device(), state.device());
  });
  Cluster("1x1").run_on_every_rank([](Rank&) {
    PartialState& state = PartialState::get();
    EXPECT_EQ(state.group(), nullptr);
    EXPECT_EQ(state.backend(), "");
    EXPECT_EQ(state.distributed_type(), DistributedType::kNo);
    state.wait_for_everyone();
    state.set_device();
    state.destroy_process_group();
    EXPECT_EQ(state.group(), nullptr);
  });
}

TEST_P(PartialStates, ReadsItsModesFromTheEnvironment) {
  ClusterOptions options;
  options.environment.set("ACCELERATE_DEBUG_MODE", "yes");
  make_cluster(options).run_on_every_rank([](Rank& rank) {
    EXPECT_TRUE(PartialState::get().debug());
    EXPECT_FALSE(PartialState::get().fork_launched());
    rank.runtime().environment().set("FORK_LAUNCHED", "1");
    EXPECT_TRUE(PartialState::get().fork_launched()) << "read anew each time";
  });
  options.environment.set("ACCELERATE_DEBUG_MODE", "perhaps");
  make_cluster(options).run_on_every_rank([](Rank&) {
    EXPECT_THAT(error_of([] { PartialState::get(); }),
                AllOf(HasSubstr("ACCELERATE_DEBUG_MODE"), HasSubstr("perhaps")));
  });
}

TEST_P(PartialStates, AfterAResetItSaysSoUntilItIsMadeAgain) {
  make_cluster().run_on_every_rank([](Rank&) {
    PartialState& state = PartialState::get();
    PartialState::reset();
    EXPECT_FALSE(state.initialized());
    EXPECT_EQ(PartialState::find(), nullptr);
    const std::vector<std::string> errors = {
        error_of([&] { state.device(); }),
        error_of([&] { state.group(); }),
        error_of([&] { state.wait_for_everyone(); }),
        error_of([&] { state.is_main_process(); }),
        error_of([&] { state.print("nothing"); }),
        error_of([&] { state.on_main_process([] {}); }),
        error_of([&] { state.on_process([] {}, 0); }),
        error_of([&] { (void)state.main_process_first(); }),
    };
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("was reset"));
    // Other options do not contradict now.
    InitProcessGroupKwargs init;
    init.timeout = absl::Minutes(3);
    EXPECT_EQ(&PartialState::get(Runtime::current(), {.init = init}), &state);
    Accelerator accelerator;
    const at::Tensor one = at::ones({1}, at::device(accelerator.device()));
    EXPECT_EQ(accelerator.reduce(one).item<float>(), accelerator.num_processes());
  });
}

TOPOLOGY_SUITE(DestroyedGroup, .min_ranks = 2);

TEST_P(DestroyedGroup, LetsNobodyTrainAloneByMistake) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    PartialState& state = PartialState::get();
    ProcessGroupPtr other = rank.runtime().new_group({});
    state.destroy_process_group(other);
    EXPECT_NO_THROW(state.group());
    rank.runtime().environment().set("FORK_LAUNCHED", "1");
    PartialState::get().destroy_process_group();
    EXPECT_NO_THROW(state.group()) << "a forked process does not own the group";
    rank.runtime().environment().unset("FORK_LAUNCHED");
    PartialState::get().destroy_process_group();
    EXPECT_THAT(error_of([&] { accelerator.gather(at::ones({1})); }), HasSubstr("destroyed"));
    EXPECT_THAT(error_of([&] { accelerator.check_trigger(); }), HasSubstr("destroyed"));
    EXPECT_THAT(error_of([&] { state.wait_for_everyone(); }), HasSubstr("destroyed"));
  });
}

TOPOLOGY_SUITE(Job, .also = {"1x3"}, .min_ranks = 2);

TEST_P(Job, IsKnownToItsOperations) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    const int ranks = world_size();
    EXPECT_FALSE(is_initialized());
    const at::TensorOptions device = at::device(rank.runtime().device());
    const at::Tensor mine = at::full({1}, rank.index() + 1.0, device);
    EXPECT_EQ(gather(mine).numel(), ranks);
    EXPECT_TRUE(is_initialized());
    EXPECT_EQ(reduce(mine).item<float>(), 0.5 * (ranks + 1));
    EXPECT_EQ(reduce(mine, Reduction::kMax).item<float>(), ranks);
    EXPECT_EQ(broadcast(mine.clone(), 1).item<float>(), 2);
    EXPECT_EQ(pad_across_processes(at::ones({rank.index()}, device)).numel(), ranks - 1);
    std::vector<int> all(static_cast<size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(gather_object(std::vector<int>{rank.index()}), all);
    std::vector<std::string> names = {rank.index() == ranks - 1 ? "last" : "another"};
    broadcast_object_list(names, ranks - 1);
    EXPECT_THAT(names, ElementsAre("last"));
    wait_for_everyone();
    EXPECT_THAT(PartialState::get().split_between_processes(std::vector<int>(ranks + 1)),
                SizeIs(rank.index() == 0 ? 2 : 1));
  });
}

// One shape each: a TPU against a GPU.
TEST(JobOperations, ScaleTakesEffectOnTpusOnly) {
  for (auto [topology, sum] : {std::pair("tpu-v4:2x1x1", 3.0), std::pair("1x2:h100", 6.0)}) {
    Cluster(topology).run_on_every_rank([sum = sum](Rank& rank) {
      Accelerator accelerator;
      const at::Tensor three = at::full({1}, 3.0, at::device(accelerator.device()));
      EXPECT_EQ(accelerator.reduce(three, Reduction::kSum, 0.5).item<float>(), sum);
    });
  }
}

TOPOLOGY_SUITE(AcceleratorStateOnGpus, .hardware = simulator::Hardware::kGpu);

TEST_P(AcceleratorStateOnGpus, IsMadeByTheFirstAccelerator) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    const int ranks = world_size();
    PartialState::get();
    EXPECT_THAT(error_of([] { AcceleratorState::get(); }), HasSubstr("make an Accelerator first"));
    Accelerator accelerator;
    AcceleratorState& state = AcceleratorState::get();
    EXPECT_EQ(&accelerator.state(), &state);
    EXPECT_EQ(state.device(), accelerator.device());
    EXPECT_EQ(state.process_index(), rank.index());
    EXPECT_EQ(state.mixed_precision(), PrecisionType::kNo);
    EXPECT_EQ(accelerator.multi_device(), ranks > 1);
    EXPECT_THAT(state.to_string(), AllOf(HasSubstr(ranks > 1 ? "MULTI_GPU, backend sim\n" : "NO\n"),
                                         HasSubstr(absl::StrCat("Num processes: ", ranks, "\n")),
                                         HasSubstr("Mixed precision type: no\n")));
  });
}

TEST_P(AcceleratorStateOnGpus, IsTheFirstOnesAndContradictionsAreNamed) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator first({.mixed_precision = PrecisionType::kNo});
    Accelerator second;
    EXPECT_EQ(&first.state(), &second.state());
    EXPECT_THAT(error_of([] { Accelerator third({.mixed_precision = PrecisionType::kBf16}); }),
                HasSubstr("contradicts an earlier Accelerator"));
    EXPECT_THAT(error_of([] { Accelerator third({.cpu = true}); }), HasSubstr("cpu=true"));
    AcceleratorState::reset();
    EXPECT_THAT(error_of([&] { first.mixed_precision(); }), HasSubstr("were reset"));
    EXPECT_THAT(error_of([&] { first.device(); }), HasSubstr("were reset"));
    EXPECT_NE(PartialState::find(), nullptr);
    AcceleratorState::reset(Runtime::current(), /*reset_partial_state=*/true);
    EXPECT_EQ(PartialState::find(), nullptr);
    Accelerator fourth({.cpu = true});
    EXPECT_TRUE(first.device().is_cpu()) << "there is one state";
  });
}

TOPOLOGY_SUITE(AcceleratorStates);

TEST_P(AcceleratorStates, ARefusedAcceleratorLeavesNothingBehind) {
  make_cluster().run_on_every_rank([](Rank&) {
    {
      auto scope = patch_environment({{"ACCELERATE_MIXED_PRECISION", "fp12"}});
      EXPECT_THAT(error_of([] { Accelerator first; }), HasSubstr("none of no, fp8"));
    }
    {
      auto scope =
          patch_environment({{"ACCELERATE_USE_MEGATRON_LM", true}, {"MEGATRON_LM_TP_DEGREE", "0"}});
      EXPECT_THAT(error_of([] { Accelerator first; }), HasSubstr("tp_degree is 0"));
    }
    {
      auto scope = patch_environment(
          {{"ACCELERATE_USE_DEEPSPEED", true}, {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "4"}});
      EXPECT_THAT(error_of([] { Accelerator first; }), HasSubstr("zero_stage is 4"));
    }
    {
      auto scope = patch_environment({{"ACCELERATE_DYNAMO_BACKEND", "tvm"}});
      EXPECT_THAT(error_of([] { Accelerator first; }),
                  HasSubstr("the nearest that works is inductor"));
    }
    EXPECT_EQ(PartialState::find(), nullptr);
    EXPECT_NO_THROW(Accelerator());
  });
}

TEST_P(AcceleratorStates, TrainsByTheSelectedPluginOfDeepSpeed) {
  const bool on_tpus = GetParam().starts_with("tpu");
  make_cluster().run_on_every_rank([on_tpus](Rank&) {
    const DeepSpeedPlugins plugins = {
        {"student", {.zero_stage = 2}},
        {"teacher", {.hf_ds_config = R"({"zero_optimization": {"stage": 3},
                                         "fp16": {"enabled": true}})"}}};
    if (on_tpus) {
      EXPECT_THAT(error_of([&] { Accelerator({.deepspeed_plugins = plugins}); }),
                  HasSubstr("TPUs do not divide models"));
      return;
    }
    Accelerator accelerator({.deepspeed_plugins = plugins});
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kDeepSpeed);
    EXPECT_EQ(Runtime::current().environment().get("ACCELERATE_USE_DEEPSPEED"), "true");
    EXPECT_EQ(accelerator.mixed_precision(), PrecisionType::kNo);
    EXPECT_EQ(*accelerator.deepspeed_plugin()->zero_stage, 2);
    auto& state = AcceleratorState::get();
    state.select_deepspeed_plugin("teacher");
    EXPECT_EQ(*get_active_deepspeed_plugin().zero_stage, 3);
    EXPECT_FALSE(state.get_deepspeed_plugin("student").selected());
    EXPECT_EQ(accelerator.mixed_precision(), PrecisionType::kFp16) << "its configuration says so";
    EXPECT_THAT(error_of([&] { state.select_deepspeed_plugin("tutor"); }),
                HasSubstr("\"tutor\", only [\"student\", \"teacher\"]"));
    EXPECT_EQ(*accelerator.deepspeed_plugin()->zero_stage, 3);
    // The environment is as the first Accelerator made it; what the program selected stays.
    Accelerator second({.mixed_precision = PrecisionType::kBf16});
    EXPECT_EQ(second.deepspeed_plugin(), accelerator.deepspeed_plugin());
    EXPECT_NO_THROW(Accelerator({.deepspeed_plugins = plugins}));
    EXPECT_THAT(error_of([] { Accelerator third({.deepspeed_plugin = DeepSpeedPlugin{}}); }),
                HasSubstr("contradicts an earlier Accelerator of this rank"));
  });
}

TEST_P(AcceleratorStates, RefusesPluginsThatContradictEachOther) {
  make_cluster().run_on_every_rank([](Rank&) {
    const auto error = [](const AcceleratorOptions& options) {
      return error_of([&] { Accelerator first(options); });
    };
    EXPECT_THAT(error({.fsdp_plugin = FullyShardedDataParallelPlugin{},
                       .deepspeed_plugin = DeepSpeedPlugin{}}),
                HasSubstr("fsdp_plugin and deepspeed_plugin both say"));
    EXPECT_THAT(error({.fsdp_plugin = FullyShardedDataParallelPlugin{},
                       .megatron_lm_plugin = MegatronLMPlugin{}}),
                HasSubstr("there is an fsdp_plugin (ACCELERATE_USE_FSDP) as well"));
    EXPECT_THAT(error({.deepspeed_plugin = DeepSpeedPlugin{},
                       .deepspeed_plugins = {{"one", DeepSpeedPlugin{}}}}),
                HasSubstr("the same setting"));
    EXPECT_THAT(error({.deepspeed_plugins = {{"one", {}}, {"one", {}}}}),
                HasSubstr("two plugins \"one\""));
    EXPECT_THAT(
        error({.deepspeed_plugin =
                   DeepSpeedPlugin{.hf_ds_config = R"({"zero_optimization": {"stge": 3}})"}}),
        HasSubstr("did you mean zero_optimization.stage?"));
    EXPECT_THAT(error_of([] { get_active_deepspeed_plugin(); }), HasSubstr("an Accelerator first"));
  });
}

TEST_P(AcceleratorStates, AfterAResetAccumulationBeginsAnew) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator old({.gradient_accumulation_steps = 2});
    AcceleratorState::reset(Runtime::current(), /*reset_partial_state=*/true);
    Accelerator young({.gradient_accumulation_steps = 4});
    EXPECT_EQ(young.gradient_accumulation_steps(), 4);
    EXPECT_EQ(&old.gradient_state(), &young.gradient_state());
  });
}

TEST_P(AcceleratorStates, UnknownPrecisionsAreNamed) {
  ClusterOptions options;
  options.environment.set("ACCELERATE_MIXED_PRECISION", "fp17");
  make_cluster(options).run_on_every_rank([](Rank&) {
    EXPECT_THAT(error_of([] { Accelerator accelerator; }),
                AllOf(HasSubstr("ACCELERATE_MIXED_PRECISION=\"fp17\""), HasSubstr("bf16")));
  });
}

TOPOLOGY_SUITE(GradientAccumulationPlugins);

TEST_P(GradientAccumulationPlugins, DecidesWhenGradientsAreSynchronised) {
  // The steps that synchronise, in two passes over three batches.
  auto synchronised = [](const GradientAccumulationPlugin& plugin) {
    std::string steps;
    make_cluster().run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.gradient_accumulation_plugin = plugin});
      auto loader = accelerator.prepare(
          DataLoader(make_tensor_dataset(at::ones({3 * world_size(), 1})), {.batch_size = 1}));
      for (int pass = 0; pass < 2; ++pass) {
        for ([[maybe_unused]] auto& batch : loader) {
          auto scope = accelerator.accumulate();
          if (rank.index() > 0) continue;
          steps += accelerator.sync_gradients() ? 'S' : '.';
        }
      }
    });
    return steps;
  };
  EXPECT_EQ(synchronised({.num_steps = 2}), ".SS.SS");
  EXPECT_EQ(synchronised({.num_steps = 2, .sync_with_dataloader = false}), ".S.S.S");
  EXPECT_EQ(synchronised({}), "SSSSSS");
}

TEST_P(GradientAccumulationPlugins, ExcludesTheNumberOfStepsAndIsSharedByAll) {
  ClusterOptions options;
  options.environment.set("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "7");
  make_cluster(options).run_on_every_rank([](Rank&) {
    EXPECT_THAT(
        error_of([] {
          Accelerator accelerator({.gradient_accumulation_steps = 2,
                                   .gradient_accumulation_plugin = GradientAccumulationPlugin()});
        }),
        HasSubstr("give one of them"));
    Accelerator accelerator(
        {.gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = 3}});
    EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3) << "a plugin beats the environment";
    EXPECT_THAT(error_of([] { Accelerator other; }), HasSubstr("contradicts"))
        << "the environment says 7";
    accelerator.set_gradient_accumulation_steps(7);
    EXPECT_NO_THROW(Accelerator());
    EXPECT_EQ(accelerator.gradient_state().plugin().num_steps, 7);
    EXPECT_THROW(accelerator.set_gradient_accumulation_steps(0), c10::ValueError);
  });
}

TOPOLOGY_SUITE(RestrictedFunctions, .min_ranks = 2);

TEST_P(RestrictedFunctions, RunsOnItsRankOnly) {
  Cluster cluster = make_cluster();
  const int local_ranks = cluster.spec().ranks_per_node;
  cluster.run_on_every_rank([&](Rank& rank) {
    PartialState& state = PartialState::get();
    const int me = rank.index();
    const int last = world_size() - 1;
    auto add = [](int a, int b) { return a + b; };
    EXPECT_EQ(state.on_main_process(add)(1, 2).has_value(), me == 0);
    EXPECT_EQ(state.on_last_process(add)(1, 2), me == last ? std::optional(3) : std::nullopt);
    EXPECT_EQ(state.on_local_main_process(add)(1, 2).has_value(), me % local_ranks == 0);
    EXPECT_EQ(state.on_process(add, last)(1, 2).has_value(), me == last);
    EXPECT_EQ(state.on_process(add, -1).runs(), false);
    EXPECT_EQ(state.on_process(add, last + 1).runs(), false);
    EXPECT_EQ(state.on_local_process(add, 1)(1, 2).has_value(), me % local_ranks == 1);
    int calls = 0;
    auto count = state.on_process([&calls] { ++calls; }, 1);
    count();
    count();
    EXPECT_EQ(calls, me == 1 ? 2 : 0);
    const auto constant = state.on_process([own = std::make_unique<int>(5)] { return *own; }, 1);
    EXPECT_EQ(constant(), me == 1 ? std::optional(5) : std::nullopt);
    auto changes = state.on_process([number = 0]() mutable { return ++number; }, 1);
    changes();
    EXPECT_EQ(changes(), me == 1 ? std::optional(2) : std::nullopt);
    static_assert(!std::is_invocable_v<const decltype(changes)&>);
    auto moved = state.on_main_process([](std::unique_ptr<int> value) { return value; });
    EXPECT_EQ(moved(std::make_unique<int>(5)).has_value(), me == 0);
  });
}

// One shape: a rank that is alone.
TEST(RestrictedFunctions, RunsOnARankThatIsAlone) {
  Cluster("1x1").run_on_every_rank([](Rank&) {
    EXPECT_EQ(PartialState::get().on_process([] { return 7; }, 5)(), 7) << "nobody else could";
  });
}

TOPOLOGY_SUITE(Trigger, .also = {"1x3"});

TEST_P(Trigger, OneRanksWordReachesAllOnce) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    EXPECT_FALSE(accelerator.check_trigger());
    for (int culprit = 0; culprit < world_size(); ++culprit) {
      if (rank.index() == culprit) {
        accelerator.set_trigger();
        accelerator.set_trigger();
      }
      EXPECT_TRUE(accelerator.check_trigger());
      EXPECT_FALSE(accelerator.check_trigger());
    }
  });
}

}  // namespace
}  // namespace accelerate
