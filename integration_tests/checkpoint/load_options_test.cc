// The states that load_state restores where options say which there are and how they are read.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/platform/file_system.h"
#include "integration_tests/checkpoint/sim_saves.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate::checkpoint_tests {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

Cluster on(const std::shared_ptr<SimDisk>& disk) {
  return simulator::TopologyTest::make_cluster({.seed = 1, .disk = disk});
}

TOPOLOGY_SUITE(LoadState);

TEST_P(LoadState, ALoaderThatIsNotStatefulBeginsAnew) {
  auto disk = std::make_shared<SimDisk>();
  const auto train = [&](bool stateful) {
    return run(on(disk), [=](Rank& rank) {
      Accelerator accelerator({.dataloader_config = {.use_stateful_dataloader = stateful}});
      EXPECT_EQ(accelerator.use_stateful_dataloader(), stateful);
      Net net;
      auto [model, loader] = accelerator.prepare(
          net, DataLoader(make_tensor_dataset(torch::arange(20 * accelerator.num_processes())),
                          {.batch_size = 4}));
      int batches = 0;
      for ([[maybe_unused]] auto& batch : loader) {
        if (++batches == 2) accelerator.save_state(kFolder);
      }
      EXPECT_EQ(*exists(accelerator.runtime().files(),
                        absl::StrCat(kFolder, "/dl_state_dict_share", rank.index(), ".json")),
                stateful);
      accelerator.load_state(kFolder);
      for ([[maybe_unused]] auto& batch : loader) ++batches;
      EXPECT_EQ(batches, stateful ? 5 + 3 : 5 + 5);
    });
  };
  EXPECT_THAT(train(false), Each(IsEmpty()));
  EXPECT_THAT(train(true), Each(IsEmpty()));
}

// HF Accelerate's loop: the program says where it was. The same batches come as without a break.
TEST_P(LoadState, ALoopThatSkipsByItselfLosesNoSample) {
  auto disk = std::make_shared<SimDisk>();
  const auto train = [&](bool resumes, bool stateful, std::vector<torch::Tensor>& batches) {
    return run(on(disk), [&, resumes, stateful](Rank& rank) {
      DataLoaderConfiguration configuration{.use_seedable_sampler = true, .data_seed = 5};
      if (stateful) configuration.use_stateful_dataloader = true;
      Accelerator accelerator({.dataloader_config = configuration});
      Net net;
      auto [model, loader] = accelerator.prepare(
          net, DataLoader(make_tensor_dataset(torch::arange(20 * accelerator.num_processes())),
                          {.batch_size = 4, .shuffle = true}));
      if (resumes) accelerator.load_state(kFolder);
      loader.set_epoch(1);
      auto rest = resumes ? accelerator.skip_first_batches(loader, 2) : loader;
      int taken = 0;
      for (auto& [batch] : rest) {
        if (rank.index() == 0) batches.push_back(batch.cpu().clone());
        if (!resumes && ++taken == 2) accelerator.save_state(kFolder);
      }
    });
  };
  std::vector<torch::Tensor> whole, rest;
  EXPECT_THAT(train(false, false, whole), Each(IsEmpty()));
  EXPECT_THAT(train(true, false, rest), Each(IsEmpty()));
  ASSERT_EQ(whole.size(), 5u);
  ASSERT_EQ(rest.size(), 3u);
  for (size_t i = 0; i < rest.size(); ++i) EXPECT_TRUE(torch::equal(rest[i], whole[i + 2])) << i;
  // A position that is loaded and a skip would leave out two more.
  EXPECT_THAT(train(false, true, whole), Each(IsEmpty()));
  EXPECT_THAT(train(true, true, rest), Each(AllOf(HasSubstr("skip_first_batches(2)"),
                                                  HasSubstr("behind batch 2 of epoch 1"))));
}

constexpr char kProject[] = "/sim/run";

AcceleratorOptions of_project() {
  return {.project_config = {.project_dir = kProject, .automatic_checkpoint_naming = true}};
}

TEST_P(LoadState, IfThereIsOne) {
  auto disk = std::make_shared<SimDisk>();
  const auto start = [&](const std::string& input_dir, std::optional<std::string> expected) {
    return run(on(disk), [=](Rank&) {
      Accelerator accelerator(of_project());
      Net net(7);
      auto model = accelerator.prepare(net);
      EXPECT_EQ(accelerator.load_latest_state(input_dir), expected);
      EXPECT_EQ(net->value(), expected ? 1 : 7);
      net->fill(1);
      if (!expected && input_dir.empty()) accelerator.save_state();
    });
  };
  EXPECT_THAT(start("", std::nullopt), Each(IsEmpty()));
  EXPECT_THAT(start("", "/sim/run/checkpoints/checkpoint_0"), Each(IsEmpty()));
  EXPECT_THAT(start("/sim/other", std::nullopt), Each(IsEmpty()));
  EXPECT_THAT(start("/sim/run/checkpoints/checkpoint_0/", "/sim/run/checkpoints/checkpoint_0"),
              Each(IsEmpty()));
  // A folder that is not a checkpoint is not passed over in silence.
  ASSERT_TRUE(disk->remove("/sim/run/checkpoints/checkpoint_0/manifest.json").ok());
  EXPECT_THAT(start("", std::nullopt),
              Each(AllOf(HasSubstr("no checkpoint in /sim/run/checkpoints is complete"),
                         HasSubstr("checkpoint_0"), HasSubstr("begin anew"))));
  EXPECT_THAT(start("/sim/run/checkpoints/checkpoint_0", std::nullopt),
              Each(HasSubstr("manifest")));
  // A first save that crashed has saved nothing.
  ASSERT_TRUE(
      disk->rename("/sim/run/checkpoints/checkpoint_0", "/sim/run/checkpoints/checkpoint_0.tmp")
          .ok());
  EXPECT_THAT(run(on(disk),
                  [](Rank&) {
                    Accelerator accelerator(of_project());
                    EXPECT_EQ(accelerator.load_latest_state(), std::nullopt);
                  }),
              Each(IsEmpty()));
}

TEST_P(LoadState, SaysWhichFileMakesItSkipACheckpoint) {
  auto disk = std::make_shared<SimDisk>();
  const auto train = [&](bool resumes) {
    return run(on(disk), [=](Rank&) {
      Accelerator accelerator(of_project());
      Net net;
      auto model = accelerator.prepare(net);
      if (resumes) {
        accelerator.load_state();
      } else {
        for (int save = 0; save < 2; ++save) accelerator.save_state();
      }
    });
  };
  EXPECT_THAT(train(/*resumes=*/false), Each(IsEmpty()));
  constexpr char kFile[] = "/sim/run/checkpoints/checkpoint_1/model.safetensors";
  ASSERT_TRUE(disk->remove(kFile).ok());
  testing::internal::CaptureStderr();
  const Errors errors = train(/*resumes=*/true);
  const std::string console = testing::internal::GetCapturedStderr();
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_THAT(console,
              HasSubstr(absl::StrCat("load_state skips a checkpoint: ", kFile, " is missing")));
}

// The value of the net's parameters is the number of its checkpoint.
Errors train_with_metrics(const std::shared_ptr<SimDisk>& disk,
                          const std::vector<std::optional<double>>& metrics) {
  return run(on(disk), [&](Rank&) {
    AcceleratorOptions options = of_project();
    options.project_config.total_limit = 2;
    Accelerator accelerator(options);
    Net net;
    auto model = accelerator.prepare(net);
    for (size_t i = 0; i < metrics.size(); ++i) {
      net->fill(static_cast<double>(i));
      accelerator.save_state({}, {.metric = metrics[i]});
    }
  });
}

double best_value(const std::shared_ptr<SimDisk>& disk) {
  Cluster cluster = on(disk);
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(of_project());
    Net net(-1);
    auto model = accelerator.prepare(net);
    accelerator.load_state({}, {.best = true});
    // What is saved next replaces nothing.
    EXPECT_EQ(accelerator.save_iteration(), 5);
    rank.report("value", net->value());
  });
  const std::vector<at::Tensor> values = cluster.reports("value");
  for (const at::Tensor& value : values) EXPECT_EQ(value.item<double>(), values[0].item<double>());
  return values[0].item<double>();
}

TEST_P(LoadState, TheBestOneIsKeptAndFound) {
  auto disk = std::make_shared<SimDisk>();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(train_with_metrics(disk, {0.25, 0.75, std::nullopt, nan, 0.5}), Each(IsEmpty()));
  EXPECT_THAT(*disk->list("/sim/run/checkpoints"),
              testing::ElementsAre("checkpoint_1", "checkpoint_4"));
  EXPECT_EQ(best_value(disk), 1);
  // The next best one, if the best is not complete.
  ASSERT_TRUE(disk->remove("/sim/run/checkpoints/checkpoint_1/manifest.json").ok());
  EXPECT_EQ(best_value(disk), 4);
}

TEST_P(LoadState, TheBestOneOfNone) {
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THAT(train_with_metrics(disk, {std::nullopt, std::numeric_limits<double>::infinity()}),
              Each(IsEmpty()));
  EXPECT_TRUE(verify_checkpoint(*disk, "/sim/run/checkpoints/checkpoint_1").ok())
      << "with an infinite metric, which is none";
  EXPECT_THAT(run(on(disk),
                  [](Rank&) {
                    Accelerator accelerator(of_project());
                    EXPECT_EQ(accelerator.load_latest_state({}, {.best = true}), std::nullopt);
                    accelerator.load_state({}, {.best = true});
                  }),
              Each(HasSubstr("there is no complete checkpoint with a metric in /sim/run")));
  EXPECT_THAT(run(on(disk),
                  [](Rank&) {
                    Accelerator accelerator(of_project());
                    accelerator.load_state("/sim/run/checkpoints/checkpoint_0", {.best = true});
                  }),
              Each(HasSubstr("leave input_dir empty")));
}

TEST(SavedMetric, IsTheSameOnAllRanks) {
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THAT(run(Cluster("2x2", {.disk = disk}),
                  [](Rank& rank) {
                    Accelerator accelerator(of_project());
                    accelerator.save_state({}, {.metric = rank.index() == 2 ? 0.25 : 0.5});
                  }),
              Each(HasSubstr("the metric of rank 2 is 0.25, but that of rank 0 is 0.5")));
}

// Not after hours of training.
TEST_P(LoadState, AProjectsFolderIsTriedAtTheStart) {
  const auto start = [](const std::shared_ptr<SimDisk>& disk) {
    return run(on(disk), [](Rank&) { Accelerator accelerator(of_project()); });
  };
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THAT(start(disk), Each(IsEmpty()));
  EXPECT_THAT(*disk->list(kProject), IsEmpty());
  auto taken = std::make_shared<SimDisk>();
  ASSERT_TRUE(write_file(*taken, kProject, "a file").ok());
  EXPECT_THAT(start(taken)[0], AllOf(HasSubstr("ValueError: rank 0: nothing can be saved in"),
                                     HasSubstr(kProject), HasSubstr("folder")));
  auto full = std::make_shared<SimDisk>(simulator::SimDiskOptions{.capacity = 0});
  EXPECT_THAT(start(full)[0], AllOf(HasSubstr("nothing can be saved in"), HasSubstr(kProject),
                                    HasSubstr("no space left")));
}

TOPOLOGY_SUITE(LoadStateOnDevices, .hardware = simulator::Hardware::kGpu);

// Where a state is read to first makes no difference to where it ends.
TEST_P(LoadStateOnDevices, StatesEndWhereTheirParametersAre) {
  auto disk = std::make_shared<SimDisk>();
  const auto load_by = [&](std::optional<std::string> map_location) {
    return run(on(disk), [=](Rank&) {
      Accelerator accelerator;
      Net net(1);
      auto [model, optimizer] = accelerator.prepare(net, sgd_for(net));
      const auto step = [&] {
        accelerator.backward(model(torch::ones({1, 4}).to(accelerator.device())).sum());
        optimizer.step();
        optimizer.zero_grad();
      };
      step();
      accelerator.save_state(kFolder);
      step();
      accelerator.load_state(kFolder, {.map_location = map_location});
      EXPECT_EQ(net->in->weight.device(), accelerator.device());
      const StateDict state = optimizer.state_dict();
      EXPECT_EQ(state.tensors.size(), 2u);
      for (const auto& [name, tensor] : state.tensors) {
        EXPECT_EQ(tensor.device(), accelerator.device()) << name;
      }
    });
  };
  for (const std::optional<std::string>& where :
       {std::optional<std::string>(), std::optional<std::string>("cpu"),
        std::optional<std::string>("on_device")}) {
    EXPECT_THAT(load_by(where), Each(IsEmpty()));
  }
}

// Parameters of one shape, in another order after the load.
TEST_P(LoadState, MomentsFollowTheNamesOfTheirParameters) {
  auto disk = std::make_shared<SimDisk>();
  std::vector<torch::Tensor> ends(2);
  const auto train = [&](bool resumes) {
    return run(on(disk), [&, resumes](Rank& rank) {
      Accelerator accelerator;
      torch::manual_seed(3);
      const auto square = torch::nn::LinearOptions(2, 2).bias(false);
      torch::nn::Sequential net{torch::nn::Linear(square), torch::nn::Linear(square)};
      std::vector<torch::Tensor> parameters = net->parameters();
      if (resumes) std::ranges::reverse(parameters);
      const std::shared_ptr<torch::optim::Optimizer> sgd = std::make_shared<torch::optim::SGD>(
          parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
      auto [model, optimizer] = accelerator.prepare(net.ptr(), sgd);
      const torch::Tensor x = torch::tensor({{1.0f, 2.0f}}).to(accelerator.device());
      for (const bool is_first : {true, false}) {
        if (is_first && resumes) {
          accelerator.load_state(kFolder);
          continue;
        }
        accelerator.backward(model(x).square().sum());
        optimizer.step();
        optimizer.zero_grad();
        if (is_first) accelerator.save_state(kFolder);
      }
      if (rank.index() == 0) {
        ends[resumes ? 1 : 0] = torch::cat(net->parameters()).detach().cpu();
      }
    });
  };
  EXPECT_THAT(train(false), Each(IsEmpty()));
  EXPECT_THAT(train(true), Each(IsEmpty()));
  EXPECT_TRUE(torch::allclose(ends[1], ends[0]));
}

// The optimizer's parameters are on the CPU, so that nothing else fills the device.
TEST(LoadState, OptimizerStatesAreReadToTheirMapLocation) {
  constexpr int64_t kWidth = 1 << 16;
  constexpr int64_t kStateBytes = 5 * kWidth * int64_t{sizeof(float)};
  const auto device_holds_state = [&](const std::string& topology,
                                      std::optional<std::string> map_location) {
    Cluster cluster(topology, {.disk = std::make_shared<SimDisk>()});
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.device_placement = false});
      Net net(1, kWidth);
      const auto sgd = sgd_for(net);
      for (torch::Tensor& parameter : net->parameters()) {
        parameter.mutable_grad() = torch::ones_like(parameter);
      }
      sgd->step();
      auto optimizer = accelerator.prepare(sgd);
      accelerator.save_state(kFolder);
      EXPECT_LT(rank.device()->memory().peak(), kStateBytes);
      accelerator.load_state(kFolder, {.map_location = map_location});
      for (const auto& [name, tensor] : optimizer.state_dict().tensors) {
        EXPECT_TRUE(tensor.is_cpu()) << name;
      }
      rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
    });
    return cluster.reports("peak")[0].item<double>() >= kStateBytes;
  };
  EXPECT_FALSE(device_holds_state("1x2:h100", "cpu"));
  EXPECT_TRUE(device_holds_state("1x2:h100", "on_device"));
  EXPECT_TRUE(device_holds_state("1x2:h100", std::nullopt));
  EXPECT_FALSE(device_holds_state("1x1:h100", std::nullopt));
}

// ---- Where a state is. One shape: two nodes of two ranks.

TEST(SavedState, IsFoundByAPathOfAnyBytes) {
  const std::string folder = "/sim/a \"new\" run's\t{state}, \xff\xc3(";
  for (const bool on_each_node : {false, true}) {
    const std::vector<std::shared_ptr<SimDisk>> disks = {std::make_shared<SimDisk>(),
                                                         std::make_shared<SimDisk>()};
    const auto train = [&](double value, const std::function<void(Accelerator&)>& body) {
      const Cluster cluster =
          on_each_node ? Cluster("2x2", {.node_disks = disks}) : Cluster("2x2", {.disk = disks[0]});
      return run(cluster, [&](Rank&) {
        Accelerator accelerator({.project_config = {.save_on_each_node = on_each_node}});
        Net net(value);
        auto model = accelerator.prepare(net);
        body(accelerator);
        EXPECT_EQ(net->value(), 5);
      });
    };
    EXPECT_THAT(
        train(5,
              [&](Accelerator& accelerator) { EXPECT_EQ(accelerator.save_state(folder), folder); }),
        Each(IsEmpty()));
    EXPECT_THAT(
        train(-1,
              [&](Accelerator& accelerator) { EXPECT_EQ(accelerator.load_state(folder), folder); }),
        Each(IsEmpty()));
    EXPECT_TRUE(verify_checkpoint(*disks[0], folder).ok());
    EXPECT_EQ(verify_checkpoint(*disks[1], folder).ok(), on_each_node);
  }
}

}  // namespace
}  // namespace accelerate::checkpoint_tests
