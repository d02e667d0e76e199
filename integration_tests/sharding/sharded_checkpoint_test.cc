// Checkpoints of models that ranks share by shards: saved under one layout they load under any
// other, and what is wrong with one is said in a line.
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/checkpoint/folder/checkpoint_parts.h"
#include "accelerate/checkpoint/objects/sharded_state_dict.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/files/formats/manifest.h"
#include "accelerate/files/formats/merge_weights.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/platform/file_system.h"
#include "integration_tests/checkpoint/replace_file.h"
#include "integration_tests/sharding/gauges.h"
#include "integration_tests/sharding/small_job.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::FileFault;
using simulator::FileFaultKind;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kSteps = 3;

// Saves after some steps and returns the losses of the next two.
std::vector<float> save(const Layout& layout, const std::shared_ptr<SimDisk>& disk,
                        SaveStateOptions options = {}) {
  // Version 1 saves whole tensors unless it is told otherwise.
  if (layout.plugin && !options.state_dict_type) {
    options.state_dict_type = StateDictType::kShardedStateDict;
  }
  std::vector<float> losses;
  EXPECT_THAT(run(layout, disk,
                  [&](Rank& rank) {
                    Job job(layout);
                    for (int i = 0; i < kSteps; ++i) job.step(i);
                    job.accelerator.save_state(kFolder, options);
                    job.accelerator.wait_for_save();
                    for (int i = kSteps; i < kSteps + 2; ++i) {
                      const float loss = job.step(i);
                      if (rank.index() == 0) losses.push_back(loss);
                    }
                  }),
              Each(IsEmpty()));
  return losses;
}

std::vector<float> load(const Layout& layout, const std::shared_ptr<SimDisk>& disk) {
  std::vector<float> losses;
  EXPECT_THAT(run(layout, disk,
                  [&](Rank& rank) {
                    Job job(layout, /*seed=*/99);
                    job.accelerator.load_state(kFolder);
                    for (int i = kSteps; i < kSteps + 2; ++i) {
                      const float loss = job.step(i);
                      if (rank.index() == 0) losses.push_back(loss);
                    }
                    EXPECT_EQ(job.net->steps.item<float>(), kSteps + 2);
                  }),
              Each(IsEmpty()));
  return losses;
}

TEST(ShardedCheckpoint, LoadsUnderAnyOtherLayout) {
  const Layout ddp4 = replicas("1x4"), ddp2 = replicas("1x2"), alone = replicas("1x1");
  const Layout full4 = shards("1x4", 4), full2 = shards("1x2", 2), full3 = shards("1x3", 3);
  const Layout full8 = shards("2x4", 8), hybrid4 = shards("2x2", 2, 2),
               hybrid8 = shards("2x4", 4, 2);
  const Layout stays4 = stays("1x4"), stays2 = stays("1x2");
  const std::vector<std::pair<Layout, Layout>> pairs = {
      {ddp4, full4},    {full4, ddp4},    {full4, full2},    {full2, full3},   {full3, full8},
      {full4, hybrid4}, {hybrid4, full4}, {hybrid8, full3},  {hybrid4, ddp2},  {full8, alone},
      {ddp2, hybrid8},  {alone, full4},   {ddp4, stays4},    {stays4, ddp2},   {full8, stays4},
      {stays4, full3},  {stays2, stays4}, {hybrid8, stays2}, {stays4, hybrid4}};
  for (const auto& [a, b] : pairs) {
    SCOPED_TRACE(absl::StrCat(a.name, " to ", b.name));
    auto disk = std::make_shared<SimDisk>();
    const std::vector<float> expected = save(a, disk);
    const std::vector<float> found = load(b, disk);
    ASSERT_EQ(found.size(), 2u);
    ASSERT_EQ(expected.size(), 2u);
    EXPECT_NEAR(found[0], expected[0], 1e-6);
    // This one depends on the moments.
    EXPECT_NEAR(found[1], expected[1], 2e-6);
  }
}

TEST(ShardedCheckpoint, GoesOnBitForBitOnTheSameLayout) {
  for (const Layout& layout : {shards("1x4", 4), shards("2x2:h100", 4), shards("2x2", 2, 2)}) {
    for (const bool asynchronous : {false, true}) {
      SCOPED_TRACE(absl::StrCat(layout.name, asynchronous ? ", behind training" : ""));
      auto disk = std::make_shared<SimDisk>();
      const std::vector<float> expected = save(layout, disk, {.asynchronous = asynchronous});
      EXPECT_EQ(load(layout, disk), expected);
    }
  }
}

TEST(ShardedCheckpoint, EachRankWritesItsRowsAndRankZeroTheRest) {
  auto disk = std::make_shared<SimDisk>();
  save(shards("1x4", 4), disk);
  EXPECT_THAT(
      files_in(*disk, "pytorch_model_fsdp_0"),
      ElementsAre("metadata.json", "replicated.safetensors", "shard_00000.safetensors",
                  "shard_00001.safetensors", "shard_00002.safetensors", "shard_00003.safetensors"));
  EXPECT_THAT(files_in(*disk, "optimizer_0"),
              ElementsAre("metadata.json", "shard_00000.safetensors", "shard_00001.safetensors",
                          "shard_00002.safetensors", "shard_00003.safetensors"));
  const std::string path = join_path(kFolder, "pytorch_model_fsdp_0/shard_00003.safetensors");
  const auto file = SafetensorsFile::open(*disk, path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> shapes;
  for (const SafetensorsEntry& entry : file->header().tensors) {
    shapes.push_back(absl::StrCat(entry.name, " ", entry.shape.at(0)));
  }
  std::ranges::sort(shapes);
  // 11 rows over 4 ranks, 7, 6 and 5; the last rank has none of those that end before.
  EXPECT_THAT(shapes, ElementsAre("body.bias 1", "body.weight 1", "head 2"));
}

TEST(ShardedCheckpoint, ReplicasDivideTheRowsAmongThem) {
  auto disk = std::make_shared<SimDisk>();
  save(shards("2x2", 2, 2), disk);
  const auto text = read_file(*disk, join_path(kFolder, "pytorch_model_fsdp_0/metadata.json"));
  ASSERT_TRUE(text.ok());
  const auto metadata = parse_sharded_metadata(*text);
  ASSERT_TRUE(metadata.ok()) << metadata.status();
  EXPECT_THAT(metadata->writers,
              ElementsAre(ElementsAre("shard_00000.safetensors", "shard_00002.safetensors"),
                          ElementsAre("shard_00001.safetensors", "shard_00003.safetensors")));
  // Nothing is written twice.
  int64_t bytes = 0;
  for (const TensorShard& shard : shards_of(*metadata, "head")) {
    bytes += shard.box.numel();
  }
  EXPECT_EQ(bytes, 11 * 6);
}

TEST(ShardedCheckpoint, MergesToTheBytesOfWholeTensors) {
  for (const Layout& layout : {shards("1x4", 4), shards("2x2", 2, 2)}) {
    SCOPED_TRACE(layout.name);
    auto disk = std::make_shared<SimDisk>();
    EXPECT_THAT(run(layout, disk,
                    [&](Rank&) {
                      Job job(layout);
                      job.step(0);
                      job.accelerator.save_state("/sim/run/divided");
                      job.accelerator.save_state(
                          "/sim/run/whole", {.state_dict_type = StateDictType::kFullStateDict});
                      job.accelerator.save_model(*job.model, "/sim/run/weights");
                      EXPECT_THAT(error_of([] { merge_fsdp_weights("/sim/none", "/sim/run"); }),
                                  HasSubstr("/sim/none"));
                      merge_fsdp_weights("/sim/run/divided/pytorch_model_fsdp_0", "/sim/together");
                    }),
                Each(IsEmpty()));
    EXPECT_EQ(contents(*disk, "/sim/together/model.safetensors"),
              contents(*disk, "/sim/run/whole/model.safetensors"));
    const auto model =
        merge_weights(*disk, "/sim/run/divided/pytorch_model_fsdp_0", "/sim/run/merged");
    ASSERT_TRUE(model.ok()) << model.status();
    const auto optimizer = merge_weights(*disk, "/sim/run/divided/optimizer_0", "/sim/run/merged");
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      EXPECT_EQ(contents(*disk, join_path("/sim/run/merged", file)),
                contents(*disk, join_path("/sim/run/whole", file)))
          << file;
    }
    EXPECT_EQ(contents(*disk, "/sim/run/weights/model.safetensors"),
              contents(*disk, "/sim/run/whole/model.safetensors"));
  }
}

TEST(ShardedCheckpoint, WholeTensorsLoadIntoShardsAndReplicas) {
  auto disk = std::make_shared<SimDisk>();
  const std::vector<float> expected =
      save(shards("1x4", 4), disk, {.state_dict_type = StateDictType::kFullStateDict});
  for (const Layout& layout : {shards("1x4", 4), shards("1x3", 3), replicas("1x2")}) {
    SCOPED_TRACE(layout.name);
    const std::vector<float> found = load(layout, disk);
    EXPECT_NEAR(found.at(0), expected.at(0), 1e-6);
    EXPECT_NEAR(found.at(1), expected.at(1), 2e-6);
  }
}

TEST(ShardedCheckpoint, RanksOwnPartsLoadIntoTheSameLayoutOnly) {
  auto disk = std::make_shared<SimDisk>();
  const std::vector<float> expected =
      save(shards("1x4", 4), disk, {.state_dict_type = StateDictType::kLocalStateDict});
  EXPECT_EQ(load(shards("1x4", 4), disk), expected);
  for (const Layout& layout : {shards("1x2", 2), shards("2x2", 2, 2), replicas("1x4")}) {
    EXPECT_THAT(run(layout, disk,
                    [&](Rank&) {
                      Job job(layout);
                      job.accelerator.load_state(kFolder);
                    }),
                Each(HasSubstr("loads into the same layout only")))
        << layout.name;
  }
}

TEST(ShardedCheckpoint, RankZeroHasTheStateDict) {
  EXPECT_THAT(run(shards("1x3", 3), std::make_shared<SimDisk>(),
                  [&](Rank& rank) {
                    Job job(shards("1x3", 3));
                    Net same;
                    {
                      torch::manual_seed(3);
                      same = Net();
                    }
                    const NamedTensors state = job.accelerator.get_state_dict(*job.model);
                    EXPECT_EQ(state.empty(), rank.index() != 0);
                    if (rank.index() != 0) return;
                    const NamedTensors expected = module_state_dict(*same);
                    ASSERT_EQ(state.size(), expected.size());
                    for (size_t i = 0; i < state.size(); ++i) {
                      EXPECT_EQ(state[i].first, expected[i].first);
                      EXPECT_TRUE(torch::equal(state[i].second, expected[i].second))
                          << state[i].first;
                    }
                  }),
              Each(IsEmpty()));
}

TEST(ShardedCheckpoint, HooksGetShardsAndTheirPlaces) {
  EXPECT_THAT(
      run(shards("1x2", 2), std::make_shared<SimDisk>(),
          [&](Rank& rank) {
            Job job(shards("1x2", 2));
            int64_t rows = 0;
            job.accelerator.register_save_state_pre_hook(
                [&](const Modules&, std::vector<NamedTensors>& weights, const std::string&) {
                  for (const auto& [name, tensor] : weights.at(0)) {
                    const auto place = job.accelerator.shard_place(tensor);
                    EXPECT_EQ(place.has_value(), name != "steps") << name;
                    if (name != "embedding.weight") continue;
                    rows = tensor.size(0);
                    EXPECT_EQ(place->shape(), (std::vector<int64_t>{11, 6}));
                    EXPECT_THAT(place->boxes(),
                                ElementsAre(PlacedBox{row_box({11, 6}, rank.index() * 6, rows),
                                                      row_box({rows, 6}, 0, rows)}));
                  }
                });
            job.accelerator.save_state(kFolder);
            EXPECT_EQ(rows, rank.index() == 0 ? 6 : 5);
          }),
      Each(IsEmpty()));
}

TEST(ShardedCheckpoint, KeepsGradientsOfAnUnfinishedWindow) {
  const Layout layout = shards("1x2", 2);
  for (const bool sync_each_batch : {false, true}) {
    SCOPED_TRACE(sync_each_batch);
    const auto losses = [&](int stop) {
      auto disk = std::make_shared<SimDisk>();
      std::vector<float> found;
      for (const bool is_rest : {false, true}) {
        EXPECT_THAT(run(layout, disk,
                        [&](Rank& rank) {
                          AcceleratorOptions options = options_of(layout);
                          options.gradient_accumulation_plugin = GradientAccumulationPlugin{
                              .num_steps = 3, .sync_each_batch = sync_each_batch};
                          Accelerator accelerator(options);
                          torch::manual_seed(is_rest ? 9 : 3);
                          Net net;
                          auto adam =
                              std::make_shared<torch::optim::AdamW>(net->parameters(), 0.02);
                          auto [model, optimizer] = accelerator.prepare(net, adam);
                          if (is_rest) accelerator.load_state(kFolder);
                          for (int i = is_rest ? stop : 0; i < (is_rest ? 7 : stop); ++i) {
                            const auto scope = accelerator.accumulate(model);
                            const Tensor x = (torch::arange(4) + i + 4 * rank.index()) % 11;
                            const Tensor loss = torch::cross_entropy_loss(model(x), (x + 1) % 11);
                            accelerator.backward(loss);
                            optimizer.step();
                            optimizer.zero_grad();
                            if (rank.index() == 0) found.push_back(loss.item<float>());
                          }
                          if (!is_rest) accelerator.save_state(kFolder);
                        }),
                    Each(IsEmpty()));
      }
      return found;
    };
    // In the middle of a window, and at its end.
    EXPECT_EQ(losses(5), losses(3));
    EXPECT_EQ(losses(4), losses(3));
  }
}

// ---- What is wrong with a checkpoint.

// What load_state says on each rank after the metadata was changed.
Errors errors_with(const std::function<void(ShardedMetadata&)>& change) {
  auto disk = std::make_shared<SimDisk>();
  save(shards("1x4", 4), disk);
  const std::string name = "pytorch_model_fsdp_0/metadata.json";
  auto metadata = parse_sharded_metadata(contents(*disk, join_path(kFolder, name)));
  EXPECT_TRUE(metadata.ok()) << metadata.status();
  change(*metadata);
  replace_file(*disk, kFolder, name, sharded_metadata_text(*metadata));
  return run(shards("1x4", 4), disk, [](Rank&) {
    Job job(shards("1x4", 4));
    job.accelerator.load_state(kFolder);
  });
}

TEST(ShardedCheckpoint, SaysWhatIsWrongWithIt) {
  EXPECT_THAT(errors_with([](ShardedMetadata& m) { m.tensors.at("body.weight").dtype = "BF16"; }),
              Each(HasSubstr("\"body.weight\" has another dtype or shape than the metadata says")));
  EXPECT_THAT(errors_with([](ShardedMetadata& m) {
                m.tensors["more"] = {.dtype = "F32", .shape = {8, 2}, .by_rows = true};
              }),
              Each(HasSubstr("unexpected: more")));
  EXPECT_THAT(errors_with([](ShardedMetadata& m) { m.tensors.erase("body.weight"); }),
              Each(HasSubstr("missing: body.weight")));
  EXPECT_THAT(errors_with([](ShardedMetadata& m) {
                auto& steps = m.tensors.at("steps").shards;
                steps.push_back(steps.front());
              }),
              Each(HasSubstr("the shards of \"steps\" overlap")));
  EXPECT_THAT(errors_with([](ShardedMetadata& m) { m.tensors.at("steps").shards.clear(); }),
              Each(HasSubstr("the shards of \"steps\" leave a hole")));
  EXPECT_THAT(errors_with([](ShardedMetadata& m) { m.writers[2] = {"shard_00007.safetensors"}; }),
              Contains(HasSubstr("shard_00007.safetensors")));
}

TEST(ShardedCheckpoint, NamesFilesThatAreMissingOrCutShort) {
  const std::string path = join_path(kFolder, "optimizer_0/shard_00002.safetensors");
  const auto errors_after = [&](const std::function<void(SimDisk&)>& damage) {
    auto disk = std::make_shared<SimDisk>();
    save(shards("1x4", 4), disk);
    damage(*disk);
    return run(shards("1x4", 4), disk, [](Rank&) {
      Job job(shards("1x4", 4));
      job.accelerator.load_state(kFolder);
    });
  };
  EXPECT_THAT(errors_after([&](SimDisk& disk) { ASSERT_TRUE(disk.remove(path).ok()); }),
              Each(HasSubstr(absl::StrCat(path, " is missing"))));
  EXPECT_THAT(errors_after([&](SimDisk& disk) {
                const std::string text = contents(disk, path);
                ASSERT_TRUE(write_file(disk, path, text.substr(0, text.size() - 4)).ok());
              }),
              Each(AllOf(HasSubstr(path), HasSubstr("bytes instead of"))));
}

TEST(ShardedCheckpoint, ADiskThatIsFullForOneRankIsNamedByAll) {
  auto disk = std::make_shared<SimDisk>();
  save(shards("1x4", 4), disk);
  const std::string before = contents(*disk, join_path(kFolder, kManifestName));
  const Errors errors =
      run(shards("1x4", 4), disk,
          [](Rank&) {
            Job job(shards("1x4", 4));
            job.accelerator.save_state(kFolder);
          },
          {FileFault{.rank = 2, .operation = 0, .kind = FileFaultKind::kDiskFull}});
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("was not saved"), HasSubstr("rank 2: "))));
  EXPECT_EQ(contents(*disk, join_path(kFolder, kManifestName)), before);
}

// ---- Nodes with disks of their own.

TEST(ShardedCheckpoint, EachNodesDiskHasWhatItsRanksNeed) {
  for (const Layout& layout : {shards("2x2", 4), shards("2x2", 2, 2)}) {
    SCOPED_TRACE(layout.name);
    std::vector<std::shared_ptr<SimDisk>> disks = {std::make_shared<SimDisk>(),
                                                   std::make_shared<SimDisk>()};
    const auto run_on_nodes = [&](const std::function<void(Job&, Rank&)>& body) {
      Cluster cluster(layout.shape, {.node_disks = disks});
      Errors errors(cluster.world_size());
      cluster.run_on_every_rank([&](Rank& rank) {
        errors[rank.index()] = error_of([&] {
          AcceleratorOptions options = options_of(layout);
          options.project_config = ProjectConfiguration{.save_on_each_node = true};
          Job job(std::move(options), /*seed=*/3);
          body(job, rank);
        });
      });
      return errors;
    };
    std::vector<float> expected, found;
    EXPECT_THAT(run_on_nodes([&](Job& job, Rank& rank) {
                  job.step(0);
                  job.accelerator.save_state(kFolder);
                  const float loss = job.step(1);
                  if (rank.index() == 0) expected.push_back(loss);
                }),
                Each(IsEmpty()));
    EXPECT_THAT(run_on_nodes([&](Job& job, Rank& rank) {
                  job.accelerator.load_state(kFolder);
                  const float loss = job.step(1);
                  if (rank.index() == 0) found.push_back(loss);
                }),
                Each(IsEmpty()));
    EXPECT_EQ(found, expected);
    const bool has_all = layout.parallelism->dp_replicate_size == 2;
    EXPECT_THAT(files_in(*disks[1], "pytorch_model_fsdp_0"),
                ElementsAre("metadata.json", "replicated.safetensors", "shard_00002.safetensors",
                            "shard_00003.safetensors"));
    // A node that lacks other nodes' shards says so where its ranks need them.
    std::swap(disks[0], disks[1]);
    const Errors errors =
        run_on_nodes([&](Job& job, Rank&) { job.accelerator.load_state(kFolder); });
    if (has_all) {
      EXPECT_THAT(errors, Each(IsEmpty()));
    } else {
      EXPECT_THAT(errors, Each(HasSubstr("written to the disk of another node")));
    }
  }
}

// ---- The costs of a save and a load.

TEST(ShardedCheckpoint, OnlyRankZerosHostHasTheWholeModel) {
  constexpr int64_t kTensor = 256 * 256 * 4, kTensors = 8;
  Cluster("1x4:h100", {.disk = std::make_shared<SimDisk>()}).run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{
                                 .fsdp_version = 1,
                                 .state_dict_type = StateDictType::kFullStateDict,
                                 .state_dict_config = FullStateDictConfig{.offload_to_cpu = true,
                                                                          .rank0_only = true}}});
    nn::Sequential net;
    for (int i = 0; i < kTensors; ++i) {
      net->push_back(nn::Linear(nn::LinearOptions(256, 256).bias(false)));
    }
    auto adam = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.02);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(torch::ones({1, 256}, accelerator.device())).sum());
    optimizer.step();
    optimizer.zero_grad();
    const auto gauge = std::make_shared<HostGauge>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, gauge);
    accelerator.save_state(kFolder);
    if (rank.index() == 0) {
      EXPECT_GE(gauge->peak, 3 * kTensors * kTensor);
    } else {
      EXPECT_LE(gauge->peak, kTensor);
    }
  });
}

TEST(ShardedCheckpoint, ARankReadsItsRowsAndNoOthers) {
  constexpr int64_t kRows = 64, kRow = 1024 * 4;
  auto disk = std::make_shared<SimDisk>();
  const auto prepare = [](Accelerator& accelerator) {
    return accelerator.prepare(nn::Linear(nn::LinearOptions(1024, 64).bias(false)));
  };
  const Layout four = shards("1x4", 4), two = shards("1x2", 2);
  run(four, disk, [&](Rank&) {
    Accelerator accelerator(options_of(four));
    const auto model = prepare(accelerator);
    accelerator.save_state(kFolder);
  });
  EXPECT_THAT(
      run(two, disk,
          [&](Rank& rank) {
            Accelerator accelerator(options_of(two));
            const auto model = prepare(accelerator);
            CountedFiles files(accelerator.runtime().files());
            const CheckpointReader reader(
                files, kFolder, internal::value_or_throw(check_checkpoint(files, kFolder)));
            files.bytes.clear();
            StoredTensors stored = reader.open_divided("pytorch_model_fsdp_0");
            stored.read(
                parts_of_model(stored, *model, ShardPlaces({internal::Access::to(model)}), {})
                    .parts);
            int64_t bytes = 0, opened = 0;
            for (const auto& [path, read] : files.bytes) {
              if (!path.ends_with(".safetensors")) continue;
              ++opened;
              bytes += read;
              EXPECT_EQ(path.find(rank.index() == 0 ? "_00003" : "_00000"), std::string::npos);
            }
            // This rank's half of the rows is in two of the four files.
            EXPECT_EQ(opened, 2);
            EXPECT_GE(bytes, kRows / 2 * kRow);
            EXPECT_LE(bytes, kRows / 2 * kRow + 2 * 1024);
          }),
      Each(IsEmpty()));
}

TEST(ShardedCheckpoint, ASaveTakesAsManyCollectivesOnAnyNumberOfRanks) {
  // That many operations rank 0 takes part in, and their bytes.
  const auto costs_of = [](const std::string& shape, bool saves) {
    Cluster cluster(shape, {.record = true, .disk = std::make_shared<SimDisk>()});
    const Layout layout = shards(shape, cluster.world_size());
    cluster.run_on_every_rank([&](Rank&) {
      Accelerator accelerator(options_of(layout));
      nn::Linear net(4, 64);
      auto model = accelerator.prepare(net);
      if (saves) accelerator.save_state(kFolder);
    });
    std::pair<int64_t, int64_t> costs;
    for (const simulator::TraceOperation& operation : cluster.trace().operations) {
      if (std::ranges::count(operation.ranks, 0) == 0) continue;
      ++costs.first;
      costs.second += operation.bytes;
    }
    return costs;
  };
  std::vector<int64_t> collectives;
  for (const char* shape : {"1x2:h100", "1x8:h100", "4x8:h100"}) {
    const auto [without, bytes_without] = costs_of(shape, false);
    const auto [with, bytes_with] = costs_of(shape, true);
    collectives.push_back(with - without);
    std::cout << shape << ": " << with - without << " collectives a rank, "
              << bytes_with - bytes_without << " bytes\n";
  }
  EXPECT_THAT(collectives, Each(collectives.front()));
}

}  // namespace
}  // namespace accelerate
