// Checkpoints of models that ranks share by shards: saved under one layout they load under any
// other, and what is wrong with one is said in a line.
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

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/checkpoint/formats/merge_weights.h"
#include "accelerate/checkpoint/formats/sharded_metadata.h"
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
    head = register_module("head", nn::Linear(nn::LinearOptions(6, 11).bias(false)));
    head->weight = head->register_parameter("weight", embedding->weight);
    steps = register_buffer("steps", torch::zeros({}));
  }
  Tensor forward(const Tensor& x) {
    steps.add_(1);
    const Tensor hidden = back(torch::tanh(body(embedding(x)))) * gain + few.sum(0) + frozen[0];
    return head(hidden);
  }
  nn::Embedding embedding{nullptr};
  nn::Linear body{nullptr}, back{nullptr}, head{nullptr};
  Tensor gain, few, frozen, steps;
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
  const Layout full8 = shards("2x4", 8), hybrid4 = shards("2x2", 2, 2), hybrid8 = shards("2x4", 4, 2);
  const std::vector<std::pair<Layout, Layout>> pairs = {
      {ddp4, full4},   {full4, ddp4},   {full4, full2},   {full2, full3},   {full3, full8},
      {full4, hybrid4}, {hybrid4, full4}, {hybrid8, full3}, {hybrid4, ddp2}, {full8, alone},
      {ddp2, hybrid8}, {alone, full4}};
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
  EXPECT_THAT(files_in(*disk, "pytorch_model_fsdp_0"),
              ElementsAre("metadata.json", "replicated.safetensors", "shard_00000.safetensors",
                          "shard_00001.safetensors", "shard_00002.safetensors",
                          "shard_00003.safetensors"));
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
  EXPECT_THAT(shapes, ElementsAre("body.bias 1", "body.weight 1", "embedding.weight 2"));
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
  for (const TensorShard& shard : shards_of(*metadata, "embedding.weight")) {
    bytes += shard.box().numel();
  }
  EXPECT_EQ(bytes, 11 * 6);
}

}  // namespace
}  // namespace accelerate
