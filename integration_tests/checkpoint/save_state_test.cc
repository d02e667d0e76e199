// save_state and load_state where something is out of the ordinary: an object, a hook or an
// argument on one rank is wrong, folders hold what is not ours.
// Either it works on all ranks, or all of them say why, and what was there before is what it was.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/comm/checkpoint_error.h"
#include "integration_tests/checkpoint/one_rank_runtime.h"
#include "integration_tests/checkpoint/sim_saves.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate::checkpoint_tests {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

Cluster on(const std::shared_ptr<SimDisk>& disk) {
  return simulator::TopologyTest::make_cluster({.seed = 1, .disk = disk});
}

TOPOLOGY_SUITE(SaveState, .min_ranks = 2, .hardware = simulator::Hardware::kNoTpu);
TOPOLOGY_SUITE(LoadState, .min_ranks = 2, .hardware = simulator::Hardware::kNoTpu);

// A save, of another value, that must fail alike on all ranks, after one that did not.
Errors failing_save(const std::function<void(Rank&, Accelerator&)>& spoil,
                    const SaveStateOptions& options = {}) {
  auto disk = std::make_shared<SimDisk>();
  save(on(disk), 1);
  Errors errors = run(on(disk), [&](Rank& rank) {
    Accelerator accelerator;
    Net net(2);
    auto model = accelerator.prepare(net);
    spoil(rank, accelerator);
    accelerator.save_state(kFolder, options);
    accelerator.wait_for_save();
  });
  EXPECT_EQ(load(on(disk)), 1);
  EXPECT_THAT(errors, Each(errors[0]));
  save(on(disk), 3);
  EXPECT_EQ(load(on(disk)), 3);
  EXPECT_THAT(*disk->list("/sim"), ElementsAre("x"));
  return errors;
}

// ---- Objects of the user's own.

struct Object {
  std::function<Json()> gives = [] { return Json(); };
  Json got;
  StateDict state_dict() const { return {.values = gives()}; }
  void load_state_dict(const StateDict& state) { got = state.values; }
};

TEST_P(SaveState, AnObjectThatThrowsFailsTheSaveOnAllRanks) {
  for (const bool asynchronous : {false, true}) {
    std::vector<Object> objects(world_size());
    EXPECT_THAT(failing_save(
                    [&](Rank& rank, Accelerator& accelerator) {
                      Object& object = objects[rank.index()];
                      object.gives = []() -> Json { throw std::runtime_error("no state today"); };
                      accelerator.register_for_checkpointing(object);
                    },
                    {.asynchronous = asynchronous}),
                Each(AllOf(StartsWith("CheckpointError: "), HasSubstr("rank 0: no state today"))));
  }
}

TEST_P(SaveState, AnObjectWhoseTextIsNotUtf8FailsTheSaveOnAllRanks) {
  for (const bool asynchronous : {false, true}) {
    std::vector<Object> objects(world_size());
    EXPECT_THAT(failing_save(
                    [&](Rank& rank, Accelerator& accelerator) {
                      Object& object = objects[rank.index()];
                      object.gives = [] { return Json{{"name", "\xff"}}; };
                      accelerator.register_for_checkpointing(object);
                    },
                    {.asynchronous = asynchronous}),
                Each(AllOf(StartsWith("CheckpointError: "), HasSubstr("rank 0: "))));
  }
}

TEST_P(SaveState, NumbersOfObjectsComeBackAsTheyWere) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Json state = {{"best", kInfinity},
                      {"worst", -kInfinity},
                      {"name", "inf"},
                      {"names", {"nan", "-inf", kInfinity, 1.5, 7}},
                      {"like", {{"number", "inf"}}},
                      {"deeper", {{"number", {{"number", kInfinity}}}}},
                      {"plain", {{"number", 3}}}};
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THAT(run(on(disk),
                  [&](Rank&) {
                    Accelerator accelerator;
                    Net net;
                    auto model = accelerator.prepare(net);
                    Object object{.gives = [&] { return state; }};
                    Object nan{.gives = [] { return Json{{"nan", std::nan("")}}; }};
                    accelerator.register_for_checkpointing(object, nan);
                    accelerator.save_state(kFolder);
                    accelerator.load_state(kFolder);
                    EXPECT_EQ(object.got, state);
                    ASSERT_TRUE(nan.got.at("nan").is_number_float()) << nan.got;
                    EXPECT_TRUE(std::isnan(nan.got["nan"].get<double>()));
                  }),
              Each(IsEmpty()));
}

// ---- Hooks.

TEST_P(SaveState, AHookThatThrowsFailsTheSaveOnAllRanks) {
  for (const bool asynchronous : {false, true}) {
    EXPECT_THAT(failing_save(
                    [](Rank& rank, Accelerator& accelerator) {
                      accelerator.register_save_state_pre_hook([&rank](auto&&...) {
                        if (rank.index() == 1) throw std::runtime_error("hooked");
                      });
                    },
                    {.asynchronous = asynchronous}),
                Each(AllOf(StartsWith("CheckpointError: "), HasSubstr("rank 1: hooked"))));
    EXPECT_THAT(failing_save(
                    [](Rank& rank, Accelerator& accelerator) {
                      accelerator.register_save_state_pre_hook([&rank](auto&&...) {
                        if (rank.index() == 1) throw 42;
                      });
                    },
                    {.asynchronous = asynchronous}),
                Each(AllOf(StartsWith("CheckpointError: "),
                           HasSubstr("rank 1: an exception that is not a std::exception"))));
  }
}

TEST_P(SaveState, AHooksFileWhoseNameIsNotUtf8FailsTheSaveOnAllRanks) {
  EXPECT_THAT(failing_save([](Rank& rank, Accelerator& accelerator) {
                accelerator.register_save_state_pre_hook(
                    [&](const Modules&, std::vector<NamedTensors>&, const std::string& folder) {
                      if (rank.index() != 0) return;
                      FileSystem& files = accelerator.runtime().files();
                      ASSERT_TRUE(write_file(files, folder + "/\xff", "hello").ok());
                    });
              }),
              Each(AllOf(StartsWith("CheckpointError: "), HasSubstr("rank 0: "))));
}

TEST_P(LoadState, AHookThatThrowsFailsTheLoadOnAllRanks) {
  auto disk = std::make_shared<SimDisk>();
  save(on(disk), 1);
  EXPECT_THAT(run(on(disk),
                  [&](Rank& rank) {
                    Accelerator accelerator;
                    Net net;
                    auto model = accelerator.prepare(net);
                    accelerator.register_load_state_pre_hook([&rank](auto&&...) {
                      if (rank.index() == 1) throw 42;
                    });
                    accelerator.load_state(kFolder);
                  }),
              Each(AllOf(StartsWith("ValueError: load_state: "),
                         HasSubstr("rank 1: an exception that is not a std::exception"))));
}

TEST_P(SaveState, WhatHooksWriteIsPartOfTheCheckpoint) {
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THAT(run(on(disk),
                  [&](Rank& rank) {
                    Accelerator accelerator;
                    Net net(1);
                    auto model = accelerator.prepare(net);
                    accelerator.register_save_state_pre_hook(
                        [&](const Modules&, std::vector<NamedTensors>&, const std::string& folder) {
                          FileSystem& files = accelerator.runtime().files();
                          const std::string name = absl::StrCat("/hook_", rank.index(), ".txt");
                          ASSERT_TRUE(write_file(files, folder + name, "here").ok());
                          ASSERT_TRUE(write_file(files, folder + "/below" + name, "there").ok());
                        });
                    accelerator.save_state(kFolder);
                  }),
              Each(IsEmpty()));
  const Manifest manifest = *verify_checkpoint(*disk, kFolder);
  for (int rank = 0; rank < world_size(); ++rank) {
    const std::string name = absl::StrCat("hook_", rank, ".txt");
    EXPECT_TRUE(manifest.files.contains(name)) << name;
    EXPECT_TRUE(manifest.files.contains("below/" + name)) << name;
  }
  EXPECT_EQ(load(on(disk)), 1);
  SimDisk::damage(**disk->open("/sim/x/below/hook_1.txt"), 11);
  EXPECT_THAT(run(on(disk),
                  [&](Rank&) {
                    Accelerator accelerator;
                    Net net;
                    auto model = accelerator.prepare(net);
                    accelerator.load_state(kFolder);
                  }),
              Each(AllOf(StartsWith("CheckpointError: "),
                         HasSubstr("/sim/x/below/hook_1.txt is damaged"))));
}

TEST_P(SaveState, HooksMaySaveAndLoadModelsThemselves) {
  auto disk = std::make_shared<SimDisk>();
  const auto run_with = [&](double value, bool hooks,
                            const std::function<void(Accelerator&)>& body) {
    std::vector<double> values(world_size());
    const Errors errors = run(on(disk), [&](Rank& rank) {
      Accelerator accelerator;
      Net net(value), other(value);
      auto [model, other_model] = accelerator.prepare(net, other);
      const auto kept = accelerator.register_save_state_pre_hook(
          [](const Modules& models, std::vector<NamedTensors>& weights, const std::string&) {
            ASSERT_EQ(models.size(), weights.size());
            weights.pop_back();
          });
      auto load_hook = accelerator.register_load_state_pre_hook(
          [](Modules& models, const std::string&) { models.pop_back(); });
      if (!hooks) load_hook.remove();
      body(accelerator);
      EXPECT_EQ(other->value(), value);
      values[rank.index()] = net->value();
    });
    EXPECT_THAT(errors, Each(errors[0]));
    EXPECT_THAT(values, Each(values[0]));
    return std::pair(errors[0], values[0]);
  };
  EXPECT_EQ(run_with(1, true, [](auto& accelerator) { accelerator.save_state(kFolder); }).first,
            "");
  const Manifest manifest = *verify_checkpoint(*disk, kFolder);
  EXPECT_TRUE(manifest.files.contains("model.safetensors"));
  EXPECT_FALSE(manifest.files.contains("model_1.safetensors"));
  EXPECT_EQ(run_with(2, true, [](auto& accelerator) { accelerator.load_state(kFolder); }),
            std::pair(std::string(), 1.0));
  EXPECT_THAT(run_with(2, false, [](auto& accelerator) { accelerator.load_state(kFolder); }).first,
              HasSubstr("model_1"));
}

// ---- Arguments.

Errors with(const std::shared_ptr<SimDisk>& disk,
            const std::function<void(Rank&, Accelerator&)>& body, double value = 2) {
  return run(on(disk), [&](Rank& rank) {
    Accelerator accelerator;
    Net net(value);
    auto model = accelerator.prepare(net);
    body(rank, accelerator);
  });
}

TEST_P(SaveState, FoldersThatAreNoneAreRefusedOnAllRanks) {
  auto disk = std::make_shared<SimDisk>();
  save(on(disk), 1);
  ASSERT_TRUE(write_file(*disk, "/sim/file", "mine").ok());
  const auto save_to = [&](const std::string& rank0, const std::string& rank1) {
    return with(disk, [&](Rank& rank, Accelerator& accelerator) {
      accelerator.save_state(rank.index() == 0 ? rank0 : rank1);
    });
  };
  EXPECT_THAT(save_to(kFolder, "/sim/y"),
              Each(AllOf(StartsWith("ValueError: "), HasSubstr("rank 1 saves to /sim/y"),
                         HasSubstr("rank 0 to /sim/x"))));
  EXPECT_THAT(save_to(kFolder, ""), Each(AllOf(StartsWith("ValueError: "), HasSubstr("rank 1: "),
                                               HasSubstr("needs an output_dir"))));
  EXPECT_THAT(save_to("", ""), Each(AllOf(StartsWith("ValueError: "), HasSubstr("rank 0: "),
                                          HasSubstr("needs an output_dir"))));
  for (const char* folder : {".", "..", "/", "/sim/x/.", "/sim/x/./", "/sim/x/.."}) {
    EXPECT_THAT(save_to(folder, folder),
                Each(AllOf(StartsWith("ValueError: "), HasSubstr("does not end in a name"))))
        << folder;
  }
  EXPECT_THAT(save_to("/sim/file", "/sim/file"), Each(HasSubstr("rank 0: /sim/file is a file")));
  EXPECT_EQ(*read_file(*disk, "/sim/file"), "mine");
  EXPECT_EQ(load(on(disk)), 1);
  // A new run begins well.
  EXPECT_THAT(save_to("/sim/x//", "/sim/x"), Each(IsEmpty()));
  EXPECT_EQ(load(on(disk)), 2);
  EXPECT_THAT(save_to("/sim/y", "/sim/y"), Each(IsEmpty()));
  EXPECT_THAT(*disk->list("/sim"), ElementsAre("file", "x", "y"));
}

TEST_P(LoadState, AWrongMapLocationOnOneRankIsAnErrorOnAll) {
  auto disk = std::make_shared<SimDisk>();
  save(on(disk), 1);
  EXPECT_THAT(with(disk,
                   [](Rank& rank, Accelerator& accelerator) {
                     accelerator.load_state(kFolder,
                                            {.map_location = rank.index() == 1 ? "moon" : "cpu"});
                   }),
              Each(AllOf(StartsWith("ValueError: "), HasSubstr("rank 1: "),
                         HasSubstr("map_location \"moon\""))));
}

TEST_P(SaveState, OneRankSavingWhileOthersLoadIsAnErrorOnAll) {
  auto disk = std::make_shared<SimDisk>();
  save(on(disk), 1);
  Errors expected = {"ValueError: save_state, rank 0: rank 1 is in load_state"};
  for (int rank = 1; rank < world_size(); ++rank) {
    if (rank > 1) absl::StrAppend(&expected[0], ", rank ", rank, " is in load_state");
    expected.push_back(
        absl::StrCat("ValueError: load_state, rank ", rank, ": rank 0 is in save_state"));
  }
  EXPECT_EQ(with(disk,
                 [](Rank& rank, Accelerator& accelerator) {
                   if (rank.index() == 0) {
                     accelerator.save_state(kFolder);
                   } else {
                     accelerator.load_state(kFolder);
                   }
                 }),
            expected);
  EXPECT_EQ(load(on(disk)), 1);
  save(on(disk), 2);
  EXPECT_EQ(load(on(disk)), 2);
}

// ---- What lies in a folder besides.

TEST_P(SaveState, ForeignFilesStayInAFolderThatIsReplaced) {
  for (const bool can_exchange : {true, false}) {
    auto disk = std::make_shared<SimDisk>(simulator::SimDiskOptions{.can_exchange = can_exchange});
    ASSERT_TRUE(write_file(*disk, "/sim/x/notes.txt", "mine").ok());
    ASSERT_TRUE(write_file(*disk, "/sim/x/plots/loss.svg", "mine as well").ok());
    for (const double value : {1, 2, 3}) {
      save(on(disk), value);
      EXPECT_EQ(load(on(disk)), value);
      EXPECT_EQ(*read_file(*disk, "/sim/x/notes.txt"), "mine");
      EXPECT_EQ(*read_file(*disk, "/sim/x/plots/loss.svg"), "mine as well");
      EXPECT_THAT(*disk->list("/sim"), ElementsAre("x"));
    }
  }
}

TEST_P(SaveState, AFolderOfTheUsersWhereItWouldStageIsRefusedAndUntouched) {
  auto disk = std::make_shared<SimDisk>();
  save(on(disk), 1);
  ASSERT_TRUE(write_file(*disk, "/sim/x.tmp/thesis.txt", "precious").ok());
  EXPECT_THAT(with(disk, [](Rank&, Accelerator& accelerator) { accelerator.save_state(kFolder); }),
              Each(AllOf(HasSubstr("rank 0: "), HasSubstr("/sim/x.tmp is in the way"))));
  EXPECT_EQ(*read_file(*disk, "/sim/x.tmp/thesis.txt"), "precious");
  EXPECT_THAT(*disk->list("/sim/x.tmp"), ElementsAre("thesis.txt"));
  EXPECT_EQ(load(on(disk)), 1);
}

TEST_P(SaveState, RotationRemovesCheckpointsOnly) {
  auto disk = std::make_shared<SimDisk>();
  const std::string folder = "/sim/run/checkpoints";
  ASSERT_TRUE(write_file(*disk, folder + "/webapp2/manifest.json", "{\"name\": \"pwa\"}").ok());
  ASSERT_TRUE(write_file(*disk, folder + "/notes1.removed/x", "precious").ok());
  EXPECT_THAT(run(on(disk),
                  [](Rank&) {
                    Accelerator accelerator({.project_config = {.project_dir = "/sim/run",
                                                                .automatic_checkpoint_naming = true,
                                                                .total_limit = 1,
                                                                .iteration = 5}});
                    Net net;
                    auto model = accelerator.prepare(net);
                    for (int i = 0; i < 3; ++i) accelerator.save_state();
                  }),
              Each(IsEmpty()));
  EXPECT_THAT(*disk->list(folder), ElementsAre("checkpoint_7", "notes1.removed", "webapp2"));
}

// ---- Nodes with disks of their own.
// One shape each: two nodes, which differ, of two ranks.

struct TwoNodes {
  std::vector<std::shared_ptr<SimDisk>> disks = {std::make_shared<SimDisk>(),
                                                 std::make_shared<SimDisk>()};

  // Values of what both have afterwards.
  std::vector<double> run(double value, const std::function<void(Accelerator&)>& body) {
    Cluster cluster("2x2", {.node_disks = disks});
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.project_config = {.save_on_each_node = true}});
      Net net(value);
      auto model = accelerator.prepare(net);
      body(accelerator);
      rank.report("value", net->value());
    });
    std::vector<double> values;
    for (const at::Tensor& each : cluster.reports("value")) values.push_back(each.item<double>());
    return values;
  }
  void save(double value) {
    run(value, [](Accelerator& accelerator) { accelerator.save_state(kFolder); });
  }
  std::vector<double> load() {
    return run(-1, [](Accelerator& accelerator) { accelerator.load_state(kFolder); });
  }
  // As after a save of which this node's part was done, and then the other node died.
  void replace_on(int node) {
    ASSERT_TRUE(begin_checkpoint(*disks[node], kFolder, "rank 0").ok());
    ASSERT_TRUE(publish_checkpoint(*disks[node], kFolder,
                                   {.id = "0123456789abcdef", .durable = true, .world_size = 4})
                    .ok());
  }
};

TEST(SaveState, OfNodesThatASaveLeftApartAllGoBackToWhatAllHave) {
  for (const int node : {0, 1}) {
    TwoNodes nodes;
    nodes.save(1);
    nodes.replace_on(node);
    EXPECT_THAT(nodes.load(), Each(1));
    for (const auto& disk : nodes.disks) EXPECT_TRUE(verify_checkpoint(*disk, kFolder).ok());
    nodes.replace_on(node);
    // Also without a load before the next save, which dies.
    Cluster cluster("2x2", {.node_disks = nodes.disks});
    EXPECT_ANY_THROW(cluster.run_on_every_rank([&](Rank&) {
      Accelerator accelerator({.project_config = {.save_on_each_node = true}});
      Net net(2);
      auto model = accelerator.prepare(net);
      auto hook = accelerator.register_save_state_pre_hook(
          [](const Modules&, std::vector<NamedTensors>&, const std::string&) {
            throw std::runtime_error("no save today");
          });
      accelerator.save_state(kFolder);
    }));
    EXPECT_THAT(nodes.load(), Each(1));
    nodes.save(3);
    EXPECT_THAT(nodes.load(), Each(3));
  }
}

// ---- Files that are out of reach.

class GuardedFiles final : public FilesOnDisk {
 public:
  // Files with this suffix cannot be read.
  std::string guarded = "nothing";
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    if (path.ends_with(guarded)) return absl::PermissionDeniedError("cannot open " + path);
    return FilesOnDisk::open(path);
  }
};

TEST(LoadState, WhatIsOutOfReachIsNotPassedOver) {
  OneRankRuntime<GuardedFiles> runtime;
  const RuntimeScope scope(runtime);
  Accelerator accelerator(
      {.project_config = {.project_dir = "/sim/run", .automatic_checkpoint_naming = true}});
  Net net(0);
  auto model = accelerator.prepare(net);
  for (int i = 0; i < 3; ++i) {
    net->fill(i);
    accelerator.save_state();
  }
  for (const char* file : {"/checkpoint_2/manifest.json", "/checkpoint_2/model.safetensors"}) {
    runtime.own_files.guarded = file;
    EXPECT_THAT(error_of([&] { accelerator.load_state(); }),
                AllOf(StartsWith("CheckpointError: "), HasSubstr("cannot open"), HasSubstr(file)));
  }
  // An older one does not matter.
  runtime.own_files.guarded = "/checkpoint_1/manifest.json";
  EXPECT_THAT(accelerator.load_state(), HasSubstr("checkpoint_2"));
  EXPECT_EQ(net->value(), 2);
}

TEST_P(SaveState, TensorsByNameBecomeAFile) {
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THAT(with(disk,
                   [](Rank&, Accelerator& accelerator) {
                     Net net(4);
                     auto model = accelerator.prepare(net);
                     accelerator.save(accelerator.get_state_dict(model), "/sim/weights");
                   }),
              Each(IsEmpty()));
  const StateDict loaded = accelerate::load(*disk, "/sim/weights");
  ASSERT_EQ(loaded.tensors.size(), 2);
  EXPECT_EQ(loaded.tensors[0].second.min().item<double>(), 4);
}

// ---- Other objects than were saved.

TEST_P(LoadState, AModelWithoutTensors) {
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THAT(run(on(disk),
                  [](Rank&) {
                    Accelerator accelerator;
                    torch::nn::Identity nothing;
                    auto model = accelerator.prepare(nothing);
                    accelerator.save_state(kFolder);
                    accelerator.load_state(kFolder);
                  }),
              Each(IsEmpty()));
  EXPECT_TRUE(verify_checkpoint(*disk, kFolder).ok());
}

TEST_P(LoadState, FewerObjectsThanWereSavedAreEnoughAndMoreAreNot) {
  auto disk = std::make_shared<SimDisk>();
  const auto run_with = [&](double value, int models, int optimizers,
                            const std::function<void(Accelerator&)>& body) {
    double after = 0;
    const Errors errors = run(on(disk), [&](Rank&) {
      Accelerator accelerator;
      std::vector<Net> nets;
      std::vector<PreparedModel<NetImpl>> prepared;
      std::vector<AcceleratedOptimizer> steppers;
      for (int i = 0; i < models; ++i) {
        nets.emplace_back(value);
        prepared.push_back(accelerator.prepare(nets.back()));
      }
      for (int i = 0; i < optimizers; ++i) {
        steppers.push_back(accelerator.prepare(sgd_for(nets[0])));
      }
      body(accelerator);
      after = nets[0]->value();
    });
    EXPECT_THAT(errors, Each(errors[0]));
    return std::pair(errors[0], after);
  };
  const auto saves = [](Accelerator& accelerator) { accelerator.save_state(kFolder); };
  const auto loads = [](Accelerator& accelerator) { accelerator.load_state(kFolder); };
  const std::pair well(std::string(), 1.0);
  EXPECT_EQ(run_with(1, 2, 2, saves), well);
  for (const auto& [models, optimizers] : {std::pair(2, 2), {2, 1}, {2, 0}, {1, 2}, {1, 0}}) {
    EXPECT_EQ(run_with(5, models, optimizers, loads), well) << models << " " << optimizers;
  }
  const auto fails = [&](const std::string& kind) {
    return [kind, &loads](Accelerator& accelerator) {
      EXPECT_THAT(error_of([&] { loads(accelerator); }),
                  AllOf(StartsWith("ValueError: "), HasSubstr("3 of kind \"" + kind)));
    };
  };
  const std::pair unchanged(std::string(), 5.0);
  EXPECT_EQ(run_with(5, 3, 0, fails("model")), unchanged);
  EXPECT_EQ(run_with(5, 2, 3, fails("optimizer")), unchanged);
}

TEST_P(LoadState, AnotherArchitectureIsNoDamage) {
  auto disk = std::make_shared<SimDisk>();
  const auto run_with = [&](Net (*make)(), int64_t iteration,
                            const std::function<void(Accelerator&)>& body) {
    return run(on(disk), [&](Rank&) {
      Accelerator accelerator({.project_config = {.project_dir = "/sim/run",
                                                  .automatic_checkpoint_naming = true,
                                                  .iteration = iteration}});
      Net net = make();
      auto model = accelerator.prepare(net);
      body(accelerator);
    });
  };
  const auto saves = [](Accelerator& accelerator) { accelerator.save_state(); };
  const auto loads = [](Accelerator& accelerator) { accelerator.load_state(); };
  Net (*narrow)() = [] { return Net(1, 3); };
  Net (*wide)() = [] { return Net(2, 5); };
  Net (*renamed)() = [] { return Net(3, 5, "renamed"); };
  EXPECT_THAT(run_with(narrow, 0, saves), Each(IsEmpty()));
  EXPECT_THAT(run_with(wide, 1, saves), Each(IsEmpty()));
  // The older checkpoint would fit.
  EXPECT_THAT(run_with(narrow, 0, loads),
              Each(AllOf(StartsWith("ValueError: "), HasSubstr("checkpoint_1"))));
  EXPECT_THAT(run_with(renamed, 0, loads),
              Each(AllOf(StartsWith("ValueError: "), HasSubstr("checkpoint_1"))));
  EXPECT_THAT(run_with(wide, 0, loads), Each(IsEmpty()));
}

// ---- Nodes.

// One shape: two nodes that share a disk.
TEST(SaveState, SavingOnEachNodeToOneDiskIsRefused) {
  for (const uint64_t seed : simulator::kSeeds) {
    auto disk = std::make_shared<SimDisk>();
    const Cluster cluster("2x2", {.seed = simulator::seed_of_run(seed), .disk = disk});
    save(cluster, 1);
    EXPECT_THAT(run(cluster,
                    [](Rank&) {
                      Accelerator accelerator({.project_config = {.save_on_each_node = true}});
                      Net net(2);
                      auto model = accelerator.prepare(net);
                      accelerator.save_state(kFolder);
                    }),
                Each(AnyOf(HasSubstr("save_on_each_node"), HasSubstr("is in the way"))))
        << "seed " << seed;
    EXPECT_EQ(load(cluster), 1) << "seed " << seed;
    save(cluster, 3);
    EXPECT_EQ(load(cluster), 3) << "seed " << seed;
  }
}

// ---- Back to an earlier state, in one process.

// As many steps as `steps` says, on what chance gives.
std::vector<double> train(Accelerator& accelerator, PreparedModel<NetImpl>& model,
                          AcceleratedOptimizer& optimizer, int steps) {
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    const torch::Tensor loss =
        model(torch::dropout(torch::randn({6, 4}).to(accelerator.device()), 0.3, true))
            .square()
            .mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST_P(LoadState, TrainingGoesOnAgainAsItDidBefore) {
  for (const bool uses_adam : {false, true}) {
    // Before the first step an optimizer has no states yet: those that come are to go again.
    for (const int steps_before : {0, 3}) {
      auto disk = std::make_shared<SimDisk>();
      EXPECT_THAT(run(on(disk),
                      [&](Rank& rank) {
                        Accelerator accelerator;
                        set_seed(11 + rank.index());
                        Net net(0.5);
                        auto optimizer = accelerator.prepare(
                            uses_adam ? std::make_shared<torch::optim::Adam>(net->parameters(), 0.1)
                                      : sgd_for(net));
                        auto model = accelerator.prepare(net);
                        train(accelerator, model, optimizer, steps_before);
                        accelerator.save_state(kFolder);
                        const auto first = train(accelerator, model, optimizer, 5);
                        const torch::Tensor weight = net->in->weight.detach().clone();
                        for (int i = 0; i < 2; ++i) {
                          accelerator.load_state(kFolder);
                          EXPECT_EQ(train(accelerator, model, optimizer, 5), first);
                          EXPECT_TRUE(torch::equal(net->in->weight, weight));
                        }
                      }),
                  Each(IsEmpty()));
    }
  }
}

TEST_P(LoadState, AnEpochGoesOnAgainAsItDidBefore) {
  auto disk = std::make_shared<SimDisk>();
  const auto numbers = torch::arange(20 * world_size());  // five batches for each rank
  EXPECT_THAT(
      run(on(disk),
          [&](Rank&) {
            Accelerator accelerator({.dataloader_config = {.use_stateful_dataloader = true}});
            set_seed(3);
            Net net;
            auto [model, loader] = accelerator.prepare(
                net, DataLoader(make_tensor_dataset(numbers), {.batch_size = 4, .shuffle = true}));
            std::vector<int64_t> first, again;
            int batches = 0;
            for (auto& [batch] : loader) {
              if (++batches > 2) first.push_back(batch[0].template item<int64_t>());
              if (batches == 2) accelerator.save_state(kFolder);
            }
            EXPECT_EQ(first.size(), 3u);
            accelerator.load_state(kFolder);
            for (auto& [batch] : loader) {
              again.push_back(batch[0].template item<int64_t>());
            }
            EXPECT_EQ(again, first);
          }),
      Each(IsEmpty()));
}

}  // namespace
}  // namespace accelerate::checkpoint_tests
