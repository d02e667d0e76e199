// Checkpoints of a model whose layers ranks along tp divide: whole tensors under plain names, the
// same bits under another layout, and a training that goes on as if it had not been stopped.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/files/formats/merge_weights.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/platform/file_system.h"
#include "integration_tests/layouts/placed_parts.h"
#include "integration_tests/tensor/dropping_model.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using torch::Tensor;

constexpr char kFolder[] = "/sim/run/saved";
constexpr char kModel[] = "pytorch_model_fsdp_0";
constexpr StateDictType kTypes[] = {StateDictType::kShardedStateDict,
                                    StateDictType::kFullStateDict};
constexpr int kSteps = 5;

struct Layout {
  std::string name;
  std::string cluster;
  std::optional<ParallelismOptions> sizes = std::nullopt;
  DroppingOptions options = {};
  int zero_stage = 0;  ///< 0: without ZeRO
};

Layout one_rank() { return {"one rank", "1x1:h100"}; }
Layout replicas() {
  return {"dp_replicate 2", "1x2:h100", ParallelismOptions{.dp_replicate_size = 2}};
}
Layout tp(int ranks) {
  return {absl::StrCat("tp ", ranks), absl::StrCat("1x", ranks, ":h100"),
          ParallelismOptions{.tp_size = ranks}};
}
Layout tp_and_shards() {
  return {"tp 2 x dp_shard 2", "1x4:h100", ParallelismOptions{.dp_shard_size = 2, .tp_size = 2}};
}
Layout tp_and_replicas() {
  return {"tp 2 x dp_replicate 2", "1x4:h100",
          ParallelismOptions{.dp_replicate_size = 2, .tp_size = 2}};
}
Layout tp_and_zero(int stage) {
  Layout layout = tp_and_replicas();
  layout.name = absl::StrCat("tp 2 x ZeRO ", stage, " on 2");
  layout.zero_stage = stage;
  return layout;
}
// Each rank has the only shard of its parts.
Layout tp_and_zero_of_one(int stage) {
  Layout layout = tp(2);
  layout.name = absl::StrCat("tp 2 x ZeRO ", stage, " on 1");
  layout.zero_stage = stage;
  return layout;
}
Layout tp_and_both() {
  return {"tp 2 x dp_shard 2 x dp_replicate 2", "2x4:h100",
          ParallelismOptions{.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2}};
}
Layout tp_of_four_and_shards() {
  return {"tp 4 x dp_shard 2", "1x8:h100", ParallelismOptions{.dp_shard_size = 2, .tp_size = 4}};
}
// Where these are fewer than the ranks along tp, neighbours have the same ones.
Layout with_keys(Layout layout, int64_t heads) {
  absl::StrAppend(&layout.name, ", ", heads, " heads of keys");
  layout.options.key_heads = heads;
  return layout;
}
Layout with_sequence_shards(Layout layout) {
  layout.name += ", sequence shards";
  layout.options.sequence_shards = true;
  return layout;
}

AcceleratorOptions options_of(const Layout& layout) {
  AcceleratorOptions options;
  if (layout.zero_stage > 0) {
    const nlohmann::ordered_json config = {
        {"train_micro_batch_size_per_gpu", 2},
        {"gradient_accumulation_steps", 1},
        {"zero_allow_untested_optimizer", true},
        {"zero_optimization",
         {{"stage", layout.zero_stage}, {"stage3_gather_16bit_weights_on_model_save", true}}}};
    options.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config};
  }
  return options;
}

using Body = std::function<void(DroppingJob&, Rank&)>;

// Weights and moments at the end of each thing that ranks do, one after the other.
std::vector<WholeTensors> whole_after_each(const Layout& layout,
                                           const std::shared_ptr<SimDisk>& disk,
                                           const std::vector<Body>& bodies) {
  Cluster cluster(layout.cluster, {.disk = disk});
  const auto ranks = static_cast<size_t>(cluster.world_size());
  std::vector<std::vector<PlacedParts>> parts(bodies.size(), std::vector<PlacedParts>(ranks));
  cluster.run_on_every_rank([&](Rank& rank) {
    DroppingJob job(layout.sizes, layout.options, options_of(layout));
    for (size_t i = 0; i < bodies.size(); ++i) {
      bodies[i](job, rank);
      parts[i][static_cast<size_t>(rank.index())] =
          placed_parts(job.state(), *job.adam, rank.index());
    }
  });
  std::vector<WholeTensors> all;
  for (const std::vector<PlacedParts>& each : parts) all.push_back(assembled(each));
  return all;
}

WholeTensors whole_after(const Layout& layout, const std::shared_ptr<SimDisk>& disk,
                         const Body& body) {
  return whole_after_each(layout, disk, {body}).front();
}

// ---- The model alone.

NamedTensors weights_of(const WholeTensors& all) {
  constexpr char kKind[] = "weight of ";
  NamedTensors weights;
  for (const auto& [name, tensor] : all) {
    if (name.starts_with(kKind)) weights.emplace_back(name.substr(sizeof(kKind) - 1), tensor);
  }
  return weights;
}

// Whether a file has these tensors, under these names, and no others.
void expect_file(SimDisk& disk, const std::string& path, const NamedTensors& expected) {
  const NamedTensors tensors = load(disk, path).tensors;
  const std::map<std::string, Tensor> found(tensors.begin(), tensors.end());
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(found.at(name).equal(tensor)) << name;
  }
}

TEST(CheckpointAlongTp, HasTheModelInWholeTensorsUnderPlainNames) {
  constexpr char kWeights[] = "/sim/run/weights";
  for (const Layout& layout : {tp(2), tp(4), tp_and_shards(), tp_and_replicas(), tp_and_zero(3),
                               with_keys(tp(4), 2), with_keys(tp_and_shards(), 1)}) {
    SCOPED_TRACE(layout.name);
    const auto disk = std::make_shared<SimDisk>();
    const WholeTensors all = whole_after(layout, disk, [&](DroppingJob& job, Rank&) {
      job.train(0);
      job.accelerator.save_model(*job.model, kWeights);
    });
    const NamedTensors weights = weights_of(all);
    const DroppingImpl whole(layout.options);
    ASSERT_EQ(weights.size(), whole.named_parameters().size());
    for (const auto& [name, tensor] : weights) {
      EXPECT_EQ(tensor.sizes(), whole.named_parameters()[name].sizes()) << name;
    }
    expect_file(*disk, join_path(kWeights, "model.safetensors"), weights);
    // And a program without tp reads them.
    Cluster("1x1", {.disk = disk}).run_on_every_rank([&](Rank& rank) {
      DroppingImpl read(layout.options);
      load_checkpoint_in_model(rank.runtime().files(), read, kWeights, {});
      for (const auto& [name, tensor] : weights) {
        EXPECT_TRUE(read.named_parameters()[name].equal(tensor)) << name;
      }
    });
  }
}

// ---- Under another layout.

std::string folder_of(StateDictType type) {
  return absl::StrCat(kFolder, type == StateDictType::kFullStateDict ? "_whole" : "_in_boxes");
}

// A layout's checkpoints, of both types, and what is in them.
struct Saved {
  std::shared_ptr<SimDisk> disk = std::make_shared<SimDisk>();
  WholeTensors all;
};

void expect_files(const Saved& saved) {
  for (const StateDictType type : kTypes) {
    std::string folder = folder_of(type);
    const std::string model = join_path(folder, kModel);
    if (exists(*saved.disk, join_path(model, kShardedMetadataFile)).value_or(false)) {
      EXPECT_EQ(type, StateDictType::kShardedStateDict);
      folder = "/sim/run/merged";
      ASSERT_TRUE(merge_weights(*saved.disk, model, folder).ok());
    }
    expect_file(*saved.disk, join_path(folder, "model.safetensors"), weights_of(saved.all));
  }
}

// Made and looked at once for each layout.
const Saved& saved_under(const Layout& layout) {
  static std::map<std::string, Saved>& known = *new std::map<std::string, Saved>;
  const auto [entry, is_new] = known.try_emplace(layout.name);
  Saved& saved = entry->second;
  if (!is_new) return saved;
  saved.all = whole_after(layout, saved.disk, [](DroppingJob& job, Rank&) {
    for (int step = 0; step < 2; ++step) job.train(step);
    for (const StateDictType type : kTypes) {
      job.accelerator.save_state(folder_of(type), {.state_dict_type = type});
    }
  });
  EXPECT_TRUE(saved.all.contains("square of blocks.1.gate_up.weight"));
  EXPECT_EQ(saved.all.contains("square of blocks.1.keys.weight"), layout.options.key_heads > 0);
  expect_files(saved);
  return saved;
}

void expect_moves(const Layout& a, const Layout& b) {
  SCOPED_TRACE(absl::StrCat(a.name, " to ", b.name));
  const Saved& saved = saved_under(a);
  std::vector<Body> loads;
  for (const StateDictType type : kTypes) {
    loads.emplace_back([type](DroppingJob& job, Rank&) {
      // The job has trained otherwise before it loads.
      job.train(7);
      job.accelerator.load_state(folder_of(type));
    });
  }
  const std::vector<WholeTensors> loaded = whole_after_each(b, saved.disk, loads);
  for (size_t i = 0; i < loaded.size(); ++i) {
    SCOPED_TRACE(kTypes[i] == StateDictType::kFullStateDict ? "whole" : "in boxes");
    expect_equal(loaded[i], saved.all);
  }
}

TEST(CheckpointAlongTp, LoadsUnderAnyOtherLayoutBitByBit) {
  const std::vector<std::pair<Layout, Layout>> pairs = {{tp(2), tp(4)},
                                                        {tp(4), with_sequence_shards(tp(2))},
                                                        {tp(2), replicas()},
                                                        {one_rank(), tp(2)},
                                                        {tp(2), one_rank()},
                                                        {tp_and_shards(), tp(4)},
                                                        {tp(4), tp_and_replicas()},
                                                        {tp_and_replicas(), tp_and_shards()},
                                                        {tp(2), tp_and_zero(3)},
                                                        {tp_and_zero(2), tp_and_shards()},
                                                        {tp_and_zero(3), tp_and_zero_of_one(2)},
                                                        {tp_and_zero_of_one(3), tp(4)}};
  for (const auto& [a, b] : pairs) expect_moves(a, b);
}

// Neighbours along tp have the same heads of keys, or have none in common, or there is one rank.
TEST(CheckpointAlongTp, LoadsWhereOtherRanksShareHeadsOfKeys) {
  const std::vector<std::pair<Layout, Layout>> of_two = {
      {tp(4), tp(2)},
      {tp(2), tp(4)},
      {with_sequence_shards(tp(4)), one_rank()},
      {one_rank(), tp(4)},
      {tp_of_four_and_shards(), tp_and_shards()}};
  for (const auto& [a, b] : of_two) expect_moves(with_keys(a, 2), with_keys(b, 2));
  const std::vector<std::pair<Layout, Layout>> of_one = {{tp_and_both(), tp(4)},
                                                         {tp(2), tp_and_both()},
                                                         {tp_and_zero(3), tp_and_replicas()},
                                                         {tp_and_shards(), tp_and_zero(2)}};
  for (const auto& [a, b] : of_one) expect_moves(with_keys(a, 1), with_keys(b, 1));
}

// Dropout is that of one device, which is the same under every layout.
TEST(CheckpointAlongTp, GoesOnUnderAnotherTpAsOneDeviceDoes) {
  const DroppingOptions as_one{.draws_as_one_device = true, .adam = false};
  const auto losses_of = [&](const Layout& layout, const std::shared_ptr<SimDisk>& disk, int first,
                             int last) {
    Cluster cluster(layout.cluster, {.disk = disk});
    cluster.run_on_every_rank([&](Rank& rank) {
      DroppingJob job(layout.sizes, as_one);
      set_seed(first == 0 ? 7 : 8);
      if (first > 0) job.accelerator.load_state(kFolder);
      std::vector<Tensor> losses;
      for (int step = first; step < last; ++step) losses.push_back(job.train(step).cpu());
      if (last < kSteps) job.accelerator.save_state(kFolder);
      rank.report("losses", torch::stack(losses));
    });
    return cluster.reports("losses").front();
  };
  const Tensor all = losses_of(one_rank(), nullptr, 0, kSteps);
  for (const auto& [a, b] : {std::pair(tp(2), tp(4)), std::pair(one_rank(), tp(2)),
                             std::pair(tp(4), tp(2)), std::pair(tp(2), one_rank())}) {
    SCOPED_TRACE(absl::StrCat(a.name, " to ", b.name));
    const auto disk = std::make_shared<SimDisk>();
    constexpr int kStop = 3;
    EXPECT_TRUE(torch::allclose(losses_of(a, disk, 0, kStop), all.slice(0, 0, kStop), 1e-6, 0));
    EXPECT_TRUE(torch::allclose(losses_of(b, disk, kStop, kSteps), all.slice(0, kStop), 1e-6, 0));
  }
}

// ---- In the middle of a training.

// Losses by rank, of the steps from `first` on.
struct Trained {
  std::vector<Tensor> losses, next_numbers;
  WholeTensors all;
};

std::string folder_behind(int steps) { return absl::StrCat(kFolder, "_", steps); }

// To the end, from the checkpoint behind `first` steps on. With `saves` the job makes one behind
// each step.
Trained trained(const Layout& layout, const std::shared_ptr<SimDisk>& disk, int first, bool saves) {
  std::vector<Tensor> losses(8), numbers(8);
  Trained found;
  found.all = whole_after(layout, disk, [&](DroppingJob& job, Rank& rank) {
    set_seed(first == 0 ? 7 : 8, {.device_specific = true});
    if (first > 0) job.accelerator.load_state(folder_behind(first));
    std::vector<Tensor> own;
    for (int step = first; step < kSteps; ++step) {
      own.push_back(job.train(step).cpu());
      if (saves && step + 1 < kSteps) job.accelerator.save_state(folder_behind(step + 1));
    }
    const auto index = static_cast<size_t>(rank.index());
    losses[index] = torch::stack(own);
    numbers[index] = torch::rand({4}, job.accelerator.device()).cpu();
  });
  found.losses = std::move(losses);
  found.next_numbers = std::move(numbers);
  return found;
}

// What a job computes from the checkpoint behind so many steps on.
void expect_goes_on(const Trained& rest, const Trained& all, int steps) {
  expect_equal(rest.all, all.all);
  for (size_t rank = 0; rank < all.losses.size(); ++rank) {
    if (!all.losses[rank].defined()) continue;
    EXPECT_TRUE(rest.losses[rank].equal(all.losses[rank].slice(0, steps))) << rank;
    EXPECT_TRUE(rest.next_numbers[rank].equal(all.next_numbers[rank])) << rank;
  }
}

TEST(CheckpointAlongTp, IsNotNoticedByATrainingThatGoesOn) {
  Layout recomputed = with_sequence_shards(tp(2));
  recomputed.options.recomputes = true;
  for (const Layout& layout :
       {tp(2), recomputed, tp(4), tp_and_shards(), tp_and_replicas(), tp_and_zero(2),
        with_keys(tp(4), 2), with_keys(tp_and_shards(), 1)}) {
    const Trained all = trained(layout, nullptr, 0, /*saves=*/false);
    const auto disk = std::make_shared<SimDisk>();
    expect_goes_on(trained(layout, disk, 0, /*saves=*/true), all, 0);
    for (int stop = 1; stop < kSteps; ++stop) {
      SCOPED_TRACE(absl::StrCat(layout.name, " after ", stop, " steps"));
      expect_goes_on(trained(layout, disk, stop, /*saves=*/false), all, stop);
    }
  }
}

}  // namespace
}  // namespace accelerate
