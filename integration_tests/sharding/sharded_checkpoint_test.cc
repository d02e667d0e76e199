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

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/checksum.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/checkpoint/formats/manifest.h"
#include "accelerate/checkpoint/formats/merge_weights.h"
#include "accelerate/checkpoint/formats/sharded_metadata.h"
#include "accelerate/checkpoint/objects/module_state_dict.h"
#include "accelerate/checkpoint/tensor_files/safetensors.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/config/parallelism_config.h"
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

constexpr char kFolder[] = "/sim/run/saved";

// Odd numbers of rows, a parameter with fewer rows than ranks, one without dims, tied weights, a
// frozen one, and buffers.
struct NetImpl : nn::Module {
  NetImpl() {
    embedding = register_module("embedding", nn::Embedding(11, 6));
    body = register_module("body", nn::Linear(6, 7));
    back = register_module("back", nn::Linear(7, 6));
    gain = register_parameter("gain", torch::tensor(0.9f));
    few = register_parameter("few", torch::full({2, 6}, 0.3f));
    frozen = register_parameter("frozen", torch::full({5}, 0.1f), /*requires_grad=*/false);
    head = register_parameter("head", embedding->weight);
    steps = register_buffer("steps", torch::zeros({}));
  }
  Tensor forward(const Tensor& x) {
    steps.add_(1);
    const Tensor hidden = back(torch::tanh(body(embedding(x)))) * gain + few.sum(0) + frozen[0];
    return torch::linear(hidden, head);
  }
  nn::Embedding embedding{nullptr};
  nn::Linear body{nullptr}, back{nullptr};
  Tensor gain, few, frozen, head, steps;
};
TORCH_MODULE(Net);

struct Layout {
  std::string name;
  std::string shape;
  std::optional<ParallelismOptions> parallelism = std::nullopt;
};

Layout replicas(const std::string& shape) { return {absl::StrCat("DDP ", shape), shape}; }
Layout shards(const std::string& shape, int ranks, int replicas = 1) {
  return {absl::StrCat(replicas == 1 ? "FULL_SHARD " : "HYBRID_SHARD ", shape), shape,
          ParallelismOptions{.dp_replicate_size = replicas, .dp_shard_size = ranks}};
}

AcceleratorOptions options_of(const Layout& layout) {
  AcceleratorOptions options;
  if (layout.parallelism) options.parallelism_config = ParallelismConfig(*layout.parallelism);
  return options;
}

// One rank's part of a small job.
struct Job {
  explicit Job(const Layout& layout, uint64_t seed = 3) : accelerator(options_of(layout)) {
    torch::manual_seed(seed);
    net = Net();
    auto adam = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.02);
    auto [prepared, optimized] = accelerator.prepare(net, adam);
    model.emplace(prepared);
    optimizer.emplace(optimized);
  }

  // The mean loss over all samples, which ranks have divided.
  float step(int number) {
    constexpr int64_t kSamples = 24;
    const int64_t own = kSamples / accelerator.num_processes();
    const Tensor all = (torch::arange(kSamples) * 5 + number * 3) % 11;
    const Tensor x = all.narrow(0, own * accelerator.process_index(), own).to(accelerator.device());
    const Tensor loss = torch::cross_entropy_loss((*model)(x), (x + 1) % 11);
    accelerator.backward(loss);
    optimizer->step();
    optimizer->zero_grad();
    return accelerator.reduce(loss.detach(), Reduction::kMean).item<float>();
  }

  Accelerator accelerator;
  Net net{nullptr};
  std::optional<PreparedModel<NetImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

using Errors = std::vector<std::string>;

Errors run(const Layout& layout, std::shared_ptr<SimDisk> disk,
           const std::function<void(Rank&)>& body, std::vector<FileFault> faults = {}) {
  Cluster cluster(layout.shape, {.disk = std::move(disk), .file_faults = std::move(faults)});
  Errors errors(cluster.world_size());
  cluster.run_on_every_rank(
      [&](Rank& rank) { errors[rank.index()] = error_of([&] { body(rank); }); });
  return errors;
}

constexpr int kSteps = 3;

// Saves after some steps and returns the losses of the next two.
std::vector<float> save(const Layout& layout, const std::shared_ptr<SimDisk>& disk,
                        const SaveStateOptions& options = {}) {
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
  const std::vector<std::pair<Layout, Layout>> pairs = {
      {ddp4, full4},   {full4, ddp4},    {full4, full2},   {full2, full3},
      {full3, full8},  {full4, hybrid4}, {hybrid4, full4}, {hybrid8, full3},
      {hybrid4, ddp2}, {full8, alone},   {ddp2, hybrid8},  {alone, full4}};
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

std::vector<std::string> files_in(SimDisk& disk, const std::string& folder) {
  auto names = disk.list(join_path(kFolder, folder));
  return names.ok() ? *names : std::vector<std::string>();
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
    bytes += shard.box().numel();
  }
  EXPECT_EQ(bytes, 11 * 6);
}

std::string contents(SimDisk& disk, const std::string& path) {
  const auto text = read_file(disk, path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
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
                    }),
                Each(IsEmpty()));
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
                    EXPECT_EQ(place->shape, (std::vector<int64_t>{11, 6}));
                    EXPECT_EQ(place->rows, (ShardRows{rank.index() * 6, tensor.size(0)}));
                    rows = tensor.size(0);
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

// Replaces a file of the checkpoint, with the manifest's knowledge of it.
void replace(SimDisk& disk, const std::string& name, const std::string& text) {
  ASSERT_TRUE(write_file(disk, join_path(kFolder, name), text).ok());
  const std::string path = join_path(kFolder, kManifestName);
  auto manifest = parse_manifest(contents(disk, path));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ManifestFile& entry = manifest->files.at(name);
  entry.size = static_cast<int64_t>(text.size());
  entry.crc32c = internal::crc32c(text);
  ASSERT_TRUE(write_file(disk, path, manifest_text(*manifest)).ok());
}

// What load_state says on each rank after the metadata was changed.
Errors errors_with(const std::function<void(ShardedMetadata&)>& change) {
  auto disk = std::make_shared<SimDisk>();
  save(shards("1x4", 4), disk);
  const std::string name = "pytorch_model_fsdp_0/metadata.json";
  auto metadata = parse_sharded_metadata(contents(*disk, join_path(kFolder, name)));
  EXPECT_TRUE(metadata.ok()) << metadata.status();
  change(*metadata);
  replace(*disk, name, sharded_metadata_text(*metadata));
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

// ---- The costs of a save.

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
