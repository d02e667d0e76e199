// An Accelerator whose ranks are arranged by a ParallelismConfig, on clusters of the shape that the
// configuration needs.
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
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/optim/schedulers/decay.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/mesh/arranged_ranks.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(AcceleratorMesh, ArrangesRanksAsConfigured) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    const Accelerator accelerator(
        arranged({.parallelism_config = ParallelismConfig({.tp_size = 4})}));
    EXPECT_EQ(accelerator.parallelism_config()->tp_size(), 4);
    EXPECT_EQ(accelerator.tensor_parallel_rank(), rank.index());
    EXPECT_EQ(accelerator.pipeline_parallel_rank(), 0);
    EXPECT_EQ(accelerator.context_parallel_rank(), 0);
    EXPECT_EQ(accelerator.data_parallel_rank(), 0);
    EXPECT_EQ(accelerator.data_parallel_shard_rank(), 0);
    EXPECT_TRUE(accelerator.should_save_model());
    EXPECT_FALSE(accelerator.is_composable_parallelism_enabled());
    const DeviceMesh* mesh = accelerator.torch_device_mesh();
    ASSERT_NE(mesh, nullptr);
    EXPECT_EQ(mesh->group(MeshAxis::kTp)->getSize(), 4);
    EXPECT_EQ(mesh->group(MeshAxis::kDp), nullptr);
  });
}

TEST(AcceleratorMesh, HasReplicasOfTensorParallelRanks) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    const Accelerator accelerator(arranged(
        {.parallelism_config = ParallelismConfig({.dp_replicate_size = 2, .tp_size = 2})}));
    EXPECT_EQ(accelerator.data_parallel_rank(), rank.index() / 2);
    EXPECT_EQ(accelerator.tensor_parallel_rank(), rank.index() % 2);
    const DataShare share = accelerator.state().data_share();
    EXPECT_EQ(share.index, rank.index() / 2);
    EXPECT_EQ(share.count, 2);
    EXPECT_EQ(share.group, accelerator.torch_device_mesh()->group(MeshAxis::kDp));
  });
}

TEST(AcceleratorMesh, SaysWhatARanksGroupsAreFor) {
  Cluster("1x4:h100").run_on_every_rank([](Rank&) {
    const Accelerator accelerator(arranged(
        {.parallelism_config = ParallelismConfig({.dp_replicate_size = 2, .tp_size = 2})}));
    const AcceleratorState& state = accelerator.state();
    const DeviceMesh* mesh = accelerator.torch_device_mesh();
    EXPECT_EQ(state.mesh(), mesh->mesh());
    EXPECT_EQ(state.roles().tokens.group, mesh->group(MeshAxis::kDp));
    EXPECT_EQ(state.roles().same_part, state.group());
    EXPECT_EQ(state.roles({MeshAxis::kTp}).same_part, mesh->group(MeshAxis::kDp));
    EXPECT_EQ(state.roles({MeshAxis::kTp}).norm, mesh->group(MeshAxis::kTp));
  });
  Cluster("2x2:h100").run_on_every_rank([](Rank&) {
    const Accelerator accelerator;
    EXPECT_EQ(accelerator.state().mesh().to_string(), "dp_replicate 4");
    EXPECT_EQ(accelerator.state().roles().tokens.group, accelerator.state().group());
    EXPECT_EQ(accelerator.state().roles().shards, nullptr);
  });
}

TEST(AcceleratorMesh, IsMadeOfReplicasWithoutSizes) {
  Cluster("2x2:h100").run_on_every_rank([](Rank& rank) {
    const Accelerator accelerator({.parallelism_config = ParallelismConfig()});
    EXPECT_EQ(accelerator.parallelism_config()->dp_replicate_size(), 4);
    EXPECT_EQ(accelerator.data_parallel_rank(), rank.index());
    EXPECT_EQ(accelerator.torch_device_mesh()->group(MeshAxis::kDpReplicate)->getSize(), 4);
  });
}

TEST(AcceleratorMesh, IsReadFromTheEnvironment) {
  ClusterOptions options;
  options.environment.set("ACCELERATE_USE_PARALLELISM_CONFIG", "true");
  options.environment.set("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "2");
  Cluster("1x2:h100", options).run_on_every_rank([](Rank& rank) {
    EXPECT_EQ(Accelerator().data_parallel_rank(), rank.index());
    rank.runtime().environment().set("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "two");
    EXPECT_THAT(value_error_of([] { Accelerator(); }),
                HasSubstr("PARALLELISM_CONFIG_DP_REPLICATE_SIZE=\"two\""));
  });
}

TEST(AcceleratorMesh, IsNotThereWithoutAConfiguration) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    const Accelerator accelerator;
    EXPECT_FALSE(accelerator.parallelism_config());
    EXPECT_EQ(accelerator.torch_device_mesh(), nullptr);
    EXPECT_EQ(accelerator.state().data_share().index, rank.index());
    EXPECT_EQ(accelerator.state().data_share().group, accelerator.state().group());
    EXPECT_EQ(accelerator.should_save_model(), rank.index() == 0);
    EXPECT_EQ(value_error_of([&] { accelerator.tensor_parallel_rank(); }),
              "Tensor parallelism is not configured. Set `parallelism_config` first.");
    EXPECT_EQ(value_error_of([&] { accelerator.data_parallel_shard_rank(); }),
              "Shard-based data parallelism is not configured. Set `parallelism_config` first.");
  });
}

// Neither ranks on one device nor one rank have a mesh, and their numbers along its axes are 0.
TEST(AcceleratorMesh, OfOneRankHasNoGroups) {
  Cluster("1x1:h100").run_on_every_rank([](Rank&) {
    const Accelerator accelerator({.parallelism_config = ParallelismConfig()});
    EXPECT_TRUE(accelerator.parallelism_config());
    EXPECT_EQ(accelerator.torch_device_mesh(), nullptr);
    EXPECT_EQ(accelerator.tensor_parallel_rank(), 0);
    EXPECT_EQ(accelerator.state().data_share().count, 1);
  });
}

TEST(AcceleratorMesh, RefusesProductsOfAxesThatItDoesNotComputeByName) {
  Cluster("1x4:h100").run_on_every_rank([](Rank&) {
    AcceleratorOptions shards_and_zero{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}};
    shards_and_zero.parallelism_config = ParallelismConfig({.dp_shard_size = 2, .pp_size = 2});
    EXPECT_THAT(value_error_of([&] { Accelerator accelerator(shards_and_zero); }),
                HasSubstr("deepspeed_plugin: its stage says what ranks divide"));
    EXPECT_EQ(PartialState::find(), nullptr) << "a refused Accelerator leaves nothing behind";
  });
}

// Whoever asks for tp.
TEST(AcceleratorMesh, NeedsAPlanToDivideLayers) {
  const auto error_of = [](const char* spec, const std::function<AcceleratorOptions()>& options,
                           const ClusterOptions& cluster = {}) {
    std::string error;
    Cluster(spec, cluster).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options());
      EXPECT_EQ(accelerator.tensor_parallel_rank(), rank.index() % 2);
      error = value_error_of(
          [&] { accelerator.prepare(std::make_shared<torch::nn::LinearImpl>(4, 4)); });
    });
    return error;
  };
  const auto with_shards = [] {
    return AcceleratorOptions{.parallelism_config =
                                  ParallelismConfig({.dp_shard_size = 2, .tp_size = 2})};
  };
  const auto with_fsdp = [&] {
    AcceleratorOptions options = with_shards();
    options.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2};
    return options;
  };
  const auto with_plugin = [] {
    return AcceleratorOptions{.torch_tp_plugin = TorchTensorParallelPlugin{.tp_size = 2}};
  };
  const auto refuses = HasSubstr("tp_size=2, but nothing says how ranks divide a Linear");
  EXPECT_THAT(error_of("1x2:h100", with_plugin), refuses);
  EXPECT_THAT(error_of("1x4:h100", with_shards), refuses);
  EXPECT_THAT(error_of("1x4:h100", with_fsdp), refuses);
  ClusterOptions variables;
  variables.environment.set("ACCELERATE_USE_PARALLELISM_CONFIG", "true");
  variables.environment.set("PARALLELISM_CONFIG_TP_SIZE", "2");
  EXPECT_THAT(error_of("1x2:h100", [] { return AcceleratorOptions(); }, variables), refuses);
  // A plan without rules leaves models whole.
  const auto with_plan = [] {
    return AcceleratorOptions{.kwargs_handlers = {TensorParallelPlan()}};
  };
  EXPECT_EQ(error_of("1x2:h100", with_plan, variables), "no error");
}

TEST(AcceleratorMesh, RefusesRanksThatItDoesNotFit) {
  const auto error_with = [](int64_t replicas) {
    return value_error_of([=] {
      Accelerator({.parallelism_config = ParallelismConfig({.dp_replicate_size = replicas})});
    });
  };
  Cluster("1x4:h100").run_on_every_rank([&](Rank&) {
    EXPECT_THAT(error_with(2), HasSubstr("total_size (2) does not match num_processes (4)"));
    EXPECT_EQ(error_with(4), "no error");
  });
  Cluster("1x2").run_on_every_rank(
      [&](Rank&) { EXPECT_THAT(error_with(2), HasSubstr("but got DistributedType.MULTI_CPU.")); });
}

TEST(AcceleratorMesh, MakesAJobFsdpsWhereItHasShards) {
  const auto type_with = [](const ParallelismOptions& options) {
    const Accelerator accelerator({.parallelism_config = ParallelismConfig(options)});
    EXPECT_NE(accelerator.state().partial_state().distributed_type(), DistributedType::kFsdp);
    return accelerator.distributed_type();
  };
  for (const char* shape : {"1x2:h100", "1x2"}) {
    Cluster(shape).run_on_every_rank([&](Rank&) {
      EXPECT_EQ(type_with({.dp_shard_size = 2}), DistributedType::kFsdp) << shape;
    });
  }
  Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
    EXPECT_EQ(type_with({.dp_replicate_size = 2}), DistributedType::kMultiGpu);
  });
  Cluster("tpu-v5p:1x1x2").run_on_every_rank([&](Rank&) {
    EXPECT_THAT(value_error_of([&] { type_with({.dp_shard_size = 2}); }),
                HasSubstr("but got DistributedType.XLA."));
  });
}

TEST(AcceleratorMesh, IsTheFirstOnesAndContradictionsNameBoth) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    const ParallelismConfig shards({.dp_shard_size = 2});
    const Accelerator first({.parallelism_config = shards});
    const Accelerator second;
    EXPECT_EQ(second.parallelism_config(), shards);
    EXPECT_EQ(second.torch_device_mesh(), first.torch_device_mesh());
    EXPECT_EQ(value_error_of([&] { Accelerator({.parallelism_config = shards}); }), "no error");
    EXPECT_THAT(value_error_of([] {
                  Accelerator({.parallelism_config = ParallelismConfig({.dp_replicate_size = 2})});
                }),
                AllOf(HasSubstr("parallelism_config={\"dp_replicate_size\":2,"),
                      HasSubstr("contradicts an earlier Accelerator of this rank, which set "
                                "{\"dp_replicate_size\":1,\"dp_shard_size\":2,\"tp_size\":1,")));
    AcceleratorState::reset(Runtime::current(), /*reset_partial_state=*/true);
    const Accelerator plain;
    EXPECT_THAT(value_error_of([&] { Accelerator({.parallelism_config = shards}); }),
                HasSubstr("which set none"));
  });
}

TEST(AcceleratorMesh, GoesWithTheProcessGroup) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    const Accelerator accelerator({.parallelism_config = ParallelismConfig()});
    AcceleratorState::get().destroy_process_group();
    EXPECT_EQ(accelerator.torch_device_mesh(), nullptr);
    EXPECT_THAT(value_error_of([&] { accelerator.state().data_share(); }),
                HasSubstr("the process group was destroyed"));
  });
}

// Ranks of one share of the data see the same batches, which count once.
TEST(AcceleratorMesh, AdvancesSchedulesByTheSharesOfTheData) {
  const auto steps_of = [](int64_t replicas, int64_t tp) {
    int64_t steps = 0;
    Cluster(absl::StrCat("1x", replicas * tp, ":h100")).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(arranged({.parallelism_config = ParallelismConfig(
                                            {.dp_replicate_size = replicas, .tp_size = tp})}));
      torch::nn::Linear net(1, 1);
      torch::optim::SGD sgd(net->parameters(), 1.0);
      optim::StepLR schedule(sgd, {.step_size = 100});
      auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, schedule);
      accelerator.backward(model(torch::ones({1, 1}, accelerator.device())).sum());
      optimizer.step();
      scheduler.step();
      if (rank.index() == 0) steps = schedule.last_epoch();
    });
    return steps;
  };
  EXPECT_EQ(steps_of(2, 2), 2);
  EXPECT_EQ(steps_of(1, 3), 1);
}

TEST(AcceleratorMesh, WarnsOnceOfTensorParallelRanksOnSeveralNodes) {
  const auto warnings_on = [](const char* shape, int64_t replicas, int64_t tp, int of_rank) {
    std::vector<std::string> texts;
    Cluster(shape).run_on_every_rank([&](Rank& rank) {
      const RecordedWarnings warnings;
      const Accelerator accelerator({.parallelism_config = ParallelismConfig(
                                         {.dp_replicate_size = replicas, .tp_size = tp})});
      if (rank.index() == of_rank) texts = warnings.texts();
    });
    return texts;
  };
  const auto warns = [](const char* text) {
    return ElementsAre(absl::StrCat("UserWarning: ", text));
  };
  EXPECT_THAT(warnings_on("2x2:h100", 1, 4, 0),
              warns("tp of ranks 0-3 crosses nodes, which have 2 ranks each: the network between "
                    "nodes carries the activations of every layer; a tp_size of 2 does not"));
  EXPECT_THAT(warnings_on("2x2:h100", 1, 4, 1), IsEmpty());
  EXPECT_THAT(warnings_on("2x3:h100", 3, 2, 0),
              warns("tp of ranks 2-3 crosses nodes, which have 3 ranks each: the network between "
                    "nodes carries the activations of every layer; a tp_size of 3 does not"));
  EXPECT_THAT(warnings_on("2x1:h100", 1, 2, 0),
              warns("tp of ranks 0-1 crosses nodes, which have 1 rank each: the network between "
                    "nodes carries the activations of every layer"));
  EXPECT_THAT(warnings_on("1x4:h100", 1, 4, 0), IsEmpty());
  EXPECT_THAT(warnings_on("2x2:h100", 2, 2, 0), IsEmpty());
}

// HF Accelerate refuses layers that ranks on CPUs divide.
TEST(AcceleratorMesh, DividesLayersOnCpusAsWell) {
  const auto type_with = [](const char* shape, const ParallelismOptions& sizes,
                            const AcceleratorOptions& others) {
    DistributedType type = DistributedType::kNo;
    Cluster(shape).run_on_every_rank([&](Rank& rank) {
      AcceleratorOptions options = others;
      options.parallelism_config = ParallelismConfig(sizes);
      const Accelerator accelerator(options);
      EXPECT_EQ(accelerator.tensor_parallel_rank(), rank.index() % 2) << shape;
      EXPECT_EQ(accelerator.data_parallel_rank(), rank.index() / 2) << shape;
      if (rank.index() == 0) type = accelerator.distributed_type();
    });
    return type;
  };
  const AcceleratorOptions zero = {.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 3}};
  const AcceleratorOptions whole = {
      .fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = "NO_SHARD"}};
  EXPECT_EQ(type_with("1x2", {.tp_size = 2}, {}), DistributedType::kMultiCpu);
  EXPECT_EQ(type_with("1x4", {.dp_replicate_size = 2, .tp_size = 2}, {}),
            DistributedType::kMultiCpu);
  EXPECT_EQ(type_with("1x2", {.tp_size = 2}, zero), DistributedType::kDeepSpeed);
  EXPECT_EQ(type_with("1x2", {.tp_size = 2}, whole), DistributedType::kFsdp);
  Cluster("tpu-v5p:1x1x2").run_on_every_rank([](Rank&) {
    EXPECT_THAT(value_error_of(
                    [] { Accelerator({.parallelism_config = ParallelismConfig({.tp_size = 2})}); }),
                HasSubstr("but got DistributedType.XLA."));
  });
}

// With nothing for FSDP to divide, it is asked for in vain.
TEST(AcceleratorMesh, RefusesFsdpWhereTensorParallelRanksAreAll) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    EXPECT_THAT(value_error_of([] {
                  Accelerator({.parallelism_config = ParallelismConfig({.tp_size = 2}),
                               .fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}});
                }),
                HasSubstr("the parallelism_config's dp_shard_size is 1, so nothing would be "
                          "divided; set it to the number of ranks that share a model"));
  });
}

TEST(AcceleratorMesh, TakesTheDeprecatedPlugin) {
  for (const int64_t size : {1, 2}) {
    Cluster("1x2:h100").run_on_every_rank([size](Rank&) {
      const RecordedWarnings warnings;
      const Accelerator accelerator(
          {.torch_tp_plugin = TorchTensorParallelPlugin{.tp_size = size}});
      EXPECT_EQ(accelerator.parallelism_config()->tp_size(), size);
      EXPECT_THAT(warnings.texts(),
                  Contains(HasSubstr("`TorchTensorParallelPlugin` is deprecated")));
    });
  }
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    EXPECT_EQ(value_error_of([] {
                Accelerator({.torch_tp_plugin = TorchTensorParallelPlugin{.tp_size = 0}});
              }),
              "tp_size must be at least 1, but got 0");
    EXPECT_THAT(value_error_of([] {
                  Accelerator({.parallelism_config = ParallelismConfig({.tp_size = 2}),
                               .torch_tp_plugin = TorchTensorParallelPlugin{.tp_size = 4}});
                }),
                HasSubstr("torch_tp_plugin's tp_size=4 contradicts parallelism_config's "
                          "tp_size=2"));
  });
}

TEST(AcceleratorMesh, OfFsdpHasAnAxisOfShards) {
  using Plugin = FullyShardedDataParallelPlugin;
  for (const char* shape : {"1x2:h100", "1x2"}) {
    Cluster(shape).run_on_every_rank([&](Rank&) {
      for (const ParallelismOptions& options :
           {ParallelismOptions{}, ParallelismOptions{.dp_replicate_size = 2}}) {
        EXPECT_THAT(value_error_of([&] {
                      Accelerator({.parallelism_config = ParallelismConfig(options),
                                   .fsdp_plugin = Plugin{.fsdp_version = 2}});
                    }),
                    HasSubstr("so nothing would be divided"))
            << shape;
      }
      // Replicas of version 1 need none.
      if (std::string(shape) == "1x2") return;
      EXPECT_EQ(value_error_of([&] {
                  Accelerator({.parallelism_config = ParallelismConfig({.dp_replicate_size = 2}),
                               .fsdp_plugin = Plugin{.sharding_strategy = "NO_SHARD"}});
                }),
                "no error");
    });
  }
}

}  // namespace
}  // namespace accelerate
