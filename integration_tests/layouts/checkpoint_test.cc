// Checkpoints of models of which ranks have parts: saved under one layout, they load under any
// other, bit for bit, and what is wrong with one is said with the boxes.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/accumulate.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/files/formats/merge_weights.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/fsdp_utils.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/checkpoint/replace_file.h"
#include "integration_tests/layouts/cut_by_hand.h"
#include "integration_tests/layouts/placed_parts.h"
#include "integration_tests/layouts/weighted_sum.h"
#include "integration_tests/mesh/arranged_ranks.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using enum MeshAxis;
using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using torch::Tensor;
using Parts = PlacedParts;
using Tensors = WholeTensors;

constexpr char kFolder[] = "/sim/run/saved";
constexpr char kModel[] = "/sim/run/saved/pytorch_model_fsdp_0";

const std::vector<std::pair<std::string, std::vector<int64_t>>> kShapes = {
    {"norm", {6}},    {"up", {8, 6}},     {"down", {6, 8}},
    {"qkv", {12, 6}}, {"tokens", {5, 6}}, {"gain", {}}};

// No two elements are closer than 1/8.
Tensor numbers(const std::string& name, at::IntArrayRef shape) {
  return torch::arange(1, c10::multiply_integers(shape) + 1)
      .to(torch::kFloat)
      .div(8)
      .add(static_cast<int64_t>(name.size()))
      .reshape(shape);
}

std::vector<TensorPlacement> whole() {
  std::vector<TensorPlacement> all;
  for (const auto& [name, shape] : kShapes) all.push_back({.name = name, .shape = shape});
  all.push_back({.name = "frozen", .shape = {7}});
  return all;
}

// The matrices in rows, and in columns.
std::vector<TensorPlacement> cut_along(int dim) {
  std::vector<TensorPlacement> all = whole();
  for (TensorPlacement& each : all) {
    if (each.shape.size() == 2) each.cuts = {{.axis = kTp, .dim = dim}};
  }
  return all;
}
std::vector<TensorPlacement> rows() { return cut_along(0); }
std::vector<TensorPlacement> columns() { return cut_along(1); }

std::vector<TensorPlacement> fused() {
  std::vector<TensorPlacement> all = rows();
  all[1].cuts = {{.axis = kTp, .dim = 0, .blocks = {6, 2}}};
  all[2].cuts = {{.axis = kTp, .dim = 1, .blocks = {4, 4}}};
  all[3].cuts = {{.axis = kTp, .dim = 0, .blocks = {5, 3, 4}}};  // not evenly
  return all;
}

// Parts of the same sizes as rows() has.
std::vector<TensorPlacement> halves() {
  std::vector<TensorPlacement> all = rows();
  all[1].cuts = {{.axis = kTp, .dim = 0, .blocks = {4, 4}}};
  return all;
}

struct Layout {
  std::string name;
  std::string cluster;
  std::optional<ParallelismOptions> sizes = std::nullopt;
  std::vector<TensorPlacement> (*cuts)() = nullptr;  ///< along tp; null: nothing is cut
  int zero_stage = 0;                                ///< 0: without ZeRO
  int micro_steps = 1;                               ///< of an accumulation window
  bool sync_each_batch = false;                      ///< of that window
};

Layout replicas(int ranks) {
  return {absl::StrCat(ranks, " replicas"), absl::StrCat("1x", ranks, ":h100")};
}
Layout shards(int ranks) {
  return {absl::StrCat("dp_shard ", ranks), absl::StrCat("1x", ranks, ":h100"),
          ParallelismOptions{.dp_shard_size = ranks}};
}
Layout zero(int stage, int ranks) {
  return {.name = absl::StrCat("ZeRO ", stage, " on ", ranks),
          .cluster = absl::StrCat("1x", ranks, ":h100"),
          .zero_stage = stage};
}
Layout hybrid() {
  return {"dp_replicate 2 x dp_shard 2", "1x4:h100",
          ParallelismOptions{.dp_replicate_size = 2, .dp_shard_size = 2}};
}
Layout tp_rows() { return {"tp 2, rows", "1x2:h100", ParallelismOptions{.tp_size = 2}, &rows}; }
Layout tp_columns() {
  return {"tp 2, columns", "1x2:h100", ParallelismOptions{.tp_size = 2}, &columns};
}
Layout tp_fused() {
  return {"tp 2, fused blocks", "1x2:h100", ParallelismOptions{.tp_size = 2}, &fused};
}
Layout tp_and_shards() {
  return {"tp 2 x dp_shard 2", "1x4:h100", ParallelismOptions{.dp_shard_size = 2, .tp_size = 2},
          &fused};
}
Layout tp_and_replicas() {
  return {"tp 2 x dp_replicate 2", "1x4:h100",
          ParallelismOptions{.dp_replicate_size = 2, .tp_size = 2}, &columns};
}

AcceleratorOptions options_of(const Layout& layout) {
  AcceleratorOptions options;
  if (layout.micro_steps > 1) {
    options.gradient_accumulation_plugin = GradientAccumulationPlugin{
        .num_steps = layout.micro_steps, .sync_each_batch = layout.sync_each_batch};
  }
  if (layout.zero_stage > 0) {
    const nlohmann::ordered_json config = {{"train_micro_batch_size_per_gpu", 1},
                                           {"gradient_accumulation_steps", 1},
                                           {"zero_allow_untested_optimizer", true},
                                           {"zero_optimization", {{"stage", layout.zero_stage}}}};
    options.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config};
  }
  if (!layout.sizes) return options;
  options.parallelism_config = ParallelismConfig(*layout.sizes);
  return arranged(std::move(options));
}

std::shared_ptr<WeightedSumImpl> made_sum(double factor, std::vector<TensorPlacement> placements) {
  auto sum = std::make_shared<WeightedSumImpl>(std::move(placements));
  for (const auto& [name, shape] : kShapes) {
    sum->add(name, numbers(name, shape) * factor, numbers(name, shape) - 4);
  }
  sum->register_parameter("frozen", numbers("frozen", {7}) * factor, /*requires_grad=*/false);
  sum->register_buffer("table", numbers("table", {3}) * factor);
  return sum;
}

// One rank's part of a training.
struct Job {
  // `factor`: of the parameters and the buffer at the beginning.
  Job(const Layout& layout, double factor) : accelerator(options_of(layout)) {
    cut_modules_by_hand();
    module =
        made_sum(factor, layout.cuts != nullptr ? layout.cuts() : std::vector<TensorPlacement>());
    adam = std::make_shared<torch::optim::AdamW>(module->parameters(),
                                                 torch::optim::AdamWOptions(0.01));
    auto [prepared, handle] = accelerator.prepare(module, adam);
    state = internal::Access::to(prepared);
    model.emplace(prepared);
    optimizer.emplace(handle);
  }

  void train() {
    const int share = accelerator.state().data_share().index;
    for (int i = 1; i <= 2; ++i) {
      const Tensor input = torch::full({}, i + share, torch::kFloat);
      accelerator.backward((*model)(input.to(accelerator.device())));
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  Accelerator accelerator;
  std::shared_ptr<WeightedSumImpl> module;
  std::shared_ptr<torch::optim::AdamW> adam;
  std::shared_ptr<ModelState> state;
  std::optional<PreparedModel<WeightedSumImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

// The parts of all ranks at the end of what they do.
std::vector<Parts> parts_after(const Layout& layout, const std::shared_ptr<SimDisk>& disk,
                               double factor, const std::function<void(Job&)>& body) {
  Cluster cluster(layout.cluster, {.disk = disk});
  std::vector<Parts> parts(static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    Job job(layout, factor);
    body(job);
    parts[static_cast<size_t>(rank.index())] = placed_parts(*job.state, *job.adam, rank.index());
  });
  return parts;
}

Tensors saved_under(const Layout& layout, const std::shared_ptr<SimDisk>& disk,
                    StateDictType type = StateDictType::kShardedStateDict) {
  Tensors all = assembled(parts_after(layout, disk, 1, [type](Job& job) {
    job.train();
    job.accelerator.save_state(kFolder, {.state_dict_type = type});
  }));
  // Two steps are shorter than the way from one element to the next.
  for (const auto& [name, shape] : kShapes) {
    EXPECT_TRUE(torch::allclose(all["weight of " + name], numbers(name, shape), 0, 0.05)) << name;
    EXPECT_TRUE(all.contains("square of " + name)) << name;
  }
  return all;
}

Tensors loaded_under(const Layout& layout, const std::shared_ptr<SimDisk>& disk) {
  return assembled(parts_after(layout, disk, -1, [](Job& job) {
    job.accelerator.load_state(kFolder);
    const Tensor table = job.module->named_buffers()["table"].cpu();
    EXPECT_TRUE(torch::equal(table, numbers("table", {3})));
  }));
}

// Whether a file of whole tensors has the weights.
void expect_weights(SimDisk& disk, const std::string& path, const Tensors& all) {
  size_t weights = 0;
  for (const auto& [name, tensor] : load(disk, path).tensors) {
    const auto found = all.find("weight of " + name);
    if (found == all.end()) continue;
    EXPECT_TRUE(torch::equal(tensor, found->second)) << name;
    ++weights;
  }
  EXPECT_EQ(weights, kShapes.size() + 1);
}

// Saves under `a`, looks into the file of the whole model, and loads under `b`.
void expect_moves(const Layout& a, const Layout& b) {
  for (const auto type : {StateDictType::kShardedStateDict, StateDictType::kFullStateDict}) {
    SCOPED_TRACE(absl::StrCat(a.name, " to ", b.name,
                              type == StateDictType::kFullStateDict ? ", whole" : ", in boxes"));
    const auto disk = std::make_shared<SimDisk>();
    const Tensors saved = saved_under(a, disk, type);
    std::string folder = kFolder;
    if (exists(*disk, join_path(kModel, kShardedMetadataFile)).value_or(false)) {
      EXPECT_EQ(type, StateDictType::kShardedStateDict);
      folder = "/sim/run/merged";
      ASSERT_TRUE(merge_weights(*disk, kModel, folder).ok());
    }
    expect_weights(*disk, join_path(folder, "model.safetensors"), saved);
    expect_equal(loaded_under(b, disk), saved);
  }
}

TEST(CheckpointOfParts, LoadsUnderAnyOtherCut) {
  const std::vector<std::pair<Layout, Layout>> pairs = {
      {replicas(1), tp_rows()},        {tp_rows(), tp_columns()},
      {tp_columns(), tp_and_shards()}, {tp_and_shards(), tp_and_replicas()},
      {tp_and_replicas(), tp_fused()}, {tp_fused(), shards(4)},
      {shards(4), tp_and_shards()},    {tp_and_shards(), replicas(1)},
      {tp_fused(), tp_fused()}};
  for (const auto& [a, b] : pairs) expect_moves(a, b);
}

TEST(CheckpointOfParts, LoadsUnderAnyOtherDivisionOfRows) {
  const std::vector<std::pair<Layout, Layout>> pairs = {
      {replicas(2), shards(4)}, {shards(4), replicas(2)},  {shards(2), shards(4)},
      {shards(4), shards(2)},   {shards(4), hybrid()},     {hybrid(), shards(2)},
      {hybrid(), replicas(4)},  {replicas(4), zero(1, 4)}, {zero(1, 4), shards(4)},
      {shards(4), zero(3, 2)},  {zero(3, 2), zero(2, 4)},  {zero(2, 4), replicas(1)}};
  for (const auto& [a, b] : pairs) expect_moves(a, b);
}

// ---- What is written.

std::string contents(SimDisk& disk, const std::string& path) {
  const auto text = read_file(disk, path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

ShardedMetadata metadata_of(SimDisk& disk) {
  const auto metadata =
      parse_sharded_metadata(contents(disk, join_path(kModel, kShardedMetadataFile)));
  EXPECT_TRUE(metadata.ok()) << metadata.status();
  return metadata.value_or(ShardedMetadata());
}

TEST(CheckpointOfParts, RanksWithEqualBoxesDivideTheirRows) {
  const auto disk = std::make_shared<SimDisk>();
  saved_under(tp_and_replicas(), disk);
  const ShardedMetadata metadata = metadata_of(*disk);
  std::vector<std::string> texts;
  for (const TensorShard& shard : metadata.tensors.at("up").shards) {
    texts.push_back(absl::StrCat(shard.file, ": ", shard.key, box_text(shard.box)));
  }
  EXPECT_THAT(texts, ElementsAre("shard_00000.safetensors: up[0:4, 0:3]",
                                 "shard_00002.safetensors: up[4:8, 0:3]",
                                 "shard_00001.safetensors: up[0:4, 3:6]",
                                 "shard_00003.safetensors: up[4:8, 3:6]"));
  // What nothing cuts is described by its rows.
  EXPECT_TRUE(metadata.tensors.at("norm").by_rows);
  EXPECT_THAT(metadata.writers,
              ElementsAre(ElementsAre("shard_00000.safetensors", "shard_00001.safetensors",
                                      "shard_00002.safetensors", "shard_00003.safetensors")));
}

TEST(CheckpointOfParts, ARanksFileNamesEachOfItsBoxesOfATensor) {
  const auto disk = std::make_shared<SimDisk>();
  saved_under(tp_fused(), disk);
  const auto file = SafetensorsFile::open(*disk, join_path(kModel, "shard_00001.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file->header().tensors) names.push_back(entry.name);
  EXPECT_THAT(names, IsSupersetOf({"qkv[3:5, 0:6]", "qkv[7:8, 0:6]", "qkv[10:12, 0:6]",
                                   "down[0:6, 2:4]", "down[0:6, 6:8]", "tokens"}));
}

TEST(CheckpointOfParts, StateDictsHavePlainTensors) {
  const auto disk = std::make_shared<SimDisk>();
  constexpr char kWeights[] = "/sim/run/weights";
  NamedTensors state;
  const Tensors all = assembled(parts_after(tp_and_shards(), disk, 1, [&](Job& job) {
    job.train();
    NamedTensors gathered = job.accelerator.get_state_dict(*job.model);
    job.accelerator.save_model(*job.model, kWeights);
    EXPECT_EQ(gathered.empty(), !job.accelerator.is_main_process());
    if (job.accelerator.is_main_process()) state = std::move(gathered);
  }));
  EXPECT_EQ(state.size(), kShapes.size() + 2);
  for (const auto& [name, tensor] : state) {
    if (name == "table") continue;
    EXPECT_TRUE(torch::equal(tensor, all.at("weight of " + name))) << name;
  }
  expect_weights(*disk, join_path(kWeights, "model.safetensors"), all);
}

// What puts rows together, and nothing else, says so.
TEST(WholeParametersOfParts, AreRefusedByName) {
  for (const Layout& layout : {tp_rows(), tp_and_shards()}) {
    SCOPED_TRACE(layout.name);
    Cluster(layout.cluster).run_on_every_rank([&layout](Rank& rank) {
      Job job(layout, 1);
      const auto parameters = job.module->named_parameters();
      const auto expect_refused = [&](const std::string& what, const auto& call) {
        EXPECT_THAT(value_error_of(call),
                    HasSubstr(absl::StrCat(what, ": parameter \"up\" is cut along tp, and rank ",
                                           rank.index(), " has a part of it")));
      };
      expect_refused("full_parameters", [&] { (void)full_parameters(*job.model); });
      expect_refused("GatheredParameters",
                     [&] { const GatheredParameters up(*job.model, {parameters["up"]}); });
      const GatheredParameters norm(*job.model, {parameters["norm"]});
      EXPECT_TRUE(torch::equal(parameters["norm"].cpu(), numbers("norm", {6})));
    });
  }
}

// Each rank takes its boxes of what rank 0 has.
TEST(WholeParametersOfParts, LoadFromAFullStateDict) {
  for (const Layout& layout :
       {tp_rows(), tp_columns(), tp_fused(), tp_and_shards(), tp_and_replicas()}) {
    SCOPED_TRACE(layout.name);
    const auto values = [](const std::string& name, at::IntArrayRef shape) {
      return numbers(name, shape) * 3;
    };
    const Tensors all =
        assembled(parts_after(layout, std::make_shared<SimDisk>(), 1, [&](Job& job) {
          NamedTensors full;
          if (job.accelerator.is_main_process()) {
            for (const auto& [name, shape] : kShapes) full.emplace_back(name, values(name, shape));
            full.emplace_back("frozen", values("frozen", {7}));
            full.emplace_back("table", values("table", {3}));
          }
          fsdp2_load_full_state_dict(job.accelerator, *job.model, full);
          EXPECT_TRUE(
              torch::equal(job.module->named_buffers()["table"].cpu(), values("table", {3})));
          // A part is not the whole.
          if (job.accelerator.is_main_process()) full[1].second = values("up", {4, 6});
          EXPECT_THAT(
              value_error_of(
                  [&] { fsdp2_load_full_state_dict(job.accelerator, *job.model, full); }),
              HasSubstr("'up' has the sizes [4, 6] in the full state dict, and [8, 6] in the "
                        "model"));
        }));
    for (const auto& [name, shape] : kShapes) {
      EXPECT_TRUE(torch::equal(all.at("weight of " + name), values(name, shape))) << name;
    }
    EXPECT_TRUE(torch::equal(all.at("weight of frozen"), values("frozen", {7})));
  }
}

// ---- What is wrong with a checkpoint.

std::vector<std::string> errors_of_loading(const Layout& layout,
                                           const std::shared_ptr<SimDisk>& disk) {
  Cluster cluster(layout.cluster, {.disk = disk});
  std::vector<std::string> errors(static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    Job job(layout, -1);
    try {
      job.accelerator.load_state(kFolder);
    } catch (const c10::Error& error) {
      errors[static_cast<size_t>(rank.index())] = error.what_without_backtrace();
    }
  });
  return errors;
}

std::vector<std::string> errors_with(const Layout& a, const Layout& b,
                                     const std::function<void(ShardedMetadata&)>& change) {
  const auto disk = std::make_shared<SimDisk>();
  saved_under(a, disk);
  ShardedMetadata metadata = metadata_of(*disk);
  change(metadata);
  replace_file(*disk, kFolder, "pytorch_model_fsdp_0/metadata.json",
               sharded_metadata_text(metadata));
  return errors_of_loading(b, disk);
}

TEST(CheckpointOfParts, BoxesThatOverlapOrLeaveAHoleAreNamed) {
  EXPECT_THAT(errors_with(tp_columns(), tp_rows(),
                          [](ShardedMetadata& m) { m.tensors.at("up").shards.pop_back(); }),
              Each(AllOf(HasSubstr("the shards of \"up\" leave a hole"),
                         HasSubstr("no box has [0:8, 3:6]"))));
  EXPECT_THAT(
      errors_with(tp_columns(), tp_rows(),
                  [](ShardedMetadata& m) { m.tensors.at("up").shards.at(1).box.offsets = {0, 2}; }),
      Each(HasSubstr("the shards of \"up\" overlap: [0:8, 0:3] and [0:8, 2:5]")));
}

TEST(CheckpointOfParts, ATensorOfAPartsSizesIsNotTheWholeOne) {
  EXPECT_THAT(errors_with(shards(2), tp_rows(),
                          [](ShardedMetadata& m) { m.tensors.at("up").shape = {4, 6}; }),
              Each(HasSubstr("up ([4, 6] there, [8, 6] in the model)")));
}

// Which file, of which layout, and what of which tensor.
TEST(CheckpointOfParts, AMissingShardIsNamedWithWhatItHad) {
  const auto disk = std::make_shared<SimDisk>();
  saved_under(tp_and_replicas(), disk);
  const std::string path = join_path(kModel, "shard_00002.safetensors");
  ASSERT_TRUE(disk->remove(path).ok());
  EXPECT_THAT(errors_of_loading(tp_rows(), disk),
              Each(HasSubstr(absl::StrCat(
                  path,
                  " is missing; with it, of what 4 ranks saved (dp_replicate 2 x tp 2), "
                  "\"down\" [3:6, 0:4] and parts of "))));
}

// A rank's rows of a fused tensor reach into the rows of both ranks that load them.
TEST(CheckpointOfParts, DamageIsFoundInFilesThatNoRankReadsWhole) {
  const auto disk = std::make_shared<SimDisk>();
  saved_under(tp_and_shards(), disk);
  ASSERT_THAT(errors_of_loading(shards(2), disk), Each(IsEmpty()));
  const std::string path = join_path(kModel, "shard_00001.safetensors");
  const auto file = SafetensorsFile::open(*disk, path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::string text = contents(*disk, path);
  for (const SafetensorsEntry& entry : file->header().tensors) {
    if (entry.name != "up") continue;
    ASSERT_EQ(entry.shape, (std::vector<int64_t>{2, 6}));
    text.at(static_cast<size_t>(file->header().data_offset + entry.begin)) ^= 1;
  }
  ASSERT_NE(text, contents(*disk, path));
  ASSERT_TRUE(write_file(*disk, path, text).ok());
  EXPECT_THAT(errors_of_loading(shards(2), disk), Each(HasSubstr(path)));
}

TEST(CheckpointOfParts, RanksOwnPartsLoadIntoTheSameCutsOnly) {
  const auto disk = std::make_shared<SimDisk>();
  const Tensors saved = saved_under(tp_rows(), disk, StateDictType::kLocalStateDict);
  expect_equal(loaded_under(tp_rows(), disk), saved);
  Layout other = tp_rows();
  other.cuts = &halves;
  for (const Layout& layout : {other, tp_columns(), shards(2)}) {
    EXPECT_THAT(errors_of_loading(layout, disk), Each(HasSubstr("loads into the same layout only")))
        << layout.name;
  }
}

// ---- In the middle of an accumulation window.

Layout with_cuts(Layout layout, std::vector<TensorPlacement> (*cuts)()) {
  layout.cuts = cuts;
  layout.micro_steps = 2;
  return layout;
}

void save_in_window(const Layout& layout, const std::shared_ptr<SimDisk>& disk) {
  parts_after(layout, disk, 1, [](Job& job) {
    {
      const auto scope = job.accelerator.accumulate(*job.model);
      job.accelerator.backward((*job.model)(torch::ones({}).to(job.accelerator.device())));
    }
    job.accelerator.save_state(kFolder);
  });
}

// What is trained, in boxes, with its gradients in place of its values; without those that there
// are not.
std::vector<Parts> gradients_after_loading(const Layout& layout,
                                           const std::shared_ptr<SimDisk>& disk) {
  Cluster cluster(layout.cluster, {.disk = disk});
  std::vector<Parts> parts(static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    Job job(layout, -1);
    job.accelerator.load_state(kFolder);
    for (const TrainedParameter& each : job.state->trained()) {
      // A shard has the gradient of its whole parameter until a step is synchronised.
      const Tensor& gradient =
          each.trained.grad().defined() ? each.trained.grad() : each.parameter.grad();
      if (!gradient.defined()) continue;
      parts[static_cast<size_t>(rank.index())].push_back(
          {each.name, each.placement->shape, {}, gradient.cpu()});
    }
  });
  return parts;
}

TEST(CheckpointOfParts, GradientsOfAWindowLoadIntoTheSameCutsOnly) {
  for (const Layout& layout : {tp_rows(), tp_and_shards()}) {
    SCOPED_TRACE(layout.name);
    const auto disk = std::make_shared<SimDisk>();
    save_in_window(with_cuts(layout, &rows), disk);
    for (const Parts& parts : gradients_after_loading(with_cuts(layout, &rows), disk)) {
      EXPECT_EQ(parts.size(), kShapes.size());
    }
    // Their parts have the same sizes, but are other rows.
    for (const Parts& parts : gradients_after_loading(with_cuts(layout, &halves), disk)) {
      EXPECT_THAT(parts, IsEmpty());
    }
  }
}

// Where gradients are synchronised by then, those of shards are saved as such.
TEST(CheckpointOfParts, ReducedGradientsOfAWindowLoadIntoTheSameCutsOnly) {
  Layout same = with_cuts(tp_and_shards(), &rows), other = with_cuts(tp_and_shards(), &halves);
  same.sync_each_batch = other.sync_each_batch = true;
  const auto disk = std::make_shared<SimDisk>();
  save_in_window(same, disk);
  for (const Parts& parts : gradients_after_loading(same, disk)) {
    EXPECT_THAT(parts, Not(IsEmpty()));
  }
  for (const Parts& parts : gradients_after_loading(other, disk)) {
    EXPECT_THAT(parts, IsEmpty());
  }
}

}  // namespace
}  // namespace accelerate
